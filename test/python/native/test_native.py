# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Native code against the reference interpreter.

Random models, and every op by itself, in shapes drawn at random: losses, every
updated parameter and every state. The bound is that of
``include/cleave/Testing/Native.h``. 40 random models by default, 2000 with
``CLEAVE_TEST_ALL=1``.
"""

import re

import numpy as np
import pytest
from adamw8bit_reference import dynamic_map
from op_cases import CASES, MADE_LATER, draw_model

from cleave.testing.tools import ToolError, list_ops, run_tool, tool
from native_values import as_f32, compare, model
from proofs import ALL

DRAWS = 20 if ALL else 4
ARRANGEMENTS = 8 if ALL else 2

# Ops that a model or a step has, but no native program, and why.
ONLY_BEFORE = {
    "graph.seed": "where backward begins; a constant from there on",
    "graph.gradient": "names a gradient for the optimizer, which replaces it",
    "graph.written": "names the buffer that a value is written to; a view from there on",
    "graph.per_worker": "computes an op for each worker; that op itself from there on",
}


def test_outputs_at_other_positions():
    """The stage that gives the loss in training is not the one that does in evaluation."""
    assert run_tool([tool("cleave-fuzz"), "--native", "--seed=374", "--count=1"]).startswith(
        "1 models agree")


@pytest.mark.parametrize("first", range(1, 2000, 250) if ALL else [1])
def test_random_models(first):
    """The tool ends with an error, which names the seed, where any differ."""
    count = 250 if ALL else 40
    text = run_tool([tool("cleave-fuzz"), "--native", f"--seed={first}", f"--count={count}"])
    agree, unstable = map(int, re.match(r"(\d+) models agree, \d+ not finite, (\d+) unstable", text).groups())
    assert agree >= 0.97 * count, text
    assert unstable <= 0.02 * count, text


@pytest.mark.parametrize("name", sorted(CASES))
def test_op(name, tmp_path):
    text, inputs = as_f32(draw_model(name, DRAWS))
    report = compare(tmp_path, text, inputs, "--one-micro-batch", f"--arrangements={ARRANGEMENTS}")
    # In some arrangements f32 itself tips over: of a few at most half, of many fewer.
    assert report["agree"] >= max(1, report["unstable"] * (2 if ALL else 1)), report


def test_kernels_are_not_taken_for_library_functions(tmp_path):
    """A kernel that is one op is named after it, as functions of libm are."""
    for op in ("cos", "sin", "exp", "tanh", "erf", "sqrt", "floor"):
        text = f"""func.func @loss(%x: tensor<40xf32> {{graph.name = "x", graph.role = "input"}},
            %w: tensor<3xf32> {{graph.name = "w", graph.role = "parameter"}})
            -> (tensor<f32> {{graph.name = "loss"}}, tensor<40xf32> {{graph.name = "y"}}) {{
          %y = graph.{op} %x : (tensor<40xf32>) -> tensor<40xf32>
          %l = graph.contract "a,a->" %w, %w : (tensor<3xf32>, tensor<3xf32>) -> tensor<f32>
          return %l, %y : tensor<f32>, tensor<40xf32>
        }}"""
        inputs = {"x": np.linspace(0.1, 3, 40, dtype=np.float32), "w": np.ones(3, np.float32)}
        assert compare(tmp_path, text, inputs)["agree"] >= 1


@pytest.mark.parametrize("signed", [True, False])
def test_dynamic_codes(signed, tmp_path):
    """Every code, and numbers that f32 tells from the middle of two."""
    codes = dynamic_map(signed)
    rng = np.random.default_rng(1)
    values = 10.0 ** rng.uniform(-8, 0, 4000) * (rng.choice([-1, 1], 4000) if signed else 1)
    middles = (codes[1:] + codes[:-1]) / 2
    near = np.abs(values[:, None] / middles - 1).min(1)
    values = np.concatenate([codes, values[near > 1e-5]]).astype(np.float32)
    flag, n = "" if signed else " {nonnegative}", len(values)
    text = f"""func.func @loss(%x: tensor<{n}xf32> {{graph.name = "x", graph.role = "input"}},
        %w: tensor<3xf32> {{graph.name = "w", graph.role = "parameter"}})
        -> (tensor<f32> {{graph.name = "loss"}}, tensor<{n}xf32> {{graph.name = "y"}}) {{
      %c = graph.encode %x{flag} : (tensor<{n}xf32>) -> tensor<{n}xi8>
      %y = graph.decode %c{flag} : (tensor<{n}xi8>) -> tensor<{n}xf32>
      %l = graph.contract "a,a->" %w, %w : (tensor<3xf32>, tensor<3xf32>) -> tensor<f32>
      return %l, %y : tensor<f32>, tensor<{n}xf32>
    }}"""
    inputs = {"x": values, "w": np.ones(3, np.float32)}
    assert compare(tmp_path, text, inputs, "--arrangements=4")["agree"] == 4


def test_orthonormal_columns(tmp_path):
    """Sums are in another order; what test_orthonormalize.py says of values is not repeated."""
    text = """func.func @loss(%x: tensor<3x70x5xf32> {graph.name = "x", graph.role = "input"},
        %w: tensor<3xf32> {graph.name = "w", graph.role = "parameter"})
        -> (tensor<f32> {graph.name = "loss"}, tensor<3x70x5xf32> {graph.name = "y"}) {
      %y = graph.orthonormalize %x : (tensor<3x70x5xf32>) -> tensor<3x70x5xf32>
      %l = graph.contract "a,a->" %w, %w : (tensor<3xf32>, tensor<3xf32>) -> tensor<f32>
      return %l, %y : tensor<f32>, tensor<3x70x5xf32>
    }"""
    inputs = {"x": np.random.default_rng(2).standard_normal((3, 70, 5)).astype(np.float32),
              "w": np.ones(3, np.float32)}
    assert compare(tmp_path, text, inputs, "--arrangements=4")["agree"] == 4


def test_parameters_that_are_each_others_gradient(tmp_path):
    """Each update overwrites what the other one reads."""
    text = """func.func @loss(%a: tensor<5xf32> {graph.name = "a", graph.role = "parameter"},
        %b: tensor<5xf32> {graph.name = "b", graph.role = "parameter"}) -> (tensor<f32> {graph.name = "loss"}) {
      %p = graph.mul %a, %b : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
      %l = graph.reduce sum %p {dims = array<i64: 0>} : (tensor<5xf32>) -> tensor<f32>
      return %l : tensor<f32>
    }"""
    inputs = {"a": np.arange(5, dtype=np.float32), "b": np.arange(3, 8, dtype=np.float32)}
    assert compare(tmp_path, text, inputs, "--arrangements=6")["agree"] == 6


# ---------------------------------------------------------------------------
# Unusual models
# ---------------------------------------------------------------------------


UNUSUAL = {
    "scalars": model(
        [("w", "parameter", "f32"), ("x", "input", "f32")],
        "%l = graph.mul %w, %x : (tensor<f32>, tensor<f32>) -> tensor<f32>",
    ),
    "parameter as loss": model([("w", "parameter", "f32")], "", "%w"),
    "unused": model(
        [("w", "parameter", "4xf32"), ("u", "parameter", "3x2xf32"), ("x", "input", "7xf32")],
        '%l = graph.contract "a,a->" %w, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>',
    ),
    "rank 8": model(
        [("w", "parameter", "2x1x3x1x2x1x2x2xf32")],
        "%t = graph.transpose %w {permutation = array<i64: 7, 3, 5, 0, 2, 1, 6, 4>} : "
        "(tensor<2x1x3x1x2x1x2x2xf32>) -> tensor<2x1x1x2x3x1x2x2xf32>\n"
        "%s = graph.mul %t, %t : (tensor<2x1x1x2x3x1x2x2xf32>, tensor<2x1x1x2x3x1x2x2xf32>) "
        "-> tensor<2x1x1x2x3x1x2x2xf32>\n"
        "%l = graph.reduce sum %s {dims = array<i64: 0, 1, 2, 3, 4, 5, 6, 7>} : "
        "(tensor<2x1x1x2x3x1x2x2xf32>) -> tensor<f32>",
    ),
    "one operand twice": model(
        [("w", "parameter", "6x6xf32")],
        "%p = graph.linear %w, %w : (tensor<6x6xf32>, tensor<6x6xf32>) -> tensor<6x6xf32>\n"
        "%q = graph.linear %p, %p : (tensor<6x6xf32>, tensor<6x6xf32>) -> tensor<6x6xf32>\n"
        "%t = graph.tanh %q : (tensor<6x6xf32>) -> tensor<6x6xf32>\n"
        "%l = graph.reduce sum %t {dims = array<i64: 0, 1>} : (tensor<6x6xf32>) -> tensor<f32>",
    ),
    "dropout": model(
        [("w", "parameter", "4x6x5xf32"), ("rng", "rng", "2xi64")],
        "%d = graph.dropout %w, %rng {id = 3 : i64, probability = 0.4 : f64} : "
        "(tensor<4x6x5xf32>, tensor<2xi64>) -> tensor<4x6x5xf32>\n"
        "%l = graph.reduce sum %d {dims = array<i64: 0, 1, 2>} : (tensor<4x6x5xf32>) -> tensor<f32>",
    ),
    "large vocabulary": model(
        [("w", "parameter", "200000x2xf32"), ("x", "input", "3x2xf32")],
        "%z = graph.linear %x, %w : (tensor<3x2xf32>, tensor<200000x2xf32>) -> tensor<3x200000xf32>\n"
        "%t = graph.constant dense<[0, 199999, 77777]> : tensor<3xi64>\n"
        "%c, %e = graph.cross_entropy %z, %t : (tensor<3x200000xf32>, tensor<3xi64>) "
        "-> (tensor<3xf32>, tensor<3xf32>)\n"
        "%l = graph.reduce sum %c {dims = array<i64: 0>} : (tensor<3xf32>) -> tensor<f32>",
    ),
    "empty": model(
        [("w", "parameter", "0x3xf32"), ("v", "parameter", "3xf32")],
        "%p = graph.mul %w, %v : (tensor<0x3xf32>, tensor<3xf32>) -> tensor<0x3xf32>\n"
        "%l = graph.reduce sum %p {dims = array<i64: 0, 1>} : (tensor<0x3xf32>) -> tensor<f32>",
    ),
    "empty contraction": model(
        [("w", "parameter", "4x0xf32"), ("v", "parameter", "5x0xf32")],
        "%p = graph.linear %w, %v : (tensor<4x0xf32>, tensor<5x0xf32>) -> tensor<4x5xf32>\n"
        "%l = graph.reduce sum %p {dims = array<i64: 0, 1>} : (tensor<4x5xf32>) -> tensor<f32>",
    ),
}

# What is said of those that native code does not take.
REFUSED = {
    "empty": "has no elements",
    "empty contraction": "has no elements",
    "parameter as loss": "there is nothing to differentiate",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_model(name, tmp_path):
    """It computes what the interpreter does, or is refused with a message."""
    arguments = re.findall(r"%(\w+): tensor<((?:\d+x)*)f32>", UNUSUAL[name])
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal([int(d) for d in s.split("x")[:-1]]).astype(np.float32) for n, s in arguments}
    inputs["rng"] = np.array([17, 0])
    try:
        assert compare(tmp_path, UNUSUAL[name], inputs, "--one-micro-batch")["failures"] == 0
    except ToolError as error:
        assert name in REFUSED, error
        assert error.status == 1 and REFUSED[name] in error.stderr, error


def check_all(facts):
    """No op of the graph dialect lacks native code."""
    executed = {name for ops in facts for name in ops}
    assert sorted(set(list_ops()) - executed - set(ONLY_BEFORE) - set(MADE_LATER)) == []
    assert set(MADE_LATER.values()) <= executed
