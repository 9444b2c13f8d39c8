"""Every loss that a federation offers, with weights and offsets: the pooled answer, by an oracle that is a few lines of NumPy."""

from dataclasses import replace

import numpy as np
import pytest
from harness import NAMES, Federation, terms_of
from typer.testing import CliRunner

import fedhybrid as fh
from fedhybrid.cli import app
from fedhybrid.federation.terms import read_terms

LABELS = (2.0, 5.0, 7.0)  # in no order of size below: the first is the reference
REG = 0.1


def rows_of(loss):
    """(A, y, w, offset) of four unequal sites; of softmax no site has all classes."""
    rng = np.random.default_rng(3)
    data = {}
    for k, name in enumerate(NAMES):
        n = 24 + 8 * k
        A, w, offset = rng.normal(size=(n, 3)) + 0.3 * k, rng.uniform(0.5, 2.0, n), rng.normal(size=n) / 4
        z = A @ [0.5, -0.4, 0.3] + offset
        if loss == "poisson":
            y = rng.poisson(np.exp(z)).astype(float)
        elif loss == "softmax":
            y = rng.choice(np.delete(LABELS, k % 3), n)
        else:
            y = z + rng.standard_t(2, n)
        data[name] = (A, y, w, offset)
    return data


def gradient(loss, x, data):
    """Of the pooled mean of the rows' losses and the penalty, the intercept having none."""
    A, y, w, offset = (np.concatenate(parts) for parts in zip(*data.values(), strict=True))
    A, w = np.column_stack([A, np.ones(len(A))]), w / w.sum()
    if loss == "softmax":  # x: a row of the table for each column, without class 0 of the intercept
        table = np.insert(x, 9, 0.0).reshape(4, 3)
        z = A @ table + offset[:, None]
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p = p / p.sum(axis=1, keepdims=True) - (y[:, None] == [5.0, 2.0, 7.0])
        return np.delete((A.T @ (w[:, None] * p)).reshape(-1), 9) + REG * np.append(x[:9], [0.0, 0.0])
    z = A @ x + offset
    slope = {"squared": z - y, "huber": np.clip(z - y, -1.0, 1.0), "poisson": np.exp(z) - y}[loss]
    return A.T @ (w * slope) + REG * np.append(x[:3], 0.0)


def newton_step(loss, x, data):
    """How far x is from the optimum, to first order: by differences of the gradient."""
    steps = 1e-6 * np.eye(len(x))
    H = np.column_stack([(gradient(loss, x + e, data) - gradient(loss, x - e, data)) / 2e-6 for e in steps])
    return np.linalg.solve(H, gradient(loss, x, data))


def weighted(loss, secure):
    terms = terms_of("krylov", "logistic", secure, tol=1e-10)
    classes = (5.0, 2.0, 7.0) if loss == "softmax" else None
    return replace(terms, problem=replace(terms.problem, loss=loss, weight="w", offset="o", classes=classes))


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure sums"])
@pytest.mark.parametrize("loss", ["squared", "huber", "poisson", "softmax"])
def test_the_answer_is_the_pooled_one_with_weights_and_offsets(loss, secure, tmp_path):
    if secure:
        pytest.importorskip("cryptography")
    data = rows_of(loss)
    result = Federation(tmp_path, weighted(loss, secure), data).run()
    error = np.linalg.norm(newton_step(loss, result.x, data)) / np.linalg.norm(result.x)
    print(f"{loss}: {error:.1e} from the pooled optimum, {result.status}")
    assert error <= 1e-10
    assert result.status is (fh.Status.SOLVED_INACCURATE if loss == "huber" else fh.Status.SOLVED)  # huber: no bound is known


def test_every_coefficient_of_softmax_has_a_name():
    names = weighted("softmax", False).coefficients
    assert names[:4] == ("u[5]", "u[2]", "u[7]", "v[5]")
    assert names[-2:] == ("(intercept)[2]", "(intercept)[7]")  # of class 5 it is 0, the reference
    assert len(names) == 11


def test_a_label_that_was_not_agreed_on_is_counted_and_not_shown(tmp_path):
    data = rows_of("softmax")
    data["b"][1][:3] = 4.25
    with pytest.raises(fh.InvalidData, match=r"b: y has 3 of 32 entries that are none of the classes 5, 2, 7\.$"):
        Federation(tmp_path, weighted("softmax", False), data)


@pytest.mark.parametrize(
    ("loss", "classes", "said"),
    [
        ("softmax", None, "needs the response's values"),
        ("logistic", "0,1", "only loss = 'softmax' has them"),
        ("softmax", "0,0", "different finite numbers"),
        ("softmax", "0", "at least two numbers"),
        ("softmax", "red,blue", "are numbers, with commas between"),
    ],
)
def test_wrong_classes_are_refused_with_a_sentence(loss, classes, said, tmp_path):
    pytest.importorskip("flwr")
    given = ["--sites", "a,b,c", "--response", "y", "--loss", loss, "--features", "u,v"]
    done = CliRunner().invoke(app, ["federation", "init", str(tmp_path / "fl"), *given, *(("--classes", classes) if classes else ())])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_init_writes_the_classes_that_were_agreed_on(tmp_path):
    pytest.importorskip("flwr")
    given = ["--sites", "a,b,c", "--response", "y", "--loss", "softmax", "--features", "u,v", "--classes", "1,2,3"]
    done = CliRunner().invoke(app, ["federation", "init", str(tmp_path / "fl"), *given])
    assert done.exit_code == 0, done.output
    assert read_terms(tmp_path / "fl" / "federation.toml").problem.classes == (1.0, 2.0, 3.0)


@pytest.mark.parametrize("method", ["fednl"])
def test_a_method_that_no_sum_can_carry_is_refused_before_a_folder_is_made(method, tmp_path):
    pytest.importorskip("flwr")
    given = ["--sites", "a,b,c", "--response", "y", "--loss", "logistic", "--features", "u,v", "--method", method]
    done = CliRunner().invoke(app, ["federation", "init", str(tmp_path / "fl"), *given])
    assert done.exit_code == 2
    assert "choose another method or compressor, or set [secure] sums = false" in " ".join(done.output.split())
    assert not (tmp_path / "fl").exists()
