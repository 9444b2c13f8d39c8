"""These tests need the package cryptography, which comes with an extra."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("cryptography") else ["test_*.py"]
