# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Orthonormal columns against the QR factorization of LAPACK, by NumPy and by PyTorch: by the
interpreter in f64, in native code and on the stand-in GPU."""

import numpy as np
import pytest
import torch

from cleave.testing.tools import build_dir, interpret
from op_runs import TARGETS, run_op, tensor_type

SHAPES = [(1, 1), (5, 1), (6, 6), (40, 3), (300, 17), (2, 3, 33, 4), (5, 1, 1), (4, 9, 9)]


def body(x):
    kind = tensor_type(x)
    return f"%q = graph.orthonormalize %x : ({kind}) -> {kind}", {"q": kind}


def interpreted(x, mode="exact"):
    kind = tensor_type(x)
    text = f"""func.func @loss(%x: {kind} {{graph.name = "x", graph.role = "input"}})
        -> ({kind} {{graph.name = "q"}}) {{
      {body(x)[0]}
      return %q : {kind}
    }}"""
    return interpret(text, {"x": x}, mode=mode)[0]["q"]


def lapack(x):
    """Q for which the diagonal of R is positive: of full rank there is one."""
    q, r = np.linalg.qr(x.astype(np.float64))
    sign = lambda d: np.where(d < 0, -1.0, 1.0)[..., None, :]
    own = q * sign(np.diagonal(r, axis1=-2, axis2=-1))
    q, r = torch.linalg.qr(torch.from_numpy(x.astype(np.float64)))
    other = q * torch.sign(torch.diagonal(r, dim1=-2, dim2=-1))[..., None, :]
    np.testing.assert_allclose(own, other.numpy(), atol=1e-12)
    return own


def error(q):
    """How far the columns are from orthonormal ones."""
    q = q.astype(np.float64)
    return np.abs(np.swapaxes(q, -1, -2) @ q - np.eye(q.shape[-1])).max(initial=0)


def well_conditioned(shape, seed):
    """Columns far from dependent: singular values of 1 to 2, but for the scales of columns."""
    random = np.random.default_rng(seed)
    u, _, v = np.linalg.svd(random.standard_normal(shape), full_matrices=False)
    return u @ (random.uniform(1, 2, shape[-1])[:, None] * v)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_is_that_of_lapack(shape):
    x = well_conditioned(shape, 1)
    q = interpreted(x)
    np.testing.assert_allclose(q, lapack(x), atol=1e-12)
    assert error(q) <= 1e-14


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_of_any_scale(scale):
    """Columns of different scales, too: squares would overflow, or vanish."""
    x = well_conditioned((40, 3), 2)
    np.testing.assert_allclose(interpreted(scale * x), lapack(x), atol=1e-12)
    apart = x * np.array([scale, 1, 1 / scale])
    np.testing.assert_allclose(interpreted(apart), lapack(x), atol=1e-12)
    denormal = np.ldexp(np.round(np.ldexp(x, 20)), -1074)
    np.testing.assert_allclose(interpreted(denormal), lapack(np.ldexp(denormal, 1000)), atol=1e-12)


def dependent():
    """Matrices with dependent columns, and where these are."""
    random = np.random.default_rng(3)
    x = random.standard_normal((30, 4))
    zero, twice, sums, low = (x.copy() for _ in range(4))
    zero[:, 1] = 0
    twice[:, 2] = -3 * twice[:, 0]
    sums[:, 3] = sums[:, 0] + sums[:, 1] - sums[:, 2]
    low = np.outer(random.standard_normal(30), random.standard_normal(4))
    return {"zero": (zero, [1]), "twice": (twice, [2]), "sums": (sums, [3]),
            "one": (low, [1, 2, 3]), "zeros": (np.zeros((30, 4)), [0, 1, 2, 3]),
            "square": (np.outer(np.arange(1.0, 5), np.ones(4)), [1, 2, 3])}


def reflected(x, places):
    """By the definition: reflections as matrices, the identity at dependent columns."""
    rows, columns = x.shape
    whole, rest, signs = np.eye(rows), x.astype(np.float64), np.ones(columns)
    for j in range(columns):
        if j in places:
            continue
        below = np.where(np.arange(rows) >= j, rest[:, j], 0)
        diagonal = -np.linalg.norm(below) if below[j] >= 0 else np.linalg.norm(below)
        v = below.copy()
        v[j] -= diagonal
        h = np.eye(rows) - 2 * np.outer(v, v) / (v @ v)
        rest, whole, signs[j] = h @ rest, whole @ h, -1 if diagonal < 0 else 1
    return whole[:, :columns] * signs


@pytest.mark.parametrize("name", sorted(dependent()))
def test_of_dependent_columns(name):
    x, places = dependent()[name]
    q = interpreted(x)
    np.testing.assert_allclose(q, reflected(x, places), atol=1e-12)
    assert error(q) <= 1e-14
    # What is not dependent is spanned, in order.
    others = [j for j in range(4) if j not in places]
    np.testing.assert_allclose(q @ (q.T @ x), x, atol=1e-12 * np.abs(x).max(initial=1))
    if others == list(range(len(others))):
        np.testing.assert_allclose(q[:, others], lapack(x[:, others]), atol=1e-12)


@pytest.mark.parametrize("mode, share", [("exact", 2.0**-39), ("typed", 2.0**-17)])
def test_share_that_is_left(mode, share):
    """Below it a column is dependent, above it is not."""
    for factor, column in [(0.9, [0, 1, 0]), (1.1, [0, 0, 1])]:
        x = np.array([[1, 1], [0, 0], [0, factor * share]])
        q = interpreted(x if mode == "exact" else x.astype(np.float32), mode)
        np.testing.assert_allclose(q, np.transpose([[1, 0, 0], column]), atol=1e-6)


def test_of_what_is_not_finite():
    x = np.random.default_rng(4).standard_normal((3, 6, 2))
    x[0, 5, 1], x[2, 0, 0] = np.nan, -np.inf
    q = interpreted(x)
    assert np.isnan(q[[0, 2]]).all() and np.allclose(q[1], lapack(x[1]))


# Native code ------------------------------------------------------------------------------


@pytest.fixture
def fake_device(monkeypatch):
    monkeypatch.setenv("CLEAVE_CUDA_LIBRARIES", str(build_dir() / "fake_cuda"))


@pytest.mark.parametrize("target", TARGETS)
def test_native(target, tmp_path, fake_device):
    """One program of all matrices; columns are orthonormal but for their rounding to f32."""
    cases = {str(shape): well_conditioned(shape, 5).astype(np.float32) for shape in SHAPES}
    cases |= {scale: (np.float32(scale) * well_conditioned((40, 3), 6)).astype(np.float32)
              for scale in ("1e-30", "1e30", "1e-38", "1e38")}
    cases |= {name: x.astype(np.float32) for name, (x, _) in dependent().items()}
    broken = np.ones((2, 5, 2), np.float32)
    broken[1, 4, 0] = np.nan
    cases["broken"] = broken
    inputs = {f"x{i}": x for i, x in enumerate(cases.values())}
    text = "\n".join(body(x)[0].replace("%x", f"%{n}").replace("%q", f"%q{n}") for n, x in inputs.items())
    first, again = run_op(tmp_path, inputs, text, {f"q{n}": tensor_type(x) for n, x in inputs.items()},
                          target, runs=2)
    for (name, x), key in zip(cases.items(), inputs):
        q = first[f"q{key}"]
        assert q.tobytes() == again[f"q{key}"].tobytes(), name
        typed = interpreted(x, "typed")
        np.testing.assert_allclose(q, typed, atol=1.2e-7, err_msg=name)
        if name == "broken":
            assert np.isnan(q[1]).all() and not np.isnan(q[0]).any()
            continue
        assert error(q) <= x.shape[-2] * 2.0**-23, name
        if name in map(str, SHAPES):
            np.testing.assert_allclose(q, lapack(x), atol=2e-7)
