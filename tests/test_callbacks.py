"""Whoever listens hears every step once, and changes nothing."""

import json

import numpy as np
import pytest
from samples import same_bits

import fedhybrid as fh


def fleet():
    rng = np.random.default_rng(0)
    return fh.Fleet([(rng.normal(size=(8, 3)), rng.normal(size=8)) for _ in range(3)], loss=fh.squared, reg=0.1)


class Notes(fh.Callback):
    def __init__(self):
        self.heard = []

    def begin(self, run):
        self.heard.append(("begin", dict(run)))

    def advance(self, rows):
        self.heard.append(("advance", {name: np.array(column) for name, column in rows.items()}))

    def end(self, result):
        self.heard.append(("end", result))


def test_a_callback_hears_the_settings_every_step_once_and_the_result():
    notes = Notes()
    result = fh.solve(fleet(), callbacks=[notes])
    kinds = [kind for kind, _ in notes.heard]
    assert kinds == ["begin", *["advance"] * (len(kinds) - 2), "end"]
    run = notes.heard[0][1]
    assert (run["algorithm"], run["sites"], run["rows"], run["d"]) == ("krylov", 3, 24, 3)
    json.dumps(run)
    for name in ("residual", "rounds", "floats_up", "x0"):
        assert same_bits(np.concatenate([rows[name] for _, rows in notes.heard[1:-1]]), getattr(result.trace, name))
    assert same_bits(notes.heard[-1][1].x, result.x)


def test_a_callback_that_fails_is_left_out_and_the_run_goes_on():
    class Broken(fh.Callback):
        calls = 0

        def advance(self, rows):
            Broken.calls += 1
            raise OSError("no space left")

    others, alone = Notes(), fh.solve(fleet())
    result = fh.solve(fleet(), callbacks=[Broken(), others])
    assert Broken.calls == 1
    assert same_bits(result.x, alone.x)
    assert any("Broken failed and was left out: OSError: no space left" in note for note in result.notes)
    assert others.heard[-1][0] == "end"


@pytest.mark.parametrize("callbacks", [5, [5], [Notes], "abc"])
def test_what_is_no_list_of_callbacks_is_refused(callbacks):
    with pytest.raises(fh.InvalidConfig, match="callbacks"):
        fh.solve(fleet(), callbacks=callbacks)


def test_tensorboard_reads_back_the_trace(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    from fedhybrid.tracking.tensorboard import TensorBoard

    result = fh.solve(fleet(), callbacks=[TensorBoard(tmp_path)])
    (file,) = tmp_path.iterdir()
    found, data = {}, file.read_bytes()
    while data:  # length, its checksum, an event, its checksum
        length = int.from_bytes(data[:8], "little")
        for value in Event.FromString(data[12 : 12 + length]).summary.value:
            found.setdefault(value.tag, []).append(value.simple_value)
        data = data[16 + length :]
    np.testing.assert_allclose(found["residual"], result.trace.residual, rtol=1e-6)  # TensorBoard keeps float32
    assert found["floats_up"] == result.trace.floats_up.tolist()
    assert found["error_bound"] == [pytest.approx(result.error_bound, rel=1e-6)]


def test_mlflow_holds_settings_metrics_by_round_and_the_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    from fedhybrid.tracking.mlflow import MLflow

    result = fh.solve(fleet(), callbacks=[MLflow("heat", uri=tmp_path.as_uri(), name="first")])
    assert not result.notes
    client = mlflow.MlflowClient(tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("heat").experiment_id])
    assert run.info.run_name == "first"
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm"] == "krylov"
    assert run.data.tags["status"] == "SOLVED"
    history = sorted(client.get_metric_history(run.info.run_id, "residual"), key=lambda metric: metric.step)
    assert [metric.step for metric in history] == result.trace.rounds.tolist()
    assert [metric.value for metric in history] == result.trace.residual.tolist()
    assert json.loads(next(tmp_path.rglob("result.json")).read_text())["x"] == result.x.tolist()
