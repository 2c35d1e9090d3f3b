# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The vocabulary in parts: embedding, head and loss, in f64 by the interpreter.

The opened head against `graph.head_loss`, and whole steps of models against one
device, to 1e-10.
"""

import re

import numpy as np
import pytest

from cleave.testing.tools import interpret, optimize
from head_models import CLASSES, WIDTH, head
from recipe_runs import check
from training_support import ALL

#: Shape of the rows, bias, label smoothing, ignored index, gradient, limits.
HEADS = [
    ((4, 6), False, 0.0, -100, True, ""),
    ((4, 6), True, 0.0, -100, True, "max-chunk-bytes=64 max-chunk-rows=2"),
    ((4, 6), True, 0.1, 0, True, "max-chunk-bytes=64 max-chunk-rows=5"),
    ((24,), True, 0.1, -100, True, "max-chunk-bytes=64 max-chunk-rows=4"),
    ((24,), False, 0.0, 3, False, "max-chunk-bytes=64 max-chunk-rows=3"),
    ((2, 2, 6), False, 0.2, -100, True, "max-chunk-bytes=8 max-chunk-rows=1"),
]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("mesh, recipes", [
    ("tp=2", "megatron"),
    ("dp=2,tp=5", "megatron"),
    ("dp=2,cp=3,tp=2", "ulysses,megatron-sp"),
])
@pytest.mark.parametrize("case", HEADS)
def test_opened_head_is_the_head(case, mesh, recipes, flat):
    rows, bias, smoothing, ignored, gradient, limits = case
    text = head(rows, flat, bias, smoothing, ignored, gradient)
    opened = optimize(text, f"--spmd-decompose-head=mesh={mesh} recipes={recipes} {limits}")
    assert "head_loss" not in opened
    assert opened.count("graph.linear") > 1 if limits else opened.count("graph.linear") == 1
    rng = np.random.default_rng(3)
    targets = rng.integers(0, CLASSES, rows)
    targets.flat[::5] = ignored
    inputs = {"x": rng.standard_normal((*rows, WIDTH)), "w": rng.standard_normal((CLASSES, WIDTH)),
              "b": rng.standard_normal(CLASSES), "t": targets,
              "g": rng.standard_normal(int(np.prod(rows))).reshape((-1,) if flat else rows)}
    expected, _ = interpret(text, inputs, entry="train")
    found, _ = interpret(opened, inputs, entry="train")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


#: Model, mesh, recipes, micro-batches. GPT-2 is tied, BERT is and has a bias.
STEPS = [
    ("gpt2", "tp=2", "megatron", 1),
    ("gpt2", "tp=4", "megatron-sp", 2),
    ("llama", "tp=2", "megatron-sp", 1),
    ("llama", "dp=2,tp=2", "megatron,zero3", 2),
    ("bert", "tp=2", "megatron", 2),
    ("bert", "tp=4", "megatron-sp", 1),
    ("gpt2", "tp=2,dp=2", "megatron-sp,zero1", 1),
    ("bert", "dp=2,tp=2", "megatron-sp,zero3", 1),
    ("llama", "tp=2,dp=2", "megatron,zero1", 1),
    ("gpt2", "cp=2,tp=2", "ulysses,megatron", 1),
]

VOCABULARY = {"gpt2": ["transformer.wte.weight"],
              "llama": ["model.embed_tokens.weight", "lm_head.weight"],
              "bert": ["bert.embeddings.word_embeddings.weight", "cls.predictions.bias"]}


@pytest.mark.parametrize("name, mesh, recipes, micro_batches", STEPS if ALL else STEPS[:8])
def test_steps_equal_one_device(tmp_path_factory, name, mesh, recipes, micro_batches):
    local = check(tmp_path_factory, name, mesh, recipes, "adamw", micro_batches)
    assert "head_loss" not in local
    parts = int(re.search(r"tp=(\d+)", mesh).group(1))
    header = re.search(r"func\.func @train\((.*?)\n", local).group(1)
    for parameter in VOCABULARY[name]:
        rest = 2 if "zero3" in recipes else 1
        shape = re.search(rf'tensor<(\d+)x[^>]*> \{{[^{{}}]*(?:\{{[^{{}}]*\}}[^{{}}]*)*graph\.name = "{parameter}"', header)
        assert int(shape.group(1)) in (96 // parts, 96 // parts // rest), parameter


def test_no_logits_are_moved(tmp_path_factory):
    """Nothing that is moved has a dimension of classes, whole or in parts."""
    local = check(tmp_path_factory, "llama", "tp=2", "megatron-sp", "sgd", 1)
    body = local[local.index("func.func @train"):]
    moved = [line for line in body.splitlines()
             if re.search(r"= spmd\.(all_reduce|all_gather|reduce_scatter|all_to_all|permute)", line)]
    assert moved
    for line in moved:
        assert not re.search(r"tensor<8x\d+x(48|96)xf64>", line), line
