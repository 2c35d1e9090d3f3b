# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""`cleave-run` with a program for two devices: as threads, and as processes that
mpirun starts."""

import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import time

import numpy
import pytest
import torch

from cleave.testing.tools import run_tool, tool
from cleave.trace import trace
from rank_runs import FLAGS, TWO, files, losses, needs_mpi, run, same_kernels  # noqa: F401
from run_support import ARTIFACT, TOOL, folder, metrics, pytestmark, read_terminal  # noqa: F401
from training_support import gpt2, named_tokens


def test_threads_train_as_one_device(folder):
    flags = [*FLAGS, "--steps", 30, "--eval-data", "train.bin", "--eval-every", 15]
    run(*flags, "--log", "one", artifact=ARTIFACT)
    result = run(*flags, "--log", "two", "--report-communication", "--report-memory")
    one, two = metrics("one"), metrics("two")
    for kind in ("loss", "eval_loss"):
        numpy.testing.assert_allclose([line[kind] for line in two if kind in line],
                                      [line[kind] for line in one if kind in line], rtol=1e-5)
    assert "communication" not in one[0]
    sent = {c["kind"]: c for c in two[0]["communication"]}
    assert set(sent) == {"all-gather", "all-reduce", "reduce-scatter"}
    weights = 64 * 16
    assert sent["all-gather"]["elements"] == weights / 2
    assert sent["all-reduce"]["elements"] == 2 * weights + 2
    assert sent["reduce-scatter"]["bytes"] == 4 * weights / 2
    assert all(c["axes"] == "dp" and c["ms"] > 0 for c in sent.values())
    assert two[0]["breakdown"]["communication"] > 0
    assert "all-reduce over dp" in result.stdout
    assert "arena of each of 2 ranks" in result.stdout


@needs_mpi
def test_processes_compute_what_threads_compute(folder):
    """Bit for bit; the first process alone writes."""
    flags = [*FLAGS, "--steps", 12, "--save-every", 6, "--eval-data", "train.bin",
             "--eval-every", 6]
    run(*flags, "--log", "threads.log", "--save-dir", "threads")
    result = run(*flags, "--log", "mpi.log", "--save-dir", "mpi", "--progress=lines", processes=2)
    threads, processes = metrics("threads.log"), metrics("mpi.log")
    for a, b in zip(threads, processes, strict=True):
        for key in ("step", "loss", "grad_norm", "eval_loss"):
            assert a.get(key) == b.get(key), key
        assert [(c["kind"], c["elements"]) for c in a.get("communication", [])] == [
            (c["kind"], c["elements"]) for c in b.get("communication", [])]
    for step in ("step-6", "step-12"):
        assert files(pathlib.Path("threads", step)) == files(pathlib.Path("mpi", step))
    assert result.stdout.count("step 12/12") == 1
    assert sorted(os.listdir("mpi")) == ["step-12", "step-6"]
    # Whatever saved, whatever goes on.
    more = [*FLAGS[1:], "--steps", 14]
    run("--resume=mpi", *more, "--log", "a.log")
    run("--resume=threads", *more, "--log", "b.log", processes=2)
    assert losses("a.log") == losses("b.log")


@needs_mpi
@pytest.mark.parametrize("processes", [1, 3])
def test_number_of_processes_must_fit(folder, processes):
    result = run(*FLAGS, "--steps", 2, processes=processes, code=1)
    assert (f"the program is for 2 devices, but this launch has {processes} processes; "
            "start it with mpirun -n 2") in result.stderr


@needs_mpi
def test_one_mistake_ends_all(folder):
    result = run(*FLAGS, "--steps", 2, "--eval-data", "missing.bin", processes=2, code=1)
    assert "missing.bin" in result.stderr


@needs_mpi
def test_failure_of_the_process_that_writes_ends_all(folder):
    """Processes save together: after a failure of one, nothing is saved."""
    result = run(*FLAGS, "--steps", 4, "--log", "/dev/full", "--save-every", 2,
                 "--save-dir", "unsaved", processes=2, code=1)
    assert "/dev/full: cannot write: No space left on device" in result.stderr
    assert not os.path.exists("unsaved")


def children(launcher):
    """The processes that a launcher started, by rank."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent != launcher:
                continue
            settings = dict(item.split("=", 1) for item in
                            (entry / "environ").read_text().split("\0") if "=" in item)
            found[int(settings["OMPI_COMM_WORLD_RANK"])] = int(entry.name)
        except (OSError, KeyError, ValueError, IndexError):
            continue
    return found


