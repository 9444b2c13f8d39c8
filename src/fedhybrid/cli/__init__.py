"""The command line: parse, call, print."""

import typer

from . import federation, paper

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """FedHybrid: fit convex models over data that stays where it is."""


METHODS, FEDERATION = "Methods", "A federation of machines"

for command in (paper.demo, paper.compare, paper.reproduce):
    app.command(rich_help_panel=METHODS)(command)
app.add_typer(federation.federation, name="federation", rich_help_panel=FEDERATION)
for command in (federation.server, federation.site, federation.status, federation.result, federation.simulate):
    app.command(rich_help_panel=FEDERATION)(command)


@app.command()
def version() -> None:
    """Print the version."""
    from .. import __version__

    typer.echo(__version__)
