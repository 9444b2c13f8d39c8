"""One file of bytes that is replaced as a whole, for whoever must not act on what the disk does not have yet. No copy of it is kept:
the keys of a secure sum must never come back from an older one."""

import os
from pathlib import Path

from ..status import CheckpointError


class Kept:
    """What is in the file, and how it gets there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held = b""  # what is known to be on the disk

    def load(self) -> bytes:
        """Its content; empty where there is no such file."""
        try:
            with open(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                self.held = file.read()
        except FileNotFoundError:
            self.held = b""
        except OSError as error:
            raise CheckpointError(f"{self.path} could not be read: {error.strerror}.") from error
        return self.held

    def save(self, data: bytes) -> None:
        """On the disk when this returns; if it raises, what was there still is."""
        if data == self.held:
            return
        temporary = self.path.with_suffix(".tmp")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(file, rest) :]
                os.fsync(file)
            finally:
                os.close(file)
            os.replace(temporary, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise CheckpointError(f"{self.path} could not be written: {error.strerror}. Remove the cause and start again.") from error
        self.held = data
