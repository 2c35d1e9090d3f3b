# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Stages begin where few bytes cross, unless another place is worth it."""

import numpy as np
import pytest

import cleave
from cleave.testing.tools import interpret
from test_recipes import agree, emit, random_inputs
from training_support import compile_case, family


def sent_forward(step):
    """Bytes of a micro-batch that each stage's forward sends to the next one."""
    return [sum(value["bytes"] for value in boundary["values"] if value["part"] == "F")
            for boundary in step.report()["schedule"]["boundaries"]
            if boundary["to"] == boundary["from"] + 1]


@pytest.mark.parametrize("name, stages, layers", [
    ("gpt2", 2, 9), ("gpt2", 3, 7), ("llama", 2, 9)])
def test_stages_begin_between_layers(name, stages, layers):
    """Where the head, and numbers of layers that do not divide, put the fastest cut within a
    layer, one value of the residual stream is sent all the same."""
    batch, length, width = 4, 8, 32
    sizes = ({"n_layer": layers} if name == "gpt2" else {"num_hidden_layers": layers})
    step = compile_case(family(name, batch=batch, length=length, **sizes), cleave.SGD(lr=0.1),
                        mesh={"pp": stages})
    assert sent_forward(step) == [batch * length * width * 4] * (stages - 1)
    # Stages are even all the same: no further apart than a layer is long.
    shares = [stage["cost_share"] for stage in step.report()["schedule"]["stages"]]
    assert max(shares) - min(shares) < 1 / layers


@pytest.mark.parametrize("mesh, micro_batches", [("pp=2", 2), ("pp=3", 1)])
def test_cuts_change_no_value(tmp_path, mesh, micro_batches):
    """In f64, against the program of one device."""
    flags = "--optimizer=sgd", f"--micro-batches={micro_batches}"
    whole = emit(tmp_path, "gpt2", "step", "--optimizer=sgd")
    inputs = random_inputs(whole)
    expected, gradients = interpret(whole, inputs, entry="train")
    found, own = interpret(emit(tmp_path, "gpt2", "scheduled", f"--mesh={mesh}", *flags), inputs,
                           entry="train")
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-10)
    agree(own, gradients)
