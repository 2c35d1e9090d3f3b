# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""`cleave-run` started once for each rank, by hand or by torchrun: processes that TCP
connects."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from cleave.testing.tools import tool
from proofs import ALL
from rank_runs import FLAGS, TWO, files, run
from run_support import TOOL, folder, metrics, pytestmark  # noqa: F401
from socket_runs import alone, end, free_port, start  # noqa: F401

FOUR = TWO.with_name("bigram4.so")


def test_four_processes_compute_what_threads_compute(folder):
    """Bit for bit; the first process alone writes."""
    flags = [*FLAGS, "--steps", 4, "--save-every", 4]
    run(*flags, "--log", "threads.log", "--save-dir", "threads", "--threads", "4",
        artifact=FOUR)
    port = free_port()
    ranks = [start(rank, 4, port, *flags, "--log", "tcp.log", "--save-dir", "tcp",
                   artifact=FOUR) for rank in reversed(range(4))]
    found = [end(process) for process in ranks]
    assert all(code == 0 for code, _ in found), found
    assert sum(text.count("saved tcp/step-4") for _, text in found) == 1
    for a, b in zip(metrics("threads.log"), metrics("tcp.log"), strict=True):
        for key in ("step", "loss", "grad_norm"):
            assert a.get(key) == b.get(key), key
    assert files(pathlib.Path("threads/step-4")) == files(pathlib.Path("tcp/step-4"))


@pytest.mark.parametrize("flags", [[], ["--update-delay", "1,reduce=next"],
                                   ["--plan", "zero1", "--micro-batches", "2",
                                    "--update-delay", "1,reduce=next"],
                                   ["--compress", "powersgd,rank=4"],
                                   ["--compress", "threshold,keep=0.01,every=3"],
                                   ["--compress", "1bit"]], ids=str)
def test_large_sums_have_the_bits_of_threads(folder, flags):
    """Messages in many pieces, whose sums go on while other parts run."""
    subprocess.run([sys.executable, "-m", "cleave.models", "gpt", "--layers", "1", "--hidden", "256",
                    "--heads", "4", "--vocab", "128", "--seq", "16", "--batch", "4", "--no-logits",
                    "-o", "gpt.mlir"], check=True, capture_output=True)
    subprocess.run([tool("cleave-compile"), "gpt.mlir", "--mesh", "dp=2", "--threads", "1",
                    *flags, "-o", "gpt.so"], check=True, capture_output=True)
    pathlib.Path("text.bin").write_bytes(bytes(i * i % 127 for i in range(4096)))
    arguments = ["--random-init", "--data", "text.bin", "--token-dtype", "u8", "--steps", 8,
                 "--lr", "1e-3"]
    artifact = pathlib.Path("gpt.so").resolve()
    run(*arguments, "--log", "threads.log", "--threads", "2", artifact=artifact)
    port = free_port()
    ranks = [start(rank, 2, port, *arguments, "--log", "tcp.log", artifact=artifact)
             for rank in range(2)]
    found = [end(process) for process in ranks]
    assert all(code == 0 for code, _ in found), found
    one, other = ([line["loss"] for line in metrics(name)] for name in ("threads.log", "tcp.log"))
    assert one == other and len(one) == 8


@pytest.mark.skipif(not ALL, reason="with CLEAVE_TEST_ALL=1")
def test_torchrun(folder):
    """It finds the port after that of the launcher."""
    flags = [*FLAGS, "--steps", 4]
    run(*flags, "--log", "threads.log")
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         "--no-python", "--", TOOL, TWO, *map(str, flags), "--log", "tcp.log", "--threads", "1"],
        capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    one, other = ([line["loss"] for line in metrics(name)] for name in ("threads.log", "tcp.log"))
    assert one == other


@pytest.mark.parametrize("how, message", [
    (signal.SIGKILL, "rank 1: has ended, or its connection was cut"),
    (signal.SIGSTOP, "rank 1: does not answer any more: it has ended or was stopped")])
def test_a_rank_that_dies_ends_the_others(folder, how, message):
    port = free_port()
    ranks = [start(rank, 2, port, *FLAGS, "--steps", 10**8, "--log", "log") for rank in range(2)]
    until = time.monotonic() + 30
    while time.monotonic() < until and not (os.path.exists("log") and os.path.getsize("log")):
        time.sleep(0.05)
    ranks[1].send_signal(how)
    code, text = end(ranks[0])
    ranks[1].kill()
    end(ranks[1])
    assert code == 1 and text.count("error") == 1 and message in text, text


