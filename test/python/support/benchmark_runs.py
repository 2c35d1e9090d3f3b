# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs of benchmarks."""

import json
import math
import os
import pathlib
import subprocess
import sys

import pytest

from cleave.testing.tools import tool
from proofs import ALL

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(tool("cleave-compile")).parents[1]

full = pytest.mark.skipif(not ALL, reason="runs with CLEAVE_TEST_ALL=1")


def run(script, *flags, build=("--build", BUILD)):
    """The output of `script` with --smoke; it must end with status 0."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "CLEAVE_TUNING": "off"}
    result = subprocess.run(
        [sys.executable, ROOT / script, *build, "--smoke", *flags], text=True,
        capture_output=True, timeout=900, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def figures(text):
    """The JSON lines, all of whose numbers are finite."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def check(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for part in value:
                check(part)
        elif isinstance(value, float):
            assert math.isfinite(value), text

    check(lines)
    return lines
