# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Offload within a limit of memory, and where the file cannot be made, read or written."""

import contextlib
import gc
import glob
import json
import os
import resource
import subprocess
import sys

import numpy
import pytest

from cleave.testing.tools import run_tool, tool
from offload_runs import batches, compiled
from training_support import same_bits, snapshot


@contextlib.contextmanager
def files_up_to(size):
    """No file can be written beyond `size` bytes, as on a disk that fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def tier_file(folder):
    """The file without a name that this process has open in `folder`."""
    for path in glob.glob("/proc/self/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(f"{folder}/") and "deleted" in os.readlink(path):
                return path
    return None


def test_the_file_has_no_name_and_ends_with_the_step(tmp_path):
    step = compiled(["state"], offload_dir=tmp_path)
    step(*batches()[0])
    assert os.listdir(tmp_path) == []
    path = tier_file(tmp_path)
    assert os.stat(path).st_size == step.memory()["tier"] <= 512 * os.stat(path).st_blocks
    del step
    gc.collect()
    assert tier_file(tmp_path) is None


@pytest.mark.parametrize("folder, message", [
    ("missing", "missing: cannot create the file for what is offloaded: No such file"),
    ("file", "file: cannot create the file for what is offloaded: Not a directory"),
])
def test_a_folder_that_cannot_hold_it(tmp_path, folder, message):
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match=message + r".*\(--offload-dir, offload_dir, name another"):
        compiled(["state"], offload_dir=tmp_path / folder)(*batches()[0])


def test_too_little_space(tmp_path):
    with files_up_to(4096), pytest.raises(
            Exception, match="cannot reserve .* bytes for what is offloaded: File too large"):
        compiled(["state"], offload_dir=tmp_path)(*batches()[0])


def test_a_write_that_fails_within_a_step_ends_the_run(tmp_path):
    step = compiled(["state"], offload_dir=tmp_path)
    data = batches()
    step(*data[0])
    step.save(tmp_path / "good")
    expected = snapshot(step)
    lost = "cannot write .* of what is offloaded: File too large; .* the last checkpoint is what"
    with files_up_to(4096), pytest.raises(Exception, match=lost):
        step(*data[1])
    for use in (lambda: step(*data[1]), lambda: step.save(tmp_path / "bad")):
        with pytest.raises(Exception, match="the last checkpoint is what remains"):
            use()
    assert not (tmp_path / "bad").exists()
    again = compiled(["state"], offload_dir=tmp_path)
    again.load(tmp_path / "good")
    assert same_bits(snapshot(again), expected)


def test_a_file_that_has_become_short_ends_the_run(tmp_path):
    step = compiled(["state"], offload_dir=tmp_path)
    data = batches()
    step(*data[0])
    with open(tier_file(tmp_path), "r+b") as file:
        file.truncate(1000)
    with pytest.raises(Exception, match="cannot read .* the file has ended; .* last checkpoint"):
        step(*data[1])


#: A model with 8 bytes of state for each of these parameters, and few others.
LAYERS, WIDTH = 16, 512


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Artifacts with and without offload of a model whose state exceeds its other memory."""
    folder = tmp_path_factory.mktemp("large")
    subprocess.run([sys.executable, "-m", "cleave.models", "gpt", f"--hidden={WIDTH}", "--heads=8",
                    f"--layers={LAYERS}", "--seq=16", "--vocab=256", "--batch=1",
                    "-o", folder / "gpt.mlir"], check=True, capture_output=True)
    numpy.random.default_rng(0).integers(0, 256, 4000).astype("uint16").tofile(folder / "train.bin")
    for name, flags in (("kept", []), ("moved", ["--offload=state"])):
        run_tool([tool("cleave-compile"), folder / "gpt.mlir", "--optimizer-fusion=backward",
                  "--check-finite=off", "--threads=1", *flags, f"--report={folder / name}.json",
                  "-o", folder / f"{name}.so"])
    return folder


def train(folder, name, limit=None, *flags):
    def restrict():
        if limit:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return subprocess.run(
        [tool("cleave-run"), folder / f"{name}.so", "--random-init", "--data",
         folder / "train.bin", "--steps=3", "--threads=1", "--log", folder / f"{name}.log",
         *flags], capture_output=True, text=True, preexec_fn=restrict,
        env={**os.environ, "CLEAVE_TUNING": "off"})


def test_a_model_whose_state_exceeds_the_limit_trains(large):
    plans = {name: json.loads((large / f"{name}.json").read_text())["plan"]
             for name in ("kept", "moved")}
    state = plans["kept"]["bytes"]["state"]
    # The library takes about 60 MiB for itself.
    limit = plans["moved"]["arena_bytes"] + (80 << 20)
    assert limit < state < plans["kept"]["arena_bytes"]
    refused = train(large, "kept", limit)
    assert refused.returncode != 0 and "cannot map an arena" in refused.stderr
    trained = train(large, "moved", limit)
    assert trained.returncode == 0, trained.stderr
    assert train(large, "kept").returncode == 0
    kept, moved = ([json.loads(line) for line in (large / f"{name}.log").read_text().splitlines()]
                   for name in ("kept", "moved"))
    assert [line["loss"] for line in moved] == [line["loss"] for line in kept]
    assert moved[-1]["offload"] == {"fetched_bytes": state, "evicted_bytes": state}
    assert moved[-1]["breakdown"]["offload"] > 0 and "offload" not in kept[-1]


def test_flags(large):
    def said(program, *flags):
        return subprocess.run([tool(program), *flags], capture_output=True, text=True).stderr
    assert ("--offload: unknown kind 'weights'; what can be offloaded is state, masters and saved"
            in said("cleave-compile", large / "gpt.mlir", "--offload=state,weights", "--plan-only"))
    assert ("nowhere: cannot create the file for what is offloaded" in
            train(large, "moved", None, "--offload-dir=nowhere").stderr)
