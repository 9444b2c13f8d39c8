"""A process that takes studies off a list: python -m fedhybrid.experiments.worker ORDER, started by the runner."""

import json
import sys
from pathlib import Path

from .reproduce import jobs_of
from .runner import work
from .study import EFFORTS

if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    work(jobs_of(order), EFFORTS[order["effort"]], Path(order["folder"]))
