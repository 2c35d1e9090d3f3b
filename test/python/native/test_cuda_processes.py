# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Processes that have a GPU each, which is a stand-in (test/fake_cuda): started by mpirun, by
torchrun and by the variables of torchrun and of Slurm, against threads of one process. What they
exchange goes through the host, with the same bits, or by NCCL, whose stand-in connects processes
of one machine."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from cleave.testing.tools import build_dir, run_tool, tool
from cuda_fake import FAKE, fake_device  # noqa: F401
from proofs import ALL
from step_runs import model

SCRIPT = pathlib.Path(__file__).parents[1] / "support" / "files" / "process_script.py"

pytestmark = pytest.mark.skipif(
    not ((FAKE / "libcuda.so.1").exists()
         and (build_dir() / "lib" / "libcleave_cuda.so").exists()),
    reason="needs NVIDIA's headers and clang")
needs_mpi = pytest.mark.skipif(
    not shutil.which("mpirun") or not (build_dir() / "lib" / "libcleave_mpi.so").exists(),
    reason="there is no MPI")

#: The number of ranks, and what is compiled for them.
LAYOUTS = {
    "zero2": (2, ["--mesh=dp=2", "--plan=zero2"]),
    "1f1b": (2, ["--mesh=pp=2", "--micro-batches=4", "--schedule=1f1b"]),
    "both": (4, ["--mesh=dp=2,tp=2", "--plan=megatron-sp,zero1", "--precision=bf16"]),
}
#: Variables that another launch may have set.
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
             "CLEAVE_PORT", "CLEAVE_ADDRESS", "CLEAVE_PATIENCE", "SLURM_PROCID", "SLURM_NTASKS",
             "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")


@pytest.fixture(autouse=True)
def alone(fake_device, monkeypatch):  # noqa: F811
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CLEAVE_NCCL", "off")
    monkeypatch.setenv("CLEAVE_CHECK", "off")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [*sys.path, str(SCRIPT.parent)])))


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


@pytest.fixture(scope="module", params=list(LAYOUTS) if ALL else ["zero2"])
def program(request, tmp_path_factory):
    """The number of ranks, the folder, and a function of a name that gives the command which
    trains, with a log of that name."""
    folder = tmp_path_factory.mktemp("processes")
    ranks, flags = LAYOUTS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEAVE_CUDA_LIBRARIES", str(FAKE))
        run_tool([tool("cleave-compile"), str(model("gpt", folder)), *flags, "--optimizer=adamw",
                  "--target=cuda", "-o", str(folder / "device.so")])
    tokens = np.random.default_rng(4).integers(0, 64, 4000).astype(np.uint16)
    (folder / "tokens.bin").write_bytes(tokens.tobytes())
    return ranks, folder, lambda log, steps=3: [
        tool("cleave-run"), str(folder / "device.so"), "--random-init", "--data",
        str(folder / "tokens.bin"), f"--steps={steps}", "--lr=1e-2", "--log", str(folder / log)]


def results(folder, log):
    """Of each step of a log: losses and norms."""
    lines = [json.loads(line) for line in (folder / log).read_text().splitlines()]
    return [(line["loss"], line.get("grad_norm")) for line in lines if "loss" in line]


@pytest.fixture(scope="module")
def threads(program):
    """Results of threads of one process, of which each has a GPU."""
    ranks, folder, command = program
    environment = {**os.environ, "CLEAVE_CUDA_LIBRARIES": str(FAKE), "CLEAVE_NCCL": "off",
                   "CLEAVE_FAKE_DEVICES": "4", "CLEAVE_TUNING": "off"}
    subprocess.run(command("threads.log"), check=True, capture_output=True, timeout=120,
                   env=environment)
    found = results(folder, "threads.log")
    assert len(found) == 3 and found[-1] < found[0]
    return found


def start(command, ranks, variables):
    """A process for each rank, with the variables that `variables(rank)` gives, and a record of
    what it lets its GPU do."""
    record = command[-1]
    return [subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             env={**os.environ, "CLEAVE_FAKE_RECORD": f"{record}.ops{rank}",
                                  **{name: str(value) for name, value in variables(rank).items()}})
            for rank in range(ranks)]


def end(processes):
    """The codes with which they end, and what they print."""
    try:
        return [(process.communicate(timeout=120)[0], process.returncode)[::-1]
                for process in processes]
    finally:
        for process in processes:
            process.kill()


