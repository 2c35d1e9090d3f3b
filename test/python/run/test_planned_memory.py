# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The memory of a run is what the plan says: the peak of each `cleave-run` process, less what
was resident before it loaded the program, is within 2 % and 64 MiB of its arenas and of what the
plan has outside of them. A seeded sample of models, meshes, schedules, policies of recomputation,
precisions and offload; all with CLEAVE_TEST_ALL=1.

Of processes of MPI, what the MPI library takes by itself is left out: what the same ranks take
more than planned for a model of a few KiB.
"""

import functools
import itertools
import json
import random
import re
import subprocess

import numpy
import pytest

from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool
from proofs import ALL
from rank_runs import needs_mpi, same_kernels  # noqa: F401

MIB = 2**20
#: Models by what stays in memory: saved values and logits (gpt), saved values (llama, bert),
#: parameters and state (wide), experts (mixtral).
MODELS = {
    "gpt": "gpt --hidden 256 --heads 8 --layers 4 --seq 256 --vocab 4096 --batch 16",
    "llama": "llama --hidden 256 --heads 8 --kv-heads 4 --layers 4 --seq 256 --vocab 2048 "
             "--batch 16",
    "bert": "bert --hidden 256 --heads 8 --layers 4 --seq 256 --vocab 2048 --batch 16",
    "wide": "gpt --hidden 768 --heads 8 --layers 2 --seq 64 --vocab 8192 --batch 16",
    "mixtral": "mixtral --hidden 256 --heads 8 --layers 2 --ffn 256 --seq 256 --vocab 2048 "
               "--experts 4 --batch 16",
}
TINY = "gpt --hidden 8 --heads 2 --layers 4 --seq 8 --vocab 16 --batch 16"

#: A mesh and its recipes, and the micro-batches and schedules to choose from.
MESHES = [
    ("", [1, 2, 4], [""]),
    ("--mesh=dp=2", [1, 2], [""]),
    ("--mesh=dp=2 --plan=zero1", [1, 2], [""]),
    ("--mesh=dp=2 --plan=zero2", [2], [""]),
    ("--mesh=dp=2 --plan=zero3", [1, 2], [""]),
    ("--mesh=tp=2 --plan=megatron", [1, 2], [""]),
    ("--mesh=tp=2 --plan=megatron-sp", [1, 2], [""]),
    ("--mesh=cp=2 --plan=context", [1, 2], [""]),
    ("--mesh=cp=2 --plan=ring", [1], [""]),
    ("--mesh=pp=2", [4, 8], ["gpipe", "1f1b", "zb-h1", "interleaved"]),
    ("--mesh=pp=2,dp=2 --plan=zero1", [4], ["1f1b", "zb-v"]),
    ("--mesh=dp=2,tp=2 --plan=megatron-sp,zero3", [1, 2], [""]),
]


def combinations():
    """(model, mesh, flags, with processes), drawn with a fixed seed."""
    rng, tier = random.Random(7), random.Random(8)
    chosen = []
    for (mesh, counts, schedules), processes in itertools.product(MESHES, (False, True)):
        if processes and not mesh:
            continue
        for trial in range(max(3, len(schedules))):
            flags = [f"--micro-batches={rng.choice(counts)}",
                     f"--recompute={rng.choice(['none', 'free', 'selective', 'full'])}",
                     f"--precision={rng.choice(['f32', 'bf16'])}"]
            schedule = schedules[trial % len(schedules)]
            if schedule:
                flags.append(f"--schedule={schedule}")
            kinds = tier.choice(["", "", "state", "saved", "state,saved"])
            if kinds:
                flags.append(f"--offload={kinds}")
            model = rng.choice([name for name in MODELS if name != "mixtral" or "cp" not in mesh])
            chosen.append((model, mesh, tuple(flags), processes))
    rng.shuffle(chosen)
    return list(dict.fromkeys(chosen))


COMBINATIONS = combinations()


@functools.lru_cache(maxsize=None)
def model(size, folder):
    path = folder / f"{abs(hash(size))}.mlir"
    assert write_model([*size.split(), "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("planned")
    (numpy.arange(30000) % 16).astype(numpy.uint16).tofile(path / "train.bin")
    return path


def ranks(mesh):
    count = 1
    for size in re.findall(r"=(\d+)", mesh.split(" ")[0]):
        count *= int(size)
    return count


def train(size, mesh, flags, processes, folder):
    """Trains two steps. Returns, for each process, the bytes planned by the compiler's report,
    those that it prints itself, those resident before, and the peak."""
    count = ranks(mesh)
    program, report = folder / "program.so", folder / "report.json"
    run_tool([tool("cleave-compile"), str(model(size, folder)), *mesh.split(), *flags,
              "--threads=1", "-o", str(program), "--report", str(report)])
    plan = json.loads(report.read_text())["plan"]
    positions = plan.get("positions", [plan])
    launch = ["mpirun", "--oversubscribe", "-n", str(count)] if processes else []
    result = subprocess.run(
        [*launch, tool("cleave-run"), program, "--random-init", "--data", "train.bin", "--steps",
         "2", "--report-memory", "--threads", str(1 if processes else count),
         *(["--ones-input", "attention_mask"] if size.startswith("bert") else [])],
        cwd=folder, text=True, capture_output=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    said = [[float(value) * MIB for value in re.findall(rf"([\d.]+) MiB  {what}", result.stdout)]
            for what in ("planned for", "resident before", "peak resident")]
    # "pp" is the major axis, so that ranks of a position are neighbours.
    each = [positions[rank * len(positions) // count] for rank in range(count)]
    if processes:
        planned = [p["arena_bytes"] + sum(p["outside"].values()) for p in each]
    else:
        planned = [sum(p["arena_bytes"] for p in each)
                   + max(p["outside"]["library"] for p in positions)]
    assert [len(values) for values in said] == [len(planned)] * 3, result.stdout
    return list(zip(planned, *said))


@functools.lru_cache(maxsize=None)
def library_of_mpi(mesh, folder):
    """The peak of the processes of a mesh, with next to nothing planned."""
    return max(peak - before - planned
               for planned, _, before, peak in train(TINY, mesh, ("--micro-batches=4",), True,
                                                     folder))


@pytest.mark.parametrize("name, mesh, flags, processes", [
    pytest.param(*combination, marks=needs_mpi if combination[3] else (),
                 id="-".join([combination[0], combination[1] or "one", *combination[2],
                              "mpi" if combination[3] else "threads"]).replace(" ", ""))
    for combination in (COMBINATIONS if ALL else COMBINATIONS[:2])])
def test_peak_is_planned(name, mesh, flags, processes, folder):
    own = library_of_mpi(mesh, folder) if processes else 0
    for planned, printed, before, peak in train(MODELS[name], mesh, flags, processes, folder):
        # A process prints what it holds for messages, which the plan foresees to a few MiB.
        assert printed == pytest.approx(
            planned, abs=0.02 * planned + 4 * MIB if processes else 0.1 * MIB)
        measured = peak - before - own
        print(f"planned {planned / MIB:.1f} MiB, measured {measured / MIB:.1f} MiB "
              f"({(measured - planned) / MIB:+.1f}), before {before / MIB:.1f} MiB, "
              f"of MPI {own / MIB:.1f} MiB")
        assert abs(measured - planned) <= 0.02 * planned + 64 * MIB


def test_combinations():
    """Each mesh, model, policy, precision and way to start is among them."""
    assert len(COMBINATIONS) >= 50
    text = " ".join(" ".join([name, mesh, *flags]) for name, mesh, flags, _ in COMBINATIONS)
    for mesh, _, schedules in MESHES:
        assert mesh in text and all(schedule in text for schedule in schedules)
    for word in [*MODELS, "=none", "=free", "=selective", "=full", "=f32", "=bf16",
                 "=state", "=saved", "=state,saved"]:
        assert word in text
