"""The command line: parse, call, print."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """FedHybrid: fit convex models over data that stays where it is."""


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Folder for the picture and the table of all rounds.")] = Path("demo")) -> None:
    """Fit real data that eight very different sites hold, by four methods, and compare with the pooled fit.

    Example: fedhybrid demo --out demo
    """
    from rich.console import Console

    from .demo import demo as run_demo
    from .report.figures import draw_demo
    from .report.tables import methods_table, sites_table

    console = Console()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{out}: {error.strerror}", param_hint="--out") from None
    with console.status("Fitting breast cancer data held by eight sites, by four methods …"):
        done = run_demo()
        draw_demo(done, out / "demo.png")
        done.to_csv(out / "demo.csv")
    console.print(sites_table(done))
    console.print(methods_table(done))
    console.print(
        "No row left its site: each round a site sends one vector, and the server uses only the mean.\n"
        "Where fewer sites do Newton work more rounds are needed; the answer is the same, and it is proved."
    )
    console.print(f"Picture: {out / 'demo.png'}\nRounds:  {out / 'demo.csv'}", highlight=False, soft_wrap=True)


@app.command()
def version() -> None:
    """Print the version."""
    from . import __version__

    typer.echo(__version__)
