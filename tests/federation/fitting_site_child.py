"""A direct site with rows, in a process of its own: its folder, and the federation's address. Empty questions it gives back as they are."""

import sys
from pathlib import Path

from fedhybrid.federation import keys
from fedhybrid.federation.fleet_api import DirectSite
from fedhybrid.federation.folder import terms_of
from fedhybrid.federation.site import Site, read_rules

EMPTY = b"empty"


def main() -> None:
    place = Path(sys.argv[1])
    rules = read_rules(place / "site.toml")
    site = Site(terms_of(place), rules)

    def answer(question: bytes) -> bytes:
        return question if question.startswith(EMPTY) else site.answer(question)

    with site.locked():
        DirectSite(site.terms.address, place / keys.CA, rules.key, memory=rules.state / "node").serve(answer)


if __name__ == "__main__":
    main()
