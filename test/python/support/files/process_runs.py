# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Processes of one launch in Python."""

import json
import os
import pathlib

import pytest

SCRIPT = pathlib.Path(__file__).with_name("process_script.py")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """What rounds otherwise is left out of it."""
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CLEAVE_TUNING", "off")
    monkeypatch.setenv("CLEAVE_CHECK", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(
        [*filter(None, [os.environ.get("PYTHONPATH")]), str(SCRIPT.parent)]))


def lines(text):
    """The output of each process, by its rank."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {entry.pop("rank"): entry for entry in found}


def equal(one, other):
    """Bit by bit; no value of these is NaN."""
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