@needs_mpi
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_rank_that_is_gone_ends_the_others(folder, how):
    run_log = open("out", "w")
    launcher = subprocess.Popen(
        ["mpirun", "--oversubscribe", "-n", "2", TOOL, TWO, *FLAGS, "--threads", "1",
         "--steps", "100000000", "--log", "log"], stdout=subprocess.DEVNULL, stderr=run_log)
    try:
        deadline = time.monotonic() + 60
        while not (os.path.exists("log") and metrics_seen("log")):
            assert time.monotonic() < deadline and launcher.poll() is None
            time.sleep(0.05)
        os.kill(children(launcher.pid)[1], how)
        begin = time.monotonic()
        assert launcher.wait(timeout=30) != 0
        # The launcher takes its time to end what was stopped.
        assert time.monotonic() - begin < 12
    finally:
        launcher.kill()
    text = pathlib.Path("out").read_text()
    if how == signal.SIGSTOP:
        assert "rank 1: does not answer any more" in text
    else:
        assert "rank 1" in text


def metrics_seen(path):
    return pathlib.Path(path).read_text().count("\n") > 3


@needs_mpi
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_all_after_the_same_step(folder, number):
    launcher = subprocess.Popen(
        ["mpirun", "--oversubscribe", "-n", "2", TOOL, TWO, *FLAGS, "--threads", "1",
         "--steps", "100000000", "--log", "log", "--save-every", "1000000", "--save-dir", "s"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (os.path.exists("log") and metrics_seen("log")):
            assert time.monotonic() < deadline and launcher.poll() is None
            time.sleep(0.05)
        # One of them is asked; all save, go on, and end.
        os.kill(children(launcher.pid)[1], signal.SIGUSR1)
        while not any(name[5:].isdigit() for name in (os.listdir("s") if os.path.isdir("s") else ())):
            assert time.monotonic() < deadline and launcher.poll() is None
            time.sleep(0.05)
        os.kill(children(launcher.pid)[1], number)
        output, _ = launcher.communicate(timeout=30)
    finally:
        launcher.kill()
    assert output.count("saved s/step-") == 2, output
    assert len(os.listdir("s")) == 2
    assert f"{number.name}: ended after step" in output
    assert "  mpirun -n 2 " in output and "step 1/" not in output


@needs_mpi
@pytest.mark.parametrize("number, patience", [(signal.SIGUSR2, 1), (signal.SIGTERM, 3)])
def test_interrupt_of_the_launcher(folder, number, patience):
    """Open MPI passes SIGUSR2 on at once. SIGTERM it sends to its processes after the time
    that it gives them, and ends after as much again."""
    launcher = subprocess.Popen(
        ["mpirun", "--mca", "odls_base_sigkill_timeout", str(patience), "--oversubscribe", "-n",
         "2", TOOL, TWO, *FLAGS, "--threads", "1", "--steps", "100000000", "--log", "log",
         "--save-every", "1000000", "--save-dir", "s"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (os.path.exists("log") and metrics_seen("log")):
            assert time.monotonic() < deadline and launcher.poll() is None
            time.sleep(0.05)
        begin = time.monotonic()
        launcher.send_signal(number)
        output, _ = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
    if number == signal.SIGTERM:
        assert launcher.returncode == 1 and time.monotonic() - begin >= patience
    else:
        assert launcher.returncode == 128 + number
    assert f"{number.name}: ended after step" in output and output.count("saved s/step-") == 1
    (saved,) = os.listdir("s")
    step = int(saved.removeprefix("step-"))
    result = run("--resume=s", *FLAGS[1:], "--steps", step + 1, processes=2)
    assert f"after step {step}" in result.stdout


@needs_mpi
@pytest.mark.parametrize("processes", [1, 2])
def test_progress_is_silent_under_mpirun(folder, processes):
    """Also where it gives the process a terminal, as Open MPI does to the first one."""
    main, side = pty.openpty()
    launcher = subprocess.Popen(
        ["mpirun", "--oversubscribe", "-n", str(processes), TOOL, ARTIFACT if processes == 1 else TWO,
         *FLAGS, "--threads", "1", "--steps", "3"], stdin=side, stdout=side, stderr=side)
    os.close(side)
    said = read_terminal(main)
    assert launcher.wait(60) == 0
    assert b"no checkpoints" in said and b"step 1/" not in said and b"\x1b" not in said


@needs_mpi
@pytest.mark.parametrize("mesh, schedule", [("pp=2,dp=2", "1f1b"), ("pp=4", "zb-h1"),
                                            ("pp=2,dp=2", "pipedream")])
def test_pipelines_of_processes(folder, mesh, schedule):
    """Positions that are processes compute the bits of those that are threads; each
    saves what it alone has."""
    # Of an asynchronous schedule, the model's batch is one micro-batch.
    each = schedule == "pipedream"
    pathlib.Path("gpt2.mlir").write_text(
        trace(gpt2(tie_word_embeddings=not each), named_tokens(batch=2 if each else 8)).mlir)
    run_tool([tool("cleave-compile"), "gpt2.mlir", f"--mesh={mesh}", "--micro-batches=4",
              f"--schedule={schedule}", "--threads=4", "-o", "gpt2.so",
              *(["--stages=transformer.h.1.", "--check-finite=off"] if each else ["--max-grad-norm=1"])])
    flags = [*FLAGS, "--steps", 6, "--save-every", 6, "--eval-data", "train.bin", "--eval-every", 6]
    run(*flags, "--log", "threads.log", "--save-dir", "threads", artifact="./gpt2.so")
    run(*flags, "--log", "mpi.log", "--save-dir", "mpi", artifact="./gpt2.so", processes=4)
    for a, b in zip(metrics("threads.log"), metrics("mpi.log"), strict=True):
        for key in ("step", "loss", "grad_norm", "eval_loss"):
            assert a.get(key) == b.get(key), key
    assert files(pathlib.Path("threads/step-6")) == files(pathlib.Path("mpi/step-6"))
    run("--resume=mpi", *FLAGS[1:], "--steps", 7, artifact="./gpt2.so")


@pytest.mark.parametrize("mesh, processes", [
    ("dp=2", 0), pytest.param("dp=2", 2, marks=needs_mpi), pytest.param("pp=2", 2, marks=needs_mpi)])
def test_a_run_that_diverges_stops(folder, mesh, processes):
    """With a message and a status that say so; what was saved before stays."""
    pathlib.Path("gpt2.mlir").write_text(trace(gpt2(), named_tokens(batch=8)).mlir)
    run_tool([tool("cleave-compile"), "gpt2.mlir", f"--mesh={mesh}", "--threads=2", "-o", "gpt2.so"])
    result = run("--random-init", "--data", "train.bin", "--seed", 5, "--lr", "1e30", "--steps", 5,
                 "--save-every", 1, "--save-dir", "d", artifact="./gpt2.so", code=1,
                 processes=processes)
    assert result.returncode == 1 and "the loss is not finite" in result.stderr
    assert os.listdir("d") == ["step-1"]


def check_processes(mesh, flags, changes):
    """A program that updates elsewhere, in processes, has the bits of one that does not, in
    threads: losses, evaluations in between, and what is saved, from which either goes on.
    Returns what the processes logged."""
    pathlib.Path("gpt2.mlir").write_text(trace(gpt2(), named_tokens(batch=8)).mlir)
    ranks = 4 if "," in mesh else 2
    for name, own in (("apart", ["--optimizer-fusion=none"]), ("changed", changes)):
        run_tool([tool("cleave-compile"), "gpt2.mlir", f"--mesh={mesh}", *flags, *own,
                  f"--threads={ranks}", "-o", f"{name}.so"])
    common = [*FLAGS, "--steps", 7, "--save-every", 3, "--eval-data", "train.bin", "--eval-every", 2]
    run(*common, "--log", "apart.log", "--save-dir", "apart", artifact="./apart.so")
    run(*common, "--log", "mpi.log", "--save-dir", "mpi", artifact="./changed.so",
        processes=ranks)
    logged = metrics("mpi.log")
    for a, b in zip(metrics("apart.log"), logged, strict=True):
        for key in ("step", "loss", "grad_norm", "eval_loss"):
            assert a.get(key) == b.get(key), key
    for step in ("step-3", "step-6"):
        assert files(pathlib.Path("apart", step)) == files(pathlib.Path("mpi", step))
    more = [*FLAGS[1:], "--steps", 8]
    run("--resume=mpi", *more, "--log", "a.log", artifact="./apart.so")
    run("--resume=apart", *more, "--log", "b.log", artifact="./changed.so", processes=ranks)
    assert losses("a.log") == losses("b.log")
    return logged


@needs_mpi
@pytest.mark.parametrize("mesh, flags", [
    ("dp=2", ["--plan=zero3", "--max-grad-norm=1"]), ("dp=2", ["--plan=zero1", "--micro-batches=2"]),
    ("dp=2", ["--plan=zero3", "--max-grad-norm=1", "--micro-batches=2", "--pipe-gather=once"]),
    ("pp=2", ["--micro-batches=4", "--schedule=1f1b", "--max-grad-norm=1"]),
    ("pp=2,dp=2", ["--micro-batches=2", "--schedule=zb-h1", "--plan=zero2"]),
    ("pp=2,dp=2", ["--micro-batches=2", "--plan=zero3", "--max-grad-norm=1", "--pipe-gather=once"])])
def test_updates_in_the_next_step_of_processes(folder, mesh, flags):
    check_processes(mesh, flags, ["--optimizer-fusion=forward"])


@needs_mpi
@pytest.mark.parametrize("mesh, flags", [
    ("pp=2", ["--micro-batches=4", "--schedule=zb-v"]),
    ("pp=2,dp=2", ["--micro-batches=2", "--schedule=interleaved", "--virtual-stages=2", "--plan=zero1"])])
def test_validated_updates_of_processes(folder, mesh, flags):
    """With a clip that scales all steps, or none. The log is that of rank 0, whose first stage makes
    no update again; it has another one."""
    for clip, again in (("0.01", True), ("1000000", False)):
        for name in ("apart", "mpi"):
            shutil.rmtree(name, ignore_errors=True)
        logged = check_processes(mesh, [*flags, f"--max-grad-norm={clip}"], ["--post-validation"])
        steps = [line for line in logged if "loss" in line]
        assert len(steps) == 7
        assert all((line.get("updated_again", 0) > 0) == again for line in steps)


@pytest.mark.parametrize("processes", [0, pytest.param(4, marks=needs_mpi)])
def test_communication_of_each_position(folder, processes):
    """It is what the report of the artifact says that a rank of each position sends."""
    pathlib.Path("gpt2.mlir").write_text(trace(gpt2(), named_tokens(batch=8)).mlir)
    run_tool([tool("cleave-compile"), "gpt2.mlir", "--mesh=dp=2,pp=2", "--micro-batches=4",
              "--threads=4", "-o", "gpt2.so", "--report=report.json"])
    said = run(*FLAGS, "--steps", 1, "--report-communication", artifact="./gpt2.so",
               processes=processes).stdout
    found = re.split(r"communication of a rank of position (\d+) in a step\n", said)
    assert found[1::2] == ["0", "1"]
    report = json.loads(pathlib.Path("report.json").read_text())
    for text, facts in zip(found[2::2], report["communication"]["train"]["positions"], strict=True):
        sent = [float(x) for x in re.findall(r"MiB +([\d.]+) elements", text)]
        assert len(sent) >= 3 and sum(sent) == pytest.approx(facts["elements"], rel=1e-6)
        assert "send over pp" in text and "all-reduce over dp" in text


class Look(torch.nn.Module):
    """A language model of four layers that read a row of theirs, which is not there in
    one of them."""

    def __init__(self, wrong):
        super().__init__()
        self.embed = torch.nn.Embedding(256, 8)
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(10, 8) for _ in range(4))
        self.head = torch.nn.Linear(8, 256)
        self.wrong = wrong

    def forward(self, ids):
        x = self.embed(ids)
        for i, table in enumerate(self.tables):
            row = (0.0 * x).sum(-1).to(torch.int64) + (10 if i == self.wrong else 0)
            x = x + table(row)
        return self.head(x)


def next_tokens(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


@needs_mpi
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("wrong", [0, 3])
def test_all_processes_say_what_one_has_found(folder, wrong, micro_batches):
    """Whichever stage the layer is in."""
    model, batch = Look(wrong), (torch.zeros(4, 8, dtype=torch.int64),) * 2
    pathlib.Path("look.mlir").write_text(trace(model, batch, loss_fn=next_tokens).mlir)
    run_tool([tool("cleave-compile"), "look.mlir", "--mesh=pp=2", "--threads=2",
              f"--micro-batches={micro_batches}", "-o", "look.so"])
    result = run(*FLAGS, "--steps", 2, artifact="./look.so", processes=2, code=1)
    reason = r"test_cleave_run_ranks.py:\d+: an index is outside of \[0, 10\)"
    assert re.search(reason, result.stderr) and "another stage" not in result.stderr
