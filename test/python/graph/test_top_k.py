# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The k largest elements of rows, in native code, by kernels (few) and by selection (many), against
NumPy's stable sort and PyTorch's topk."""

import numpy as np
import pytest
import torch

from cleave.testing.tools import build_dir, interpret
from op_runs import TARGETS, run_op, tensor_type

EDGES = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 1.0], np.float32)
#: Rows, elements, and k.
SHAPES = [((5, 7), 1), ((5, 7), 7), ((3, 4, 300), 8), ((3, 4, 300), 9), ((300, 33), 20), ((2, 5000), 600),
          ((1, 20000), 2), ((1, 20000), 8), ((40000,), 400), ((2, 40000), 40000)]


def draw(shape, kind, seed):
    random = np.random.default_rng(seed)
    if kind == "normal":
        return random.standard_normal(shape).astype(np.float32)
    if kind == "ties":
        return random.integers(-3, 4, shape).astype(np.float32)
    return random.choice(EDGES, shape)


def stable(x, k):
    """Of equal elements the first comes first, and NaN is infinity."""
    order = np.argsort(-np.where(np.isnan(x), np.inf, x), axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order


def body(name, x, k):
    kind, shape = tensor_type(x), (*x.shape[:-1], k)
    types = [tensor_type(np.zeros(shape, t)) for t in (np.float32, np.int64)]
    text = f"%v{name}, %i{name} = graph.top_k %{name} {{k = {k} : i64}} : ({kind}) -> ({', '.join(types)})"
    return text, {f"v{name}": types[0], f"i{name}": types[1]}


@pytest.mark.parametrize("kind", ["normal", "ties", "edges"])
@pytest.mark.parametrize("target", TARGETS)
def test_native(target, kind, tmp_path, monkeypatch):
    monkeypatch.setenv("CLEAVE_CUDA_LIBRARIES", str(build_dir() / "fake_cuda"))
    inputs = {f"x{i}": draw(shape, kind, i) for i, (shape, _) in enumerate(SHAPES)}
    text, results = "", {}
    for (name, x), (_, k) in zip(inputs.items(), SHAPES):
        line, types = body(name, x, k)
        text, results = text + line + "\n", results | types
    found, = run_op(tmp_path, inputs, text, results, target)
    for (name, x), (_, k) in zip(inputs.items(), SHAPES):
        values, order = stable(x, k)
        np.testing.assert_array_equal(found[f"i{name}"], order, err_msg=f"{x.shape} {k}")
        np.testing.assert_array_equal(found[f"v{name}"], values)
        if kind == "normal":
            # PyTorch leaves the order of equal elements open, and takes NaN for more than infinity.
            expected = torch.topk(torch.from_numpy(x), k).values.numpy()
            np.testing.assert_array_equal(found[f"v{name}"], expected)


@pytest.mark.parametrize("kind", ["ties", "edges"])
def test_interpreter_agrees(kind):
    x = draw((4, 50), kind, 9)
    line, types = body("x", x, 30)
    results = ", ".join(f'{t} {{graph.name = "{n}"}}' for n, t in types.items())
    text = f"""func.func @loss(%x: {tensor_type(x)} {{graph.name = "x", graph.role = "input"}}) -> ({results}) {{
      {line}
      return {", ".join("%" + n for n in types)} : {", ".join(types.values())}
    }}"""
    found = interpret(text, {"x": x}, mode="typed")[0]
    values, order = stable(x, 30)
    np.testing.assert_array_equal(found["ix"], order)
    np.testing.assert_array_equal(found["vx"], values)
