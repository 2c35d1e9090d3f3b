# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Sums of values that are each summed over ranks are summed over these once: input gradients of
matmuls that read the same values, also where the stream is added before, and gradients of a head
that is computed in chunks of rows. Values are those of one device."""

import re

import pytest

from cleave.testing.tools import interpret
from recipe_runs import OPTIMIZERS, agree, agree_natively, emit, whole_run

#: Of a plan: the op that sums, and how many of `train` sum a value of the stream's
#: width (or one part of it) or the gradient of a head, where each is summed once.
CASES = [
    # In forward rows that are looked up, and of each of two layers two branches; in
    # backward as many branches, and the head's input.
    ("bert", "tp=2", "megatron", "all_reduce", 1 + 4 + 4 + 1),
    ("bert", "tp=2", "megatron-sp", "reduce_scatter", 1 + 4 + 4 + 1),
    ("bert", "dp=2,tp=2", "megatron,zero2", "all_reduce", 1 + 4 + 4 + 1),
]

#: Each chunk of a head is of few rows.
CHUNKS = "--max-logits-bytes=1KiB"


def equals_one_device(folder, name, *flags):
    inputs, results, gradients = whole_run(name, "adamw", folder)
    local = emit(folder, name, "local", *OPTIMIZERS["adamw"], *flags)
    found, own = interpret(local, inputs, entry="train")
    agree(found, results)
    agree(own, gradients)
    agree_natively(folder, name, "adamw", *flags)
    return re.search(r"func\.func @train\(.*?\n  }", local, re.S).group()


@pytest.mark.parametrize("name, mesh, plan, op, count", CASES)
def test_branches_are_summed_once(tmp_path_factory, name, mesh, plan, op, count):
    text = equals_one_device(tmp_path_factory.getbasetemp(), name, f"--mesh={mesh}",
                             f"--plan={plan}", "--micro-batches=2")
    over = {"all_reduce": 'over @mesh {"tp"}', "reduce_scatter": 'by <@mesh, [{}, {"tp"}, {}]>'}[op]
    sums = re.findall(rf"spmd\.{op} sum \S+ {re.escape(over)}.* : tensor<\d+x\d+x32xf\d+>", text)
    assert len(sums) == count, sums


@pytest.mark.parametrize("mesh, plan", [("row=2,col=2", "summa2d"),
                                        ("dp=2,row=2,col=2", "summa2d,zero1"),
                                        ("depth=2,row=2,col=2", "summa25d")])
def test_steps_are_summed_once(tmp_path_factory, mesh, plan):
    """Over columns, parts of the gradients of four inputs of a layer (Q, K and V read one, gate and
    up one), and of the logits of each chunk; over rows, of the gradients of seven weights, of the
    head's and of the table's."""
    text = equals_one_device(tmp_path_factory.getbasetemp(), "llama", f"--mesh={mesh}",
                             f"--plan={plan}", CHUNKS)
    chunks = len(re.findall("graph.one_hot", text))
    assert chunks > 1
    layers = 2
    for axis, count in (("col", 4 * layers + chunks), ("row", 7 * layers + 2)):
        sums = re.findall(rf'spmd\.reduce .*over @mesh {{"{axis}"}}', text)
        assert len(sums) == 2 * count, axis
