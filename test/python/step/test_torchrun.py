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
from process_runs import SCRIPT, environment, equal, lines  # noqa: F401
from proofs import ALL


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


def test_what_one_cannot_do_all_learn(tmp_path):
    """Nobody waits for a rank that has failed alone: all raise, and train on as if nothing had
    been tried."""
    code, text = torchrun(2, "zero1", tmp_path, "failures")
    assert code == 0, text
    printed = lines(text)
    first, second = (printed[rank]["errors"] for rank in range(2))
    by_first = {"save": "OSError", "save to a full disk": "OSError",
                "save over something": "FileExistsError", "artifact": "FileNotFoundError"}
    for what, kind in by_first.items():
        assert first[what][0] == second[what][0] == kind, what
        assert second[what][1].startswith("rank 0") and first[what][1] in second[what][1], what
    assert first["good save"] is second["good save"] is None
    assert first["store"] == ["OperationalError", "the disk is full"]
    assert second["store"] == [
        "RuntimeError", "rank 0 cannot store a model: the disk is full (OperationalError)"]
    for what in ("load", "weights"):
        assert first[what][0] == second[what][0] == "FileNotFoundError", what
        assert first[what][1].startswith("rank 1 cannot "), what
    assert "rank 1" in first["bad weights"][1] and "rank 1" in second["bad weights"][1]
    assert first["fetch"] == second["fetch"] and first["fetch"][0] == "FeedError"
    step = process_script.build("zero1")
    for seed in range(len(first)):
        step(*process_script.tokens(seed=seed))
    assert printed[0]["digests"] == process_script.digests(step)
    assert printed[0]["files"] == ["checkpoint", "models.db", "of-rank-0", "of-rank-1"]


BUSY = ("rank 1: does not come to what others wait for: it is busy with something else, for 2 s; "
        "--patience (of Python: patience; else CLEAVE_PATIENCE) sets another time")


def by_hand(folder, what):
    """Two processes without a launcher, which would end one when the other ends: their codes,
    and what they printed."""
    port = free_port()
    found = [subprocess.Popen(
        [sys.executable, str(SCRIPT), "dp", str(folder), what], text=True, stderr=subprocess.PIPE,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "CLEAVE_PORT": port})
        for rank in range(2)]
    texts = [process.communicate(timeout=100)[1] for process in found]
    return [process.returncode for process in found], texts


@pytest.mark.parametrize("what", ["endless", *(["asleep"] if ALL else [])])
def test_an_endless_loop_of_one_ends_all(tmp_path, what):
    """With the same message; what `finally` has to do is done, also in that loop."""
    codes, texts = by_hand(tmp_path, what)
    assert codes == [1, 1], texts
    assert all(BUSY in text for text in texts), texts
    assert all((tmp_path / f"finally-{rank}").read_text() == "left" for rank in range(2))


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
    script.write_text("import cleave.runtime.processes as p\nprint('secret', p._secret(), flush=True)\n")
    found = []
    for _ in range(2):
        text = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone",
                               "--nproc-per-node=2", str(script)], capture_output=True, text=True,
                              timeout=300, check=True).stdout
        own = [line.split()[1] for line in text.splitlines() if line.startswith("secret")]
        assert len(own) == 2 and len(own[0]) == 64 and own[0] == own[1], text
        found.append(own[0])
    assert found[0] != found[1]
