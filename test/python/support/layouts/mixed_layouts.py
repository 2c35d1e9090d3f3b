# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Layouts in 16 bits."""

import torch

from cleave.testing.tools import run_tool, tool
from recipe_runs import BATCH, LENGTH, traced_model


def model_file(folder, name, sizes=(BATCH, LENGTH)):
    path = folder / f"mixed-{name}-{hash(sizes) & 0xffffffff:x}.mlir"
    # Masks add the least number of the type.
    text = traced_model(name, *sizes).replace("f64>", "f32>")
    path.write_text(text.replace(str(torch.finfo(torch.float64).min), str(torch.finfo(torch.float32).min)))
    return path


def emit(folder, name, phase, *flags, sizes):
    return run_tool([tool("cleave-compile"), str(model_file(folder, name, sizes)),
                     f"--emit={phase}", *flags])
