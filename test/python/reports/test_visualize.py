# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pictures of placements, and what a step says of its communication."""

import math
import re
import xml.etree.ElementTree as xml

import pytest

import cleave
from cleave.reports import visualize
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


def test_positions_of_a_pipeline():
    """Ranks of other positions hold no part."""
    mesh = [dict(axis="pp", size=3), dict(axis="tp", size=2)]
    found = visualize.parts([8], [[over("tp", 2)]], mesh, {0, 2})
    assert [(p.ranges, p.ranks) for p in found] == [(((0, 4),), (0, 4)), (((4, 8),), (1, 5))]
    tensor = dict(shape=[8], element_bits=32, dims=[[over("tp", 2)]], positions=[0, 2])
    picture = visualize.describe("x", tensor, mesh)
    assert 'at positions 0, 2 of "pp"' in picture
    assert "| 0:4 | 0, 4 |" in picture
    assert "each of these ranks holds 16 B of 32 B; ranks 2-3 hold nothing of it" in picture
    assert "ranks 2-3 hold nothing" in visualize.draw("x", tensor, mesh)
    tensor["positions"] = [0, 1, 2]
    assert "each rank holds 16 B of 32 B" in visualize.describe("x", tensor, mesh)


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


def test_picture_of_a_pipeline(tmp_path):
    """A parameter is where stages read it: of a tied table, on two positions."""
    step = compile_case(family("llama"), optimizer(), mesh={"pp": 2, "tp": 2},
                        plan="megatron", micro_batches=2)
    first, last = "model.layers.0.mlp.up_proj.weight", "lm_head.weight"
    assert ("each of these ranks holds 4.0 KiB of 8.0 KiB; ranks 2-3 hold nothing of it"
            in step.visualize(first, svg=tmp_path / "up.svg"))
    texts = {e.text for e in xml.parse(tmp_path / "up.svg").iter()}
    assert {"0", "1", "ranks 2-3 hold nothing"} <= texts
    assert "ranks 0-1 hold nothing of it" in step.visualize(last)
    assert "each rank holds 4 B of 4 B" in step.visualize("lr")
    assert "ranks 2-3 hold nothing of it" in step.visualize("input_ids")
    tied = compile_case(family("gpt2"), optimizer(), mesh={"pp": 3}, micro_batches=2)
    for name in ("transformer.wte.weight", "lm_head.weight", "transformer.wte.weight.exp_avg"):
        picture = tied.visualize(name)
        assert 'at positions 0, 2 of "pp"' in picture and "rank 1 holds nothing of it" in picture
    alone = compile_case(family("gpt2"), optimizer(), mesh={"pp": 1})
    assert "each rank holds" in alone.visualize("lm_head.weight")


@pytest.mark.parametrize("name, settings", [
    ("gpt2", dict(mesh={"pp": 3})),
    ("llama", dict(mesh={"pp": 2, "dp": 2, "tp": 2}, plan=["megatron-sp", "zero3"])),
])
def test_pictures_are_what_positions_hold(name, settings):
    """The parts of all parameters, and of all state, add up to what the memory plan
    has for a device of each position."""
    step = compile_case(family(name, batch=8), optimizer(), micro_batches=2, **settings)
    report = step.report()
    mesh, tensors = report["placement"]["mesh"], report["placement"]["tensors"]
    devices = math.prod(axis["size"] for axis in mesh) // mesh[0]["size"]
    for role in ("parameter", "state"):
        found = [0] * mesh[0]["size"]
        for fact in step._live.session.tensors():
            if fact["role"] != role:
                continue
            tensor = tensors[fact["name"]]
            for part in visualize.parts(tensor["shape"], tensor["dims"], mesh,
                                        tensor["positions"]):
                size = math.prod(b - a for a, b in part.ranges) * tensor["element_bits"] // 8
                for rank in part.ranks:
                    found[rank // devices] += size
        planned = [position["bytes"][role] for position in report["plan"]["positions"]]
        assert found == [devices * size for size in planned]


def test_names_that_are_close():
    step = compile_case(family("llama"), optimizer())
    with pytest.raises(KeyError, match="did you mean model.layers.0.mlp.up_proj.weight or"):
        step.visualize("up_proj.weight")
    with pytest.raises(KeyError, match=r"no tensor 'nope'; did you mean .+\?"):
        step.visualize("nope")


def test_collectives_are_explained():
    """Megatron: four all-reduces of the residual stream for each layer, one each for
    looked-up rows and the head's input, three numbers of a row of logits, and who
    caused them."""
    case = family("llama")
    step = compile_case(case, optimizer(), mesh={"tp": 2}, plan="megatron",
                        check_finite=False)
    train = step.report()["communication"]["train"]
    elements = (4 * 2 + 2) * 4 * 8 * 32 + 3 * 4 * 8
    residual = [c for c in train["totals"]
                if c["kind"] == "all_reduce" and c["axes"] == '"tp"']
    assert residual == [dict(kind="all_reduce", axes='"tp"', count=13,
                             elements=elements, bytes=elements * 4)]
    assert all("is sharded over \"tp\"" in c["cause"] and re.match(r"(modeling_llama|loss_utils).py:", c["line"])
               for c in train["collectives"])
    text = step.explain("full")
    assert "train: each device sends 40.4 KiB in 13 collectives" in text
    assert 'down_proj.weight" is sharded over "tp"' in text
    step(*case.batches[0])
    sent = {(c["kind"].replace("-", "_"), c["count"], c["elements"]) for c in step.communication()}
    assert sent == {("all_reduce", 13, elements)}
