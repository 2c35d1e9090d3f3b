# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Ranks of cleave-run that meet by sockets."""

import os
import socket
import subprocess

import pytest

from rank_runs import TWO
from run_support import TOOL

#: Variables that another launch may have set.
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
             "CLEAVE_PORT", "CLEAVE_ADDRESS", "CLEAVE_PATIENCE",
             "CLEAVE_SECRET")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setenv("CLEAVE_TUNING", "off")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


def start(rank, size, port, *args, artifact=TWO, **more):
    variables = {"RANK": rank, "WORLD_SIZE": size, "CLEAVE_PORT": port, **more}
    return subprocess.Popen(
        [TOOL, artifact, *map(str, args), "--threads", "1"], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {name: str(value) for name, value in variables.items()
                          if value is not None})


def end(process):
    """Its exit code, and what it printed."""
    text, _ = process.communicate(timeout=60)
    return process.returncode, text
