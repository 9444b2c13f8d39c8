"""The tables are what they are known to be, the setups are the paper's, and no unchecked file is ever used."""

import hashlib
import http.server
import itertools
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
import scipy.sparse
from scipy.special import expit

import fedhybrid as fh
from fedhybrid import datasets
from fedhybrid.datasets import fetch, synthetic
from fedhybrid.datasets.housing import COLUMNS
from fedhybrid.datasets.mushroom import ATTRIBUTES, letters

FILES = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture
def files(monkeypatch):
    if not FILES.is_dir():
        pytest.skip("the folder with the raw data files is not beside the project")
    monkeypatch.setenv(fetch.FOLDER, str(FILES))
    return FILES


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_mushroom_has_the_known_rows_and_columns(files):
    table, labels = letters()
    assert table.shape == (8124, 22) == (8124, len(ATTRIBUTES))
    assert (np.sum(labels == "e"), np.sum(labels == "p")) == (4208, 3916)
    assert np.sum(table == "?") == np.sum(table[:, ATTRIBUTES.index("stalk-root")] == "?") == 2480
    A, y = datasets.mushroom()
    assert A.shape == (5644, 98)
    assert (np.sum(y == 0), np.sum(y == 1)) == (3488, 2156)
    assert set(np.unique(A)) == {0.0, 1.0}
    assert np.all(A.sum(axis=1) == 22)  # one level of each attribute
    assert np.sum(A.min(axis=0) == A.max(axis=0)) == 1  # veil-type
    assert np.linalg.matrix_rank(datasets.standardise(A)) == 62


def test_housing_has_the_known_sums(files):
    A, y = datasets.housing()
    assert A.shape == (506, 13) == (506, len(COLUMNS))
    assert round(y.sum(), 1) == 11401.6
    assert round(y.mean(), 6) == 22.532806
    assert A[:, COLUMNS.index("CHAS")].sum() == 35
    assert round(A[:, COLUMNS.index("CRIM")].mean(), 6) == 3.613524
    assert "race" in datasets.housing.__doc__


@pytest.mark.parametrize(
    ("name", "rows", "d", "entries", "ones", "empty"),
    [("w8a", 49749, 300, 579586, 1479, 4203), ("phishing", 11055, 68, 331650, 6157, 0)],
)
def test_libsvm_sets_have_the_known_counts(files, name, rows, d, entries, ones, empty):
    A, y = datasets.libsvm(name)
    assert scipy.sparse.issparse(A)
    assert (A.shape, A.nnz) == ((rows, d), entries)
    assert np.sum(np.diff(A.indptr) == 0) == empty
    assert set(y) == {0.0, 1.0}
    assert y.sum() == ones
    same, _ = datasets.libsvm(files / f"{name}.libsvm", columns=d)
    assert (same != A).nnz == 0


