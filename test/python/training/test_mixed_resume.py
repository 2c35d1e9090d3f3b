# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A step of mixed precision that is resumed goes on with the same bits, in every layout.

Saved after skipped steps in fp16: scale, counts and moments are those of the run.
"""

import pytest

import cleave
from mixed_precision import compiled, losses, model
from proofs import ALL
from training_support import same_bits, snapshot

LAYOUTS = [
    {}, dict(mesh={"dp": 2}), dict(mesh={"dp": 2}, plan="zero1"),
    dict(mesh={"dp": 2}, plan="zero2"), dict(mesh={"dp": 2}, plan="zero3"),
    dict(mesh={"tp": 2}, plan="megatron-sp"), dict(mesh={"cp": 2}, plan="ring"),
    dict(mesh={"pp": 2}, micro_batches=2, schedule="1f1b"),
    dict(mesh={"pp": 2, "dp": 2, "tp": 2}, plan="megatron", micro_batches=2),
]


@pytest.mark.parametrize("precision, layout", [
    (precision, layout) for i, layout in enumerate(LAYOUTS)
    for j, precision in enumerate(("bf16", "fp16", "fp8")) if ALL or i % 3 == j], ids=str)
def test_resumed_steps_have_the_same_bits(precision, layout, tmp_path):
    options = dict(layout, precision=precision)
    if precision == "fp8":
        options["fp8_history"] = 4
    if precision == "fp16":
        options["loss_scale"] = cleave.LossScale(init=2.0**24, window=4)
    first = compiled(model(dropout=0.1), **options)
    losses(first, 5)
    assert (first.skipped > 0) == (precision == "fp16")
    first.save(tmp_path / "state")
    more = losses(first, 5)
    again = compiled(model(dropout=0.1), **options)
    again.load(tmp_path / "state")
    assert str(losses(again, 5)) == str(more)  # NaN of a skipped step
    assert same_bits(snapshot(again), snapshot(first))
    assert (again.skipped, again.loss_scale) == (first.skipped, first.loss_scale)
