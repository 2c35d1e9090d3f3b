# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Values that stages send in slices: the same numbers as one device, and what it saves."""

import random
import re

import numpy as np
import pytest
import torch

import cleave
from cleave.testing.tools import ToolError
from native_pairs import CASES, STEPS, agree, one_device, sgd
from pipeline_runs import MAKERS, check_scheduled, schedule_report  # noqa: F401 (it adds models)
from recipe_runs import BATCH, LENGTH, emit
from training_support import ALL, assert_close, cleave_run, compile_case, family
from volumes_support import elements_sent

#: Model, mesh, recipes, micro-batches and other flags: what is sent is common to some
#: devices; the last says whether fewer elements are sent somewhere.
SLICED = [
    ("gpt2", "pp=2,tp=2", "megatron", 2, ["--stages=transformer.h.1."], True),
    ("llama", "pp=2,tp=2", "megatron", 1, ["--stages=model.layers.1."], True),
    ("llama", "tp=2,pp=2", "megatron", 2, ["--schedule=zb-h1"], False),
    ("bert", "tp=4,pp=2", "megatron", 2, [], False),
    ("gpt2", "pp=2,dp=2,tp=2", "zero3,megatron", 2,
     ["--schedule=interleaved", "--virtual-stages=2"], False),
    ("gpt2", "pp=2,cp=2,tp=2", "ring,megatron", 2, ["--stages=transformer.h.1."], True),
    ("gpt2", "cp=2,pp=2,tp=2", "ulysses,megatron", 2, ["--stages=transformer.h.1."], True),
    # Values jump stages, and one goes to several.
    ("t5", "pp=4,tp=2", "megatron", 2, [], False),
    # Nothing is split over some axes: all of a stage is common.
    ("skips", "pp=3,tp=2", "", 2, [], False),
    ("skips", "pp=4,dp=2,tp=3,up=2", "zero1", 1, [], False),
    # The last micro-batches have samples that do not divide by four.
    ("gpt2", "pp=2,tp=4", "megatron", 4, ["--stages=transformer.h.1."], True),
]


@pytest.mark.parametrize("slices", ["auto", "on"])
@pytest.mark.parametrize("case", SLICED, ids=lambda case: "-".join(map(str, case[:3])))
def test_slices_equal_one_device(tmp_path_factory, case, slices):
    name, mesh, recipes, micro_batches, flags, less = case
    program = check_scheduled(tmp_path_factory, name, mesh, recipes, "adamw", micro_batches,
                              flags=[*flags, f"--pipe-slices={slices}"])
    if slices == "on" or less:
        assert "pipe.sliced" in program


def drawn(seed):
    """A model on a drawn mesh: pipeline, features, and samples or the sequence."""
    rng = random.Random(seed)
    axes, recipes = {"pp": rng.choice([2, 3, 4]), "tp": rng.choice([2, 4])}, []
    name = rng.choice(["gpt2", "llama", "bert", "skips", "t5"])
    if name != "skips" and (axes["tp"] == 2 or rng.random() < 0.7):
        recipes.append("megatron")
    beside = rng.choice(["", "dp", "zero1", "zero2", "zero3"])
    if beside:
        axes["dp"] = 2
        recipes += [beside] if beside != "dp" else []
    # Of two samples for a device, one or two micro-batches.
    flags = [rng.choice(["--schedule=gpipe", "--schedule=1f1b", "--schedule=zb-h1"])]
    mesh = rng.sample(sorted(axes), len(axes))
    return (name, ",".join(f"{axis}={axes[axis]}" for axis in mesh), ",".join(recipes),
            rng.choice([1, 2]), [*flags, f"--pipe-slices={rng.choice(['auto', 'on'])}"])


@pytest.mark.parametrize("seed", range(40 if ALL else 6))
def test_drawn_meshes_equal_one_device(tmp_path_factory, seed):
    name, mesh, recipes, micro_batches, flags = drawn(seed)
    check_scheduled(tmp_path_factory, name, mesh, recipes, ["adamw", "sgd"][seed % 2],
                    micro_batches, flags=flags)


def test_what_lies_in_parts_is_not_sliced(tmp_path):
    """Megatron's sequence parallelism has nothing in common between layers."""
    flags = ["--mesh=pp=2,tp=2", "--plan=megatron-sp", "--stages=transformer.h.1."]
    assert emit(tmp_path, "gpt2", "scheduled", *flags, "--pipe-slices=on") == emit(
        tmp_path, "gpt2", "scheduled", *flags, "--pipe-slices=off")


MEGATRON = ["--mesh=pp=2,tp=2", "--plan=megatron", "--micro-batches=4",
            "--stages=transformer.h.1."]


def test_slices_halve_what_stages_send(tmp_path):
    """Of 4 micro-batches of 2 samples, 8 places and 32 features, a stage sends one value
    on and one back. The one is made of a sum that nothing else reads."""
    assert (BATCH, LENGTH) == (8, 8)
    residual = 2 * 8 * 32
    sent, whole = {}, {}
    for slices in ("off", "auto", "on"):
        report = schedule_report(tmp_path, *MEGATRON, f"--pipe-slices={slices}")
        sent[slices] = [b["elements_per_micro_batch"] for b in report["boundaries"]]
        whole[slices] = [b["whole_bytes_per_micro_batch"] for b in report["boundaries"]]
        for boundary, own in zip(report["boundaries"], sent[slices]):
            assert boundary["bytes_per_micro_batch"] == 8 * own
            told = [v.get("whole_bytes", v["bytes"]) for v in boundary["values"] if not v["once"]]
            assert sum(told) == 8 * residual
    assert sent == {"off": [residual, residual], "auto": [residual / 2, residual / 2],
                    "on": [residual / 2, residual / 2]}
    assert all(own == [8 * residual, 8 * residual] for own in whole.values())
    # A value that goes back has other readers, so that slices send as much in all: it is sent in
    # slices where stages are further apart than the ranks of one.
    report = schedule_report(tmp_path, "--mesh=tp=2,pp=2", *MEGATRON[1:])
    assert [b["elements_per_micro_batch"] for b in report["boundaries"]] == [
        residual / 2, residual]


