# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs of cleave-run as several ranks."""

import shutil
import subprocess

import pytest

from run_support import ARTIFACT, BUILD, TOOL, metrics

TWO = ARTIFACT.with_name("bigram2.so")
FLAGS = ["--random-init", "--data", "train.bin", "--lr", "2", "--seed", "5"]

needs_mpi = pytest.mark.skipif(
    not shutil.which("mpirun") or not (BUILD / "lib" / "libcleave_mpi.so").exists(),
    reason="there is no MPI")


@pytest.fixture(autouse=True)
def same_kernels(monkeypatch):
    """What rounds otherwise is left out of it."""
    monkeypatch.setenv("CLEAVE_TUNING", "off")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")


def run(*args, artifact=TWO, processes=0, code=0):
    # One thread for each rank, here and there.
    launch = ["mpirun", "--oversubscribe", "-n", str(processes)] if processes else []
    threads = ["--threads", "1" if processes else "2"]
    result = subprocess.run([*launch, TOOL, artifact, *map(str, args), *threads],
                            capture_output=True, text=True, timeout=120)
    assert (result.returncode == 0) == (code == 0), result.stdout + result.stderr
    return result


def losses(path):
    return [line["loss"] for line in metrics(path)]


def files(folder):
    return [(folder / name).read_bytes()
            for name in ("model.safetensors", "optimizer.safetensors")]
