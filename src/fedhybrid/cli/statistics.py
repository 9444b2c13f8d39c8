"""Commands for people with tables: fit a model, verify it against one pooled table, predict by it."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .plain import console, end_with, folder_of, plain_errors

RESULT, COEFFICIENTS, REPORT = "result.json", "coefficients.csv", "report.html"


def _names(value: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (value or "").split(",") if name.strip())


def _updates(update: str, newton: str | None, sites: tuple[str, ...]) -> Any:
    """One for all; or newton for those that are named, and gradient for the others."""
    from ..status import InvalidConfig

    if newton is None:
        return update
    chosen = _names(newton)
    if unknown := [name for name in chosen if name not in sites]:
        raise InvalidConfig(f"--newton: there is no site {', '.join(unknown)}; sites are {', '.join(sites)}, called as their files.")
    return {site: "newton" if site in chosen else "gradient" for site in sites}


def _pairs(option: str, value: str | None) -> dict[str, str]:
    from ..status import InvalidConfig

    pairs = {}
    for each in _names(value):
        name, equals, level = each.partition("=")
        if not (name and equals and level):
            raise InvalidConfig(f"{option} {each}: give a column and a level, as sex=female.")
        pairs[name.strip()] = level.strip()
    return pairs


def fit(
    files: Annotated[list[Path], typer.Argument(help="CSV or Parquet, one file for every site; a site is called as its file.")],
    formula: Annotated[str, typer.Option(help="Such as 'death ~ age + C(sex) + bmi'. Text columns are factors.")],
    family: Annotated[str, typer.Option(help="gaussian, binomial, poisson, multinomial.")] = "gaussian",
    update: Annotated[str, typer.Option(help="What every site does: newton, newton-cg, diagonal, gradient, auto.")] = "newton",
    newton: Annotated[
        str | None, typer.Option(help="Or: the sites that do Newton updates, with commas; the others do gradient ones.")
    ] = None,
    reg: Annotated[float, typer.Option(help="Penalty ½·reg·‖x‖² on the mean loss; then there are no standard errors.")] = 0.0,
    weights: Annotated[str | None, typer.Option(help="The column of rows' weights.")] = None,
    counts: Annotated[bool, typer.Option("--counts", help="Weights count rows.")] = False,
    offset: Annotated[str | None, typer.Option(help="The column of offsets, such as the log of exposure.")] = None,
    reference: Annotated[str | None, typer.Option(help="Reference levels of factors: sex=female,stage=I.")] = None,
    covariance: Annotated[str, typer.Option(help="Of the coefficients: model; HC0 … HC3, robust; site, by clusters.")] = "model",
    level: Annotated[float, typer.Option(help="Of intervals.")] = 0.95,
    min_rows: Annotated[int, typer.Option(help="Counts of a site with fewer rows are not told.", min=1)] = 5,
    tol: Annotated[float, typer.Option(help="Proved: ‖x − x*‖ ≤ tol·max(1, ‖x‖), columns standardised.")] = 1e-10,
    max_rounds: Annotated[int, typer.Option(help="Rounds after which the fit is given up.", min=1)] = 10_000,
    out: Annotated[Path, typer.Option(help=f"Folder for {RESULT}, {COEFFICIENTS} and {REPORT}.")] = Path("fit"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, all else on stderr.")] = False,
) -> None:
    """Fit the model that one pooled table would give, from one file per site: coefficients, standard errors, p-values.

    Here all files are on this machine; sites on machines of their own: fedhybrid federation init. Ends with 0 where the certificate holds,
    and with a status of its own for every other ending (docs: commands).

    Example: fedhybrid fit site_*.csv --formula "death ~ age + C(sex) + bmi" --family binomial
    """
    from ..front import fit as fit_model
    from ..inference.fit import between_0_and_1
    from ..tables.read import read_tables

    with plain_errors():
        between_0_and_1(level)
        frames = read_tables(files)
        fitted = fit_model(
            frames,
            formula,
            family=family,
            update=_updates(update, newton, tuple(frames)),
            reg=reg,
            weights=weights,
            counts=counts,
            offset=offset,
            reference=_pairs("--reference", reference),
            covariance=covariance,
            min_rows=min_rows,
            tol=tol,
            max_rounds=max_rounds,
            progress=sys.stderr.isatty(),
        )
        place = folder_of(out)
        fitted.to_json(place / RESULT)
        fitted.to_csv(place / COEFFICIENTS, level)
        fitted.report(place / REPORT, level)
    if as_json:
        typer.echo(json.dumps(fitted.to_dict(), allow_nan=False, ensure_ascii=False))
    else:
        typer.echo(fitted.summary(level))
    say = console(stderr=True).print if as_json else console().print
    for what, name in (("Result", RESULT), ("Coefficients", COEFFICIENTS), ("Report", REPORT)):
        say(f"{what + ':':<14}{place / name}", highlight=False, soft_wrap=True, markup=False)
    end_with(fitted.status.exit_status)


def verify(
    result: Annotated[Path, typer.Argument(help=f"The {RESULT} of a fit.")],
    pooled: Annotated[list[Path], typer.Option(help="The pooled table; or, given again and again, tables that it consists of.")],
    tol: Annotated[float, typer.Option(help="Largest difference, relative to a coefficient or its standard error.", min=0.0)] = 1e-7,
) -> None:
    """Fit the model centrally, by other means, and compare: coefficients and standard errors. Ends with 1 if they differ by more than tol.

    Example: fedhybrid verify fit/result.json --pooled all.csv
    """
    import pandas as pd

    from ..inference.central import compare
    from ..inference.fit import Fit
    from ..inference.sums import Table
    from ..status import InvalidData
    from ..tables.read import read_table

    with plain_errors():
        given = Fit.read(result)
        if given.design is None:
            raise InvalidData(f"{result} was fitted without a formula: which column is which is not known.")
        frame = pd.concat([read_table(path) for path in pooled], ignore_index=True)
        rows = given.design.rows("the pooled table", frame)
        table = Table.with_intercept_first(rows, given.intercept)
        found = compare(given, table)
        counting = int((table.w > 0).sum())
    same = found.coefficient <= tol and not found.error > tol and counting == given.rows  # copies of a table have its coefficients
    say = console().print
    say(f"Rows           {counting:,} in the pooled table, {given.rows:,} in the fit", highlight=False)
    say(f"Coefficients   differ by {found.coefficient:.1e} at most, at {found.where}", highlight=False, markup=False)
    if found.error == found.error:
        say(f"Std errors     differ by {found.error:.1e} at most", highlight=False)
    say("The same fit." if same else f"NOT the same fit: rows must be as many, and the tolerance is {tol:g}.", highlight=False)
    end_with(0 if same else 1)


def predict(
    result: Annotated[Path, typer.Argument(help=f"The {RESULT} of a fit.")],
    data: Annotated[Path, typer.Argument(help="New rows: CSV or Parquet, with the columns of the formula.")],
    interval: Annotated[str | None, typer.Option(help="confidence: of the mean. prediction: of a response (gaussian).")] = None,
    level: Annotated[float, typer.Option(help="Of intervals.")] = 0.95,
    out: Annotated[Path | None, typer.Option(help="A CSV file. Default: stdout.")] = None,
) -> None:
    """Means of new rows by a fit, with intervals if they are asked for; a line for every row.

    Example: fedhybrid predict fit/result.json new.csv --interval confidence --out predicted.csv
    """
    import pandas as pd

    from ..inference.fit import Fit
    from ..status import InvalidData
    from ..tables.read import read_table

    with plain_errors():
        given = Fit.read(result)
        if given.design is None:
            raise InvalidData(f"{result} was fitted without a formula: which column is which is not known.")
        frame = read_table(data)
        found = given.predict(frame, interval=interval, level=level)
        if not isinstance(found, pd.DataFrame):
            names = [f"p[{label}]" for label in given.classes] if given.classes else ["mean"]
            found = pd.DataFrame(found.reshape(len(frame), len(names)), columns=names)
        text = found.to_csv(index=False)
        if out is None:
            typer.echo(text, nl=False)
            return
        try:
            out.write_text(text)
        except OSError as error:
            raise typer.BadParameter(f"{out}: {error.strerror}", param_hint="--out") from None
    console(stderr=True).print(f"{len(found):,} rows: {out}", highlight=False, soft_wrap=True)
