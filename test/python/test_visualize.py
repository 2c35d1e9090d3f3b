# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pictures of placements, and what a step says of its communication."""

import re
import xml.etree.ElementTree as xml

import pytest

import cleave
from cleave import visualize
from training_support import compile_case, family

MESH = [dict(axis="dp", size=2), dict(axis="tp", size=2)]


def over(axis, size, pre=1):
    return dict(axis=axis, pre=pre, size=size)


def test_parts_of_two_axes():
    found = visualize.parts([8, 6], [[over("tp", 2)], []], MESH)
    assert [(p.ranges, p.ranks) for p in found] == [
        (((0, 4), (0, 6)), (0, 2)), (((4, 8), (0, 6)), (1, 3))]
    found = visualize.parts([8, 6], [[over("tp", 2), over("dp", 2)], []], MESH)
    assert [p.ranks for p in found] == [(0,), (2,), (1,), (3,)]


def test_parts_of_digits():
    """The major digit of an axis of 4."""
    found = visualize.parts([4], [[over("x", 2)]], [dict(axis="x", size=4)])
    assert [p.ranks for p in found] == [(0, 1), (2, 3)]
    found = visualize.parts([4], [[over("x", 2, pre=2)]], [dict(axis="x", size=4)])
    assert [p.ranks for p in found] == [(0, 2), (1, 3)]


def test_one_device():
    tensor = dict(shape=[], element_bits=32, dims=[])
    assert "each rank holds 4 B of 4 B" in visualize.describe("x", tensor, [])


def optimizer():
    return cleave.AdamW(lr=1e-3)


def test_picture_of_a_step(tmp_path):
    step = compile_case(family("llama"), optimizer(), mesh={"dp": 2, "tp": 2},
                        plan=["megatron", "zero1"])
    picture = step.visualize("model.layers.0.mlp.up_proj.weight",
                             svg=tmp_path / "up.svg")
    assert 'dimension 0 in 2 parts over "tp"' in picture
    assert "| 0:32  | 0, 2 |" in picture and "| 32:64 | 1, 3 |" in picture
    assert "each rank holds 4.0 KiB of 8.0 KiB" in picture
    texts = {e.text for e in xml.parse(tmp_path / "up.svg").iter()}
    assert {"0, 2", "1, 3", "0:32", "32:64"} <= texts
    with pytest.raises(KeyError, match="did you mean model.layers.0.mlp.up_proj.weight"):
        step.visualize("model.layers.0.mlp.upproj.weight")


def test_collectives_are_explained():
    """Megatron: four all-reduces of the residual stream for each layer, one each for
    looked-up rows and the head's input, three numbers of a row of logits, and who
    caused them."""
    case = family("llama")
    step = compile_case(case, optimizer(), mesh={"tp": 2}, plan="megatron")
    train = step.report()["communication"]["train"]
    elements = (4 * 2 + 2) * 4 * 8 * 32 + 3 * 4 * 8
    residual = [c for c in train["totals"]
                if c["kind"] == "all_reduce" and c["axes"] == '"tp"']
    assert residual == [dict(kind="all_reduce", axes='"tp"', count=13,
                             elements=elements, bytes=elements * 4)]
    assert all("lies in parts over \"tp\"" in c["cause"] and re.match(r"(modeling_llama|loss_utils).py:", c["line"])
               for c in train["collectives"])
    text = step.explain()
    assert "train: each device sends 0.04 MiB in 13 collectives" in text
    assert 'down_proj.weight" lies in parts over "tp"' in text
    step(*case.batches[0])
    sent = {(c["kind"].replace("-", "_"), c["count"], c["elements"]) for c in step.communication()}
    assert sent == {("all_reduce", 13, elements)}
