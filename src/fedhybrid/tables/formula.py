"""R-style formulas, `y ~ x + C(sex) + age:bmi + np.log(z) - 1`, read so that nothing in them is ever run.

A formula may come out of a file. So every expression in it is checked, node by node, against a short list (names of columns, numbers,
arithmetic, functions of one entry at a time) and is then worked out by the few lines at the end of this file; formulaic, which would
evaluate it as Python, is shown names only, and says which terms `*`, `/`, `**` and `-` make of them. A function whose value depends on the
other rows (center, scale, poly, bs, …) is refused: each site would put its own rows in, and no two columns would mean the same.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from formulaic.parser import DefaultFormulaParser
from formulaic.parser.algos.tokenize import tokenize
from formulaic.parser.types import ASTNode, Token

from ..status import InvalidConfig

FUNCTIONS = {name: getattr(np, name) for name in ["log", "log2", "log10", "log1p", "exp", "expm1", "sqrt", "abs", "sin", "cos"]}
ARITHMETIC: dict[type[ast.operator], Any] = {ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide}
STATEFUL = {"center", "scale", "standardize", "poly", "bs", "cs", "cr", "cc", "te", "lag", "diff", "rank", "mean", "std", "cut"}
LONGEST = 20_000  # characters
LONGEST_EXPRESSION = 500  # which also limits how deeply it can be nested
LARGEST_NUMBER = 1e150
MOST_TERMS = 10_000
LARGEST_POWER = 5  # (a + b + c)**5 has all interactions of up to five
ALLOWED = f"Allowed are columns, numbers, + - * / **, C(…), I(…) and {', '.join(FUNCTIONS)}, with or without np. before them."


@dataclass(frozen=True)
class Factor:
    """One factor of a term: a column as it is, C(column), or an expression of columns of numbers."""

    name: str  # as it stands in a coefficient's name
    columns: tuple[str, ...]
    expression: ast.expr | None = None  # None: the column itself
    category: bool = False  # written as C(…); a column of text is a category anyway
    reference: str | float | None = None  # of a category, where the formula says one


@dataclass(frozen=True)
class Formula:
    text: str
    response: Factor
    terms: tuple[tuple[Factor, ...], ...]  # without the intercept
    intercept: bool

    @property
    def factors(self) -> tuple[Factor, ...]:
        """Of the right-hand side, each once."""
        return tuple({factor.name: factor for term in self.terms for factor in term}.values())

    @property
    def columns(self) -> tuple[str, ...]:
        """All that the formula names, the response's first."""
        return tuple(dict.fromkeys(column for factor in (self.response, *self.factors) for column in factor.columns))


