# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Products in steps on grids."""

import cleave
from training_support import compile_case, family

LOCAL = ["--spmd-decompose-contraction", "--spmd-seed-shardings", "--spmd-propagate", "--spmd-partition",
         "--spmd-optimize-collectives", "--spmd-verify"]


def trained(name, mesh, plan, batch=8):
    """The elements that a device sends in a step, by kind, and the step."""
    case = family(name, batch=batch)
    step = compile_case(case, cleave.AdamW(lr=1e-3), mesh=mesh, plan=plan)
    step(*case.batches[0])
    counted = {}
    for entry in step.communication():
        counted[entry["kind"]] = counted.get(entry["kind"], 0) + entry["elements"]
    return counted
