"""What a stock site is told to call."""


def backwards(question: bytes) -> bytes:
    return question[::-1]
