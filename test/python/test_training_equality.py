# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Twenty AdamW steps of whole models against PyTorch's.

The weights after a step of AdamW say little where a gradient is nearly zero:
the update is then the sign of rounding errors. What is compared is how far
each implementation lies from PyTorch in f64.
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


def check_equality(case, *, floor=0.0, **settings):
    single = torch_run(case, STEPS, torch_adamw)
    double = torch_run(case, STEPS, torch_adamw, double=True)
    ours = cleave_run(case, STEPS, cleave.AdamW(lr=LR, weight_decay=DECAY), **settings)

    np.testing.assert_allclose(ours.losses, single.losses, rtol=1e-4)
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

    own = relative_norms(single.updates, double.updates)
    wrong = {}
    for name, (error, norm) in relative_norms(
            {n: ours.updates[n] for n in own}, double.updates).items():
        if not error <= 2 * own[name][0] + floor:
            wrong[name] = (error / max(own[name][0], 1e-300), error, own[name][0], norm)
    assert not wrong, f"updates (ratio, error, PyTorch's, norm): {wrong}"


@pytest.mark.parametrize("name", SMALL)
def test_twenty_steps(name):
    check_equality(SMALL[name]())


@pytest.mark.skipif(not ALL, reason="runs with CLEAVE_TEST_ALL=1")
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("name", SMALL)
def test_twenty_steps_wider(name, parts):
    # Over thousands of elements one whose gradient passes near zero can make up
    # all of a tensor's error, in either implementation, as its update is the
    # ratio of two roundings: allow for a thirtieth of one step of one element.
    check_equality(wider(name), micro_batches=parts, floor=LR / 30)


@pytest.mark.skipif(not ALL, reason="runs with CLEAVE_TEST_ALL=1")
def test_twenty_steps_of_gpt2_124m():
    def make():
        torch.manual_seed(0)
        config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        return GPT2LMHeadModel(config).train()

    check_equality(Case(make, token_batches(batch=2, length=32, vocab=50257, ignored=10)),
                   micro_batches=2)
