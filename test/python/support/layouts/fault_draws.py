# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Draws of faults."""

import json
import subprocess

import expert_recipes  # noqa: F401 (its models)
from cleave.testing.tools import save_tensors, tool
from recipe_runs import BATCH, LENGTH, OPTIMIZERS, emit, random_inputs

NUMBERS = {"scale", "shard order"}


def draw(folder, name, mesh, recipes, count, seed, sizes=(BATCH, LENGTH)):
    """Runs `count` faults of one program; the tool's tallies."""
    flags = [f"--mesh={mesh}", f"--plan={recipes}", *OPTIMIZERS["sgd"]]
    program = folder / f"{name}-{mesh}-{recipes}.mlir"
    program.write_text(emit(folder, name, "local", *flags, sizes=sizes))
    step = emit(folder, name, "step", *OPTIMIZERS["sgd"], sizes=sizes)
    files = []
    for i in range(3):
        files.append(folder / f"{name}-{seed}-{i}.safetensors")
        save_tensors(files[-1], random_inputs(step, seed=i))
    run = subprocess.run(
        [tool("cleave-fuzz"), f"--faults-of={program}", f"--count={count}",
         f"--seed={seed}", f"--inputs={','.join(map(str, files))}", "--tolerance=1e-10"],
        capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
