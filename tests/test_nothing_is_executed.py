"""Nothing that comes by wire or from a disk is ever run: the package has no means to, and pickles in every reader stay what they are."""

import ast
import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import fedhybrid
from fedhybrid import checkpoint
from fedhybrid.federation.ending import read_ending, read_kept
from fedhybrid.federation.envelope import ANSWER, Refused, read_masked, read_question, unseal
from fedhybrid.federation.journal import Journal
from fedhybrid.federation.rules import read_rules
from fedhybrid.federation.terms import read_terms
from fedhybrid.federation.view import story_of
from fedhybrid.inference.file import read as read_fit
from fedhybrid.status import FedHybridError
from fedhybrid.tables.read import read_table
from fedhybrid.tables.records import read_numbers

PACKAGE = Path(fedhybrid.__file__).parent
MODULES = {
    "pickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "yaml",
    "torch",
    "code",
    "codeop",
    "runpy",
    "jsonpickle",
}
NAMES = {"eval", "exec", "compile", "__import__", "execfile"}
METHODS = {
    "import_module",
    "exec_module",
    "spec_from_file_location",
    "read_pickle",
    "allow_pickle",
    "fromfile",
    "memmap",
    "system",
    "popen",
}
LOADS = {"np.load", "numpy.load", "jnp.load"}
ALLOWED = {
    ("federation/app/fedhybrid_site.py", "import_module"): "a module that this site's own process has named in its environment",
    ("experiments/candidates.py", "spec_from_file_location"): "a file that the user names on the command line, as code to compare",
    ("experiments/candidates.py", "exec_module"): "the same",
}


def suspects(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in MODULES)
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if node.level == 0 and node.module.split(".")[0] in MODULES | NAMES)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
            yield node.func.id
        if isinstance(node, ast.Attribute) and (node.attr in METHODS or ast.unparse(node) in LOADS):
            yield node.attr
        if isinstance(node, ast.keyword) and (node.arg == "allow_pickle" or (node.arg == "shell" and ast.unparse(node.value) != "False")):
            yield node.arg


def test_the_package_has_no_means_to_run_what_it_reads():
    files = sorted(PACKAGE.rglob("*.py"))
    found = {(str(path.relative_to(PACKAGE)), what) for path in files for what in suspects(ast.parse(path.read_text(encoding="utf-8")))}
    print(f"{len(files)} files, {len(found - ALLOWED.keys())} places; {len(ALLOWED)} with a reason")
    assert found == set(ALLOWED)


def test_the_search_finds_what_it_is_to_find():
    bad = "import pickle\nfrom shelve import open\neval('1')\nnp.load(f, allow_pickle=True)\nimportlib.import_module(m)\nrun(x, shell=True)"
    assert sorted(suspects(ast.parse(bad))) == ["allow_pickle", "eval", "import_module", "load", "open", "pickle", "shell"]


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def wire(path):
    refused = 0
    for read in (read_question, lambda data: unseal(data, ANSWER)):
        try:
            read(path.read_bytes())
        except Refused:
            refused += 1
    assert refused == 2
    assert read_masked(path.read_bytes()) is None
    assert read_ending(path.read_bytes()) is None
    raise Refused("question", "said so every time")


def kept(path):
    path.rename(path.with_name("result.json"))
    read_kept(path.parent)


def state(path):
    path.rename(path.with_name(checkpoint.CURRENT))
    checkpoint.load(path.parent, {})


def private_key(path):
    from fedhybrid.federation.keys import private_key as read

    path.chmod(0o600)
    read(path)


def table(path):
    read_table(path)
    raise Refused("question", "a text of one line is a table, of a column and no row")


def parquet(path):
    pytest.importorskip("pyarrow")
    path.rename(path.with_suffix(".parquet"))
    read_table(path.with_suffix(".parquet"))


def events(path):
    assert story_of(path).round == 0
    raise Refused("question", "lines that are none are left out")


READERS = {
    "federation.toml": read_terms,
    "site.toml": read_rules,
    "a site's table": read_numbers,
    "a table": table,
    "a table in Parquet": parquet,
    "a fit": read_fit,
    "the record": Journal,
    "a state": state,
    "result.json": kept,
    "events.jsonl": events,
    "a private key": private_key,
    "a message": wire,
}


def pickles(canary):
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, np.array([Canary(canary)], object), allow_pickle=True)
    np.savez(npz, x=np.array([Canary(canary)], object))
    yield from {f"protocol {k}": pickle.dumps(Canary(canary), k) for k in range(pickle.HIGHEST_PROTOCOL + 1)}.items()
    yield from {"npy": npy.getvalue(), "npz": npz.getvalue(), "yaml": f"!!python/object/apply:os.mkdir ['{canary}']\n".encode()}.items()


@pytest.mark.parametrize("reader", READERS)
def test_a_pickle_in_a_files_place_is_refused_and_not_run(reader, tmp_path):
    canary, refused = tmp_path / "canary", 0
    for name, data in pickles(canary):
        folder = tmp_path / name
        folder.mkdir()
        path = folder / "given.csv"
        path.write_bytes(data)
        with pytest.raises(FedHybridError):
            READERS[reader](path)
        assert not canary.exists()
        refused += 1
    print(f"{reader}: {refused} pickles refused")
    pickle.loads(data if name.startswith("protocol") else pickle.dumps(Canary(canary)))
    assert canary.exists(), "the canary does not sing"
