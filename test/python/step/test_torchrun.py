# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A script under torchrun, whose ranks are processes that TCP connects, computes what the same
script computes in one process, whose ranks are threads."""

import os
import socket
import subprocess
import sys

import pytest
import torch

import process_script
from proofs import ALL
from test_processes import SCRIPT, environment, equal, lines  # noqa: F401


@pytest.fixture(autouse=True)
def alone(environment, monkeypatch):  # noqa: F811
    """No variable of another launch is seen."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                 "MASTER_PORT", "CLEAVE_PORT", "CLEAVE_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def torchrun(processes, form, folder, what):
    """Its exit code and what it printed, at a port that is free with the next one."""
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         f"--nproc-per-node={processes}", str(SCRIPT), form, str(folder), what],
        capture_output=True, text=True, timeout=300)
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("form", ["dp-4", *(["zero3", "dp-pp"] if ALL else [])])
def test_as_threads(tmp_path, form):
    """Losses and state, bit for bit."""
    code, text = torchrun(4, form, tmp_path, "short")
    assert code == 0, text
    one = process_script.short(process_script.build(form))
    other = torch.load(tmp_path / "results.pt", weights_only=False)
    assert one["losses"] == other["losses"]
    assert equal(one["state"], other["state"])
    printed = lines(text)
    assert len(printed) == 4
    assert all(entry["losses"] == one["losses"] for entry in printed.values())


@pytest.mark.parametrize("form, ranks", [("factors-4", 4) if ALL else ("factors", 2)])
def test_factors_are_the_same_in_each_process(tmp_path, form, ranks):
    """PowerSGD's right factors, and with the parameters the left ones, whose products are their
    updates: each rank has the same bits, as ranks have that are threads."""
    code, text = torchrun(ranks, form, tmp_path, "digests")
    assert code == 0, text
    found = [entry["digests"] for entry in lines(text).values()]
    step = process_script.build(form)
    for seed in range(3):
        step(*process_script.tokens(seed=seed))
    assert found == [process_script.digests(step)] * ranks
    assert sum(name.endswith("weight.right_factor") for name in found[0]) >= 5


@pytest.mark.skipif(not ALL, reason="with CLEAVE_TEST_ALL=1")
@pytest.mark.parametrize("what, message", [
    ("exception", "rank 0 ends: rank 1: ValueError: a bad sample"),
    ("batches", "the ranks make different calls: 'train' after step 0 of 'ids' (hash "),
    ("one", "rank 1: has ended while others wait for it"),
])
def test_what_one_does_ends_all(tmp_path, what, message):
    code, text = torchrun(2, "dp", tmp_path, what)
    assert code and message in text, text


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


@pytest.mark.skipif(not ALL, reason="with CLEAVE_TEST_ALL=1")
def test_a_rank_that_is_missing(tmp_path):
    """One message and an exit code, no matter how much is left to compile."""
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "dp", str(tmp_path), "short"], capture_output=True, text=True,
        timeout=100, env={**os.environ, "RANK": "0", "WORLD_SIZE": "2", "CLEAVE_PATIENCE": "1",
                          "CLEAVE_PORT": free_port()})
    assert result.returncode == 1
    assert "ProcessError: rank 1 (of 2) did not come to rank 0 at localhost:" in result.stderr


@pytest.mark.skipif(not ALL, reason="with CLEAVE_TEST_ALL=1")
def test_the_secret_is_in_the_store_of_torchrun(tmp_path):
    """All processes of a launch have the same one, and those of the next launch another."""
    script = tmp_path / "secret.py"
    script.write_text("import cleave.processes as p\nprint('secret', p._secret(), flush=True)\n")
    found = []
    for _ in range(2):
        text = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone",
                               "--nproc-per-node=2", str(script)], capture_output=True, text=True,
                              timeout=300, check=True).stdout
        own = [line.split()[1] for line in text.splitlines() if line.startswith("secret")]
        assert len(own) == 2 and len(own[0]) == 64 and own[0] == own[1], text
        found.append(own[0])
    assert found[0] != found[1]
