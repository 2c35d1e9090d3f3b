# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Processes of one run that were given different files or options stop before the
first step, and say which ranks have what."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

from rank_runs import FLAGS, TWO, needs_mpi, same_kernels  # noqa: F401
from run_support import TOOL, folder, metrics, pytestmark  # noqa: F401


def run(*each, artifacts=(TWO, TWO)):
    """One process for each list of flags; standard output and error together."""
    command = ["mpirun", "--oversubscribe"]
    for rank, flags in enumerate(each):
        command += [":"] * (rank > 0) + ["-n", "1", TOOL, artifacts[rank], *map(str, flags),
                                         "--threads", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return result.returncode, result.stdout + result.stderr


def refused(*each, **keywords):
    code, text = run(*each, **keywords)
    assert code != 0, text
    assert "step 1/" not in text, text
    return text


@needs_mpi
def test_equal_processes_train(folder):
    flags = [*FLAGS, "--steps", 2, "--log", "log"]
    code, text = run(flags, flags)
    assert code == 0, text
    assert len(metrics("log")) == 2


@needs_mpi
def test_artifacts_differ(folder):
    flags = [*FLAGS, "--steps", 2]
    content = pathlib.Path(TWO).read_bytes()
    # The same program, but another file.
    pathlib.Path("code.so").write_bytes(content + b"\0")
    text = refused(flags, flags, artifacts=(TWO, "./code.so"))
    assert "the ranks differ in the artifact (hash): " in text
    assert "(rank 0), " in text and "(rank 1)" in text
    assert "the program (hash)" not in text
    # Another program.
    assert b'"labels"' in content
    pathlib.Path("program.so").write_bytes(content.replace(b'"labels"', b'"labelz"'))
    text = refused(flags, flags, artifacts=(TWO, "./program.so"))
    assert "the ranks differ in the program (hash): " in text


@needs_mpi
@pytest.mark.parametrize("one, other, difference", [
    (["--seed", 5], ["--seed", 6], "the seed: 5 (rank 0), 6 (rank 1)"),
    (["--lr", 2], ["--lr", 1], "--lr: 2 (rank 0), 1 (rank 1)"),
    (["--lr-schedule", "linear"], [], "--lr-schedule: linear (rank 0), constant (rank 1)"),
    (["--save-every", 1, "--save-dir", "s"], [], "--save-every: 1 (rank 0), 0 (rank 1)"),
    ([], ["--log", "log"], "whether --log is given: no (rank 0), yes (rank 1)"),
    (["--steps", 3], ["--steps", 4], "--steps: 3 (rank 0), 4 (rank 1)"),
])
def test_options_differ(folder, one, other, difference):
    base = ["--random-init", "--data", "train.bin"]
    assert difference in refused([*base, *one], [*base, *other])


@needs_mpi
def test_files_differ(folder):
    base = ["--lr", "2", "--seed", "5", "--steps", 2]
    data = pathlib.Path("train.bin").read_bytes()
    pathlib.Path("other.bin").write_bytes(data[2:] + data[:2])
    text = refused(["--random-init", "--data", "train.bin", *base],
                   ["--random-init", "--data", "other.bin", *base])
    assert "the ranks differ in the training data (hash): " in text

    # Weights, and checkpoints.
    base = ["--data", "train.bin", "--lr", "2"]
    flags = [*base, "--random-init", "--seed", "5", "--steps", 2, "--save-every", 1,
             "--save-dir", "here"]
    code, text = run(flags, flags)
    assert code == 0, text
    first, second = (os.path.join("here", f"step-{step}") for step in (1, 2))
    weights = [[*base, "--steps", 2, "--weights", os.path.join(step, "model.safetensors")]
               for step in (first, second)]
    assert "the ranks differ in the weights that were read (hash): " in refused(*weights)
    more = [*base, "--steps", 4]
    text = refused([*more, "--resume", first], [*more, "--resume", second])
    assert "the ranks differ in the step of the checkpoint: 1 (rank 0), 2 (rank 1)" in text
    # A stale file beside the others.
    shutil.copytree(second, "stale")
    shutil.copy(os.path.join(first, "optimizer.safetensors"), "stale")
    text = refused([*more, "--resume", second], [*more, "--resume", "stale"])
    assert "stale/optimizer.safetensors: is damaged" in text
    # Of an earlier version, without hashes.
    facts = json.loads(pathlib.Path("stale/training.json").read_text())
    del facts["files"], facts["hash"]
    pathlib.Path("stale/training.json").write_text(json.dumps(facts))
    text = refused([*more, "--resume", second], [*more, "--resume", "stale"])
    assert "the ranks differ in the optimizer state that was read (hash): " in text
    code, text = run([*more, "--resume", second], [*more, "--resume", second])
    assert code == 0, text