def test_a_libsvm_file_of_ones_own_is_read(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("2 1:0.5 3:-1\n5 2:4\n2\n")
    A, y = datasets.libsvm(path)
    np.testing.assert_array_equal(A.toarray(), [[0.5, 0, -1], [0, 4, 0], [0, 0, 0]])
    np.testing.assert_array_equal(y, [0, 1, 0])
    assert datasets.libsvm(str(path), columns=7)[0].shape == (3, 7)
    path.write_text("1.5 1:1\n2.5 1:2\n-3 1:1\n")
    np.testing.assert_array_equal(datasets.libsvm(path)[1], [1.5, 2.5, -3.0])


@pytest.mark.parametrize("content", ["1 a:b\n", "1 1:1\n1 1\n", "hello\n"])
def test_a_file_in_another_format_is_refused(tmp_path, content):
    path = tmp_path / "mine.txt"
    path.write_text(content)
    with pytest.raises(fh.InvalidData, match=r"mine.txt could not be read as a LIBSVM file"):
        datasets.libsvm(path)
    with pytest.raises(fh.InvalidData, match="w8a, phishing"):
        datasets.libsvm(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "shape", "values"),
    [
        ("breast_cancer", (569, 30), 2),
        ("diabetes", (442, 10), 214),
        ("iris", (150, 4), 3),
        ("wine", (178, 13), 3),
        ("digits", (1797, 64), 10),
    ],
)
def test_bundled_tables(name, shape, values):
    A, y = datasets.bundled(name)
    assert (A.shape, len(np.unique(y)), y.dtype) == (shape, values, np.float64)
    S, _ = datasets.bundled(name, standardised=True)
    varies = np.ptp(A, axis=0) > 0
    np.testing.assert_allclose(S.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(S.std(axis=0), varies, atol=1e-12)


def test_an_unknown_table_is_refused():
    with pytest.raises(fh.InvalidConfig, match="breast_cancer, diabetes"):
        datasets.bundled("boston")


def test_a_constant_column_is_standardised_to_nothing():
    A = np.column_stack([np.full(7, 0.1), np.arange(7.0)])
    S = datasets.standardise(A)
    assert not S[:, 0].any()
    np.testing.assert_allclose(S[:, 1], (A[:, 1] - 3) / 2)


# ── setups ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────

SHAPES = {1: (20, 30, 0.0), 2: (8, 14, 0.1), 3: (20, 30, 0.1), 4: (8, 99, 0.1)}


def hessian(setup):
    """∇²F at its minimiser, from the paper's formula."""
    x = np.zeros(setup.d)
    for _ in range(60):
        g, H = setup.reg * x, setup.reg * np.eye(setup.d)
        for A, y in setup.sites:
            linear = setup.loss is fh.squared
            p = A @ x if linear else expit(A @ x)
            weight = np.ones(len(y)) if linear else p * (1 - p)
            g, H = g + A.T @ (p - y) / len(y), H + (A * weight[:, None]).T @ A / len(y)
        if np.linalg.norm(g) < 1e-10:
            break
        x = x - np.linalg.solve(H, g)
    return H


def paper_value(setup, x):
    total = 0.5 * setup.reg * x @ x
    for A, y in setup.sites:
        if setup.loss is fh.squared:
            total += np.sum((A @ x - y) ** 2) / (2 * len(y))
        else:
            h = expit(A @ x)
            total += np.sum(-y * np.log(h) - (1 - y) * np.log(1 - h)) / len(y)
    return total


@pytest.mark.parametrize("number", SHAPES)
def test_a_setup_minimises_the_papers_objective(files, number):
    setup = datasets.SETUPS[number](0)
    assert (setup.n, setup.d, setup.reg) == SHAPES[number]
    assert repr(setup).startswith("Setup(")
    x = 0.1 * np.random.default_rng(0).normal(size=setup.d)
    fleet = setup.fleet(update="gradient")
    assert (fleet.weighting, set(fleet.updates)) == ("client", {"gradient"})
    with jax.enable_x64(True):
        value = sum(float(fleet.client(i).f.value(x)) for i in range(fleet.n))
    np.testing.assert_allclose(value, paper_value(setup, x), rtol=1e-12)


@pytest.mark.parametrize(("number", "low", "high"), [(1, 100, 150), (2, 60, 100), (3, 60, 180), (4, 14, 16)])
def test_a_setup_is_as_badly_conditioned_as_expected(files, number, low, high):
    for seed in range(3):
        assert low < np.linalg.cond(hessian(datasets.SETUPS[number](seed))) < high


@pytest.mark.parametrize("number", SHAPES)
def test_a_seed_gives_the_same_bits_and_another_seed_other_sites(files, number):
    def digest(seed):
        return hashlib.sha256(b"".join(part.tobytes() for site in datasets.SETUPS[number](seed).sites for part in site)).hexdigest()

    assert digest(1) == digest(1)
    assert len({digest(seed) for seed in range(4)}) == 4


def label_sets(setup):
    return [tuple(np.unique(y)) for _, y in setup.sites]


@pytest.mark.parametrize("seed", range(5))
def test_labels_are_dealt_as_in_the_paper(files, seed):
    assert label_sets(datasets.setup_3(seed)) == [(0.0,)] * 11 + [(1.0,)] * 8 + [(0.0, 1.0)]
    mushroom = datasets.setup_4(seed)
    assert label_sets(mushroom) == [(0.0,)] * 4 + [(1.0,)] * 3 + [(0.0, 1.0)]
    assert sum(len(y) for _, y in mushroom.sites) == 5644


def test_tables_are_standardised_before_they_are_dealt_and_have_a_last_column_of_ones(files):
    for make, constant in ((datasets.setup_2, 0), (datasets.setup_4, 1)):
        A = np.concatenate([A for A, _ in make(0).sites])
        assert np.all(A[:, -1] == 1)
        np.testing.assert_allclose(A[:, :-1].mean(axis=0), 0, atol=1e-12)
        assert np.sum(np.abs(A[:, :-1].std(axis=0) - 1) > 1e-12) == constant


def test_synthetic_sizes_are_lognormal_and_50():
    sizes = np.array([len(y) for seed in range(6) for _, y in datasets.linear_synthetic(seed, n=100, d=1)])
    assert sizes.min() >= 50
    logs = np.log(sizes - 50 + 0.5)  # rounded down: on average by half
    assert abs(np.median(logs) - 4) < 0.3
    assert abs((np.quantile(logs, 0.8413) - np.quantile(logs, 0.1587)) / 2 - 2) < 0.3


def test_rows_of_setup_1_are_a_scale_times_uniform_numbers_and_the_response_has_noise_of_one_half():
    sites = datasets.linear_synthetic(0)
    scales = np.array([A.flat[np.argmax(np.abs(A))] for A, _ in sites])
    for scale, (A, _) in zip(scales, sites, strict=True):
        assert (A / scale).min() > 0
        assert abs((A / scale).mean() - 0.5) < 0.05
    assert (scales < 0).any()
    assert (scales > 0).any()
    A, y = (np.concatenate(parts) for parts in zip(*sites, strict=True))
    residual = y - A @ np.linalg.lstsq(A, y)[0]
    assert abs(residual.std() - 0.5) < 0.03


def test_synthetic_half_half_has_variances_of_one_half():
    rng = np.random.default_rng(0)
    models = [synthetic._draw_model(30, rng) for _ in range(4000)]
    assert abs(np.var([model.W.mean() for model in models]) - (0.5 + 1 / 60)) < 0.05
    assert abs(np.var([model.v.mean() for model in models]) - (0.5 + 1 / 30)) < 0.05
    # W and b have one mean, the client's u, and v another
    assert np.corrcoef([model.W.mean() for model in models], [model.b.mean() for model in models])[0, 1] > 0.6
    assert abs(np.corrcoef([model.W.mean() for model in models], [model.v.mean() for model in models])[0, 1]) < 0.06
    A, labels = models[0].draw(20_000, rng)
    np.testing.assert_allclose(A.var(axis=0), np.arange(1, 31) ** -1.2, rtol=0.06)
    np.testing.assert_array_equal(labels, [np.argmax([model_row @ models[0].W[:, k] + models[0].b[k] for k in (0, 1)]) for model_row in A])


def test_other_sizes_of_the_generators():
    assert [A.shape[1] for A, _ in datasets.linear_synthetic(0, n=10, d=3)] == [3] * 10
    sites = datasets.logistic_synthetic(0, d=4, zeros=1, ones=0, both=2)
    assert [set(y) for _, y in sites] == [{0.0}, {0.0, 1.0}, {0.0, 1.0}]
    for wrong in ({"zeros": 0, "ones": 0, "both": 0}, {"ones": -1}, {"both": 0.5}):
        with pytest.raises(fh.InvalidConfig, match="at least one"):
            datasets.logistic_synthetic(0, **wrong)


def test_newton_clients_are_nested_and_drawn_anew_for_another_subset():
    setup = datasets.setup_1(0)
    chosen = [set(setup.newton_clients(K)) for K in range(21)]
    assert [len(clients) for clients in chosen] == list(range(21))
    assert all(fewer < more for fewer, more in itertools.pairwise(chosen))
    assert setup.newton_clients(5) == datasets.setup_1(0).newton_clients(5)
    assert len({tuple(setup.newton_clients(5, subset=k)) for k in range(5)}) == 5
    fleet = setup.fleet(newton=5)
    assert [i for i, update in enumerate(fleet.updates) if update == "newton"] == setup.newton_clients(5)
    assert fleet.updates.count("gradient") == 15
    for wrong in (21, -1, 2.5, True):
        with pytest.raises(fh.InvalidConfig, match="from 0 to 20"):
            setup.fleet(newton=wrong)
    for seed in (-1, 0.5, None, np.random.default_rng(0)):
        with pytest.raises(fh.InvalidConfig, match="seed"):
            datasets.setup_1(seed)


# ── raw files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

GOOD = b"".join(b"%d 2 3 4 5 6 7 8 9 10 11 12 13 14\n" % k for k in range(5000))


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.path.strip("/")
        body = {"good": GOOD, "bad": b"<html>moved</html>", "short": GOOD[:100]}.get(asked)
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(GOOD) if asked == "short" else len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache, no folder of the user's, and `housing.data` from wherever the test says."""
    folder = tmp_path / "cache"
    monkeypatch.delenv(fetch.FOLDER, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetch, "cache", lambda: folder)
    return folder


@pytest.fixture
def at(monkeypatch):
    def point(address):
        monkeypatch.setitem(fetch.SOURCES, "housing.data", fetch.Source(address, hashlib.sha256(GOOD).hexdigest()))

    return point


def nowhere():
    """An address on this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/housing.data"


def left_behind(folder):
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def test_a_download_is_checked_and_kept(cache, at, server):
    at(server + "good")
    A, y = datasets.housing()
    assert (A.shape, y[0]) == ((5000, 13), 14)
    assert left_behind(cache) == ["housing.data"]
    at(nowhere())
    assert len(datasets.housing()[1]) == 5000  # now from the cache


def test_a_download_shows_a_bar_in_a_terminal(cache, at, server, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    at(server + "good")
    datasets.housing()
    shown = capsys.readouterr().err
    assert "housing.data" in shown
    assert "━" in shown


@pytest.mark.parametrize(("page", "message"), [("bad", "another sha256"), ("short", "could not be downloaded"), ("404", "HTTPError")])
def test_a_download_that_went_wrong_leaves_nothing_behind(cache, at, server, page, message):
    at(server + page)
    with pytest.raises(fh.InvalidData, match=message):
        datasets.housing()
    assert left_behind(cache) == []


def test_without_a_network_the_error_says_which_file_goes_where(cache, at):
    address = nowhere()
    at(address)
    with pytest.raises(fh.InvalidData) as caught:
        datasets.housing()
    message = str(caught.value)
    for needed in ("housing.data", address, hashlib.sha256(GOOD).hexdigest(), "FEDHYBRID_DATA", str(cache / "housing.data")):
        assert needed in message
    assert caught.value.status is fh.Status.INVALID_DATA
    assert left_behind(cache) == []


def test_a_damaged_file_in_the_cache_is_downloaded_again_or_not_used(cache, at, server):
    cache.mkdir()
    (cache / "housing.data").write_bytes(GOOD[:-1])
    at(nowhere())
    with pytest.raises(fh.InvalidData, match="could not be downloaded"):
        datasets.housing()
    at(server + "good")
    assert len(datasets.housing()[1]) == 5000
    assert (cache / "housing.data").read_bytes() == GOOD


def test_another_file_in_the_users_folder_is_refused_without_asking_the_network(cache, at, server, monkeypatch, tmp_path):
    at(server + "good")
    (tmp_path / "housing.data").write_bytes(GOOD + b"\n")
    monkeypatch.setenv(fetch.FOLDER, str(tmp_path))
    with pytest.raises(fh.InvalidData, match="not the file that is meant"):
        datasets.housing()
    assert left_behind(cache) == []
    (tmp_path / "housing.data").write_bytes(GOOD)
    assert len(datasets.housing()[1]) == 5000
    assert left_behind(cache) == []
    (tmp_path / "housing.data").unlink()
    assert len(datasets.housing()[1]) == 5000  # not in the folder: downloaded into the cache
    monkeypatch.setenv(fetch.FOLDER, str(tmp_path / "none"))
    with pytest.raises(fh.InvalidConfig, match="not a folder"):
        datasets.housing()


def test_a_cache_that_cannot_be_made_is_an_error_with_the_way_out(cache, at, server):
    cache.write_text("a file where the folder should be")
    at(server + "good")
    with pytest.raises(fh.InvalidData, match="FEDHYBRID_DATA"):
        datasets.housing()


def test_every_file_here_has_the_stored_checksum(files):
    for name, source in fetch.SOURCES.items():
        assert hashlib.sha256((files / name).read_bytes()).hexdigest() == source.sha256
        assert source.address.startswith("https://")


def test_importing_the_library_imports_neither_scikit_learn_nor_pooch():
    code = "import sys, fedhybrid; print([name for name in ('sklearn', 'pooch', 'requests', 'matplotlib') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout.strip() == "[]", done.stderr
