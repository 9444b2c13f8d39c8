"""What a stock site is told to call."""

import time


def backwards(question: bytes) -> bytes:
    return question[::-1]


def slowly(question: bytes) -> bytes:
    time.sleep(4.0)
    return question[::-1]
