# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Of a large model, `cleave.compile` compares a copy with few layers with eager PyTorch."""

import logging
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
import cleave.compiler.check
from check_support import as_for_users, broken, on_tanh  # noqa: F401
from cleave.compiler.shortened import with_few_layers, with_few_positions
from cleave.trace.registry import aten
from training_support import gpt2, named_tokens

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
COUNT = {"forwards": 0}


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Each model is large."""
    monkeypatch.setattr(cleave.compiler.check, "PARAMETERS", 60)


def exporting(x, h):
    return h * 2 if torch.compiler.is_exporting() else h


def compiling(x, h):
    return h * 2 if torch.compiler.is_compiling() else h


def error_is_caught(x, h):
    try:
        return h * (1 + abs(int(x.sum() * 1e3)))
    except Exception:
        return h


def type_of_a_tensor(x, h):
    return h if type(x) is torch.Tensor else h * 2


def module_of_the_process(x, h):
    """As code does that looks which modules are loaded, or who calls it."""
    return h * 2 if any("torch/export" in f for f in _files()) else h


def _files():
    frame, files = sys._getframe(1), []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return files


def type_of_a_number(x, h):
    return h * (1.0 if isinstance(x.sum().item(), float) else 2.0)


def global_number(x, h):
    COUNT["forwards"] += 1
    return h * COUNT["forwards"]


CHANGED = [exporting, compiling, error_is_caught, type_of_a_tensor, module_of_the_process,
           type_of_a_number, global_number]


class Layer(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.a, self.change = nn.Linear(6, 6), change

    def forward(self, x):
        return x + self.change(x, torch.tanh(self.a(x)))


class Deep(nn.Module):
    """Layers, of which one is of another kind."""

    def __init__(self, change=lambda x, h: h, within=True):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(change if within else lambda x, h: h) for _ in range(6))
        self.layers.insert(3, nn.Linear(6, 6))
        self.change = (lambda x, h: h) if within else change

    def forward(self, x):
        h = x
        for layer in self.layers:
            h = layer(h)
        return self.change(x, h).square().mean()


@pytest.mark.parametrize("within", [True, False], ids=["in a layer", "beside the layers"])
@pytest.mark.parametrize("change", CHANGED, ids=lambda f: f.__name__)
def test_what_tracing_changes_is_found(change, within):
    """Of each kind of layer the first is in the copy."""
    COUNT["forwards"] = 0
    with pytest.raises(cleave.CompileError, match="differs from eager PyTorch"):
        cleave.compile(Deep(change, within), (X,), target=cleave.Target(threads=1))


def test_the_copy_has_the_tensors_of_the_model():
    module = Deep()
    few, _, said = with_few_layers(module, None)
    assert said == "3 of 7 layers" and len(few.layers) == 3 and len(module.layers) == 7
    assert few.layers[0].a.weight is module.layers[0].a.weight
    assert few.layers[1].weight is module.layers[3].weight
    assert few.layers[2].a.weight is module.layers[6].a.weight
    few.extra = 1
    assert not hasattr(module, "extra")


def test_models_of_transformers_are_compared(monkeypatch, caplog):
    """GPT-2 with 4 layers, by 2 of them and 16 positions; a wrong gradient is found."""
    module, inputs = gpt2(n_layer=4, n_positions=64), named_tokens()
    inputs = {name: torch.cat([value] * 4, 1) for name, value in inputs.items()}
    sizes = []
    original = cleave.compiler.check._eager

    def eager(model, example, *rest, **named):
        sizes.append((len(model.transformer.h), *example["input_ids"].shape))
        return original(model, example, *rest, **named)

    monkeypatch.setattr(cleave.compiler.check, "_eager", eager)
    monkeypatch.setattr(cleave.compiler.check, "ENOUGH", 1)
    with caplog.at_level(logging.WARNING, "cleave"):
        step = cleave.compile(module, inputs, target=cleave.Target(threads=1))
    assert sizes == [(2, 2, 16)] and "not compared" not in caplog.text
    assert len(module.transformer.h) == 4 and "transformer.h.3.ln_1.weight" in step.state_dict()
    broken(monkeypatch, aten.tanh.default, on_tanh(-1))
    with pytest.raises(cleave.CompileError, match="differs"):
        cleave.compile(module, inputs, target=cleave.Target(threads=1))


def test_of_labels_at_the_end_the_last_positions_are_compared(monkeypatch, caplog):
    monkeypatch.setattr(cleave.compiler.check, "ENOUGH", 1)
    inputs = {name: torch.cat([value] * 4, 1) for name, value in named_tokens().items()}
    inputs["labels"][:, :-4] = -100
    with caplog.at_level(logging.WARNING, "cleave"):
        cleave.compile(gpt2(n_layer=4, n_positions=64), inputs, target=cleave.Target(threads=1))
    assert "not compared" not in caplog.text


def test_each_dimension_of_positions_is_cut():
    ids, mask = torch.arange(80).reshape(2, 40), torch.ones(2, 1, 40, 40)
    first, last = with_few_positions((ids, mask), 20)
    assert first[0].tolist() == ids[:, :20].tolist() and last[0].tolist() == ids[:, 20:].tolist()
    assert first[1].shape == last[1].shape == (2, 1, 20, 20)
    assert next(with_few_positions((mask, X), 4)) == (mask, X)


class Counting(Deep):
    """Needs all of its layers."""

    def forward(self, x):
        for i in range(7):
            x = self.layers[i](x)
        return x.square().mean()


@pytest.mark.parametrize("make, reason", [
    (Counting, "3 of 7 layers: it is too large to be compared, and the model does not take"),
    (lambda: nn.Sequential(nn.Linear(6, 6), nn.Flatten(0), nn.Linear(48, 1), nn.Flatten(0)),
     "of a copy with two samples"),
], ids=["layers", "samples"])
def test_what_cannot_be_shortened_is_said(make, reason, caplog):
    with caplog.at_level(logging.WARNING, "cleave"):
        cleave.compile(make(), (X,), None if make is Counting else lambda y: F.relu(y).sum(),
                       target=cleave.Target(threads=1))
    assert "not compared" in caplog.text and reason in caplog.text
