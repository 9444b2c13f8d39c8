"""HTML and SVG as nested calls. Text is escaped unless it is markup already, so that a name can never become a tag."""

import html
import re
from collections.abc import Iterable
from typing import Any

EMPTY = frozenset(["meta", "line", "rect", "circle"])  # elements without children
# Control characters and halves of surrogate pairs: no HTML file may hold them.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class Markup(str):
    """Text that is markup."""

    __slots__ = ()


def escape(text: Any) -> str:
    return html.escape(UNPRINTABLE.sub("\ufffd", str(text)))


def element(tag: str, *children: Any, **attributes: Any) -> Markup:
    """`element("td", name, class_="name")`. Children: texts, numbers, markup, lists of them. What is None is left out."""
    named = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    opening = tag + "".join(f' {name}="{escape(value)}"' for name, value in named)
    return Markup(f"<{opening}/>" if tag in EMPTY else f"<{opening}>{together(children)}</{tag}>")


def together(children: Iterable[Any]) -> Markup:
    parts: list[str] = []
    for child in children:
        if isinstance(child, list | tuple):
            parts.append(together(child))
        elif child is not None:
            parts.append(child if isinstance(child, Markup) else escape(child))
    return Markup("".join(parts))


def name_of(text: Any) -> Markup:
    """A name that somebody chose: in whatever direction it is written, it does not turn its neighbours round."""
    return element("bdi", text)
