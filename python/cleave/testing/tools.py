# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs the command-line tools of a build on text and named arrays.

The build is the folder in ``CLEAVE_BUILD_DIR``, by default ``build`` in the
repository; an installed package has its tools beside the interpreter.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sysconfig
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


def build_dir():
    return pathlib.Path(os.environ.get("CLEAVE_BUILD_DIR", REPOSITORY / "build"))


def tool(name):
    """The path of a tool."""
    if "CLEAVE_BUILD_DIR" not in os.environ and not (REPOSITORY / "CMakeLists.txt").exists():
        installed = os.path.join(sysconfig.get_path("scripts"), name)
        return installed if os.path.exists(installed) else shutil.which(name) or name
    return str(build_dir() / "bin" / name)


class ToolError(RuntimeError):
    """A tool ended with a status other than 0; holds what it printed."""

    def __init__(self, command, result):
        super().__init__(f"{' '.join(map(str, command))}: exit {result.returncode}\n{result.stderr}")
        self.status = result.returncode
        self.stderr = result.stderr


def run_tool(command, text=None):
    result = subprocess.run(command, input=text, capture_output=True, text=True)
    if result.returncode != 0:
        raise ToolError(command, result)
    return result.stdout


def optimize(module, *passes):
    """The module as text after the passes, given in the form of ``cleave-opt``."""
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
    """The properties of each registered op of the graph dialect, by its name."""
    return json.loads(run_tool([tool("cleave-reference"), "--list-ops"]))
