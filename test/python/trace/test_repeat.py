# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A few layers are traced for many: the text is that of a trace of all, or the trace is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave.models.__main__
from cleave.models import FAMILIES, blocks_of_layer, example_inputs, size_of
from cleave.trace import TraceError, trace
from cleave.trace.convert import Conversion
from cleave.trace.ir import RandomId
from cleave.trace.repeat import TRACED, Repeated
from proofs import ALL
from trace_support import verify

SMALL = dict(hidden=32, heads=4, seq=6, vocab=20, image=8, patch=4, experts=4, window=3, chunk=4)
#: A family, and settings that change its ops or its random ops.
CASES = {
    **{family: (family, dict(dropout=0.1)) for family in FAMILIES
       if ALL or family not in ("qwen3_moe", "deepseek_v3", "gpt_oss")},
    "switch-noisy": ("switch", dict(noisy=True, choices=2)),
    "llama-tied": ("llama", dict(tied=True, kv_heads=1)),
    # A layer is two blocks, of which one has experts.
    "switch-second": ("switch", dict(every=2, choices=2)),
    "deepseek_v3-groups": ("deepseek_v3", dict(dense=1, groups=2, chosen_groups=1)),
}


def fields(traced):
    """What a trace returns, but for the tensors' memory and what computes the rest."""
    tensors = [(t.name, t.role, t.aliases, t.frozen, t.persistent, t.shape, t.dtype)
               for t in traced.tensors]
    return [traced.mlir, traced.named_mlir, tensors, traced.entries, traced.input_names,
            traced.input_types, traced.written]


def both(build, inputs, names, layers, loss_fn=None):
    """The trace of a model of all layers, and that of one of a few, by `build(layers)`."""
    with torch.device("meta"):
        whole, few = build(layers), build(TRACED)
    repeated = [Repeated(name, layers) for name in names]
    return trace(whole, inputs, loss_fn), trace(few, inputs, loss_fn, repeated=repeated)


@pytest.mark.parametrize("case", CASES)
def test_text_is_that_of_all_layers(case):
    family, settings = CASES[case]
    size = dict(SMALL, **settings)
    layers = TRACED + 1 + len(case) % 3

    whole = size_of(family, size)
    blocks, leading = blocks_of_layer(family, whole)

    def build(count):
        return FAMILIES[family](**size, layers=leading + count * blocks)

    inputs = example_inputs(family, 2, whole, "meta")
    whole, few = both(build, inputs, build(1).LAYERS, layers)
    assert fields(few) == fields(whole)
    assert fields(few.deterministic()) == fields(whole.deterministic())
    verify(few)


@pytest.mark.parametrize("layers", [TRACED - 1, TRACED, TRACED + 1])
def test_command_writes_the_model_of_all_layers(layers, tmp_path, monkeypatch):
    """A model with weights is traced with all its layers."""
    monkeypatch.chdir(tmp_path)
    command = ["gpt", "--hidden", "16", "--heads", "4", "--seq", "6", "--vocab", "20",
               "--layers", str(layers), "-o"]
    assert cleave.models.__main__.main([*command, "few.mlir"]) == 0
    assert cleave.models.__main__.main([*command, "whole.mlir", "--weights", "w"]) == 0
    assert (tmp_path / "few.mlir").read_text() == (tmp_path / "whole.mlir").read_text()


class Residual(nn.Module):
    """A layer with tensors of every kind: trained, frozen and unused, buffers that are read or
    not, large and small."""

    def __init__(self):
        super().__init__()
        self.linear, self.fixed = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Parameter(torch.zeros(3))
        self.register_buffer("unread", torch.zeros(2))
        self.register_buffer("table", torch.zeros(16, 8))
        self.register_buffer("shift", torch.zeros(8), persistent=False)

    def forward(self, x):
        return x + torch.tanh(self.linear(x) * self.table) + self.fixed(x - self.shift)


class Stack(nn.Module):
    """A list of layers between others, where `step(i, layer, x)` calls one."""

    def __init__(self, layers, step=lambda i, layer, x: layer(x), layer=Residual):
        super().__init__()
        self.first, self.layers = nn.Linear(8, 8), nn.ModuleList(layer() for _ in range(layers))
        self.last, self.step = nn.Linear(8, 8), step

    def forward(self, x):
        x = self.first(x)
        for i, layer in enumerate(self.layers):
            x = self.step(i, layer, x)
        return self.last(x)


def square(y, target):
    return (y - target).square().mean()


def linear():
    return nn.Linear(8, 8)


INPUTS = dict(x=torch.zeros(16, 8, device="meta"), target=torch.zeros(16, 8, device="meta"))


@pytest.mark.parametrize("layers", [TRACED, TRACED + 1, TRACED + 4, 40])
def test_tensors_of_every_kind(layers):
    whole, few = both(Stack, INPUTS, ["layers"], layers, square)
    assert fields(few) == fields(whole)
    assert f'"layers.{layers - 1}.unread"' in few.mlir
    assert {t.name for t in few.parameters if t.frozen} >= {f"layers.{layers - 2}.unused"}
    verify(few)


