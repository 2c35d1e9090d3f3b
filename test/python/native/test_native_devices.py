# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Native code on a mesh of devices, which are threads, against the reference
interpreter on one device.

Arguments get shardings drawn at random, so that every kind of movement occurs.
"""

import random
import re

import numpy as np
import pytest
from native_values import as_f32, compare, model
from op_cases import CASES, draw_model

from cleave.testing.tools import ToolError, optimize
from proofs import ALL

MESH = 'spmd.mesh @mesh <["dp" = 2, "tp" = 2]>\n'


def sharding(dims):
    """The attribute for axes by dimension, such as ["dp", "", "tp"]."""
    inner = ", ".join("{%s}" % ", ".join(f'"{a}"' for a in axes.split()) for axes in dims)
    return f"spmd.sharding = #spmd.sharding<@mesh, [{inner}]>"


def place(text, choose):
    """The model with the sharding that `choose(name, shape)` gives each argument
    (None: whole)."""
    def annotate(match):
        shape = [int(n) for n in re.findall(r"(\d+)x", match[1])]
        dims = choose(match[2], shape)
        return match[0][:-1] + (f", {sharding(dims)}}}" if dims else "}")

    return MESH + re.sub(r'%\w+: tensor<([^>]*)> \{graph\.name = "([^"]*)"[^}]*\}', annotate, text)


def drawn_placement(seed):
    """Splits arguments along random dimensions that divide."""
    rng = random.Random(seed)

    def choose(name, shape):
        dims = [""] * len(shape)
        for axis in rng.sample(["dp", "tp"], 2):
            free = [d for d, n in enumerate(shape)
                    if n % 2 ** (1 + len(dims[d].split())) == 0]
            if free and rng.random() < 0.7:
                dim = rng.choice(free)
                dims[dim] = f"{dims[dim]} {axis}".strip()
        return dims if any(dims) else None

    return choose


def commands(text, **options):
    """The collectives of a placed model."""
    out = optimize(text, "--graph-differentiate", "--graph-apply-optimizer=optimizer=sgd",
                   "--spmd-seed-shardings", "--spmd-propagate", "--spmd-partition")
    return set(re.findall(r"spmd\.(all_\w+|reduce_scatter|permute)", out))


# ---------------------------------------------------------------------------
# By hand
# ---------------------------------------------------------------------------

MLP = model(
    [("x", "input", "8x12xf32"), ("a", "parameter", "16x12xf32"), ("b", "parameter", "16xf32"),
     ("c", "parameter", "4x16xf32")],
    "%h = graph.linear %x, %a bias %b : (tensor<8x12xf32>, tensor<16x12xf32>, tensor<16xf32>) -> tensor<8x16xf32>\n"
    "%t = graph.tanh %h : (tensor<8x16xf32>) -> tensor<8x16xf32>\n"
    "%y = graph.linear %t, %c : (tensor<8x16xf32>, tensor<4x16xf32>) -> tensor<8x4xf32>\n"
    "%s = graph.mul %y, %y : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>\n"
    "%l = graph.reduce sum %s {dims = array<i64: 0, 1>} : (tensor<8x4xf32>) -> tensor<f32>",
)


def mlp_inputs():
    rng = np.random.default_rng(3)
    shapes = {"x": (8, 12), "a": (16, 12), "b": (16,), "c": (4, 16)}
    return {k: (rng.standard_normal(s) / 4).astype(np.float32) for k, s in shapes.items()}


BY_HAND = {
    # Samples on one axis, neurons on the other: one sum, and gradients' sums.
    "tensor parallel": ({"x": ["dp", ""], "a": ["tp", ""], "b": ["tp"], "c": ["", "tp"]}, {"all_reduce"}),
    # Every parameter in parts on all devices: gathered, gradients scattered.
    "fully sharded": ({"x": ["dp tp", ""], "a": ["dp tp", ""], "b": ["tp dp"], "c": ["", "dp tp"]},
                      {"all_gather"}),
    "columns": ({"x": ["", "dp tp"], "a": ["", "tp"], "c": ["dp", ""]}, set()),
}


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_by_hand(name, tmp_path):
    shardings, expected = BY_HAND[name]
    text = place(MLP, lambda argument, shape: shardings.get(argument))
    assert expected <= commands(text)
    report = compare(tmp_path, text, mlp_inputs(), "--one-micro-batch", "--arrangements=4")
    assert report["agree"] == 4, report


def test_every_movement(tmp_path):
    """Operands that lie in different ways are moved to one."""
    text = model(
        [("a", "parameter", "8x12xf32"), ("b", "parameter", "8x12xf32"), ("c", "parameter", "12x8xf32")],
        "%p = graph.mul %a, %b : (tensor<8x12xf32>, tensor<8x12xf32>) -> tensor<8x12xf32>\n"
        "%t = graph.transpose %c {permutation = array<i64: 1, 0>} : (tensor<12x8xf32>) -> tensor<8x12xf32>\n"
        "%q = graph.mul %p, %t : (tensor<8x12xf32>, tensor<8x12xf32>) -> tensor<8x12xf32>\n"
        "%l = graph.reduce sum %q {dims = array<i64: 0, 1>} : (tensor<8x12xf32>) -> tensor<f32>",
    )
    seen = set()
    choices = [["dp", "tp"], ["tp", "dp"], ["", "dp"], ["dp tp", ""], ["tp dp", ""], ["", "tp dp"], ["", ""]]
    rng = np.random.default_rng(5)
    inputs = {n: rng.standard_normal(s).astype(np.float32)
              for n, s in (("a", (8, 12)), ("b", (8, 12)), ("c", (12, 8)))}
    for seed in range(40 if ALL else 10):
        draw = random.Random(seed)
        placed = place(text, lambda name, shape: draw.choice(choices))
        seen |= commands(placed)
        report = compare(tmp_path, placed, inputs, "--one-micro-batch", "--arrangements=1")
        assert report["agree"] == 1, report
    assert {"all_gather", "all_to_all", "permute", "all_reduce"} <= seen


# ---------------------------------------------------------------------------
# All ops
# ---------------------------------------------------------------------------

#: Why a drawn placement does not compile: sizes that are not divisible.
REFUSED = re.compile(r"does not divide|not divisible|cannot be split")


@pytest.mark.parametrize("name", sorted(CASES))
def test_op(name, tmp_path):
    """Every op, its arguments placed at random."""
    ran = 0
    for seed in range(12 if ALL else 3):
        text, inputs = as_f32(draw_model(name, 1, first_seed=100 + seed, shards=False))
        placed = place(text, drawn_placement(seed))
        try:
            report = compare(tmp_path, placed, inputs, "--one-micro-batch", "--arrangements=1")
        except ToolError as error:
            if not REFUSED.search(str(error)):
                raise
            continue
        ran += report["agree"]
        assert report["unstable"] == 0, report
    if not ran:
        pytest.skip("no drawn placement divides")
