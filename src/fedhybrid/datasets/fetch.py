"""Raw files: from the folder that FEDHYBRID_DATA names, from the user's cache, or downloaded into it; never used unchecked."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..status import InvalidConfig, InvalidData

FOLDER = "FEDHYBRID_DATA"
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"


class Source(NamedTuple):
    address: str
    sha256: str


SOURCES = {
    "agaricus-lepiota.data": Source(
        UCI + "mushroom/agaricus-lepiota.data", "e65d082030501a3ebcbcd7c9f7c71aa9d28fdfff463bf4cf4716a3fe13ac360e"
    ),
    "housing.data": Source(UCI + "housing/housing.data", "4a8425d42eb99b76feb7ee7cf0fb1d897a6cd19b72c437e4855d767cabb7e24e"),
    "w8a.libsvm": Source(LIBSVM + "w8a", "5745d77182ae41c3f489f05e6874b6490842556ec8a0184e70ff4670ca71d9bb"),
    "phishing.libsvm": Source(LIBSVM + "phishing", "0cf66ef36604c393da9359b2e5d894a2df8aee31fd184633cefa138add2ef08a"),
}


def raw(name: str) -> bytes:
    """A raw file's content, after its checksum was found right."""
    given = os.environ.get(FOLDER)
    if given:
        folder = Path(given).expanduser()
        if not folder.is_dir():
            raise InvalidConfig(f"{FOLDER} names {folder}, which is not a folder.")
        if (folder / name).exists():
            content = _read(folder / name)
            if not _is_right(name, content):
                raise InvalidData(f"{folder / name} is not the file that is meant: its sha256 differs.{_help(name)}")
            return content
    kept = cache() / name
    if kept.exists() and _is_right(name, content := _read(kept)):
        return content
    content = _read(_download(name))
    if not _is_right(name, content):
        raise InvalidData(f"{kept} changed after it was downloaded.{_help(name)}")
    return content


def cache() -> Path:
    """The user's cache folder."""
    import pooch

    return Path(pooch.os_cache("fedhybrid"))


def _is_right(name: str, content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == SOURCES[name].sha256


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidData(f"{path} could not be read: {error.strerror}.") from error


def _help(name: str) -> str:
    address, sha256 = SOURCES[name]
    return (
        f"\nThe file:   {address}\nIts sha256: {sha256}\n"
        f"Save it as {name} in a folder that the environment variable {FOLDER} names, or as {cache() / name}."
    )


def _download(name: str) -> Path:
    """Into the cache; a download that fails or has another checksum leaves nothing there."""
    import pooch

    address, sha256 = SOURCES[name]
    try:
        with _bar(name) as bar:
            downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=2**16)
            return Path(pooch.retrieve(address, f"sha256:{sha256}", fname=name, path=cache(), downloader=downloader))
    except OSError as error:  # no network, no such page, cut short, or a cache that cannot be written
        raise InvalidData(f"{name} is not on this machine and could not be downloaded ({type(error).__name__}).{_help(name)}") from error
    except ValueError as error:  # pooch's word for a wrong checksum
        raise InvalidData(f"{name}: what was downloaded has another sha256, and was thrown away.{_help(name)}") from error


class Bar:
    """What pooch wants of a progress bar, drawn by rich."""

    def __init__(self, progress: Any, task: Any) -> None:
        self.progress, self.task, self.total = progress, task, 0

    def update(self, count: int) -> None:
        self.progress.update(self.task, advance=count, total=self.total or None)

    def reset(self) -> None:
        self.progress.reset(self.task)

    def close(self) -> None:
        self.progress.refresh()


@contextmanager
def _bar(name: str) -> Iterator[Bar]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn(name), BarColumn(bar_width=20), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield Bar(progress, progress.add_task(name, total=None))
