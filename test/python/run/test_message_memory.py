# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The memory of messages between processes: what the plan has is what a run takes."""

import json
import re
import subprocess

import numpy
import pytest

from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool
from rank_runs import needs_mpi, same_kernels  # noqa: F401

LAYOUTS = ["--mesh=tp=2 --plan=megatron", "--mesh=dp=2 --plan=zero3 --micro-batches=2",
           "--mesh=dp=2 --plan=zero1", "--mesh=pp=2 --micro-batches=2"]


@needs_mpi
@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages(layout, tmp_path):
    path = tmp_path / "gpt.mlir"
    assert write_model(["gpt", "--hidden", "256", "--heads", "8", "--layers", "2", "--seq", "128",
                        "--vocab", "512", "--batch", "4", "-o", str(path)]) == 0
    run_tool([tool("cleave-compile"), str(path), *layout.split(), "--threads=2", "-o",
              str(tmp_path / "gpt.so"), "--report", str(tmp_path / "report.json")])
    plan = json.loads((tmp_path / "report.json").read_text())["plan"]
    (numpy.arange(60000) % 500).astype(numpy.uint16).tofile(tmp_path / "train.bin")
    # Rank 0 reports, which is at position 0 of a pipeline.
    planned = plan.get("positions", [plan])[0]["outside"]["messages"]
    result = subprocess.run(
        ["mpirun", "--oversubscribe", "-n", "2", tool("cleave-run"), "gpt.so", "--random-init",
         "--data", "train.bin", "--steps", "3", "--report-memory"],
        cwd=tmp_path, text=True, capture_output=True)
    assert result.returncode == 0, result.stderr
    found = re.search(r"([\d.]+) MiB  messages between processes", result.stdout + result.stderr)
    assert float(found[1]) == pytest.approx(planned / 2**20, abs=0.051)