@needs_mpi
def test_mpirun(program, threads):
    ranks, folder, command = program
    result = subprocess.run(["mpirun", "--oversubscribe", "-n", str(ranks), *command("mpi.log")],
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert results(folder, "mpi.log") == threads


def torchrun_variables(port, ranks):
    return lambda rank: dict(RANK=rank, WORLD_SIZE=ranks, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=ranks,
                             CLEAVE_PORT=port)


def slurm_variables(port, ranks):
    return lambda rank: dict(SLURM_PROCID=rank, SLURM_STEP_NUM_TASKS=ranks, SLURM_NTASKS=ranks,
                             SLURM_LOCALID=rank, CLEAVE_PORT=port)


@pytest.mark.parametrize("variables", [torchrun_variables, slurm_variables])
def test_variables(variables, program, threads):
    ranks, folder, command = program
    log = f"{variables.__name__}.log"
    found = end(start(command(log), ranks, variables(free_port(), ranks)))
    assert all(code == 0 for code, _ in found), found
    assert results(folder, log) == threads
    for rank in range(ranks):
        ops = (folder / f"{log}.ops{rank}").read_text()
        assert ops.count(" kind=launch ") > 30 and "name=nccl-" not in ops


def test_each_has_the_gpu_of_its_number_on_the_machine(program, threads, monkeypatch):
    monkeypatch.setenv("CLEAVE_FAKE_DEVICES", "1")
    ranks, folder, command = program
    port = free_port()
    found = end(start(command("one.log"), ranks, torchrun_variables(port, ranks)))
    assert {code for code, _ in found} == {1}
    assert any("a rank needs GPU 1, but this process sees 1 GPU" in text for _, text in found)
    # As on machines of one GPU each.
    variables = torchrun_variables(free_port(), ranks)
    found = end(start(command("each.log"), ranks, lambda rank: {
        **variables(rank), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}))
    assert all(code == 0 for code, _ in found), found
    assert results(folder, "each.log") == threads


def test_torchrun(tmp_path):
    """A script, whose ranks are processes, has the bits of threads of one process."""
    found = {}
    for name, launch in [("threads", []), ("torchrun", [
            "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"])]:
        folder = tmp_path / name
        folder.mkdir()
        result = subprocess.run(
            [sys.executable, *launch, str(SCRIPT), "cuda", str(folder), "short"],
            capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stdout + result.stderr
        found[name] = torch.load(folder / "results.pt", weights_only=False)
    one, other = found["threads"], found["torchrun"]
    assert one["losses"] == other["losses"]
    assert all(one["state"][name].equal(value) for name, value in other["state"].items())


@pytest.mark.parametrize("how, message", [
    (signal.SIGKILL, "rank 1: has ended, or its connection was cut"),
    (signal.SIGSTOP, "rank 1: does not answer any more: it has ended or was stopped")])
def test_a_process_that_dies_ends_the_others(how, message, program):
    """Within seconds, whatever their GPUs do then, with one message and status 1."""
    ranks, folder, command = program
    log = folder / f"{how.name}.log"
    processes = start(command(log.name, 10**8), ranks,
                      torchrun_variables(free_port(), ranks))
    try:
        until = time.monotonic() + 60
        while not (log.exists() and log.read_text().count("\n") > 2):
            assert time.monotonic() < until
            assert all(process.poll() is None for process in processes)
            time.sleep(0.05)
        processes[1].send_signal(how)
        began = time.monotonic()
        found = end([process for rank, process in enumerate(processes) if rank != 1])
        assert time.monotonic() - began < 15
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for code, text in found:
        assert code == 1 and text.count("error") == 1 and "rank 1" in text, text
    assert message in found[0][1], found[0][1]


#: With which NCCL takes two processes of one machine for two hosts, or lets them share a GPU.
WAYS = {"hosts": lambda rank: {"NCCL_HOSTID": f"host-{rank}"},
        "one host": lambda rank: {"NCCL_MULTI_RANK_GPU_ENABLE": 1}}


@pytest.mark.parametrize("way", list(WAYS))
def test_nccl_of_processes_that_share_a_gpu(way, program, monkeypatch):
    """Where it is asked for, it connects them, with the bits of threads that have a GPU each."""
    ranks, folder, command = program
    monkeypatch.delenv("CLEAVE_NCCL")
    done = subprocess.run(command("nccl.log"), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("CLEAVE_FAKE_DEVICES", "1")
    monkeypatch.setenv("CLEAVE_NCCL", "on")
    *words, log = command("shared.log")
    shared = [*words[:-1], f"--ranks-per-device={ranks}", words[-1], log]
    variables = torchrun_variables(free_port(), ranks)
    processes = start(shared, ranks, lambda rank: variables(rank) | WAYS[way](rank))
    found = end(processes)
    assert all(code == 0 for code, _ in found), found
    assert results(folder, "shared.log") == results(folder, "nccl.log")
    for rank in range(ranks):
        assert "name=nccl-" in (folder / f"shared.log.ops{rank}").read_text()
        assert not list(pathlib.Path("/dev/shm").glob(f"cleave-fake-nccl-{processes[rank].pid}-*"))


def test_nccl_refuses_processes_that_share_a_gpu(program, monkeypatch):
    """As NCCL does unless it is told otherwise. Threads of one process would wait for each other,
    and without NCCL processes exchange through the host."""
    ranks, folder, command = program
    monkeypatch.setenv("CLEAVE_FAKE_DEVICES", "1")
    monkeypatch.setenv("CLEAVE_NCCL", "on")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    *words, log = command("refused.log")
    shared = [*words[:-1], f"--ranks-per-device={ranks}", words[-1], log]
    found = end(start(shared, ranks, torchrun_variables(free_port(), ranks)))
    # Who learns of another's failure first says that.
    assert {code for code, _ in found} == {1}, found
    assert any("invalid usage (5)" in said and "NCCL: connecting ranks" in said
               and "using the same GPU" in said for _, said in found), found
    done = subprocess.run(shared, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "NCCL cannot be used: ranks of one process share a GPU" in done.stderr
    monkeypatch.delenv("CLEAVE_NCCL")
    found = end(start(shared, ranks, torchrun_variables(free_port(), ranks)))
    assert all(code == 0 for code, _ in found), found
