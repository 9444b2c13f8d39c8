"""A direct site with rows, in a process of its own: its folder, and the federation's address. To empty questions its
answer is as long, and its own: what the SuperLink has already, from another site or as a question, Flower does not send again."""

import sys
from pathlib import Path

from fedhybrid.federation import keys
from fedhybrid.federation.fleet_api import DirectSite
from fedhybrid.federation.folder import terms_of
from fedhybrid.federation.site import Site, read_rules

EMPTY = b"empty"


def empty_answer(name: str, question: bytes) -> bytes:
    return (name.encode() + question[::-1])[: len(question)]


def main() -> None:
    place = Path(sys.argv[1])
    rules = read_rules(place / "site.toml")
    site = Site(terms_of(place), rules)

    def answer(question: bytes) -> bytes:
        return empty_answer(rules.name, question) if question.startswith(EMPTY) else site.answer(question)

    with site.locked():
        DirectSite(site.terms.address, place / keys.CA, rules.key, memory=rules.state / "node").serve(answer)


if __name__ == "__main__":
    main()