def test_launches_that_do_not_fit(folder):
    """One message for each, soon; for the first, where a secret shows that all are of one
    launch."""
    flags = [*FLAGS, "--steps", 2]
    port = free_port()
    secret = {"CLEAVE_SECRET": "that of the launch"}
    found = [end(process) for process in [start(0, 2, port, *flags, **secret),
                                          start(1, 3, port, *flags, **secret)]]
    for code, text in found:
        assert code == 1 and ("rank 1 was started with WORLD_SIZE 3, but rank 0 with 2: "
                              "all processes need the same") in text
    # A launch that fits, of a program that does not.
    found = [end(process) for process in [start(rank, 3, port, *flags) for rank in range(3)]]
    for code, text in found:
        assert code == 1 and ("the program is for 2 devices, but this launch has 3 processes; "
                              "start it with mpirun -n 2 or torchrun --nproc-per-node 2") in text
    soon = {"CLEAVE_PATIENCE": 1}
    for variables, message in (
            (dict(rank=0, size=2, port=port, **soon),
             f"rank 1 (of 2) did not come to rank 0 at localhost:{port} within 1 s: start all "),
            (dict(rank=1, size=2, port=port, **soon),
             f"rank 0 was not found at localhost:{port} within 1 s: nothing listens at "),
            (dict(rank=1, size=2, port=None), "nothing says where the ranks meet: set CLEAVE_PORT"),
            (dict(rank=None, size=None, port=port), "CLEAVE_PORT is set, but not the number of"),
            (dict(rank=2, size=2, port=port), "RANK is '2'; it must be an integer from 0 to 1"),
            (dict(rank=0, size="x", port=port), "WORLD_SIZE is 'x'; it must be an integer"),
            (dict(rank=0, size=2, port=0), "CLEAVE_PORT is '0'; it must be an integer"),
            (dict(rank=0, size=2, port=port, CLEAVE_PATIENCE="soon"), "CLEAVE_PATIENCE is 'soon'"),
            (dict(rank=0, size=2, port=port, CLEAVE_SECRET="short"), "CLEAVE_SECRET is too short"),
            (dict(rank=0, size=2, port=port, CLEAVE_ADDRESS="192.0.2.1", HOME=""),
             "ranks on several machines need a secret: set CLEAVE_SECRET"),
    ):
        own = dict(variables)
        code, text = end(start(own.pop("rank"), own.pop("size"), own.pop("port"), *flags, **own))
        assert code == 1 and text.count("error") == 1 and message in text, text


def test_slurm_without_mpi(folder):
    """The variables of a step; those of a batch script are no launch."""
    flags = [*FLAGS, "--steps", 2]
    port = free_port()
    ranks = [start(None, None, port, *flags, SLURM_PROCID=rank, SLURM_STEP_NUM_TASKS=2,
                   SLURM_NTASKS=2, SLURM_LOCALID=rank) for rank in range(2)]
    assert [end(process)[0] for process in ranks] == [0, 0]
    assert end(start(None, None, None, *flags, SLURM_PROCID=0, SLURM_NTASKS=2))[0] == 0


def test_two_launches_at_one_port(folder):
    """The first one trains; the processes of the second one are told why they do not, those of
    another size by the first launch."""
    flags = [*FLAGS, "--steps", 2, "--log", "log"]
    port = free_port()
    first = start(0, 2, port, *flags)
    connect_soon(port)
    strangers = [start(rank, 3, port, *flags) for rank in range(3)]
    told = [end(process) for process in strangers]
    own = [end(process) for process in (first, start(1, 2, port, *flags))]
    assert [code for code, _ in own] == [0, 0], own
    assert own[0][1].count("goes on without a process that does not fit") == 1
    assert len(metrics("log")) == 2
    assert all(code == 1 and text.count("error") == 1 for code, text in told), told
    assert "another rank 0, has the port" in told[0][1]
    assert all("was started with WORLD_SIZE 3, but rank 0 with 2" in text for _, text in told[1:])


def test_silent_connections_and_a_first_rank_that_is_stopped(folder):
    """The launch begins when the first rank goes on; it had been asked for longer than strangers
    are waited for."""
    flags = [*FLAGS, "--steps", 2]
    port = free_port()
    first = start(0, 2, port, *flags)
    silent = [connect_soon(port) for _ in range(3)]
    first.send_signal(signal.SIGSTOP)
    second = start(1, 2, port, *flags)
    time.sleep(6)
    first.send_signal(signal.SIGCONT)
    found = [end(process) for process in (first, second)]
    assert [code for code, _ in found] == [0, 0], found
    for one in silent:
        one.close()


def connect_soon(port):
    """A connection to a rank 0 that begins to listen."""
    until = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", int(port)), timeout=5)
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.02)
