# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The shards of a rank in 16 and 8 bits are those of f32: of the gradient of each parameter, and of
the results of matmuls, lookups and attention; and what a rank has after native steps.

`test_precision_plans` has collectives, parameters and state. Here the program of one rank is read,
also that of published models, all with ``CLEAVE_TEST_ALL=1`` and a sample otherwise.
"""

import collections
import functools
import json
import re

import numpy as np
import pytest

from cleave.testing.tools import run_tool, tool
from cleave.compiler.entrance import grouped
from proofs import ALL

SMALL = "--hidden 64 --heads 8 --layers 2 --seq 64 --vocab 512 --batch 8"
MODELS = {
    "gpt": ("gpt", SMALL),
    "llama": ("llama", SMALL),
}
PUBLISHED = {
    "GPT-2": ("gpt", "--layers 12 --hidden 768 --heads 12 --seq 1024 --vocab 50304 --batch 4"),
    "LLaMA-7B": ("llama", "--layers 32 --hidden 4096 --heads 32 --seq 2048 "
                 "--vocab 32000 --batch 4"),
    "GPT-175B": ("gpt", "--layers 96 --hidden 12288 --heads 96 --seq 2048 --vocab 50304 --batch 4"),
}
RECIPES = [recipe + zero for recipe in ("megatron", "megatron-sp")
           for zero in ("", ",zero1", ",zero2", ",zero3")]
MESH = "--mesh=dp=2,tp=4"
#: Ops whose results are large, or whose shards cost time.
LARGE = ("graph.contract", "graph.linear", "graph.attention", "graph.gather", "graph.scatter_add",
         "graph.head_loss")


@functools.cache
def model_file(folder, name):
    import subprocess
    import sys

    family, sizes = {**MODELS, **PUBLISHED}[name]
    path = folder / f"precision-{name}.mlir"
    subprocess.run([sys.executable, "-m", "cleave.models", family, *sizes.split(), "--no-logits",
                    "-o", str(path)], check=True, capture_output=True)
    return path


def shapes_of(text):
    """The shapes of one rank in phase `local`: of the gradient of each parameter, and of the
    results of large ops, how many of each."""
    train = text[text.index("func.func @train"):]
    gradients, large = {}, collections.Counter()
    for line in train.splitlines():
        results = line.rpartition("->")[2]
        shapes = tuple(re.findall(r"tensor<([0-9x]*?)x?(?:f|bf|i)[0-9]+>", results))
        if found := re.search(r'graph\.gradient %\S+ of "([^"]+)"', line):
            gradients[found[1]] = shapes
        elif found := re.search(r"= (graph\.\w+)", line):
            if found[1] in LARGE or found[1].startswith("graph.attention"):
                large[found[1], shapes] += 1
    return gradients, large


@functools.cache
def plan(folder, name, recipe, option):
    """What a rank has: bytes of each parameter, gradients, large ops, collectives by axis."""
    path = model_file(folder, name)
    flags = [str(path), MESH, f"--plan={recipe}", "--micro-batches=2", *option.split()]
    report = folder / "report.json"
    run_tool([tool("cleave-compile"), *flags, "--plan-only", "--report", str(report)])
    report = json.loads(report.read_text())
    sent = collections.Counter()
    for entry in report["communication"]["train"]["collectives"]:
        sent[entry["kind"], entry["axes"]] += entry["elements"]
    fixed = {(entry["kind"], entry["name"]): entry["bytes"] for entry in report["plan"]["fixed"]
             if entry["kind"] in ("parameters", "state")}
    return fixed, sent, *shapes_of(run_tool([tool("cleave-compile"), *flags, "--emit=local"]))


def same(folder, name, recipe, option):
    fixed, sent, gradients, large = plan(folder, name, recipe, "")
    own_fixed, own_sent, own_gradients, own_large = plan(folder, name, recipe, option)
    assert own_gradients == gradients
    assert own_large == large
    # A parameter that is read as a copy rests sharded in each stage of ZeRO: it is not larger.
    for key, size in fixed.items():
        assert own_fixed[key] <= size, key
        assert own_fixed[key] == size or "zero" in recipe and key[0] == "parameters", key
    assert not any(kind == "all_to_all" for kind, _ in own_sent)
    few = 64 if "bf16" in option else 4096     # Scales are the largest elements of shards.
    for key in {*sent, *own_sent}:
        assert abs(own_sent[key] - sent[key]) <= 0.02 * sent[key] + few, (key, sent, own_sent)


CASES = [(name, recipe, option) for name in MODELS for recipe in RECIPES
         for option in ("--precision=bf16", "--precision=fp16", "--precision=fp8",
                        "--quantize=int8")]


@pytest.mark.parametrize("name, recipe, option", CASES if ALL else CASES[1::9])
def test_small(tmp_path_factory, name, recipe, option):
    same(tmp_path_factory.getbasetemp(), name, recipe, option)


@pytest.mark.skipif(not ALL, reason="planned with CLEAVE_TEST_ALL=1")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_published(tmp_path_factory, name, recipe):
    same(tmp_path_factory.getbasetemp(), name, recipe, "--precision=bf16")


@pytest.mark.parametrize("family", list(MODELS))
def test_attention_is_sharded_by_heads(tmp_path_factory, family):
    """Each rank of tp=4 has 2 of 8 heads and the whole sequence, in every stage of ZeRO."""
    large = plan(tmp_path_factory.getbasetemp(), family, "megatron-sp,zero1", "--precision=bf16")[3]
    found = {shapes[0] for op, shapes in large if op == "graph.attention"}
    assert found == {"2x2x64x8"}


def trained(recipe, mesh, precision):
    """Parameters and state of a model after three native steps."""
    import cleave
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
            self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
            self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

        def forward(self, x):
            b, s, _ = x.shape
            q, k, v = (t.view(b, s, 4, 4).transpose(1, 2)
                       for t in self.qkv(self.norm1(x)).chunk(3, -1))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, s, 16))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.block = nn.Embedding(32, 16), Block()
            self.head = nn.Linear(16, 32, bias=False)

        def forward(self, ids):
            return self.head(self.block(self.embed(ids)))

    def loss(logits, labels):
        return nn.functional.cross_entropy(logits.reshape(-1, 32), labels.reshape(-1))

    torch.manual_seed(0)
    ids, labels = torch.randint(0, 32, (4, 8)), torch.randint(0, 32, (4, 8))
    model = Model()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    options = {"mesh": mesh, "plan": recipe} if mesh else {}
    step = cleave.compile(model, (ids, labels), loss_fn=loss, check="off",
                          optimizer=cleave.SGD(lr=0.1, momentum=0.9),
                          **grouped(precision=precision, **options))
    for _ in range(3):
        step(ids, labels)
    changes = {name: value - start[name] for name, value in step.state_dict(masters=True).items()}
    state = step.training_state()["optimizer"]
    return changes, {(name, kind): torch.as_tensor(value) for name, own in state.items()
                     for kind, value in own.items()}


@functools.cache
def trained_alone(precision):
    return trained("", None, precision)


@pytest.mark.parametrize("precision, recipe", [
    ("bf16", "megatron-sp,zero1"), ("bf16", "megatron,zero2"), ("fp16", "megatron-sp,zero3"),
    ("bf16", "megatron")])
def test_three_native_steps(precision, recipe):
    """The changes of parameters and the momenta are those of one rank, to the rounding of sums."""
    found, expected = trained(recipe, {"dp": 2, "tp": 2}, precision), trained_alone(precision)
    for own, right in zip(found, expected):
        assert own.keys() == right.keys()
        for name, value in right.items():
            error = np.linalg.norm((own[name] - value).double().numpy())
            assert error <= 0.02 * np.linalg.norm(value.double().numpy()) + 1e-6, name
