# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Loggers: callbacks that write the numbers of a run to a file or to a service.

Each imports its package when it is made, and writes in the first rank alone. A run that is
resumed goes on in the same log, from the step of its checkpoint.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import time
from typing import TYPE_CHECKING, Any, Mapping

from ..runtime.state import path_of
from .callbacks import Callback

if TYPE_CHECKING:
    from .loop import Run


class Logger(Callback):
    """A base of loggers. Of a subclass, `write` gets the numbers of the steps that are logged
    (`log_every` of the run) and of evaluations; `begin` and `finish` are called around all."""

    def begin(self, run: Run) -> None:
        """Opens the log. `run.step.step` steps are done: what the log has of later ones is of
        another run, or of this one before it was stopped."""

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Writes the numbers of a `kind`: "train" or "eval"."""
        raise NotImplementedError

    def finish(self, failed: bool) -> None:
        """Closes the log."""

    def on_start(self, run: Run) -> None:
        if run.leads:
            self.begin(run)

    def on_step(self, run: Run, values: Mapping[str, float]) -> None:
        if run.leads and run.logs:
            self.write("train", run.step.step, values)

    def on_evaluate(self, run: Run, values: Mapping[str, float]) -> None:
        if run.leads:
            self.write("eval", run.step.step, values)

    def on_end(self, run: Run, error: BaseException | None) -> None:
        if run.leads:
            self.finish(error is not None)


class JSONL(Logger):
    """Lines of JSON, each a step or an evaluation: `step`, then its numbers; those of an
    evaluation begin with `eval_`. Numbers that are not finite are null.

    Args:
        path: of the file. A new run begins it anew; one that is resumed keeps the lines up to
            its step.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path_of("path", path)
        self._file: Any = None

    def begin(self, run: Run) -> None:
        folder = os.path.dirname(self._path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        kept = _lines_until(self._path, run.step.step) if run.step.step else []
        # A file that is cut, and not written anew, keeps its lines whenever the process ends.
        self._file = open(self._path, "r+b" if kept else "wb")
        self._file.seek(sum(map(len, kept)))
        self._file.truncate()

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        prefix = "" if kind == "train" else f"{kind}_"
        line = {"step": step, **{prefix + name: value if math.isfinite(value) else None
                                 for name, value in values.items()}}
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()

    def finish(self, failed: bool) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def _lines_until(path: str, step: int) -> list[bytes]:
    """The lines at the beginning of a log that are of no later step; none of a file that is not
    there. A line that was cut off when its process was killed ends them."""
    kept: list[bytes] = []
    if not os.path.exists(path):
        return kept
    with open(path, "rb") as file:
        for line in file:
            try:
                number = json.loads(line)["step"]
            except (ValueError, KeyError, TypeError):
                break
            if not line.endswith(b"\n") or number > step:
                break
            kept.append(line)
    return kept


class TensorBoard(Logger):
    """Events of TensorBoard, with the tags `train/<name>` and `eval/<name>`. A run that is resumed
    tells the reader to drop what it has of later steps.

    Args:
        folder: of the event files; a resumed run adds one.
        writer: further arguments of `torch.utils.tensorboard.SummaryWriter`.

    Raises:
        ImportError: the package is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], **writer: Any) -> None:
        _package("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._make: Any = SummaryWriter
        self._folder, self._arguments = path_of("folder", folder), writer
        self._writer: Any = None

    def begin(self, run: Run) -> None:
        purge = {"purge_step": run.step.step + 1} if run.step.step else {}
        self._writer = self._make(self._folder, **{**purge, **self._arguments})

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{kind}/{name}", value, global_step=step)

    def finish(self, failed: bool) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


class Service(Logger):
    """A base of loggers of services, in which a run has an identity. It is part of checkpoints, so that
    a run that is resumed goes on in the same one."""

    _id: str | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"id": self._id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._id = state["id"]


class WandB(Service):
    """A run of Weights & Biases, with the names `train/<name>` and `eval/<name>`, over `step`. A
    run that is resumed goes on in that of its checkpoint; steps after the checkpoint are there
    twice.

    Args:
        init: arguments of `wandb.init`, such as `project=`, `config=` and `mode="offline"`.

    Raises:
        ImportError: the package is not installed.
    """

    def __init__(self, **init: Any) -> None:
        self._package = _package("wandb", "wandb")
        self._init = init
        self._run: Any = None

    def begin(self, run: Run) -> None:
        again = {"id": self._id, "resume": "allow"} if self._id is not None else {}
        self._run = self._package.init(**{**again, **self._init})
        self._id = self._run.id
        # Steps may be repeated after a resumption, which W&B's own count refuses.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **{f"{kind}/{name}": value for name, value in values.items()}})

    def finish(self, failed: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=int(failed))
        self._run = None


class MLflow(Service):
    """A run of MLflow, with metrics `train/<name>` and `eval/<name>`. A run that is resumed goes on
    in that of its checkpoint.

    Args:
        experiment: its name; it is made if it is not there.
        tracking_uri: of the server or the folder; MLflow's own setting if None.
        run_name: the name of the run.
        tags, params: of a new run.

    Raises:
        ImportError: the package is not installed.
    """

    #: Metrics of a request: MLflow takes no more.
    _MOST = 1000

    def __init__(self, experiment: str = "Default", *, tracking_uri: str | None = None,
                 run_name: str | None = None, tags: Mapping[str, str] | None = None,
                 params: Mapping[str, Any] | None = None) -> None:
        package = _package("mlflow", "mlflow")
        from mlflow.entities import Metric

        self._metric = Metric
        self._client = package.MlflowClient(tracking_uri=tracking_uri)
        self._experiment, self._name = experiment, run_name
        self._tags, self._params = dict(tags or {}), dict(params or {})

    def begin(self, run: Run) -> None:
        if self._id is not None:
            self._client.update_run(self._id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(self._experiment)
        number = found.experiment_id if found else self._client.create_experiment(self._experiment)
        self._id = self._client.create_run(number, tags=self._tags, run_name=self._name).info.run_id
        for name, value in self._params.items():
            self._client.log_param(self._id, name, value)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(f"{kind}/{name}", value, now, step) for name, value in values.items()]
        for at in range(0, len(metrics), self._MOST):
            self._client.log_batch(self._id, metrics=metrics[at:at + self._MOST])

    def finish(self, failed: bool) -> None:
        if self._id is not None:
            self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


class Aim(Service):
    """A run of Aim, with the subsets "train" and "eval" as context. A run that is resumed goes on
    in that of its checkpoint.

    Args:
        init: arguments of `aim.Run`, such as `repo=` and `experiment=`.

    Raises:
        ImportError: the package is not installed.
    """

    def __init__(self, **init: Any) -> None:
        self._package = _package("aim", "aim")
        self._init = init
        self._run: Any = None

    def begin(self, run: Run) -> None:
        again = {"run_hash": self._id} if self._id is not None else {}
        self._run = self._package.Run(**{**again, **self._init})
        self._id = self._run.hash

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._run.track(value, name=name, step=step, context={"subset": kind})

    def finish(self, failed: bool) -> None:
        if self._run is not None:
            self._run.close()
        self._run = None


def _package(module: str, name: str) -> Any:
    """Imports a package. Raises ImportError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module:
            raise
        raise ImportError(f"the package {name} is not installed: pip install {name}", name=module) from None