def parse(text: str) -> Formula:
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST:
        raise InvalidConfig(f"formula must be a text of 1 to {LONGEST} characters, such as 'y ~ x + C(group)'.")
    known: dict[str, Factor] = {}
    try:
        return _parse(text, known)
    except InvalidConfig:
        raise
    except Exception as error:  # formulaic's own errors are of many types, for a bracket that is not closed to a `~` too many
        deep = isinstance(error, RecursionError | MemoryError)
        reason = "it is nested too deeply." if deep else (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = re.sub(r"_\d+", lambda match: known[match[0]].name if match[0] in known else match[0], reason)
        raise InvalidConfig(f"formula {_short(text)} could not be read: {reason}") from None


def _parse(text: str, known: dict[str, Factor]) -> Formula:
    shown = _show_names_only(tokenize(text), known)
    parser = DefaultFormulaParser(feature_flags={"TWOSIDED"})
    if _most_terms(parser.get_ast(shown, context={})) > MOST_TERMS:
        raise InvalidConfig(f"formula {_short(text)} would have more than {MOST_TERMS} terms.")
    sides = parser.get_terms(shown, context={})
    if not hasattr(sides, "lhs"):
        raise InvalidConfig(f"formula {_short(text)} needs a response on the left, as in 'y ~ x'.")
    left = [[known[factor.expr] for factor in term.factors if factor.expr in known] for term in sides.lhs]
    if len(left) != 1 or len(left[0]) != 1 or left[0][0].category:
        raise InvalidConfig(f"formula {_short(text)} needs one response on the left: a column, or an expression such as np.log(y).")
    right = [tuple(known[factor.expr] for factor in term.factors if factor.expr in known) for term in sides.rhs]
    if not right or shown.endswith("~"):
        raise InvalidConfig(f"formula {_short(text)} has no term on the right.")
    return Formula(text, left[0][0], tuple(term for term in right if term), () in right)


def _show_names_only(tokens: Iterable[Token], known: dict[str, Factor]) -> str:
    """The formula with a name for every factor; `known` gets the factors by these names."""
    stands_for: dict[tuple[str, Token.Kind], str] = {}
    shown: list[str] = []
    for token in tokens:
        content, kind = token.token, token.kind
        if content == ".":
            raise InvalidConfig("formula: '.' would be whatever columns a site has; write the names of those that you mean.")
        if kind in (Token.Kind.NAME, Token.Kind.PYTHON):
            factor = Factor(content, (_column(content),)) if kind is Token.Kind.NAME else _factor(content)
            name = stands_for.setdefault((factor.name, kind), f"_{len(stands_for)}")
            known[name] = factor
            shown.append(name)
        elif kind is Token.Kind.VALUE:
            after_power = bool(shown) and shown[-1].endswith(("**", "^"))
            if content not in ({str(k) for k in range(1, LARGEST_POWER + 1)} if after_power else {"0", "1"}):
                raise InvalidConfig(
                    f"formula: {_short(content)} cannot stand by itself. 0 and 1 are the intercept, a power is at most {LARGEST_POWER}; "
                    "arithmetic goes into I(…), as in I(2 * x)."
                )
            shown.append(content)
        else:
            shown.append("%in%" if content == "in" else content)
    names = [name for name, _ in stands_for]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidConfig(f"formula: {twice} is both the name of a column and an expression; rename the column.")
    return " ".join(shown)


def _most_terms(tree: Any) -> int:
    """At most so many terms come of multiplying out."""
    nodes = [tree]
    for node in nodes:  # grows while it is walked, so that no depth is too deep
        nodes.extend(node.args if isinstance(node, ASTNode) else ())
    count: dict[int, int] = {}
    for node in reversed(nodes):
        if not isinstance(node, ASTNode):
            count[id(node)] = 1
            continue
        first, *rest = (count[id(arg)] for arg in node.args)
        second = rest[0] if rest else 0
        total = first + second
        if node.operator.symbol in ("**", "^"):
            total = first ** int(node.args[1].token)
        elif node.operator.symbol in ("*", "/", "in", ":"):
            total += first * second
        count[id(node)] = min(total, MOST_TERMS + 1)
    return count[id(tree)]


# ── one expression ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _factor(written: str) -> Factor:
    """An expression, checked; names in backticks may be anything, and stand in it as identifiers for as long as it is read."""
    if len(written) > LONGEST_EXPRESSION:
        raise InvalidConfig(f"formula: {_short(written)} is longer than {LONGEST_EXPRESSION} characters; make it a column of the tables.")
    quoted: list[str] = []
    mark = "column"
    while mark in written:
        mark += "_"

    def hide(match: re.Match) -> str:
        quoted.append(_column(match[1]))
        return f" {mark}{len(quoted) - 1}_ "

    def restore(code: str, quote: str) -> str:
        return re.sub(rf"{mark}(\d+)_", lambda match: f"{quote}{quoted[int(match[1])]}{quote}", code)

    tree: ast.expr = ast.parse(re.sub(r"`([^`]*)`", hide, written).strip(), mode="eval").body
    name = restore(ast.unparse(tree).replace("\n", " "), "`")
    reference, category = None, False
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "C":
        tree, reference, category = *_read_category(name, tree), True
    columns = tuple(dict.fromkeys(restore(column, "") for column in _check(name, tree)))
    if not columns:
        raise InvalidConfig(f"formula: {name} names no column.")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = restore(node.id, "")
    if isinstance(reference, str):
        reference = restore(reference, "`")
    return Factor(name, columns, None if category else tree, category, reference)


def _read_category(name: str, call: ast.Call) -> tuple[ast.Name, Any]:
    """The column in C(column), and the reference level in C(column, Treatment("level"))."""
    match call:
        case ast.Call(args=[ast.Name() as column], keywords=[]):
            return column, None
        case (
            ast.Call(args=[ast.Name() as column, ast.Call() as coding], keywords=[])
            | ast.Call(args=[ast.Name() as column], keywords=[ast.keyword(arg="contrasts", value=ast.Call() as coding)])
        ) if ast.unparse(coding.func) in ("Treatment", "contr.treatment"):
            match coding.args, coding.keywords:
                case ([ast.Constant(value=str() | int() | float() as level)], []) | (
                    [],
                    [ast.keyword(arg="reference" | "base", value=ast.Constant(value=str() | int() | float() as level))],
                ):
                    return column, level
    raise InvalidConfig(
        f'formula: {name} must be C(column) or C(column, Treatment("reference level")), a column of 0 and 1 per other level.'
    )


def _check(name: str, node: ast.expr) -> Iterator[str]:
    """The columns in an expression, every node of which is on the list."""
    match node:
        case ast.Name(id=column):
            yield _column(column)
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER:
            pass
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            yield from _check(name, operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC or isinstance(op, ast.Pow):
            yield from _check(name, left)
            yield from _check(name, right)
        case ast.Call(func=function, args=[argument], keywords=[]) if _called(function) in (*FUNCTIONS, "I"):
            yield from _check(name, argument)
        case ast.Call(func=function) if _called(function) in STATEFUL:
            raise InvalidConfig(
                f"formula: {_called(function)} in {name} depends on all rows, and a site has its own only: columns would mean something "
                "else at each. Prepare such a column beforehand, the same everywhere; standardising goes on by itself."
            )
        case ast.Call(func=ast.Name(id="offset")):
            raise InvalidConfig("formula: an offset is given as a column of its own (offset=…), not in the formula.")
        case _:
            what = f"{_short(ast.unparse(node.func))}(…)" if isinstance(node, ast.Call) else type(node).__name__
            raise InvalidConfig(f"formula: {what} cannot be used in {_short(name)}. {ALLOWED}")


def _called(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="np"), attr=name) if name != "I":
            return name
    return ""


def _column(name: str) -> str:
    if name in ("", "1", "Intercept") or any(part.startswith("__") and part.endswith("__") for part in name.split(".")):
        raise InvalidConfig(f"formula: a column cannot be called {name!r}; rename it.")
    return name


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:79]}…")


def evaluate(node: ast.expr, columns: Mapping[str, np.ndarray]) -> Any:
    """The value of a checked expression: one entry per row. What is not finite is noticed by the caller."""
    match node:
        case ast.Name(id=column):
            return columns[column]
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.UnaryOp(op=op, operand=operand):
            value = evaluate(operand, columns)
            return -value if isinstance(op, ast.USub) else value
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, exponent = evaluate(left, columns), evaluate(right, columns)
            return np.float64(base) ** exponent if isinstance(base, float) else base**exponent
        case ast.BinOp(left=left, op=op, right=right):
            return ARITHMETIC[type(op)](evaluate(left, columns), evaluate(right, columns))
        case ast.Call(func=function, args=[argument]):
            value = evaluate(argument, columns)
            return value if _called(function) == "I" else FUNCTIONS[_called(function)](value)
    raise AssertionError(type(node))  # every node was checked when the formula was read
