"""What every command does alike: a mistake is a sentence, an ending is an exit status."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer


def console(*, stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr)


def folder_of(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{out}: {error.strerror}", param_hint="--out") from None
    return out


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """A caller's mistake is a sentence and its exit status, not a traceback."""
    from ..status import FedHybridError

    try:
        yield
    except FedHybridError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(error.status.exit_status) from None


def end_with(status: int) -> None:
    if status:
        raise typer.Exit(status)
