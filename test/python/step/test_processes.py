# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A script under mpirun, whose ranks are processes, computes what the same script computes
in one process, whose ranks are threads; what one of them does alone ends all of them."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
import torch

import cleave
from process_runs import SCRIPT, environment, equal, lines  # noqa: F401
from proofs import ALL

ROOT = pathlib.Path(cleave.__file__).parents[2]
BUILD = pathlib.Path(os.environ.get("CLEAVE_BUILD_DIR", ROOT / "build"))

needs_mpi = pytest.mark.skipif(
    not shutil.which("mpirun") or not (BUILD / "lib" / "libcleave_mpi.so").exists(),
    reason="there is no MPI")


def command(processes):
    return ["mpirun", "--oversubscribe", "-n", str(processes)] if processes else []


def start(form, folder, what="train", processes=0):
    return [*command(processes), sys.executable, str(SCRIPT), form, str(folder), what]


def run(*args, code=0, **keywords):
    result = subprocess.run(start(*args, **keywords), capture_output=True, text=True, timeout=600)
    text = result.stdout + result.stderr
    assert (result.returncode == 0) == (code == 0), text
    return text


SIZES = {"zero1": 2, "pp": 2, "delayed": 2}
MORE = {"dp": 2, "dp-4": 4, "zero3": 4, "tp": 2, "dp-pp": 4}


@needs_mpi
@pytest.mark.parametrize("form, processes", list((SIZES | (MORE if ALL else {})).items()))
def test_as_threads(tmp_path, form, processes):
    """Losses, logits and state, bit for bit; each process gets the same losses, and the
    first one writes."""
    for name in ("threads", "processes"):
        (tmp_path / name).mkdir()
    run(form, tmp_path / "threads")
    text = run(form, tmp_path / "processes", processes=processes)
    one, other = (torch.load(tmp_path / name / "results.pt", weights_only=False)
                  for name in ("threads", "processes"))
    assert one["losses"] == other["losses"]
    # From the checkpoint on, each way.
    assert len(set(one["losses"][-6:-3])) == 1
    assert equal(one["state"], other["state"])
    assert one["logits"].equal(other["logits"])
    for name, own in one["training"]["optimizer"].items():
        assert equal(own, other["training"]["optimizer"][name])
    assert one["training"]["step"] == other["training"]["step"] == 4
    printed = lines(text)
    assert len(printed) == processes
    assert all(entry["losses"] == one["losses"] for entry in printed.values())
    for name in ("model.safetensors", "optimizer.safetensors"):
        files = [(tmp_path / folder / "checkpoint" / name).read_bytes()
                 for folder in ("threads", "processes")]
        assert files[0] == files[1]
    exports = [cleave.read_export(tmp_path / folder / "export.safetensors")
               for folder in ("threads", "processes")]
    assert equal(*exports)
    # Remarks are those of one process: the further shape.
    assert text.count("remark: compiled for inputs of shape") <= 1


@needs_mpi
@pytest.mark.parametrize("what, message", [
    ("parameters", "the ranks differ in the initial parameters (hash): "),
    ("arguments", "the ranks differ in bucket_bytes: 1000 (rank 0), 1001 (rank 1)"),
    ("batches", "the ranks make different calls: 'train' after step 0 of 'ids' (hash "),
    ("calls", "the ranks make different calls: 'evaluate' after step 0 of "),
    ("kinds", "the ranks make different calls: export as bf16 (rank 0)"),
    ("one", "rank 1: has ended while others wait for it"),
    ("early", "ValueError: no data here"),
    ("exception", "rank 1: ValueError: a bad sample"),
    ("unwritable", "rank 0: "),
])
def test_what_one_does_ends_all(tmp_path, what, message):
    if what not in ("parameters", "batches", "exception") and not ALL:
        pytest.skip("with CLEAVE_TEST_ALL=1")
    text = run("dp", tmp_path, what, processes=2, code=1)
    assert message in text, text


BUSY = ("rank 1: does not come to what others wait for: it is busy with something else, for 2 s; "
        "--patience (of Python: patience; else CLEAVE_PATIENCE) sets another time")


@needs_mpi
@pytest.mark.skipif(not ALL, reason="with CLEAVE_TEST_ALL=1; test/Runtime/mpi.test has it without Python")
@pytest.mark.parametrize("what", ["endless", "asleep"])
def test_an_endless_loop_of_one_ends_all(tmp_path, what):
    """`finally` is done at least in the first that ends, by which the launcher ends the others."""
    text = run("dp", tmp_path, what, processes=2, code=1)
    assert BUSY in text and list(tmp_path.glob("finally-*")), text


@needs_mpi
def test_refused_alike(tmp_path):
    """All refuse a bad batch with one message, and go on."""
    printed = run("dp", tmp_path, "refused", processes=2)
    errors = [json.loads(line)["error"] for line in printed.splitlines() if '"error"' in line]
    assert len(errors) == 2 and errors[0] == errors[1] and "1000" in errors[0]
    assert len({json.dumps(entry) for entry in lines(printed).values()}) == 1


@needs_mpi
def test_an_export_that_cannot_be_written_is_refused_by_all(tmp_path):
    text = run("dp", tmp_path, "unwritable-export", processes=2)
    errors = {rank: entry["error"] for rank, entry in lines(text).items()}
    assert "there is no folder '/proc/nothing'" in errors[0]
    assert errors[1] == f"rank 0 cannot export as int8: {errors[0]}"


@needs_mpi
def test_number_of_processes(tmp_path):
    text = run("dp", tmp_path, processes=3, code=1)
    assert ("the mesh has 2 devices, but this launch has 3 processes; start it with mpirun "
            "-n 2") in text


def test_no_launch():
    from training_support import net, token_loss, tokens

    with pytest.raises(ValueError, match="ranks is 'mpi'; it must be"):
        cleave.compile(net(), tokens(), token_loss, launch="mpi")
    with pytest.raises(ValueError, match="start the script with mpirun -n 2 or torchrun "
                                         "--nproc-per-node 2"):
        cleave.compile(net(), tokens(), token_loss, mesh={"dp": 2}, launch="processes")


@needs_mpi
@pytest.mark.skipif(not ALL, reason="with CLEAVE_TEST_ALL=1")
@pytest.mark.parametrize("what", ["signal", "signal-between"])
def test_signals(tmp_path, what):
    """A signal to all processes, whose handler raises, ends all after the same step."""
    process = subprocess.Popen(start("dp", tmp_path, what, processes=2), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    found = []
    while len(found) < 2:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        if line.startswith("ready"):
            found.append(int(line.split()[1]))
    for _ in range(20):
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            pass
    for pid in found:
        os.kill(pid, signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    printed = lines(out)
    assert len(printed) == 2, out + err
    assert printed[0] == printed[1] and printed[0]["step"] > 0
