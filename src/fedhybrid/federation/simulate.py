"""The whole federation in this process: the same file, the same messages, the same bits, and no network."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    terms, keys = with_fresh_keys(terms)
    with tempfile.TemporaryDirectory() as folder:
        sites = {name: Site(terms, replace(rules[name], state=Path(folder) / name), identity=keys.get(name)) for name in terms.names}
        return serve(terms, Loopback({name: site.answer for name, site in sites.items()}), Path(folder) / "server", *listeners)


def with_fresh_keys(terms: Terms) -> tuple[Terms, dict[str, Any]]:
    """The same terms with key pairs of this run alone: sums are the same to the last bit whatever the masks."""
    if not terms.secure.sums:
        return terms, {}
    from .agreed import fresh_key, public_text

    keys = {name: fresh_key() for name in terms.names}
    return replace(terms, sites=tuple((name, public_text(key)) for name, key in keys.items())), keys


def rules_beside(path: Path, terms: Terms) -> dict[str, Rules]:
    """Every site's own file, in a folder of its name beside federation.toml."""
    found = {name: path.parent / name / RULES for name in terms.names}
    return {name: read_rules(file) for name, file in found.items() if file.is_file()}
