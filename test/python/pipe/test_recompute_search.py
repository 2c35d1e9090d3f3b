# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""`--recompute=auto`, by planning alone. Of small models, beside every mixture of policies by
blocks: within each limit it finds a plan if one of them fits, and takes at most a twentieth longer
than the fastest, as predicted. Of every family, beside the fixed policies: it is never slower than
the best that fits."""

import itertools
import json
import subprocess

import pytest

from cleave.models import FAMILIES
from cleave.models.__main__ import main as write_model
from cleave.testing.tools import ToolError, run_tool, tool
from proofs import ALL

CHOICES = ["none", "free", "selective", "full"]
MODELS = {
    "gpt": "gpt --hidden 32 --heads 4 --layers 2 --seq 64 --vocab 64 --batch 4",
    "llama": "llama --hidden 32 --heads 4 --layers 2 --seq 32 --vocab 64 --batch 4",
    "bert": "bert --hidden 32 --heads 4 --layers 2 --seq 32 --vocab 64 --batch 4",
    "three": "gpt --hidden 32 --heads 4 --layers 3 --seq 32 --vocab 64 --batch 4",
}
#: Rates by which time is predicted: the defaults, and others by classes of ops.
MACHINES = ["", "contraction=1e11,attention=3e10,streamed=4e10"]


def plan(path, *flags):
    """The predicted seconds of a step, and the bytes that a device needs."""
    report = json.loads(run_tool([tool("cleave-compile"), str(path), "--threads=1",
                                  "--fused-attention=off", *flags, "--plan-only", "--report=-"]))
    positions = report["plan"].get("positions", [report["plan"]])
    return (report["schedule"]["makespan"],
            max(p["arena_bytes"] + sum(p["outside"].values()) for p in positions))


@pytest.mark.parametrize("name, machine", list(itertools.product(MODELS, MACHINES)) if ALL else
                         [("gpt", MACHINES[0])])
def test_exhaustive(name, machine, tmp_path):
    path = tmp_path / "model.mlir"
    assert write_model([*MODELS[name].split(), "-o", str(path)]) == 0
    rates = [f"--machine={machine}"] if machine else []
    blocks = 3 if name == "three" else 2
    every = [plan(path, *rates, f"--recompute=outside {outside}; "
                  + "; ".join(f"1 {choice}" for choice in choices))
             for outside in ("none", "free")
             for choices in itertools.product(CHOICES, repeat=blocks)]
    least, most = min(b for _, b in every), max(b for _, b in every)
    for tenths in range(11):
        limit = least + (most - least) * tenths // 10
        best = min(seconds for seconds, b in every if b <= limit)
        # MiB with all bits.
        seconds, needed = plan(path, *rates, f"--memory-limit={repr((limit + 0.5) / 2**20)}")
        print(f"{tenths}: optimum {best:.4g} s, found {seconds:.4g} s, {needed} of {limit} bytes")
        assert needed <= limit
        assert seconds <= 1.05 * best
    with pytest.raises(ToolError, match="no plan needs at most"):
        plan(path, *rates, "--memory-limit=0.001")


#: The sizes of the families of cleave.models.
FAMILY = "--hidden 64 --heads 4 --layers 4 --seq 64 --vocab 128 --batch 4 --image 32 --patch 4"


#: Stages hold different numbers of micro-batches.
STAGES = ["--mesh=pp=2", "--micro-batches=4", "--schedule=1f1b"]


@pytest.mark.parametrize("family, machine, layout", [
    (family, machine, layout) for layout in ([], STAGES) for family in sorted(FAMILIES)
    for machine in MACHINES] if ALL else [("llama", MACHINES[0], []), ("gpt", MACHINES[0], STAGES)])
def test_never_slower_than_a_fixed_policy(family, machine, layout, tmp_path):
    path = tmp_path / "model.mlir"
    assert write_model([family, *FAMILY.split(), "-o", str(path)]) == 0
    rates = [*layout] + ([f"--machine={machine}"] if machine else [])
    fixed = [plan(path, *rates, f"--recompute={policy}")
             for policy in ("none", "free", "selective", "free,selective", "full")]
    least, most = min(b for _, b in fixed), max(b for _, b in fixed)
    before = 0.0
    for tenths in range(9, -1, -1) if ALL else (8, 1) if layout else (8, 5, 1):
        limit = least + (most - least) * tenths // 10
        seconds, needed = plan(path, *rates, f"--memory-limit={repr((limit + 0.5) / 2**20)}")
        best = min(time for time, b in fixed if b <= limit)
        print(f"{tenths}: best fixed {best:.4g} s, found {seconds:.4g} s")
        assert needed <= limit and seconds <= best * (1 + 1e-9)
        # The search is a local one, so that a lower limit may find a little more.
        assert seconds >= before * (1 - 0.01)
        before = max(before, seconds)


@pytest.mark.parametrize("layers", [12, 16, 40] if ALL else [12])
def test_many_blocks(layers, tmp_path):
    """Estimates, by which most mixtures of many blocks are not planned, lose little: never slower than
    a fixed policy, and 2 % beside each alone for so many first blocks."""
    path = tmp_path / "model.mlir"
    assert write_model(["gpt", "--hidden", "64", "--heads", "4", "--layers", str(layers), "--seq", "64",
                        "--vocab", "128", "--batch", "4", "-o", str(path)]) == 0
    fixed, mixed = ({policy: plan(path, f"--recompute={policy}") for policy in policies} for policies in (
        ["none", "free", "selective", "free,selective", "full"],
        [f"{count} {choice}; none" for choice in ("free", "free,selective", "full")
         for count in range(1, layers, 1 if ALL else 4)]))
    sizes = [b for _, b in (fixed | mixed).values()]
    for tenths in range(9, -1, -1) if ALL else (7, 3, 0):
        limit = min(sizes) + (max(sizes) - min(sizes)) * tenths // 10
        seconds, needed = plan(path, f"--memory-limit={repr((limit + 0.5) / 2**20)}")

        def best(of):
            return min([(time, name) for name, (time, b) in of.items() if b <= limit],
                       default=(float("inf"), ""))

        print(f"{tenths}: best fixed {best(fixed)}, mixed {best(mixed)}, found {seconds:.4g} s")
        assert needed <= limit and seconds <= best(fixed)[0] * (1 + 1e-9)
        assert seconds <= 1.02 * best(mixed)[0]


def test_messages_of_the_chosen_plan(tmp_path):
    """Plans that are tried say nothing; of the one that is chosen, each remark comes once."""
    path = tmp_path / "model.mlir"
    assert write_model([*MODELS["gpt"].split(), "-o", str(path)]) == 0
    flags = ["--mesh=pp=2", "--schedule=auto", "--micro-batches=4", "--threads=1", "--remarks",
             "--plan-only"]
    needed = plan(path, *flags[:3])[1]

    def remarks(*more):
        result = subprocess.run([tool("cleave-compile"), str(path), *flags, *more, "--report=-"],
                                capture_output=True, text=True, check=True)
        # Where values are computed again, the search may begin with another schedule.
        return [line.partition(" started from ")[0] for line in result.stderr.splitlines()
                if ": remark: " in line]

    assert len(remarks("--recompute=none")) == 1
    for part in (2, 0.9):
        assert remarks("--recompute=auto", f"--memory-limit={part * needed / 2**20}") == remarks(
            "--recompute=none"), part
