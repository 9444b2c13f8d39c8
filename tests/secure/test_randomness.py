"""Masks, keys and noise come from the operating system; nothing in this folder reads code from a message or a file."""

import ast
from pathlib import Path

import pytest

import fedhybrid.secure

FILES = sorted(Path(fedhybrid.secure.__file__).parent.glob("*.py"))
FORBIDDEN_MODULES = {"random", "pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "subprocess", "socket", "importlib"}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__", "open"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_other_source_of_chance_and_no_code_from_outside(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not FORBIDDEN_MODULES & {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module.split(".")[0] not in FORBIDDEN_MODULES
        if isinstance(node, ast.Attribute):
            assert node.attr != "random"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_NAMES


def test_there_are_files_to_look_at():
    assert {"masks.py", "privacy.py", "shamir.py", "cards.py"} <= {path.name for path in FILES}
