"""The command line: parse, call, print."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """FedHybrid: fit convex models over data that stays where it is."""


def _console() -> Any:
    from rich.console import Console

    return Console()


def _folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{out}: {error.strerror}", param_hint="--out") from None
    return out


def _workers() -> int:
    """A process for each core, and one alone with a GPU."""
    import jax

    return min(4, os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """A caller's mistake is a sentence and exit status 2, not a traceback."""
    from .status import FedHybridError, InvalidConfig, InvalidData

    try:
        yield
    except FedHybridError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, InvalidConfig | InvalidData) else 1) from None


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Folder for the picture and the table of all rounds.")] = Path("demo")) -> None:
    """Fit real data that eight very different sites hold, by four methods, and compare with the pooled fit.

    Example: fedhybrid demo --out demo
    """
    from .demo import demo as run_demo
    from .report.figures import draw_demo
    from .report.tables import methods_table, sites_table

    console = _console()
    _folder(out)
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
    from .experiments.reproduce import reproduce as run
    from .experiments.study import FULL, QUICK
    from .report.tables import studies_table

    with _plain_errors():
        sections = run(figures or [], QUICK if quick else FULL, _folder(out), _workers())
    for section in sections:
        _console().print(studies_table(section))
    _console().print(f"Page: {out / 'index.html'}", highlight=False, soft_wrap=True)


@app.command()
def compare(
    data: Annotated[str, typer.Option(help="A CSV or LIBSVM file, or a name: breast_cancer, diabetes, mushroom, housing, w8a, …")],
    methods: Annotated[str, typer.Option(help="Names with commas between: fedh-n, fedh-5, gd, lbfgs, disco, …; or file.py:factory.")] = (
        "fedh-g,fedh-n,gd,lbfgs"
    ),
    clients: Annotated[int, typer.Option(help="How many clients the rows are dealt to.")] = 10,
    partition: Annotated[str, typer.Option(help="How: iid, by-label, by-response, dirichlet:0.3, lognormal.")] = "iid",
    loss: Annotated[str, typer.Option(help="squared, logistic, poisson, softmax; auto: by the response.")] = "auto",
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
    from .experiments.own import Own
    from .experiments.reproduce import compare as run
    from .experiments.study import FULL, QUICK
    from .report.tables import studies_table

    with _plain_errors():
        own = Own(data, clients, partition, loss, reg, weighting, response, seed)
        names = [name.strip() for name in methods.split(",") if name.strip()]
        section = run(own, names, QUICK if quick else FULL, _folder(out), _workers())
    _console().print(studies_table(section))
    _console().print(f"Page: {out / 'index.html'}", highlight=False, soft_wrap=True)


# ── a federation ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

federation = typer.Typer(no_args_is_help=True, help="Make and keep a federation's folder: terms, keys, and a folder for every site.")
app.add_typer(federation, name="federation")


def _names(value: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (value or "").split(",") if name.strip())


def _end_with(status: int) -> None:
    if status:
        raise typer.Exit(status)


@federation.command("init")
def federation_init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    sites: Annotated[str, typer.Option(help="Names with commas between: hospital-a,hospital-b,hospital-c.")],
    response: Annotated[str, typer.Option(help="The response's column in every site's table.")],
    loss: Annotated[str, typer.Option(help="squared, logistic, poisson, huber.")],
    features: Annotated[str | None, typer.Option(help="The other columns, with commas between.")] = None,
    like: Annotated[Path | None, typer.Option(help="Or a table with the same header, of which all columns are taken.")] = None,
    reg: Annotated[float, typer.Option(help="Penalty ½·reg·‖x‖².")] = 0.01,
    method: Annotated[str, typer.Option(help="krylov, fedhybrid, lbfgs, …")] = "krylov",
    host: Annotated[str, typer.Option(help="Where sites find the server, as name:port.")] = "127.0.0.1:9092",
    plain: Annotated[
        bool, typer.Option("--insecure-plain-sums", "--no-secure", help="The server sees every site's numbers, not only sums.")
    ] = False,
) -> None:
    """Make a federation: what is agreed (federation.toml), the server's keys, and for every site a folder to be carried to it.

    Example: fedhybrid federation init fl --sites a,b,c --response outcome --loss logistic --like table.csv --host fl.example.org:9443
    """
    from .federation import folder as folders
    from .status import InvalidConfig

    with _plain_errors():
        if (features is None) == (like is None):
            raise InvalidConfig("Give the columns either by --features or by --like.")
        columns = _names(features) if like is None else folders.features_of(like, response)
        terms = folders.init(folder, folders.Plan(_names(sites), response, loss, columns, reg, method, host, not plain))
    say = typer.echo
    say(f"{folder}: a federation of {terms.n} sites, with {len(columns)} columns.\n")
    say(f"1. Read {folder / folders.TERMS_FILE}. After a change: fedhybrid federation share {folder}")
    say("2. Carry each site its folder, by a way that nobody else can read, and delete it here:")
    for name in terms.names:
        say(f"     {folder / name}")
    say("   There, with the table beside it: fedhybrid site FOLDER --data table.csv")
    say(f"3. Here: fedhybrid server {folder}")


@federation.command("share")
def federation_share(folder: Annotated[Path, typer.Argument(help="The federation's folder.")]) -> None:
    """After a change of federation.toml: check it, and put it into the sites' folders here. Carry it to the sites again."""
    from .federation import folder as folders

    with _plain_errors():
        folders.need_flower()
        terms = folders.share(folder)
    typer.echo(f"The terms are in order (SHA-256 {terms.digest()[:16]}…). Carry {folders.TERMS_FILE} to {', '.join(terms.names)}.")


