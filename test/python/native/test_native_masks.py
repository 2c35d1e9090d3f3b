# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Padding and biases of attention whose sequence or heads are sharded, natively.

Losses, first gradients and updates of native code in f32 against PyTorch.
"""

import functools

import pytest
import torch
from torch import nn

import cleave
from family_models import FAMILIES, build
from shaped_models import EncoderDecoder
from training_support import ALL, Case, assert_close, cleave_run, family, token_batches, torch_run


class Padded(nn.Module):
    """A language model, and which of its tokens are padding."""

    def __init__(self, name, attention, **changes):
        super().__init__()
        model, config, settings, _ = FAMILIES[name]
        self.model = build(model, config, **settings, **changes, attn_implementation=attention)
        self.config = self.model.config

    def forward(self, input_ids, labels, attention_mask, use_cache=False):
        return self.model(input_ids=input_ids, labels=labels, attention_mask=attention_mask,
                          use_cache=use_cache)


def padded(name, attention, left=False, length=16):
    """The case of a model whose samples have between 1 and `length` tokens."""
    batches = []
    for ids, labels in token_batches(length=length):
        mask = torch.arange(length) < torch.tensor([[1], [5], [12], [length]])
        mask = mask.flip(1) if left else mask
        labels = torch.where(mask, labels, -100)
        batches.append((ids, labels, mask.long()))
    return Case(lambda: Padded(name, attention).train(), batches,
                names=("input_ids", "labels", "attention_mask"))


def t5():
    def make():
        torch.manual_seed(0)
        return EncoderDecoder(dropout=0.0).train()

    return Case(make, token_batches(length=8))


CASES = {
    "bert": lambda: padded("bert", "sdpa"),
    "llama": lambda: padded("llama", "sdpa"),
    # The least number of f32 hides keys, also all that a query sees.
    "left": lambda: padded("gpt2", "eager", left=True),
    # A slope for each head times the position.
    "bloom": lambda: padded("bloom", "eager"),
    # Relative positions, trained.
    "t5": t5,
}

PLANS = [("left", {"cp": 4}, "ring"), ("llama", {"cp": 2}, "ring"), ("bert", {"cp": 4}, "ring"),
         ("t5", {"cp": 4}, "ring"), ("bloom", {"cp": 2}, "ring"), ("t5", {"cp": 2}, "two-ring"),
         ("bert", {"cp": 2}, "two-ring"), ("left", {"cp": 2}, "two-ring"),
         ("bloom", {"dp": 2, "cp": 2}, "context"), ("left", {"cp": 3}, "context")]


def agrees(case, expected, **settings):
    found = cleave_run(case, 2, cleave.AdamW(lr=1e-3, eps=1e-4), **settings)
    assert_close(found.losses, expected.losses, rtol=2e-5)
    # Several parameters of PyTorch may be one here.
    for name, value in found.gradients.items():
        other = expected.gradients[name]
        bound = 2e-5 * max(1, float(other.abs().max()))
        assert_close(value, other, rtol=0, atol=bound, err_msg=name)


@functools.cache
def by_torch(name):
    return torch_run(CASES[name](), 2, lambda m: torch.optim.AdamW(
        m.parameters(), lr=1e-3, eps=1e-4, weight_decay=0.01), double=True)


@pytest.mark.parametrize("name, mesh, recipe", PLANS if ALL else PLANS[::3], ids=str)
def test_masks_and_biases(name, mesh, recipe):
    agrees(CASES[name](), by_torch(name), mesh=mesh, plan=recipe)


@pytest.mark.parametrize("name, sizes, mesh, plan", [
    ("gpt2", dict(n_head=3, n_embd=24), {"tp": 2}, "megatron"),
    ("llama", dict(num_attention_heads=6, num_key_value_heads=3, hidden_size=24), {"tp": 2},
     "megatron-sp"),
    ("bert", dict(num_attention_heads=6, hidden_size=24), {"cp": 4}, "ulysses"),
    ("llama", dict(num_attention_heads=4, num_key_value_heads=2), {"cp": 4}, "ulysses"),
    ("mixtral", dict(num_local_experts=6), {"ep": 4}, "expert")][::1 if ALL else 2], ids=str)
def test_heads_and_experts_that_do_not_divide(tmp_path, name, sizes, mesh, plan):
    """A checkpoint has the framework's shapes: one device goes on from it."""
    case = family(name, **sizes)
    expected = torch_run(case, 2, lambda m: torch.optim.AdamW(
        m.parameters(), lr=1e-3, eps=1e-4, weight_decay=0.01), double=True)
    agrees(case, expected, mesh=mesh, plan=plan)
    optimizer = cleave.AdamW(lr=1e-3)
    many = cleave.compile(case.build(), case.examples(), optimizer=optimizer, mesh=mesh, plan=plan)
    one = cleave.compile(case.build(), case.examples(), optimizer=optimizer)
    many(*case.batches[0])
    assert {n: t.shape for n, t in many.state_dict().items()} == {
        n: t.shape for n, t in one.state_dict().items()}
    many.save(tmp_path / "saved")
    one.load(tmp_path / "saved")
    assert_close(float(one(*case.batches[1])), float(many(*case.batches[1])), rtol=2e-5)
