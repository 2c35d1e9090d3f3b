# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The numbers that a run has logged are read back, by the readers of each package."""

import glob
import json
import math
import os
import subprocess
import sys

import pytest

import cleave
from cleave.run import JSONL, Aim, MLflow, TensorBoard, WandB
from loop_runs import Recorder, make_step
from training_support import token_batches


def fit(logger, folder, steps=4, resume=None):
    """Trains with a logger; returns the losses of the steps."""
    recorder = Recorder()
    cleave.Run(make_step({"dp": 2}), token_batches(3), eval_data=token_batches(1), eval_every=2,
               callbacks=[logger, recorder], folder=folder / "run", save_every=2).fit(steps=steps, resume=resume)
    return recorder.losses


def close(found, expected):
    """In the f32 that some logs have."""
    return len(found) == len(expected) and all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(found, expected))


def test_jsonl(tmp_path):
    path = tmp_path / "logs" / "a.jsonl"
    losses = fit(JSONL(path), tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 2, 3, 4, 4]
    assert [line["loss"] for line in lines if "loss" in line] == losses
    assert [set(line) for line in lines if "eval_loss" in line] == [{"step", "eval_loss"}] * 2
    # Another run begins it anew, and one that is resumed from a step drops later ones.
    resumed = fit(JSONL(path), tmp_path, resume=tmp_path / "run" / "step-2")
    again = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in again] == [1, 2, 2, 3, 4, 4]
    assert resumed == losses[2:] and again[2] == lines[2]


def read_events(folder):
    """The scalars of a folder by tag, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    losses = fit(TensorBoard(tmp_path / "events"), tmp_path)
    found = read_events(tmp_path / "events")
    assert [step for step, _ in found["train/loss"]] == [1, 2, 3, 4]
    assert close([value for _, value in found["train/loss"]], losses)
    assert [step for step, _ in found["eval/loss"]] == [2, 4]
    assert {"train/lr", "train/grad_norm", "train/tokens_per_s"} <= set(found)
    # Resumed from step 2: what was written of steps 3 and 4 is dropped, and written again.
    fit(TensorBoard(tmp_path / "events"), tmp_path, steps=6, resume=tmp_path / "run" / "step-2")
    assert len(glob.glob(str(tmp_path / "events" / "*"))) == 2
    again = read_events(tmp_path / "events")
    assert [step for step, _ in again["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in again["eval/loss"]] == [2, 4, 6]


#: A script that trains with W&B, which changes the process that it is in: its folder, then whether it
#: is resumed.
WANDB = """
import pathlib, sys
from cleave.run import WandB
from test_run_loggers import fit
folder = pathlib.Path(sys.argv[1])
logger = WandB(project="test", mode="offline", dir=str(folder / sys.argv[2]))
(folder / sys.argv[2]).mkdir()
steps, resume = (4, None) if sys.argv[2] == "first" else (6, "auto")
print(fit(logger, folder, steps=steps, resume=resume), logger.state_dict()["id"])
"""


def test_wandb(tmp_path):
    """Offline runs, read back from their files: the second one goes on in the first."""
    pytest.importorskip("wandb")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "WANDB_SILENT": "true"}
    found = []
    for name in ("first", "second"):
        done = subprocess.run([sys.executable, "-c", WANDB, str(tmp_path), name], env=environment,
                              capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        losses, _, number = done.stdout.splitlines()[-1].rpartition(" ")
        found.append((json.loads(losses), number))
    (first, number), (second, again) = found
    assert number == again
    (path,) = glob.glob(str(tmp_path / "first" / "wandb" / f"offline-run-*-{number}" / "*.wandb"))
    rows = read_wandb(path)
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3, 4]
    assert [row["train/loss"] for row in rows if "train/loss" in row] == first
    assert [row["step"] for row in rows if "eval/loss" in row] == [2, 4]
    (path,) = glob.glob(str(tmp_path / "second" / "wandb" / f"offline-run-*-{number}" / "*.wandb"))
    assert [row["train/loss"] for row in read_wandb(path) if "train/loss" in row] == second


def read_wandb(path):
    """The rows of the history in a file of W&B: after a head of 7 bytes, blocks of 32 KiB of records,
    each of a checksum, a length, a kind (whole; first, middle or last part) and its bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole, rows = open(path, "rb").read(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4:at + 6], "little"), data[at + 6]
        whole += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            whole = record_of(whole, rows, wandb_internal_pb2)
    return rows


def record_of(data, rows, proto):
    """Adds a row of the history; returns no bytes, with which the next record begins."""
    record = proto.Record()
    record.ParseFromString(data)
    if record.WhichOneof("record_type") == "history":
        rows.append({(item.key or "/".join(item.nested_key)): json.loads(item.value_json)
                     for item in record.history.item})
    return b""


def test_mlflow(tmp_path):
    pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    logger = MLflow("a test", tracking_uri=uri, run_name="first", params={"width": 32})
    losses = fit(logger, tmp_path)
    again = MLflow("a test", tracking_uri=uri)
    losses += fit(again, tmp_path, steps=6, resume="auto")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("a test").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params == {"width": "32"} and run.info.run_name == "first"
    history = sorted(client.get_metric_history(run.info.run_id, "train/loss"), key=lambda one: one.step)
    assert [one.step for one in history] == [1, 2, 3, 4, 5, 6]
    assert close([one.value for one in history], losses)
    assert [one.step for one in client.get_metric_history(run.info.run_id, "eval/loss")] == [2, 4, 6]


def test_aim(tmp_path):
    """Read back before the run is closed, in the order that Aim keeps."""
    pytest.importorskip("aim")
    from aim.storage.context import Context

    logger, found = Aim(repo=str(tmp_path), system_tracking_interval=None), {}
    finish = logger.finish

    def reads(failed):
        for subset in ("train", "eval"):
            found[subset] = logger._run.get_metric("loss", Context({"subset": subset})).values.sparse_list()[1]
        finish(failed)

    logger.finish = reads
    losses = fit(logger, tmp_path)
    assert close(sorted(found["train"]), sorted(losses)) and len(found["eval"]) == 2
    assert logger.state_dict()["id"]


@pytest.mark.parametrize("logger, package", [(TensorBoard, "tensorboard"), (WandB, "wandb"), (MLflow, "mlflow"),
                                             (Aim, "aim")])
def test_a_package_that_is_not_there(logger, package, monkeypatch, tmp_path):
    """The error names what installs it."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(package), *sys.meta_path])
    with pytest.raises(ImportError, match=f"pip install {package}"):
        logger(tmp_path) if logger is TensorBoard else logger()


class Absent:
    """A finder that does not find a package."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name == self.package:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return None
