# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Files that others shorten or overwrite while they are read, or used: artifacts, weights, checkpoints,
data. Each is an error with its file, or does no harm; never a signal."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import safetensors.numpy

from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool
from file_calls import COMPILER
from proofs import ALL
from rank_runs import TWO
from run_support import ARTIFACT, TOOL, folder, metrics, pytestmark, wait_until  # noqa: F401
from shrinking_file import environment

FLAGS = ("--data", "train.bin", "--lr", "0.1", "--steps")
needs_compiler = pytest.mark.skipif(not COMPILER, reason="there is no C compiler")


def run(artifact, *args, **settings):
    return subprocess.run([TOOL, artifact, "--threads", "2", *map(str, args)], capture_output=True,
                          text=True, timeout=60, **settings)


@pytest.mark.parametrize("how", ["shortened", "overwritten"])
def test_an_artifact_in_use(folder, how):  # noqa: F811
    """Its code stays as it was when it was opened."""
    shutil.copy(ARTIFACT, "own.so")
    command = [TOOL, "./own.so", "--random-init", "--threads", "1", *FLAGS]
    process = subprocess.Popen([*command, "400", "--log", "m"], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: os.path.exists("m") and len(metrics("m")) > 3)
    process.send_signal(19)
    size = os.path.getsize("own.so")
    with open("own.so", "r+b") as file:
        file.truncate(0)
        if how == "overwritten":
            file.write(b"\xcc" * size)
    process.send_signal(18)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 0 and len(metrics("m")) == 400, text
    done = run("./own.so", "--random-init", *FLAGS, 1)
    assert done.returncode == 1 and "own.so: not an artifact of cleave-compile" in done.stderr


def test_two_artifacts_of_one_process(tmp_path):
    """Each has its own code and tables, opened at once or one after another."""
    texts = []
    for width in (8, 12, 16):
        model = str(tmp_path / f"{width}.mlir")
        write_model(["gpt", "-o", model, "--hidden", str(width), "--heads", "2", "--layers", "1", "--seq", "4",
                     "--vocab", "16", "--batch", "2", "--no-logits"])
        run_tool([tool("cleave-compile"), model, "-o", model + ".so", "--threads=1"])
        texts.append(f"session = _runtime.open({model + '.so'!r}); held.append(session)\n"
                     f"shapes = {{t['name']: t['shape'] for t in session.tensors()}}\n"
                     f"assert {width} in shapes['blocks.0.norm1.weight'], ({width}, shapes)\n")
    for keep in ("", "held.clear(); session = None\n"):
        script = "from cleave import _runtime\nheld = []\n" + keep.join(texts)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


def saved():
    """A checkpoint; its model file alone; and the same in 16 bits, which is converted."""
    assert run(TWO, "--random-init", *FLAGS, 2, "--save-every", 2, "--save-dir", "c").returncode == 0
    shutil.copy("c/step-2/model.safetensors", "w.safetensors")
    values = safetensors.numpy.load_file("w.safetensors")
    half = {name: value.astype("float16") for name, value in values.items()}
    safetensors.numpy.save_file(half, "half.safetensors")


def moments(artifact, path, *start):
    """Each read of a file, with it shorter from there on: the run's status and message."""
    whole = pathlib.Path(path).read_bytes()
    for to in (0, len(whole) - 1, *((8, len(whole) // 2) if ALL else ())):
        for at in range(1000):
            pathlib.Path(path).write_bytes(whole)
            done = run(artifact, *start, *FLAGS, 3, env=environment(path, at, to))
            if os.path.getsize(path) == len(whole):
                assert done.returncode == 0, done.stderr
                break
            yield at, done
        assert at > 0
    pathlib.Path(path).write_bytes(whole)


@needs_compiler
@pytest.mark.parametrize("artifact", [ARTIFACT, TWO], ids=["one rank", "two ranks"])
@pytest.mark.parametrize("path", ["w.safetensors", "half.safetensors"])
def test_weights_while_they_are_read(folder, artifact, path):  # noqa: F811
    saved()
    found = [done for _, done in moments(artifact, path, "--weights", path)]
    assert len(found) > 4
    for done in found:
        assert done.returncode == 1 and path in done.stderr, done
        assert "the file was shortened while it was read" in done.stderr, done


@needs_compiler
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "training.json"])
def test_a_checkpoint_while_it_is_read(folder, name):  # noqa: F811
    saved()
    reasons = ("shortened while it was read", "damaged", "truncated", "not a safetensors file", "not valid JSON")
    for at, done in moments(TWO, f"c/step-2/{name}", "--resume", "c/step-2"):
        if done.returncode == 0 and name == "training.json":
            continue  # All of it was read before.
        assert done.returncode == 1 and name in done.stderr, (at, done)
        assert any(reason in done.stderr for reason in reasons), (at, done)


@needs_compiler
def test_an_artifact_while_it_is_read(folder):  # noqa: F811
    shutil.copy(ARTIFACT, "own.so")
    for _, done in moments("./own.so", "own.so", "--random-init"):
        assert done.returncode == 1 and "own.so: the file was shortened while it was read" in done.stderr, done


SCRIPT = """
import sys
from cleave.runtime.tensor_file import read_tensors
try:
    read_tensors(sys.argv[1])
except ValueError as error:
    sys.exit(7 if "shortened" in str(error) or "truncated" in str(error) else 8)
"""


@needs_compiler
@pytest.mark.skipif(not ALL, reason="with CLEAVE_TEST_ALL=1")
def test_python_reads_no_mapped_file(folder):  # noqa: F811
    saved()
    whole = pathlib.Path("w.safetensors").read_bytes()
    for at in range(3):
        pathlib.Path("w.safetensors").write_bytes(whole)
        done = subprocess.run([sys.executable, "-c", SCRIPT, "w.safetensors"], text=True,
                              capture_output=True, env=environment("w.safetensors", at, 200))
        assert done.returncode == 7, (at, done)
