# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A run whose ranks are processes is that of one process, whose ranks are threads: the first one writes,
and all of them stop at the same step."""

import json
import os
import pathlib
import subprocess
import sys

import torch

import cleave
from loop_runs import Recorder, loader, small_step
from process_runs import environment  # noqa: F401
from proofs import ALL

SCRIPT = pathlib.Path(__file__).with_name("loop_ranks_script.py")


def launch(folder, resume, monkeypatch):
    """The lines that two processes print, and all that they print."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                           str(SCRIPT), str(folder), resume], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(line for line in done.stdout.splitlines() if line.startswith("ranks:")), done.stdout


def test_a_run_of_processes(tmp_path, environment, monkeypatch):  # noqa: F811
    """Stopped by the last rank after step 5; in a second launch, which resumes it, after step 8."""
    ranks, text = launch(tmp_path, "none", monkeypatch)
    assert [line.split()[1:5] for line in ranks] == [["0", "True", "5", "end"], ["1", "False", "5", "end"]]
    assert text.count("step 5/20") == 1  # The progress of the first rank alone.
    steps = 5
    if ALL:
        steps = 8
        ranks, _ = launch(tmp_path, "auto", monkeypatch)
        assert [line.split()[3] for line in ranks] == ["8", "8"]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, steps + 1))
    assert [line["step"] for line in lines if "eval_loss" in line] == [4, 5, 8][:3 if ALL else 2]
    assert all(line["param_norm"] > 0 for line in lines if "loss" in line)
    saved = ["step-3", "step-5", "step-6", "step-8"][:4 if ALL else 2]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == saved
    recorder, step = Recorder(), small_step({"dp": 2})
    torch.manual_seed(3)
    cleave.Run(step, loader(), callbacks=[recorder]).fit(steps=steps)
    assert [line["loss"] for line in lines if "loss" in line] == recorder.losses
