"""A run in MLflow: its settings as parameters, the trace as metrics by round, the answer as result.json beside them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..callbacks import Callback
from ..result import Result
from ..status import InvalidConfig, Status
from . import CURVES, FIGURES

BATCH = 1000  # metrics in one request: MLflow takes no more


class MLflow(Callback):
    """experiment   by its name; made where there is none
    uri          where MLflow keeps its runs; default: what MLFLOW_TRACKING_URI says
    name         of the run

    Inside `with mlflow.start_run():` it is that run that is written to, and it stays open.
    """

    def __init__(self, experiment: str = "fedhybrid", *, uri: str | None = None, name: str | None = None) -> None:
        try:
            from mlflow import MlflowClient, active_run
        except ImportError:
            raise InvalidConfig("MLflow needs the package mlflow-skinny: pip install fedhybrid[mlflow].") from None
        self.client, self.experiment, self.name = MlflowClient(uri), experiment, name
        around = active_run() if uri is None else None
        self.own, self.run_id = around is None, "" if around is None else around.info.run_id

    def begin(self, run: Mapping[str, Any]) -> None:
        if self.own:
            found = self.client.get_experiment_by_name(self.experiment)
            number = found.experiment_id if found else self.client.create_experiment(self.experiment)
            self.run_id = self.client.create_run(number, run_name=self.name).info.run_id
        for name, value in run.items():
            self.client.log_param(self.run_id, name, value)

    def advance(self, rows: Mapping[str, np.ndarray]) -> None:
        self._log(
            [(name, value, step) for name in CURVES for step, value in zip(rows["rounds"].tolist(), rows[name].tolist(), strict=True)]
        )

    def end(self, result: Result) -> None:
        self._log([(name, float(getattr(result, name)), result.rounds) for name in FIGURES])
        self.client.set_tag(self.run_id, "status", result.status.name)
        self.client.set_tag(self.run_id, "message", result.message)
        self.client.log_dict(self.run_id, result.to_dict(), "result.json")
        if self.own:
            self.client.set_terminated(self.run_id, "FINISHED" if result.status in (Status.SOLVED, Status.SOLVED_INACCURATE) else "FAILED")

    def _log(self, values: list[tuple[str, float, int]]) -> None:
        from mlflow.entities import Metric
        from mlflow.utils.time import get_current_time_millis

        now = get_current_time_millis()
        metrics = [Metric(name, value, now, step) for name, value, step in values]
        for k in range(0, len(metrics), BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[k : k + BATCH])