@federation.command("rotate")
def federation_rotate(
    folder: Annotated[Path, typer.Argument(help="The federation's folder.")], name: Annotated[str, typer.Argument(help="The site.")]
) -> None:
    """A new key pair for a site. Its old one is refused from the server's next start on; the terms change by it."""
    from .federation import folder as folders

    with _plain_errors():
        place = folders.rotate(folder, name)
    typer.echo(f"Carry {place} to the site, and federation.toml, which has the new public key, to all. Put away {folder / folders.RUN}.")


@federation.command("revoke")
def federation_revoke(
    folder: Annotated[Path, typer.Argument(help="The federation's folder.")], name: Annotated[str, typer.Argument(help="The site.")]
) -> None:
    """Take a site's key away: it is refused from the server's next start on."""
    from .federation import folder as folders

    with _plain_errors():
        folders.need_flower()
        from .federation import keys

        keys.revoke_site(folder, name)
    typer.echo(f"{name} is no longer let in, once the server has been started again. For a run without it: take its line out of [sites] in")
    typer.echo(f"{folder / folders.TERMS_FILE}, run fedhybrid federation share {folder}, and put away {folder / folders.RUN}.")


@federation.command("renew")
def federation_renew(
    folder: Annotated[Path, typer.Argument(help="The federation's folder.")],
    host: Annotated[str | None, typer.Option(help="Further names or addresses of the server, with commas between.")] = None,
) -> None:
    """A new certificate for the server, from the same authority: sites need nothing new."""
    from .federation import folder as folders

    with _plain_errors():
        folders.need_flower()
        from .federation import keys
        from .federation.connection import host_of

        keys.renew_server(folder, (host_of(folders.terms_of(folder).address), *_names(host)))
    typer.echo(f"{folder / 'server.crt'} is new. Start the server again.")


@app.command()
def server(
    folder: Annotated[Path, typer.Argument(help="The folder that fedhybrid federation init made.")],
    host: Annotated[
        str | None, typer.Option(help="The address to listen on. Default: this machine alone, if the terms say so, else 0.0.0.0.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Default: the one in the terms.", min=1, max=65535)] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS, on this machine alone; for trying things out.")] = False,
    absent: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the federation to its end. Killed or stopped, the same command goes on.

    What is done when a site is away stands in federation.toml, in its section rounds, for all have agreed on it.

    Example: fedhybrid server fl
    """
    from .federation import commands
    from .status import InvalidConfig

    with _plain_errors():
        if absent is not None:
            raise InvalidConfig(f"--absent: all sites have agreed on it, so it stands in {folder / 'federation.toml'} ([rounds] absent).")
        _end_with(commands.server(folder, host, port, insecure, _console()))


@app.command()
def site(
    folder: Annotated[Path, typer.Argument(help="The folder that was made for this site.")] = Path("."),
    name: Annotated[str | None, typer.Option(help="The site, where FOLDER is the whole federation's.")] = None,
    data: Annotated[Path | None, typer.Option(help="The table. Default: what site.toml says.")] = None,
    update: Annotated[str | None, typer.Option(help="newton, newton-cg, diagonal, gradient. Default: what site.toml says.")] = None,
    engine: Annotated[str, typer.Option(help="direct; stock: an ordinary SuperNode, slower, which runs what the server ships.")] = "direct",
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS, to a server on this machine.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when a run has ended and its answer is here.")] = False,
) -> None:
    """Take part with the rows of this site, until it is ended. Rows stay here, and so do the rules in site.toml.

    Example: fedhybrid site hospital-a --data a.csv
    """
    from .federation.attend import attend

    with _plain_errors():
        _end_with(attend(folder, name, data, update, engine, insecure, once))


@app.command()
def status(folder: Annotated[Path, typer.Argument(help="The federation's folder.")]) -> None:
    """How far a run is: the round, who answered when, who is late, strikes."""
    from .federation import commands

    with _plain_errors():
        _end_with(commands.status(folder, _console()))


@app.command()
def result(
    folder: Annotated[Path, typer.Argument(help="The federation's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs, in full precision.")] = False,
) -> None:
    """The answer of a run: coefficients, proved error, notes, privacy."""
    from .federation import commands

    with _plain_errors():
        _end_with(commands.result(folder, as_json, _console()))


@app.command()
def simulate(
    terms: Annotated[Path, typer.Argument(help="A federation.toml, or the folder it is in.")],
    data: Annotated[list[str] | None, typer.Option(help="A site's table, as hospital-a=a.csv; for every site.")] = None,
) -> None:
    """The same federation in one process: the same messages and the same answer, without a network.

    Example: fedhybrid simulate fl/federation.toml --data hospital-a=a.csv --data hospital-b=b.csv --data hospital-c=c.csv
    """
    from .federation import commands
    from .status import InvalidConfig

    with _plain_errors():
        tables = {}
        for each in data or []:
            name, equals, path = each.partition("=")
            if not equals or not path:
                raise InvalidConfig(f"--data {each}: give a site and its table, as hospital-a=a.csv.")
            tables[name] = Path(path)
        _end_with(commands.simulate(terms, tables, _console()))


@app.command()
def version() -> None:
    """Print the version."""
    from . import __version__

    typer.echo(__version__)
