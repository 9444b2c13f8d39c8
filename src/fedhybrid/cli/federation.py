"""Commands of a federation: its folder, the server, a site, and what they say."""

from pathlib import Path
from typing import Annotated

import typer

from .plain import console, end_with, plain_errors

federation = typer.Typer(no_args_is_help=True, help="Make and keep a federation's folder: terms, keys, and a folder for every site.")


def _names(value: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (value or "").split(",") if name.strip())


@federation.command("init")
def federation_init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    sites: Annotated[str, typer.Option(help="Names with commas between: hospital-a,hospital-b,hospital-c.")],
    response: Annotated[str, typer.Option(help="The response's column in every site's table.")],
    loss: Annotated[str, typer.Option(help="squared, logistic, poisson, huber, softmax.")],
    features: Annotated[str | None, typer.Option(help="The other columns, with commas between.")] = None,
    like: Annotated[Path | None, typer.Option(help="Or a table with the same header, of which all columns are taken.")] = None,
    classes: Annotated[str | None, typer.Option(help="For softmax, the response's values, with commas between: 0,1,2.")] = None,
    reg: Annotated[float, typer.Option(help="Penalty ½·reg·‖x‖².")] = 0.01,
    method: Annotated[str, typer.Option(help="krylov, fedhybrid, lbfgs, …")] = "krylov",
    host: Annotated[str, typer.Option(help="Where sites find the server, as name:port.")] = "127.0.0.1:9092",
    plain: Annotated[
        bool, typer.Option("--insecure-plain-sums", "--no-secure", help="The server sees every site's numbers, not only sums.")
    ] = False,
) -> None:
    """Make a federation: what is agreed (federation.toml), the server's keys, and for every site a folder to be carried to it.

    Example: fedhybrid federation init fl --sites hospital-a,hospital-b,hospital-c --response outcome --loss logistic --like a.csv
    """
    from ..federation import folder as folders
    from ..status import InvalidConfig

    with plain_errors():
        if (features is None) == (like is None):
            raise InvalidConfig("Give the columns either by --features or by --like.")
        columns = _names(features) if like is None else folders.features_of(like, response)
        labels = None if classes is None else folders.labels_of(classes)
        terms = folders.init(folder, folders.Plan(_names(sites), response, loss, columns, reg, method, host, not plain, labels))
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
    """After a change of federation.toml: check it, and put it into the sites' folders here. Carry it to the sites again.

    Example: fedhybrid federation share fl
    """
    from ..federation import folder as folders

    with plain_errors():
        folders.need_flower()
        terms = folders.share(folder)
    typer.echo(f"The terms are in order (SHA-256 {terms.digest()[:16]}…). Carry {folders.TERMS_FILE} to {', '.join(terms.names)}.")


@federation.command("rotate")
def federation_rotate(
    folder: Annotated[Path, typer.Argument(help="The federation's folder.")], name: Annotated[str, typer.Argument(help="The site.")]
) -> None:
    """A new key pair for a site. Its old one is refused from the server's next start on; the terms change by it.

    Example: fedhybrid federation rotate fl hospital-a
    """
    from ..federation import folder as folders

    with plain_errors():
        place = folders.rotate(folder, name)
    typer.echo(f"Carry {place} to the site, and federation.toml, which has the new public key, to all. Put away {folder / folders.RUN}.")


@federation.command("revoke")
def federation_revoke(
    folder: Annotated[Path, typer.Argument(help="The federation's folder.")], name: Annotated[str, typer.Argument(help="The site.")]
) -> None:
    """Take a site's key away: it is refused from the server's next start on.

    Example: fedhybrid federation revoke fl hospital-c
    """
    from ..federation import folder as folders

    with plain_errors():
        folders.need_flower()
        from ..federation import keys

        keys.revoke_site(folder, name)
    typer.echo(f"{name} is no longer let in, once the server has been started again. For a run without it: take its line out of [sites] in")
    typer.echo(f"{folder / folders.TERMS_FILE}, run fedhybrid federation share {folder}, and put away {folder / folders.RUN}.")


@federation.command("renew")
def federation_renew(
    folder: Annotated[Path, typer.Argument(help="The federation's folder.")],
    host: Annotated[str | None, typer.Option(help="Further names or addresses of the server, with commas between.")] = None,
) -> None:
    """A new certificate for the server, from the same authority: sites need nothing new.

    Example: fedhybrid federation renew fl --host fl.example.org
    """
    from ..federation import folder as folders

    with plain_errors():
        folders.need_flower()
        from ..federation import keys
        from ..federation.schema import host_of

        keys.renew_server(folder, (host_of(folders.terms_of(folder).address), *_names(host)))
    typer.echo(f"{folder / 'server.crt'} is new. Start the server again.")


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
    from ..federation import commands
    from ..status import InvalidConfig

    with plain_errors():
        if absent is not None:
            raise InvalidConfig(f"--absent: all sites have agreed on it, so it stands in {folder / 'federation.toml'} ([rounds] absent).")
        end_with(commands.server(folder, host, port, insecure, console()))


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
    from ..federation.attend import attend

    with plain_errors():
        end_with(attend(folder, name, data, update, engine, insecure, once))


def status(folder: Annotated[Path, typer.Argument(help="The federation's folder.")]) -> None:
    """How far a run is: the round, who answered when, who is late, strikes.

    Example: fedhybrid status fl
    """
    from ..federation import commands

    with plain_errors():
        end_with(commands.status(folder, console()))


def result(
    folder: Annotated[Path, typer.Argument(help="The federation's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs, in full precision.")] = False,
) -> None:
    """The answer of a run: coefficients, proved error, notes, privacy.

    Example: fedhybrid result fl --json
    """
    from ..federation import commands

    with plain_errors():
        end_with(commands.result(folder, as_json, console()))


def simulate(
    terms: Annotated[Path, typer.Argument(help="A federation.toml, or the folder it is in.")],
    data: Annotated[list[str] | None, typer.Option(help="A site's table, as hospital-a=a.csv; for every site.")] = None,
) -> None:
    """The same federation in one process: the same messages and the same answer, without a network.

    Example: fedhybrid simulate fl/federation.toml --data hospital-a=a.csv --data hospital-b=b.csv --data hospital-c=c.csv
    """
    from ..federation import commands
    from ..status import InvalidConfig

    with plain_errors():
        tables = {}
        for each in data or []:
            name, equals, path = each.partition("=")
            if not equals or not path:
                raise InvalidConfig(f"--data {each}: give a site and its table, as hospital-a=a.csv.")
            tables[name] = Path(path)
        end_with(commands.simulate(terms, tables, console()))
