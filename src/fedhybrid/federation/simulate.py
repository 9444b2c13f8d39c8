"""The whole federation in this process: the same file, the same messages, the same bits, and no network."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..result import Result
from ..status import InvalidConfig
from .events import Listener
from .link import Loopback
from .server import serve
from .site import Rules, Site, read_rules
from .terms import Terms

RULES = "site.toml"


def simulate(terms: Terms, rules: Mapping[str, Rules], *listeners: Listener) -> Result:
    """A run by every site's own rules, which keeps nothing."""
    if missing := [name for name in terms.names if name not in rules]:
        raise InvalidConfig(f"simulate: no {RULES} was found of {', '.join(missing)}.")
    with tempfile.TemporaryDirectory() as folder:
        sites = {name: Site(terms, replace(rules[name], state=Path(folder) / name)) for name in terms.names}
        return serve(terms, Loopback({name: site.answer for name, site in sites.items()}), Path(folder) / "server", *listeners)


def rules_beside(path: Path, terms: Terms) -> dict[str, Rules]:
    """Every site's own file, in a folder of its name beside federation.toml."""
    found = {name: path.parent / name / RULES for name in terms.names}
    return {name: read_rules(file) for name, file in found.items() if file.is_file()}
