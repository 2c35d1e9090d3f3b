# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""`cleave-run --patience`: a command that writes no tokens, or does not end, ends the run with its
reason, and what was computed is saved."""

import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from proofs import ALL
from rank_runs import TWO, needs_mpi
from run_support import ARTIFACT, TOOL, folder, metrics, pytestmark, wait_until  # noqa: F401
from socket_runs import alone, end, free_port, start  # noqa: F401

FLAGS = ["--random-init", "--lr", "0.1", "--threads", "1"]
ROWS = "for i in 1 2 3 4 5 6 7; do echo 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; done"
HINT = "for 1 s; --patience (of Python: patience; else CLEAVE_PATIENCE) sets another time"


def run(command, *args, start=FLAGS, **settings):
    return subprocess.run([TOOL, ARTIFACT, *start, "--data-command", command, *map(str, args)],
                          capture_output=True, text=True, timeout=60, **settings)


def left_over(mark):
    """Processes whose command line has `mark`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if pid != str(os.getpid()) and mark in open(f"/proc/{pid}/cmdline").read():
                found.append(pid)
        except OSError:
            continue
    return found


all_only = pytest.mark.skipif(not ALL, reason="with CLEAVE_TEST_ALL=1")


@pytest.mark.parametrize("command, row, what", [
    ("sleep 5151", 1, "has written no token"),
    ("yes '' # 5151", r"\d+", "has written no token"),
    ("printf '\\n\\n'; sleep 5151", 3, "has written no token"),
    (f"{ROWS}; sleep 5151", 8, "has written no token"),
    (f"{ROWS}; exec >&-; sleep 5151", 8, "has closed its output and has not ended"),
    ("trap '' TERM; while true; do sleep 0.1; done # 5151", 1, "has written no token"),
], ids=["silent", "empty rows", "then silent", "rows", "closed", "deaf"])
def test_a_command_that_does_not_come(folder, command, row, what):  # noqa: F811
    """The state before is saved, and no process stays."""
    begin = time.monotonic()
    done = run(command, "--patience", 1, "--save-every", 100, "--save-dir", "c")
    assert 1 <= time.monotonic() - begin < 30
    assert done.returncode == 1 and not left_over("5151"), done
    assert re.search(f"error: the data command, row {row} of epoch 0: {what} {re.escape(HINT)}",
                     done.stderr), done.stderr
    # 140 tokens fill a batch of 4 sequences of 33 that share one.
    assert os.path.exists("c") == (ROWS in command) and (
        ROWS not in command or os.listdir("c") == ["step-1"])


def test_a_tokenizer_waits_too(folder):  # noqa: F811
    tokenizers = pytest.importorskip("tokenizers")
    rules = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    rules.save("tok.json")
    done = run("echo '\"a\"'; sleep 5252", "--tokenizer", "tok.json", "--patience", 1)
    assert done.returncode == 1 and f"has written no token {HINT}" in done.stderr
    assert not left_over("5252")


def test_rows_that_were_used_before(folder):  # noqa: F811
    """A resumed run waits for them no longer; and goes on when the command does."""
    flags = ["--save-every", 1, "--save-dir", "c"]
    assert run(f"{ROWS}; {ROWS}", "--steps", 2, *flags).returncode == 0
    resume = ["--resume", "c", "--lr", "0.1", "--threads", "1"]
    done = run(f"{ROWS}; sleep 5353", "--steps", 3, "--patience", 1, start=resume)
    assert done.returncode == 1 and HINT in done.stderr and not left_over("5353")
    assert run(f"{ROWS}; sleep 0.2; {ROWS}", "--steps", 3, "--patience", 1, start=resume).returncode == 0


@all_only
def test_slow_rows_are_waited_for(folder):  # noqa: F811
    """Longer than the patience in all, as each comes in time."""
    slow = "for i in $(seq 8); do seq -s ' ' 1 20; sleep 0.4; done"
    assert run(slow, "--patience", 1, "--steps", 1).returncode == 0


@all_only
def test_a_run_that_was_stopped(folder):  # noqa: F811
    """Time in which it did not run is none."""
    process = subprocess.Popen([TOOL, ARTIFACT, *FLAGS, "--data-command", f"touch began; sleep 2.5; {ROWS}",
                                "--patience", "4", "--steps", "1"], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: os.path.exists("began"))
    process.send_signal(signal.SIGSTOP)
    time.sleep(5)
    process.send_signal(signal.SIGCONT)
    _, wrong = process.communicate(timeout=60)
    assert process.returncode == 0, wrong


@all_only
def test_it_is_said_before(folder):  # noqa: F811
    done = run(f"{ROWS}; sleep 5.5; {ROWS}", "--patience", 40, "--steps", 2)
    assert done.returncode == 0
    assert re.fullmatch(r"the data command has written no token \(for 5 s, at most 40 s\)\n", done.stderr)


def test_one_of_several_processes(folder):  # noqa: F811
    """The one whose command is silent says so, and all end with that."""
    port = free_port()
    command = f"{ROWS}; if [ $RANK = 1 ]; then sleep 5454; fi; {ROWS}"
    ranks = [start(rank, 2, port, *FLAGS[:-2], "--data-command", command, "--patience", 1, "--steps", 2)
             for rank in range(2)]
    for code, text in map(end, ranks):
        assert code == 1 and f"rank 1: the data command, row 8 of epoch 0: has written no token {HINT}" in text
    assert not left_over("5454")


@all_only
@needs_mpi
def test_one_of_several_processes_of_mpi(folder, monkeypatch):  # noqa: F811
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    command = f"{ROWS}; if [ $OMPI_COMM_WORLD_RANK = 1 ]; then sleep 5555; fi; {ROWS}"
    done = subprocess.run(["mpirun", "--oversubscribe", "-n", "2", TOOL, TWO, *FLAGS, "--data-command", command,
                           "--patience", "1", "--steps", "2"], capture_output=True, text=True, timeout=60)
    assert done.returncode and f"rank 1: the data command, row 8 of epoch 0: has written no token {HINT}" in done.stderr
    assert not left_over("5555")


def test_a_wrong_patience(folder):  # noqa: F811
    done = run(ROWS, "--steps", 1, env={**os.environ, "CLEAVE_PATIENCE": "soon"})
    assert done.returncode == 1 and "CLEAVE_PATIENCE is 'soon'; it must be an integer from 1 to" in done.stderr


def test_ranks_that_are_threads_run_nothing_of_a_user():
    """While they wait for each other, and for as long as kernels take: Python runs only where processes
    meet, and each collective was checked when it was compiled."""
    here = pathlib.Path(__file__).parents[3] / "python" / "native"
    calls = {path.name: path.read_text().count("gil_scoped_acquire") for path in here.glob("*.h")}
    calls |= {path.name: path.read_text().count("gil_scoped_acquire") for path in here.glob("*.cpp")}
    assert {name for name, count in calls.items() if count} == {"PyProcesses.h"}
    session = (here / "Session.cpp").read_text()
    assert "gil_scoped_release" in session
