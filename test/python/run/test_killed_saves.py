# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A run that is killed while it saves: what was saved before still loads."""

import json
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from cleave.models import __main__ as models
from cleave.testing.tools import tool


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose checkpoint takes a while: 100 MB."""
    path = tmp_path_factory.mktemp("killed")
    size = "--hidden 160 --heads 4 --layers 1 --seq 8 --vocab 50257"
    assert models.main(["gpt", *size.split(), "-o", str(path / "m.mlir")]) == 0
    subprocess.run([tool("cleave-compile"), "m.mlir", "-o", "m.so", "--threads", "2"], cwd=path,
                   check=True)
    np.save(path / "d.npy", np.arange(64).astype(np.uint16))
    return path


def command(*flags):
    return [tool("cleave-run"), "m.so", "--data", "d.npy", "--save-every", "1", "--save-dir",
            "saved", "--keep", "3", *map(str, flags)]


def complete(place):
    """Steps of the finished checkpoints."""
    return sorted(int(p.name[5:]) for p in place.glob("step-*") if p.name[5:].isdigit())


def kill_while_saving(folder, number):
    """Trains, and kills the run while a later checkpoint is written; returns
    the steps that were saved, or None where the run was too quick."""
    place = folder / "saved"
    shutil.rmtree(place, ignore_errors=True)
    process = subprocess.Popen(command("--random-init", "--steps", 500), cwd=folder,
                               stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end and process.poll() is None:
            # The second of the three files is being written.
            if complete(place) and list(place.glob("step-*.tmp.*/optimizer*.tmp-*")):
                break
            time.sleep(0.0005)
        process.send_signal(number)
    finally:
        process.wait(60)
    steps = complete(place)
    half = [p for p in place.glob("step-*.tmp.*") if not (p / "training.json").exists()]
    return steps if steps and (half or number == signal.SIGTERM) else None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_checkpoint_before_still_loads(folder, number):
    attempts = (kill_while_saving(folder, number) for _ in range(5))
    steps = next((steps for steps in attempts if steps), None)
    assert steps, "no run was caught while it saved"
    last = steps[-1]
    log = f"log-{number}"
    result = subprocess.run(command("--resume", "saved", "--steps", last + 1, "--log", log),
                            cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert f"resumed from saved/step-{last} after step {last}\n" in result.stdout
    assert [json.loads(line)["step"] for line in (folder / log).open()] == [last + 1]
    # What was being written does not stand in the way, and is whole now.
    assert complete(folder / "saved")[-1] == last + 1
