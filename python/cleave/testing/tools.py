# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs the command-line tools of a build on text and named arrays.

The build is the folder in ``CLEAVE_BUILD_DIR``, by default ``build`` in the
repository.
"""

import json
import os
import pathlib
import subprocess
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


def build_dir():
    return pathlib.Path(os.environ.get("CLEAVE_BUILD_DIR", REPOSITORY / "build"))


def tool(name):
    return str(build_dir() / "bin" / name)


class ToolError(RuntimeError):
    """A tool ended with a status other than 0; holds what it printed."""

    def __init__(self, command, result):
        super().__init__(f"{' '.join(command)}: exit {result.returncode}\n{result.stderr}")
        self.status = result.returncode
        self.stderr = result.stderr


def run_tool(command, text=None):
    result = subprocess.run(command, input=text, capture_output=True, text=True)
    if result.returncode != 0:
        raise ToolError(command, result)
    return result.stdout


def optimize(module, *passes):
    """The module as text after the passes, given as ``cleave-opt`` takes them."""
    return run_tool([tool("cleave-opt"), "-", *passes], module)


def save_tensors(path, tensors):
    save_file({k: np.array(v, order="C") for k, v in tensors.items()}, path)


def interpret(module, inputs, *, entry="loss", mode="exact"):
    """Runs an entry by the reference interpreter.

    Returns its results by name, and the finished gradients by parameter.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = {k: os.path.join(folder, k) for k in ("module", "in", "out", "gradients")}
        pathlib.Path(paths["module"]).write_text(module)
        save_tensors(paths["in"], inputs)
        run_tool(
            [
                tool("cleave-reference"),
                paths["module"],
                f"--entry={entry}",
                f"--mode={mode}",
                f"--inputs={paths['in']}",
                f"--output={paths['out']}",
                f"--gradients={paths['gradients']}",
            ]
        )
        return load_file(paths["out"]), load_file(paths["gradients"])


def list_ops():
    """What each registered op of the graph dialect declares, by its name."""
    return json.loads(run_tool([tool("cleave-reference"), "--list-ops"]))
