"""The command line: parse, call, print."""

from collections.abc import Callable
from typing import Annotated

import typer

from . import federation, paper, statistics

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _say_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def main(
    asked: Annotated[bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """FedHybrid: fit convex models over data that stays where it is."""


MODELS, METHODS, FEDERATION = "Models", "Methods", "A federation of machines"

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    MODELS: (statistics.fit, statistics.verify, statistics.predict),
    METHODS: (paper.demo, paper.compare, paper.reproduce),
    FEDERATION: (federation.server, federation.site, federation.status, federation.result, federation.simulate),
}

for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(federation.federation, name="federation", rich_help_panel=FEDERATION)


@app.command()
def version() -> None:
    """Print the version.

    Example: fedhybrid version
    """
    from .. import __version__

    typer.echo(__version__)