def test_first_and_last_layers_may_differ():
    def build(layers):
        return Stack(layers, lambda i, layer, x: layer(x).sin() if i in (0, layers - 1)
                     else layer(x))

    whole, few = both(build, INPUTS, ["layers"], TRACED + 3, square)
    assert few.mlir == whole.mlir and few.mlir.count("graph.sin") == 4


def by_turns(*functions):
    return lambda i, layer, x: functions[i % len(functions)](layer(x))


def alternate_tensors():
    """A model whose layers read one of two tensors by turns."""
    class Alternate(Stack):
        def forward(self, x):
            x = self.first(x)
            tables = x.sin(), x.cos()
            for i, layer in enumerate(self.layers):
                x = layer(x) + tables[i % 2]
            return self.last(x)
    return Alternate(TRACED)


def skips():
    """A model whose layers read the output of the layer before the last."""
    class Skips(Stack):
        def forward(self, x):
            x, before = self.first(x), x
            for layer in self.layers:
                x, before = layer(x) + before, x
            return self.last(x)
    return Skips(TRACED)


def collects():
    """A model that reads the outputs of all layers at the end."""
    class Collects(Stack):
        def forward(self, x):
            x, found = self.first(x), []
            for layer in self.layers:
                x = layer(x)
                found.append(x.mean(-1))
            return self.last(x) + sum(found)[:, None]
    return Collects(TRACED)


def reads_weights():
    """A model whose loss reads the weights of all layers."""
    class Decayed(Stack):
        def forward(self, x):
            return super().forward(x) + sum(layer.linear.bias.sum() for layer in self.layers)
    return Decayed(TRACED)


def tied():
    module = Stack(TRACED, layer=linear)
    module.again = module.layers[TRACED - 2]
    return module


def one_weight():
    module = Stack(TRACED, layer=linear)
    for layer in module.layers:
        layer.weight = module.layers[0].weight
    return module


REFUSED = {
    "more ops": (lambda: Stack(TRACED, by_turns(torch.sin, lambda x: x.sin().cos())),
                 r"layers 2 and 3 of 'layers' are not identical in structure: they have "
                 r"different numbers of ops"),
    "other ops": (lambda: Stack(TRACED, by_turns(torch.sin, torch.cos)),
                  r"layers 2 and 3 of 'layers' are not identical in structure: one has "
                  r"graph.sin.*, the other graph.cos \(.*test_repeat.py:\d+\); trace all layers"),
    "other constants": (lambda: Stack(TRACED, lambda i, layer, x: layer(x) * (i + 2)),
                        r"layers 2 and 3 of 'layers' are not identical in structure: "
                        r"graph.constant \(.*\) has different types or attributes"),
    "other tensors": (alternate_tensors,
                      r"layers 2 and 3 .*: graph.add \(.*\) reads different values"),
    "skips": (skips, r"layers 2 and 3 .* reads different values"),
    "collects": (collects, r"graph.\w+ \(.*\) follows layer 3 of 'layers' and reads layer \d"),
    "reads weights": (reads_weights, r"follows layer 3 of 'layers' and reads layer [123]"),
    "tied": (tied, r"'layers.3.weight' is tied or has known values; trace all layers"),
    "one weight": (one_weight, r"layers 2 and 3 .* reads different values"),
    "too many": (lambda: Stack(TRACED + 1), r"@loss has 6 layers of 'layers'; 5 of them must be"),
    "too few": (lambda: Stack(TRACED - 1), r"@loss has 4 layers of 'layers'; 5 of them must be"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_layers_that_are_not_identical_in_structure(case):
    build, message = REFUSED[case]
    with torch.device("meta"):
        module = build()
    with pytest.raises(TraceError, match=message) as caught:
        trace(module, INPUTS, square, repeated=[Repeated("layers", 9)])
    assert "\n" not in str(caught.value)


def test_other_misuse():
    with torch.device("meta"):
        module = Stack(TRACED)
    with pytest.raises(TraceError, match="@loss has 0 layers of 'layer'"):
        trace(module, INPUTS, square, repeated=[Repeated("layer", 9)])
    with pytest.raises(ValueError, match="layers is 4, but must be at least 5"):
        Repeated("layers", TRACED - 1)
    with pytest.raises(TraceError, match=r"'layers.\d.weight' .* not on the meta device"):
        trace(Stack(TRACED, layer=linear), {k: torch.zeros(16, 8) for k in INPUTS}, square,
              repeated=[Repeated("layers", 9)])


def test_random_ops_in_another_order(monkeypatch):
    """A later random op whose number would not grow by those of the copies."""
    class Dropped(Stack):
        def forward(self, x):
            return F.dropout(super().forward(x))

    with torch.device("meta"):
        module = Dropped(TRACED, lambda i, layer, x: F.dropout(layer(x)), linear)
    numbers = iter((1, 2, 3, 4, 5, 0))
    monkeypatch.setattr(Conversion, "new_random_op",
                        lambda self: (self._rng, RandomId(next(numbers))))
    with pytest.raises(TraceError, match="random ops of @loss are not numbered in their order"):
        trace(module, INPUTS, square, logits=False, repeated=[Repeated("layers", 9)])
