# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs of cleave-run: artifacts, folders, and what they print."""

import array
import json
import os
import pathlib
import random
import subprocess
import sys
import time

import pytest

BUILD = pathlib.Path(
    os.environ.get("CLEAVE_BUILD_DIR", pathlib.Path(__file__).parents[4] / "build")
)
TOOL = BUILD / "bin" / "cleave-run"
ARTIFACT = BUILD / "test" / "unit" / "Runtime" / "bigram.so"

pytestmark = pytest.mark.skipif(
    not TOOL.exists() or not ARTIFACT.exists(), reason="cleave-run is not built"
)


def read_terminal(main):
    """The output to a terminal until its other side closed."""
    said = b""
    try:
        while block := os.read(main, 4096):
            said += block
    except OSError:
        pass
    os.close(main)
    return said


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CLEAVE_PYTHON", sys.executable)
    monkeypatch.delenv("CLEAVE_TUNING", raising=False)
    rng = random.Random(1)
    tokens, x = [], 1
    for _ in range(4000):
        x = (x * 3 + 1) % 64 if rng.random() < 0.9 else rng.randrange(64)
        tokens.append(x)
    with open(tmp_path / "train.bin", "wb") as out:
        array.array("H", tokens).tofile(out)
    return tmp_path


def run(*args, code=0):
    result = subprocess.run(
        [TOOL, ARTIFACT, *map(str, args)], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


def train(*args, code=0, start="--random-init"):
    return run(start, "--data", "train.bin", "--threads", 2, *args, code=code)


def metrics(path):
    return [json.loads(line) for line in open(path)]


def start(*args, **settings):
    """A run that would go on for long; returns when it has made some steps."""
    if os.path.exists("m"):
        os.remove("m")
    process = subprocess.Popen(
        [TOOL, ARTIFACT, "--data", "train.bin", "--threads", "1", "--log", "m"]
        + ["--steps", "100000000", *args], text=True, stderr=subprocess.PIPE,
        **{"stdout": subprocess.PIPE, **settings})
    wait_until(lambda: os.path.exists("m") and os.path.getsize("m") > 1000)
    return process


def wait_until(happens):
    deadline = time.time() + 100
    while not happens():
        assert time.time() < deadline
        time.sleep(0.01)
