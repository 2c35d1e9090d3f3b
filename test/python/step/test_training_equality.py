# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Twenty AdamW steps of whole models against PyTorch's.

The weights after a step of AdamW say little where a gradient is nearly zero:
the update is then the sign of rounding errors. What is compared is how far
each implementation lies from PyTorch in f64.

Single elements of that kind can make up nearly all of a tensor's error, and which
implementation is hit is chance: PyTorch itself, with the channels of GPT-2 124M in
another order, lies more than twice as far from f64 as PyTorch in 0 to 9 of 148
tensors (up to 6.6 times), and which elements these are depends on the processor. So
all but the worst few elements of every tensor are held to twice PyTorch's error, few
tensors as a whole may exceed it, and none may be more than 1e-3 of its update away.
"""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import cleave
from training_support import (ALL, Case, cleave_run, family, images, token_batches, torch_run,
                              written_by_hand)

STEPS = 20
LR, DECAY = 1e-3, 0.1

SMALL = {
    **{name: (lambda name=name: family(name))
       for name in ("gpt2", "llama", "bert", "opt", "gpt_neox", "qwen2", "gemma", "roberta")},
    "vit": images,
    "net": written_by_hand,
}


def wider(name):
    """A larger case of the same model: odd lengths, more layers."""
    sizes = {"gpt2": dict(n_embd=96, n_layer=4, n_head=6, n_positions=80, vocab_size=503),
             "opt": dict(hidden_size=96, num_hidden_layers=4, num_attention_heads=6, ffn_dim=160,
                         word_embed_proj_dim=96, max_position_embeddings=80, vocab_size=503)}
    common = dict(hidden_size=96, num_hidden_layers=4, num_attention_heads=6,
                  intermediate_size=160, max_position_embeddings=80, vocab_size=503)
    if name == "vit":
        return images(size=28, hidden=96, layers=4)
    if name == "net":
        return written_by_hand(length=37, width=96)
    sized = dict(sizes.get(name, common))
    if name == "gemma":
        sized["head_dim"] = 16
    return family(name, length=67, **sized)


def torch_adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=LR, weight_decay=DECAY)


def relative_norms(got, exact):
    """Per tensor: error, and norm of the exact value."""
    return {n: (float((got[n].double() - exact[n]).norm()), float(exact[n].norm()))
            for n in exact}


def trimmed(errors):
    """The norm without the largest 1/500 of the elements, and one at least."""
    kept = errors.numel() - max(1, errors.numel() // 500)
    if kept == 0:
        return 0.0
    return float(errors.abs().reshape(-1).topk(kept, largest=False).values.norm())


def check_equality(case, *, outliers=0.1, **settings):
    """`outliers`: the share of tensors that may exceed the bound by single elements."""
    single = torch_run(case, STEPS, torch_adamw)
    double = torch_run(case, STEPS, torch_adamw, double=True)
    ours = cleave_run(case, STEPS, cleave.AdamW(lr=LR, weight_decay=DECAY), **settings)

    # A rounding may send relu the other way, in PyTorch's f32 as well: f64 judges.
    if not np.allclose(ours.losses, single.losses, rtol=1e-4, atol=0):
        np.testing.assert_allclose(ours.losses, double.losses, rtol=1e-4)
    count = len(case.batches)
    assert np.mean(ours.losses[-count:]) < 0.98 * np.mean(ours.losses[:count])

    whole = float(torch.stack([g.norm() for g in double.gradients.values()]).norm())
    wrong = {}
    for name, (error, norm) in relative_norms(ours.gradients, double.gradients).items():
        # A gradient that is zero but for rounding has no relative error.
        bound = 1e-4 * norm if norm >= 1e-7 * whole else 1e-6 * whole
        if not error <= bound:
            wrong[name] = (error, norm, whole)
    assert not wrong, f"first gradients: {wrong}"

    wrong, single_elements, ratios = {}, {}, []
    for name, exact in double.updates.items():
        error, own = ours.updates[name] - exact, single.updates[name] - exact
        figures = (float(error.norm()), float(own.norm()), float(exact.norm()))
        ratios.append(figures[0] / max(figures[1], 1e-300))
        if figures[0] <= 2 * figures[1]:
            continue
        single_elements[name] = figures
        few = trimmed(error) <= max(2 * trimmed(own), 5e-5 * figures[2])
        if not few or figures[0] > 1e-3 * figures[2]:
            wrong[name] = figures
    print(f"updates: ratios up to {max(ratios):.2f}, median {np.median(ratios):.2f}; above 2: "
          f"{len(single_elements)} of {len(ratios)}")
    assert not wrong, f"updates (error, PyTorch's, norm): {wrong}"
    assert len(single_elements) <= max(1, outliers * len(ratios)), single_elements
    assert np.median(ratios) <= 1.5


@pytest.mark.parametrize("name", SMALL)
def test_twenty_steps(name):
    check_equality(SMALL[name]())


@pytest.mark.skipif(not ALL, reason="runs with CLEAVE_TEST_ALL=1")
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("name", SMALL)
def test_twenty_steps_wider(name, parts):
    check_equality(wider(name), micro_batches=parts, outliers=0.07)


@pytest.mark.skipif(not ALL, reason="runs with CLEAVE_TEST_ALL=1")
def test_twenty_steps_of_gpt2_124m():
    def make():
        torch.manual_seed(0)
        config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        return GPT2LMHeadModel(config).train()

    check_equality(Case(make, token_batches(batch=2, length=32, vocab=50257, ignored=10)),
                   micro_batches=2, outliers=0.07)
