"""A whole federation in a process of its own, to be killed: folder, method, loss, secure. A line for each round; the digest at the end."""

import sys
from pathlib import Path

from harness import Federation, digest_of, terms_of


def main():
    folder, method, loss, secure = sys.argv[1:]
    federation = Federation(Path(folder), terms_of(method, loss, secure=secure == "secure"))
    result = federation.run(None, lambda what, details: what == "round" and print("round", details["round"], flush=True))
    print("digest", digest_of(result, federation.folder), flush=True)


if __name__ == "__main__":
    main()
