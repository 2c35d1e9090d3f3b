# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Linear layers of 8 bits in every layout: the sharded program against one device, in f64.

Scales and histories are those of global tensors: of all ranks, micro-batches and stages. Without
rounding, a step with them is the same in all layouts, to 1e-10.
"""

import numpy as np
import pytest

from cleave.testing.tools import interpret
import expert_recipes  # noqa: F401  # Makes "switch".
from mixed_layouts import emit, model_file
from recipe_runs import BATCH, LENGTH, OPTIMIZERS, random_inputs
from native_layouts import agree_natively
from training_support import ALL

FLAGS = ["--precision=fp8", "--fp8-history=4"]

#: A model, a phase, and flags.
LAYOUTS = [
    ("gpt2", "local", "--mesh=dp=2", "--plan=dp", "--micro-batches=2"),
    ("gpt2", "local", "--mesh=tp=2", "--plan=megatron"),
    ("llama", "local", "--mesh=dp=2,tp=2", "--plan=dp,megatron"),
    ("llama", "local", "--mesh=dp=2", "--plan=dp,zero1", "--micro-batches=2"),
    ("gpt2", "local", "--mesh=dp=2", "--plan=dp,zero3"),
    ("gpt2", "scheduled", "--mesh=pp=2", "--micro-batches=4"),
    ("llama", "scheduled", "--mesh=pp=2,dp=2", "--plan=dp", "--micro-batches=2"),
    ("gpt2", "scheduled", "--mesh=pp=2,tp=2", "--plan=megatron", "--micro-batches=2",
     "--schedule=zb-h1"),
    ("gpt2", "scheduled", "--micro-batches=4"),
    ("llama", "local", "--mesh=tp=2", "--plan=megatron-sp"),
    ("mixtral", "local", "--mesh=ep=2,tp=2", "--plan=expert,megatron"),
    ("gpt2", "local", "--mesh=cp=2", "--plan=ring"),
    ("switch", "local", "--mesh=dp=2,ep=2", "--plan=expert,zero2", "--micro-batches=2"),
]


def whole(folder, name, optimizer, runs={}):
    if (name, optimizer) not in runs:
        step = emit(folder, name, "step", *FLAGS, *OPTIMIZERS[optimizer], sizes=(BATCH, LENGTH))
        assert step.count("f8E4M3FN") > 20 and step.count("f8E5M2") > 10
        inputs = random_inputs(step)
        # Some numbers are clamped, and some scales are not set yet.
        scales = sorted(n for n in inputs if n.endswith("_scale"))
        assert len(scales) > 8
        for i, scale in enumerate(scales):
            inputs[scale] = np.asarray([0, 3e4, 0.7][i % 3], np.float32)
        runs[name, optimizer] = inputs, *interpret(step, inputs, entry="train"), step
    return runs[name, optimizer]


def agree(found, expected):
    """Each tensor to 1e-10 of its largest number, or of the largest of parameters and state."""
    assert found.keys() == expected.keys()
    largest = max(np.abs(v).max() for n, v in expected.items()
                  if v.size and not n.endswith("_scale"))
    for name, value in expected.items():
        own, value = found[name].astype(np.float64).ravel(), value.astype(np.float64).ravel()
        assert np.isfinite(value).all() and np.isfinite(own).all(), name
        scale = np.abs(value).max() if name.endswith("_scale") else largest
        error = np.abs(own - value).max(initial=0)
        assert error <= 1e-10 * scale, (name, error, scale)


@pytest.mark.parametrize("layout", LAYOUTS if ALL else LAYOUTS[::2] + LAYOUTS[5:6], ids=" ".join)
def test_layouts(tmp_path_factory, layout):
    folder = tmp_path_factory.getbasetemp()
    name, phase, *flags = layout
    optimizer = ["adamw", "sgd"][LAYOUTS.index(layout) % 2]
    inputs, results, gradients, step = whole(folder, name, optimizer)
    assert any(n.endswith("amax_history") for n in results)
    program = emit(folder, name, phase, *FLAGS, *OPTIMIZERS[optimizer], *flags,
                   sizes=(BATCH, LENGTH))
    found, own = interpret(program, inputs, entry="train")
    agree(found, results)
    agree(own, gradients)
    agree_natively(model_file(folder, name), [*FLAGS, *OPTIMIZERS[optimizer]], flags, step, inputs,
                   results)