def test_fewer_elements_are_sent_in_all(tmp_path):
    """A sum that becomes a slice and a gather sends what it did, and the link sends
    half; where the sum has other readers the gather sends what the link does not."""
    residual = 2 * 8 * 32

    def collectives(slices):
        text = emit(tmp_path, "gpt2", "scheduled", *MEGATRON, f"--pipe-slices={slices}")
        return sum(sum(elements_sent(text, part.group()).values()) for part in re.finditer(
            r"func\.func private @train\.1?[FB]\(.*?\n  }", text, re.S))

    off, auto, on = map(collectives, ("off", "auto", "on"))
    assert off == on - residual / 2
    assert auto == on
    assert (off + 2 * residual, on + residual) == (
        off + 2 * residual, off + 2 * residual - residual / 2)


def test_bad_flag(tmp_path):
    with pytest.raises(ToolError, match="--pipe-slices is auto, on or off, not 'some'"):
        emit(tmp_path, "gpt2", "scheduled", *MEGATRON, "--pipe-slices=some")
    with pytest.raises(ValueError, match="pipe_slices is auto, on or off, not 'some'"):
        cleave.compile(torch.nn.Linear(2, 2), (torch.ones(2, 2),),
                       pipeline=cleave.Pipeline(pipe_slices="some"))


# Natively -------------------------------------------------------------------------------

NATIVE = [("gpt2", {"pp": 2, "tp": 2}, "megatron", "1f1b", 1),
          ("llama", {"tp": 2, "pp": 2}, "megatron", "zb-h1", 1),
          ("gpt2", {"pp": 2, "dp": 2, "tp": 2}, "zero3,megatron", "interleaved", 2)]


@pytest.mark.parametrize("slices", ["auto", "on"])
@pytest.mark.parametrize("name, mesh, plan, schedule, chunks", NATIVE)
def test_natively_equal_one_device(name, mesh, plan, schedule, chunks, slices):
    micro_batches = 2
    one = one_device(name, micro_batches)
    many = cleave_run(CASES[name](0.1), STEPS, sgd(), micro_batches=micro_batches, mesh=mesh,
                      plan=plan.split(","), schedule=schedule, virtual_stages=chunks,
                      pipe_slices=slices)
    assert_close(many.losses, one.losses, rtol=1e-4)
    assert_close(many.norms, one.norms, rtol=1e-4)
    agree(many.gradients, one.gradients, "gradient")
    agree(many.updates, one.updates, "update")


def sent_natively(slices):
    """What each position sends to others and in collectives, as the report says it;
    and all of what the busiest one sent."""
    case = family("gpt2", batch=8)
    step = compile_case(case, cleave.SGD(lr=0.1), micro_batches=4, mesh={"pp": 2, "tp": 2},
                        plan="megatron", stages=["transformer.h.1."], pipe_slices=slices)
    assert np.isfinite(float(step(*case.batches[0])))
    sent = []
    for position in step.report()["communication"]["train"]["positions"]:
        totals = position["totals"]
        sent.append((sum(t["elements"] for t in totals if t["kind"] == "send"),
                     sum(t["elements"] for t in totals if t["kind"] != "send")))
    # A message says what they replace.
    assert any("in slices, instead of 2.0 KiB" in text
               for text in step.report()["decisions"]) == (slices != "off")
    return sorted(sent), sum(entry["elements"] for entry in step.communication())


def test_natively_half_is_sent():
    """A value of each micro-batch goes both ways, and once the gradient of the table,
    of which each device has half."""
    hidden, table = 4 * 2 * 8 * 32, 48 * 32
    # For the check that all is finite the last stage sends the first what it has added up of
    # gradients in shards and of whole ones, and the first sends the sum; the stage with the head
    # sends the loss.
    checks = [1, 3]
    off, auto, on = map(sent_natively, ("off", "auto", "on"))
    assert [link for link, _ in off[0]] == [hidden + table + n for n in checks]
    # "pp" is major to "tp": stages may be further apart than the ranks of one.
    for sliced in (auto, on):
        assert [link for link, _ in sliced[0]] == [hidden // 2 + table + n for n in checks]
    inside = [sum(own for _, own in found[0]) for found in (off, auto, on)]
    assert inside == [inside[0], inside[0] + hidden // 2, inside[0] + hidden // 2]


@pytest.mark.parametrize("slices", ["auto", "on"])
def test_deterministic_slices_have_the_same_bits(slices):
    """A sum of which each device makes its part takes the terms in the same order."""
    def train(**settings):
        case = CASES["gpt2"](0.1)
        step = compile_case(case, cleave.AdamW(lr=1e-3, max_grad_norm=1.0), deterministic=4,
                            plan="megatron", **settings)
        losses = [float(step(*case.batches[i % len(case.batches)])) for i in range(3)]
        return losses, step.state_dict()

    expected, weights = train(mesh={"tp": 2})
    found, own = train(mesh={"pp": 2, "tp": 2}, stages=["transformer.h.1."], pipe_slices=slices)
    assert found == expected
    for key, value in weights.items():
        assert torch.equal(own[key], value), key
