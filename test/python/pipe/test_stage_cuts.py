# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Stages begin where few bytes cross, unless another place is worth it."""

import re

import numpy as np
import pytest

import cleave
from cleave.models.__main__ import main as write_model
from cleave.testing.tools import interpret, run_tool, tool
from proofs import ALL
from recipe_runs import agree, emit, random_inputs
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


#: Options of a plan: the head is sharded, or narrow, or neither.
PLANS = ["", "--precision=bf16", "--recompute=selective --fused-attention=off", "--mesh=tp=2 --plan=megatron"]
CUTS = [(name, layers, stages, plan) for name in ("gpt", "llama", "bert", "vit", "mixtral", "t5")
        for layers, stages in ((8, 2), (8, 4), (7, 2), (9, 3), (12, 5), (16, 4)) for plan in PLANS]


def layers_of_stages(folder, name, layers, stages, plan):
    """The layers that forward of each stage computes: those whose parameters its parts read."""
    path = folder / f"{name}{layers}.mlir"
    assert path.exists() or write_model([
        name, "-o", str(path), "--hidden", "64", "--heads", "4", "--layers", str(layers), "--seq", "32",
        "--vocab", "256", "--batch", "8", "--no-logits"]) == 0
    mesh = re.search(r"--mesh=(\S+)", plan)
    options = [f"--mesh=pp={stages}" + (f",{mesh[1]}" if mesh else ""),
               *(word for word in plan.split() if not word.startswith("--mesh"))]
    text = run_tool([tool("cleave-compile"), str(path), *options, "--emit=scheduled",
                     f"--micro-batches={8 if stages > 4 else 4}"])
    header, *lines = text[text.index("pipe.program @train("):].split("\n")
    names = dict(re.findall(r'(%arg\d+): tensor<[^>]*> \{.*?graph\.name = "([^"]*)"', header))
    # Forward, and what makes working copies for it.
    found = [set() for _ in range(stages)]
    for line in lines[:lines.index("  }")]:
        part = re.search(r'pipe\.invoke @[\w.]+\((.*?)\) \{part = "[FG]"(?:, stage = (\d+))?', line)
        for argument in part and re.findall(r"%arg\d+", part[1]) or ():
            if layer := re.match(r"\D*\.\d+\.", names[argument]):
                found[int(part[2] or 0)].add(layer[0])
    return found


def cut_layers(found):
    """Those that several stages compute."""
    return {layer for own in found for layer in own if sum(layer in other for other in found) > 1}


@pytest.mark.parametrize("name, layers, stages, plan", CUTS if ALL else CUTS[::11],
                         ids=lambda value: str(value).replace("--", ""))
def test_default_stages_begin_with_a_layer(tmp_path, name, layers, stages, plan):
    """Each layer is computed by one stage, and each stage computes some."""
    found = layers_of_stages(tmp_path, name, layers, stages, plan)
    assert len(set().union(*found)) == layers * (2 if name == "t5" else 1)
    assert all(found) and not cut_layers(found), found


def test_layers_that_are_cut_are_found(tmp_path):
    """What judges the above is not blind to them."""
    for name, begin, plan in (("t5", "decoder.1.cross", ""), ("gpt", "blocks.2.feed", ""),
                              ("t5", "encoder.1.norm3", "--precision=bf16")):
        found = layers_of_stages(tmp_path, name, 4, 2, f"--stages={begin} {plan}")
        assert cut_layers(found) == {re.match(r"\w+\.\d+\.", begin)[0]}, (name, begin, found)


def test_a_stage_that_would_be_much_slower_begins_within_a_layer(tmp_path):
    """Ten layers on eight stages: two that have two layers each would take nearly twice the time."""
    assert cut_layers(layers_of_stages(tmp_path, "gpt", 10, 8, ""))


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
