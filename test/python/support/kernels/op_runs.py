# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs ops by themselves in native code: on the CPU, or on the stand-in GPU (test/fake_cuda)."""

import multiprocessing

import numpy as np

from cleave import _runtime
from cleave.testing.tools import build_dir, run_tool, tool
from step_runs import TYPES

NAMES = {np.dtype(kind): name for name, kind in TYPES.items()}
HAS_DEVICE = all((build_dir() / path).exists()
                 for path in ("fake_cuda/libcuda.so.1", "lib/libcleave_cuda.so"))
#: Targets of cleave-compile; the second one where it can run.
TARGETS = ["cpu", "cuda"] if HAS_DEVICE else ["cpu"]


def tensor_type(value):
    return "tensor<" + "".join(f"{n}x" for n in value.shape) + NAMES[value.dtype] + ">"


def module(inputs, body, results):
    """A model whose loss does not depend on the inputs: ``body`` has their names as values, and
    ``results`` the types of what it defines, by name."""
    arguments = ", ".join(f'%{name}: {tensor_type(value)} {{graph.name = "{name}", graph.role = "input"}}'
                          for name, value in inputs.items())
    types = ", ".join(f'{kind} {{graph.name = "{name}"}}' for name, kind in results.items())
    return f"""func.func @loss({arguments}, %w: tensor<3xf32> {{graph.name = "w", graph.role = "parameter"}})
        -> (tensor<f32> {{graph.name = "loss"}}, {types}) {{
      {body}
      %l = graph.contract "a,a->" %w, %w : (tensor<3xf32>, tensor<3xf32>) -> tensor<f32>
      return %l, {", ".join(f"%{name}" for name in results)} : tensor<f32>, {", ".join(results.values())}
    }}
    """


def run_artifact(path, inputs, results, runs):
    session = _runtime.open(str(path))
    found = []
    for _ in range(runs):
        for name, value in inputs.items():
            session.write(name, np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8))
        session.run("train", 3, 1)
        tensors = {t["name"]: t for t in session.tensors() if t["role"] == "output"}
        found.append({name: np.frombuffer(session.read(name), TYPES[tensors[name]["dtype"]]).reshape(
            tensors[name]["shape"]).copy() for name in results})
    session.close()
    return found


def run_op(folder, inputs, body, results, target="cpu", runs=1, flags=()):
    """The results of ``runs`` runs. On a device in another process, since a wrong kernel can end it;
    the environment says where the device's libraries are."""
    (folder / "op.mlir").write_text(module(inputs, body, results))
    path = folder / f"{target}.so"
    run_tool([tool("cleave-compile"), str(folder / "op.mlir"), "--optimizer=sgd", f"--target={target}",
              *flags, "-o", str(path)])
    if target == "cpu":
        return run_artifact(path, inputs, results, runs)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(run_artifact, (path, inputs, results, runs)).get(120)
