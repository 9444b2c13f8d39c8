"""A server in a process of its own: folder, port, sites. It asks them round after round, and writes a line for each answer."""

import sys

from fedhybrid.federation.processes import Server


def main() -> None:
    folder, port, *names = sys.argv[1:]
    with Server(folder, port=int(port)) as server:
        print("superlink", server.superlink.pid, flush=True)
        for number in range(1_000_000):
            missing = set(names)
            server.link.push(dict.fromkeys(names, b"%d" % number))
            while missing:
                for name, answer in server.link.pull(1.0):
                    print("answer", number, name, answer.decode(), flush=True)
                    missing.discard(name)


if __name__ == "__main__":
    main()
