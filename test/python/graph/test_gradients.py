# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Value and gradients of every op against PyTorch autograd in f64.

Each case draws models at random that use one op, differentiates them with
``--graph-differentiate``, runs them in exact mode and compares the loss and the
gradient of every parameter: relative error at most 1e-9.
"""

import math

import numpy as np
import pytest

from cleave.testing.dual import relative_error
from cleave.testing.tools import interpret, list_ops, optimize
from op_cases import CASES, draw_model
from proofs import ALL

DRAWS = 200 if ALL else 20
TOLERANCE = 1e-9


def gradient_floor(key, gradients):
    """The bound of a gradient that should be 0: 1e-4 of the draw's norm.

    A bias that shifts all scores alike, say, has the gradient 0 up to rounding.
    """
    draw = key.split("_")[0] + "_"
    squares = sum(np.sum(g**2) for k, g in gradients.items() if k.startswith(draw))
    return 1e-4 * math.sqrt(squares)


@pytest.mark.parametrize("name", sorted(CASES))
def test_gradients(name):
    model = draw_model(name, DRAWS)
    train = optimize(model.text(), "--graph-differentiate")
    results, gradients = interpret(train, model.inputs(), entry="train")
    values, expected = model.expected()
    assert set(gradients) == set(expected)
    for key, value in values.items():
        assert relative_error(results[key], value) <= TOLERANCE, f"{key} of\n{model.text()}"
    for key, value in expected.items():
        error = relative_error(gradients[key], value, gradient_floor(key, expected))
        assert error <= TOLERANCE, (
            f"gradient of {key}: relative error {error}\n{gradients[key]}\nbut PyTorch has\n{value}\n"
            f"{model.text()}"
        )


def test_every_op_has_a_case():
    """An op that can be differentiated does not land without a gradient test."""
    covered = {op for _, ops in CASES.values() for op in ops}
    differentiable = {
        name.removeprefix("graph.") for name, facts in list_ops().items() if facts["differentiable"]
    }
    # It has no result: there is nothing to differentiate. See test_reference.py.
    differentiable.remove("check")
    assert differentiable - covered == set()


def test_every_op_has_reference_semantics():
    assert [name for name, facts in list_ops().items() if not facts["reference"]] == []


def test_a_wrong_gradient_is_seen():
    """The comparison is not vacuous."""
    model = draw_model("sin", DRAWS)
    train = optimize(model.text(), "--graph-differentiate")
    wrong = train.replace("graph.cos", "graph.sin")
    assert wrong != train
    results, gradients = interpret(wrong, model.inputs(), entry="train")
    values, expected = model.expected()
    assert all(relative_error(results[k], v) <= TOLERANCE for k, v in values.items())
    assert all(relative_error(gradients[k], v) > 1e-3 for k, v in expected.items())
