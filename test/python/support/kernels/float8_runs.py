# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""One op in 8 bits, natively and by the interpreter."""

import json

from safetensors.torch import load_file, save_file

import cleave
from cleave import _cleave
from cleave.runtime.program import Program
from cleave.testing.tools import run_tool, tool


def by_interpreter(folder, text, inputs, mode="typed"):
    """The results of @loss by their names."""
    (folder / "m.mlir").write_text(text)
    save_file(inputs, folder / "in")
    run_tool([tool("cleave-reference"), str(folder / "m.mlir"), f"--inputs={folder / 'in'}",
              f"--output={folder / 'out'}", f"--mode={mode}"])
    return load_file(folder / "out")


def natively(folder, text, inputs):
    options = {"micro_batches": 1, "threads": 1, "mesh": "", "check_finite": False,
               "optimizer": cleave.SGD(lr=0.0).options()}
    program = Program(None, _cleave.compile(text, json.dumps(options)), []).open()
    for name, value in inputs.items():
        program.set(name, value)
    assert not program.session.run("train", 7, 1)
    return {name: program.tensor(name) for name, facts in program.tensors.items()
            if facts["role"] == "output"}
