# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A layout in 16 and 8 bits is the layout of f32, types aside: working copies are transparent to
what a recipe says of a weight. Elements of each collective, bytes of parameters, optimizer state
and gradients of a rank, and the dimension over which attention is sharded."""

import collections
import functools
import json

import pytest

from cleave.models.__main__ import main as write_model
from cleave.testing.tools import run_tool, tool

MODELS = {"gpt": [], "llama": [], "llama of grouped heads": ["--kv-heads", "4"]}
SIZES = "--hidden 64 --heads 8 --layers 2 --seq 64 --vocab 512 --batch 8 --no-logits".split()
RECIPES = [f"{recipe}{zero}" for recipe in ("megatron", "megatron-sp")
           for zero in ("", ",zero1", ",zero2", ",zero3")]


@functools.cache
def plan(folder, model, recipe, precision):
    path = folder / f"{model}.mlir"
    if not path.exists():
        write_model([model.split()[0], *SIZES, *MODELS[model], "-o", str(path)])
    report = folder / "report.json"
    run_tool([tool("cleave-compile"), str(path), "--mesh=dp=2,tp=4", f"--plan={recipe}",
              "--micro-batches=2", *precision.split(), "--plan-only", "--report", str(report)])
    return json.loads(report.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plans")


def elements(report):
    """Elements sent, by kind of collective and axes; those of flags and losses are left out."""
    found = collections.Counter()
    for entry in report["communication"]["train"]["collectives"]:
        found[entry["kind"], entry["axes"]] += entry["elements"]
    return {key: count for key, count in found.items() if count > 64}


def fixed(report, kind):
    return {entry["name"]: entry["bytes"] for entry in report["plan"]["fixed"]
            if entry["kind"] == kind}


@pytest.mark.parametrize("precision", ["--precision=bf16", "--precision=fp16"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", MODELS)
def test_16_bits(folder, model, recipe, precision):
    wide, narrow = (plan(folder, model, recipe, p) for p in ("", precision))
    sent, expected = elements(narrow), elements(wide)
    assert not any(kind == "all_to_all" for kind, _ in sent)
    assert sent.keys() == expected.keys()
    for key, count in expected.items():
        assert abs(sent[key] - count) <= max(64, 0.01 * count), key
    # Masters that rest sharded are the one difference: a step reads their copies alone.
    for name, size in fixed(wide, "parameters").items():
        assert fixed(narrow, "parameters")[name] in (size, size // 2), name
    assert fixed(narrow, "state") == fixed(wide, "state")


@pytest.mark.parametrize("precision", ["--precision=fp8", "--quantize=int8"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", MODELS)
def test_8_bits(folder, model, recipe, precision):
    wide, narrow = (plan(folder, model, recipe, p) for p in ("", precision))
    assert not any(kind == "all_to_all" for kind, _ in elements(narrow))
    for name, size in fixed(wide, "parameters").items():
        assert fixed(narrow, "parameters")[name] in (size, size // 2), name
