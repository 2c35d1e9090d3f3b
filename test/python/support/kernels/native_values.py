# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Native results beside those in f32."""

import json
import re

import numpy as np

from cleave.testing.tools import run_tool, save_tensors, tool
from ledger import note


def compare(folder, text, inputs, *options):
    (folder / "m.mlir").write_text(text)
    save_tensors(folder / "in", inputs)
    report = json.loads(
        run_tool([tool("cleave-fuzz"), f"--native-of={folder / 'm.mlir'}", f"--inputs={folder / 'in'}", *options])
    )
    note("test_native", report["ops"])
    return report


def as_f32(model):
    """The text and the inputs of a model of f64, in f32."""
    text = re.sub(r"\b((?:\d+x)*)f64>", r"\1f32>", model.text())
    inputs = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in model.inputs().items()}
    return text, inputs


ARGUMENT = '{{graph.name = "{0}", graph.role = "{1}"}}'


def model(arguments, body, loss="%l"):
    """A model of one loss; ``arguments`` are (name, role, type)."""
    head = ", ".join(f"%{n}: tensor<{t}> " + ARGUMENT.format(n, r) for n, r, t in arguments)
    return (
        f'func.func @loss({head}) -> (tensor<f32> {{graph.name = "loss"}}) {{\n{body}\n'
        f"return {loss} : tensor<f32>\n}}\n"
    )
