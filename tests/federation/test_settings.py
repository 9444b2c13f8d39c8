"""Files of settings are read strictly: what is not a known key with a value of its kind is named, and nothing in them is run."""

import pytest
from harness import Federation, terms_of

import fedhybrid as fh
from fedhybrid.federation.rules import read_rules
from fedhybrid.federation.terms import read_terms

TERMS = {
    "problem": {"features": '["u", "v"]', "response": '"y"', "loss": '"logistic"', "reg": "0.1"},
    "method": {"name": '"krylov"'},
    "rounds": {"tol": "1e-9", "most": "100", "deadline": "30.0", "patience": "60.0", "absent": '"wait"', "strikes": "3"},
    "secure": {"sums": "true", "bits": "40"},
    "network": {"address": '"127.0.0.1:9000"'},
    "sites": {"a": '"key a"', "b": '"key b"', "c": '"key c"'},
}
SITE = {"name": '"a"', "data": '"a.csv"', "update": '"newton"', "minimum_rows": "10", "minimum_sites": "3", "state": '"state"'}
ANY = ('"${HOME}"', '"$(touch ran)"', '"os.system"', "9223372036854775808", "-1", "nan", "inf", "[]", "{}", "true", '""', "1979-05-27")
ALLOWED = {  # texts that may be anything, and numbers that may be large: taken as they are, never looked into
    ("problem", "response"), ("sites", "a"), ("sites", "b"), ("sites", "c"), ("", "data"), ("", "state"),
}  # fmt: skip


def written(sections, section, key, value):
    changed = {name: dict(keys) for name, keys in sections.items()}
    changed.setdefault(section, {})[key] = value
    lines = []
    for name, keys in changed.items():
        lines += [f"[{name}]"] if name else []
        lines += [f"{each} = {text}" for each, text in keys.items()]
    return "\n".join(lines) + "\n"


def refused(read, path, text):
    """What is said; or None where the file was taken."""
    path.write_text(text)
    try:
        read(path)
    except (fh.InvalidConfig, fh.InvalidData) as error:
        return str(error)
    return None


@pytest.mark.parametrize(("read", "sections"), [(read_terms, TERMS), (read_rules, {"": SITE})], ids=["federation.toml", "site.toml"])
def test_every_key_takes_values_of_its_kind_only(read, sections, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, tried, taken = tmp_path / "settings.toml", 0, []
    assert refused(read, path, written(sections, next(iter(sections)), *next(iter(next(iter(sections.values())).items())))) is None
    for section, keys in sections.items():
        for key in keys:
            for value in ANY:
                said, tried = refused(read, path, written(sections, section, key, value)), tried + 1
                if said is None:
                    taken.append((section, key, value))
                else:
                    assert key in said, (value, said)
    print(f"{tried} values tried, {len(taken)} taken")
    texts = {(section, key) for section, key, value in taken if value.startswith('"')}
    assert texts <= ALLOWED
    numbers = {(key, value) for _, key, value in taken if not value.startswith('"')}
    assert numbers <= {("sums", "true"), ("reg", "9223372036854775808")}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("rounds", ("tolerance", "1e-8")),
        ("problem", ("data", '"/etc/passwd"')),
        ("problem", ("update", '"newton"')),
        ("problem", ("clip", "1e9")),
        ("secure", ("minimum_rows", "0")),
        ("network", ("__class__", '"os"')),
        ("hooks", ("after", '"rm"')),
        ("method", ("mu", '"__import__(1)"')),
        ("method", ("name", '"os.system"')),
        ("method", ("x0", "[1, 2]")),
    ],
)
def test_the_terms_cannot_say_what_is_a_sites_own_to_say(section, line, tmp_path):
    """Its table, its update, its thresholds, its noise; nor anything that is no setting at all."""
    said = refused(read_terms, tmp_path / "federation.toml", written(TERMS, section, *line))
    assert said is not None
    assert line[0] in said or line[1].strip('"') in said or section in said


def test_a_state_folder_that_is_a_link_is_followed_by_nobody(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    federation = Federation(tmp_path / "run", terms_of("krylov", "squared"))
    assert federation.run().status is fh.Status.SOLVED
    (run,) = {path for path in (tmp_path / "run" / "a").iterdir() if path.is_dir()}
    for path in run.iterdir():
        if path.is_file():
            path.rename(elsewhere / path.name)
            path.symlink_to(elsewhere / path.name)
    kept = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    federation.restart("a")
    federation.run()  # its files are no files of ours: its state is given back, into files of its own
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == kept
