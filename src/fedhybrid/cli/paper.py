"""Commands about methods: a first look, the paper's figures, a comparison on one's own data."""

import os
from pathlib import Path
from typing import Annotated

import typer

from .plain import console, folder_of, plain_errors


def _workers() -> int:
    """A process for each core, and one alone with a GPU."""
    import jax

    return min(4, os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1


def demo(out: Annotated[Path, typer.Option(help="Folder for the picture and the table of all rounds.")] = Path("demo")) -> None:
    """Fit real data that eight very different sites hold, by four methods, and compare with the pooled fit.

    Example: fedhybrid demo --out demo
    """
    from ..demo import demo as run_demo
    from ..report.figures import draw_demo
    from ..report.tables import methods_table, sites_table

    terminal = console()
    folder_of(out)
    with terminal.status("Fitting breast cancer data held by eight sites, by four methods …"):
        done = run_demo()
        draw_demo(done, out / "demo.png")
        done.to_csv(out / "demo.csv")
    terminal.print(sites_table(done))
    terminal.print(methods_table(done))
    terminal.print(
        "No row left its site: each round a site sends one vector, and the server uses only the mean.\n"
        "Where fewer sites do Newton work more rounds are needed; the answer is the same, and it is proved."
    )
    terminal.print(f"Picture: {out / 'demo.png'}\nRounds:  {out / 'demo.csv'}", highlight=False, soft_wrap=True)


def reproduce(
    figures: Annotated[list[str] | None, typer.Argument(help="fig1a … fig4d, local, all, table; none: all of them.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A coarse search and short runs: minutes instead of most of an hour.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for pictures, tables and the page. What is there is not computed again.")] = Path(
        "reproduced"
    ),
) -> None:
    """Make the paper's figures from data to picture, every method with the best of its own search.

    Example: fedhybrid reproduce fig2a --quick --out reproduced
    """
    from ..experiments.reproduce import reproduce as run
    from ..experiments.study import FULL, QUICK
    from ..report.tables import studies_table

    with plain_errors():
        sections = run(figures or [], QUICK if quick else FULL, folder_of(out), _workers())
    for section in sections:
        console().print(studies_table(section))
    console().print(f"Page: {out / 'index.html'}", highlight=False, soft_wrap=True)


def compare(
    data: Annotated[str, typer.Option(help="A CSV or LIBSVM file, or a name: breast_cancer, diabetes, mushroom, housing, w8a, …")],
    methods: Annotated[
        str, typer.Option(help="Names with commas between: krylov, fedh-n, fedh-5, gd, lbfgs, disco, …; or file.py:factory.")
    ] = ("krylov,fedh-g,fedh-n,gd,lbfgs"),
    clients: Annotated[int, typer.Option(help="How many clients the rows are dealt to.")] = 10,
    partition: Annotated[str, typer.Option(help="How: iid, by-label, by-response, dirichlet:0.3, lognormal.")] = "iid",
    loss: Annotated[str, typer.Option(help="squared, logistic, poisson, huber, softmax; auto: by the response.")] = "auto",
    reg: Annotated[float, typer.Option(help="Penalty ½·reg·‖x‖².")] = 0.01,
    weighting: Annotated[str, typer.Option(help="row: the pooled fit. client: every client counts the same.")] = "row",
    response: Annotated[str | None, typer.Option(help="The response's column in a CSV file; default: the last.")] = None,
    seed: Annotated[int, typer.Option(help="Of the partition and of the choice of Newton clients.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A coarse search and short runs.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for pictures, tables and the page.")] = Path("compared"),
) -> None:
    """Tune methods on your own data and compare them on one footing: rounds, floats and flops to the same accuracy.

    Rows are dealt to clients here, on this machine, to find out what a federation would do; partition.png shows how. Columns are
    standardised (sparse ones are not), and an intercept is added that is not penalised. --quick searches a dozen settings a method:
    good for a first look, too coarse for a verdict.

    Example: fedhybrid compare --data breast_cancer --methods fedh-n,fedh-4,gd,lbfgs --clients 8 --partition by-label --quick
    """
    from ..experiments.own import Own
    from ..experiments.reproduce import compare as run
    from ..experiments.study import FULL, QUICK
    from ..report.tables import studies_table

    with plain_errors():
        own = Own(data, clients, partition, loss, reg, weighting, response, seed)
        names = [name.strip() for name in methods.split(",") if name.strip()]
        section = run(own, names, QUICK if quick else FULL, folder_of(out), _workers())
    console().print(studies_table(section))
    console().print(f"Page: {out / 'index.html'}", highlight=False, soft_wrap=True)
