"""A direct site in a process of its own, which answers by turning the bytes round: address, ca or -, key, memory or -, seconds to think."""

import sys
import time

from fedhybrid.federation.fleet_api import DirectSite
from fedhybrid.federation.link import ConnectionRefused


def main() -> None:
    address, ca, key, memory, seconds = sys.argv[1:6]
    site = DirectSite(address, None if ca == "-" else ca, key, memory=None if memory == "-" else memory)

    def answer(question: bytes) -> bytes:
        time.sleep(float(seconds))
        return question[::-1]

    try:
        site.serve(answer)
    except ConnectionRefused as refusal:
        sys.exit(str(refusal))


if __name__ == "__main__":
    main()
