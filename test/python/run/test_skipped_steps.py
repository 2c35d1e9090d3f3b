# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""`cleave-run` skips steps of fp16 whose gradients overflow: on all ranks, as threads and as
processes; learning rates, checkpoints and the log follow."""

import json
import subprocess

import numpy
import pytest

from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool
from rank_runs import needs_mpi, same_kernels  # noqa: F401

STEPS = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, its data, and a program for two ranks whose first steps overflow."""
    folder = tmp_path_factory.mktemp("skips")
    assert write_model(["gpt", "-o", str(folder / "m.mlir"), "--hidden", "32", "--heads", "4",
                        "--layers", "2", "--seq", "16", "--vocab", "96", "--batch", "4"]) == 0
    numpy.random.default_rng(0).integers(0, 96, 4096).astype("uint16").tofile(folder / "d.bin")
    run_tool([tool("cleave-compile"), str(folder / "m.mlir"), "--mesh=dp=2", "--plan=zero1",
              "--precision=fp16", "--loss-scale-init", str(2**24), "--loss-scale-window=4",
              "--threads=2", "-o", str(folder / "m.so")])
    return folder


def run(folder, name, *flags, processes=0):
    launch = ["mpirun", "--oversubscribe", "-n", str(processes)] if processes else []
    done = subprocess.run(
        [*launch, tool("cleave-run"), str(folder / "m.so"), "--data", str(folder / "d.bin"),
         "--lr-schedule", "linear", "--warmup", "4", "--lr", "0.01", "--progress", "lines",
         "--log", str(folder / name), *flags,
         *([] if processes else ["--threads", "2"])],
        capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, [json.loads(line) for line in (folder / name).read_text().splitlines()]


def facts(lines):
    return [{key: line.get(key) for key in ("step", "loss", "lr", "skipped", "loss_scale")}
            for line in lines]


def test_threads(folder):
    text, lines = run(folder, "log", "--random-init", "--steps", str(STEPS))
    skipped = [line for line in lines if "skipped" in line]
    assert 2 < len(skipped) < STEPS and len(lines) == STEPS
    assert all(line["skipped"].endswith("not finite") and "loss" not in line for line in skipped)
    assert text.count(": skipped: ") == len(skipped)
    assert "at loss scale 16777216; the next one is 16777216" in text
    # Rates are those of updates.
    rates = [line["lr"] for line in lines if "lr" in line]
    assert rates[:2] == [0, 0.0025]


@needs_mpi
def test_processes_are_as_threads(folder):
    _, threads = run(folder, "threads", "--random-init", "--steps", str(STEPS))
    _, processes = run(folder, "processes", "--random-init", "--steps", str(STEPS), processes=2)
    assert facts(processes) == facts(threads)


@pytest.mark.parametrize("at", [2, 5])
def test_resumed_among_skips(folder, at):
    """The checkpoint has the scale and the number of skips."""
    _, whole = run(folder, f"whole{at}", "--random-init", "--steps", str(STEPS))
    save = folder / f"saved{at}"
    run(folder, f"first{at}", "--random-init", "--steps", str(STEPS), "--stop-at", str(at),
        "--save-every", str(at), "--save-dir", str(save))
    training = json.loads((save / f"step-{at}" / "training.json").read_text())
    assert training["skipped"] == sum("skipped" in line for line in whole[:at])
    assert training["loss_scale"]["scale"] > 0
    _, rest = run(folder, f"rest{at}", "--resume", str(save), "--steps", str(STEPS))
    assert facts(rest) == facts(whole[at:])
    # As an earlier version wrote it, without hashes.
    del training["hash"], training["files"]
    text = json.dumps(training).replace('"skipped": ', '"skipped": 9')
    (save / f"step-{at}" / "training.json").write_text(text)
    done = subprocess.run([tool("cleave-run"), str(folder / "m.so"), "--data",
                           str(folder / "d.bin"), "--resume", str(save), "--steps", str(STEPS)],
                          capture_output=True, text=True)
    assert done.returncode == 1 and "skipped is out of range" in done.stderr
