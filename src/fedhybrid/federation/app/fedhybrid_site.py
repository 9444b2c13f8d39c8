"""What an ordinary SuperNode runs: the site's own fedhybrid, by the name in its own environment. Direct sites never run this file."""

import importlib
import os

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedhybrid.clients.flower import client_app


def _answer(question: bytes) -> bytes:
    module, _, function = os.environ["FEDHYBRID_ANSWER"].partition(":")
    return getattr(importlib.import_module(module), function)(question)


client = client_app(_answer)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    raise RuntimeError("the server's half runs in the process of `fedhybrid server`, not here")
