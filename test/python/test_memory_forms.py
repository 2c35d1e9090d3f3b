# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Bytes per rank against closed forms, for every recipe, on a GPT-2 shape in f32.

Letters: b samples, s positions, h width, a heads, L layers, V tokens. Of one
layer, forward keeps for backward, in elements on one device:

    attention   q, k, v and the output, 4 bsh; the log-sum of each row, abs
    MLP         what gelu reads, 4 bsh
    norms       the input of each, 2 bsh; mean and 1/deviation of each row, 4 bs

What else backward reads is computed again: norms, gelu and sums of the residual
stream. (Korthikanti et al., arXiv 2205.05198, count 34 bytes of 16-bit sbh with
dropout for the same layer.) A recipe divides these terms as `FORMS` says.
"""

import dataclasses

import pytest
import torch
import transformers

import cleave

B, S, H, A, L, V = 8, 64, 64, 4, 6, 512
FLOAT = 4


@dataclasses.dataclass
class Form:
    """The parts into which a recipe on two ranks divides what a rank holds."""

    #: Matrices inside of layers and their first biases; the embedding of tokens.
    weights: int = 1
    vocabulary: int = 1
    #: All parameters, and their state, beyond that.
    resting: int = 1
    state: int = 1
    #: Samples or positions, of everything.
    rows: int = 1
    #: q, k, v, the output of attention, and inside of the MLP.
    inner: int = 1
    #: The residual stream.
    stream: int = 1
    #: Further bsh that are kept, of a layer.
    more: float = 0


FORMS = {
    ("", ""): Form(),
    ("dp=2", ""): Form(rows=2),
    ("dp=2", "zero1"): Form(rows=2, state=2),
    ("dp=2", "zero2"): Form(rows=2, state=2),
    ("dp=2", "zero3"): Form(rows=2, state=2, resting=2),
    ("tp=2", "megatron"): Form(weights=2, vocabulary=2, inner=2),
    ("tp=2", "megatron-sp"): Form(weights=2, vocabulary=2, inner=2, stream=2),
    # The output of attention is kept as heads, for attention, and along the
    # sequence, for the product behind it.
    ("cp=2", "ulysses"): Form(rows=2, more=1),
    ("cp=2", "context"): Form(rows=2),
    ("cp=2", "ring"): Form(rows=2),
}


def parameters(form):
    """Elements of the parameters of a rank."""
    # Behind the sum over ranks: biases of the second matrices, and norms.
    whole = L * (2 * H + 4 * H) + 2 * H + S * H
    inner = L * (12 * H * H + 3 * H + 4 * H)
    return (whole + inner // form.weights + V * H // form.vocabulary) // form.resting


def kept(form):
    """Elements that a layer keeps for backward on a rank."""
    stream = 2 * B * S * H + 4 * B * S
    inner = 8 * B * S * H + A * B * S
    more = form.more * B * S * H
    return (stream / form.stream + inner / form.inner + more) / form.rows


def working(form):
    """Elements that the backward of one MLP works on, beside what is kept: what
    gelu gives, its gradient and that of its input, 12 bsh inside, and 3 bsh of the
    stream; whole weights that are gathered, and a gradient of one."""
    inner, stream = 12 * B * S * H, 3 * B * S * H
    weights = 4 * H * H / form.weights * (3 if form.resting > 1 else 1)
    return inner / form.inner / form.rows + stream / form.rows + weights


def report(mesh, plan):
    config = transformers.GPT2Config(
        n_embd=H, n_layer=L, n_head=A, vocab_size=V, n_positions=S, bos_token_id=1,
        eos_token_id=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    torch.manual_seed(0)
    ids = torch.randint(3, V, (B, S))
    axes = dict((a, int(n)) for a, n in (e.split("=") for e in mesh.split(",") if e))
    step = cleave.compile(transformers.GPT2LMHeadModel(config), (ids, ids), threads=1,
                          mesh=axes or None, plan=plan or None, max_logits_bytes=1 << 16,
                          optimizer=cleave.AdamW(lr=1e-3))
    return step.report()


@pytest.mark.parametrize("mesh, plan", FORMS)
def test_a_rank_holds_its_share(mesh, plan):
    form, found = FORMS[mesh, plan], report(mesh, plan)
    memory = found["memory"]
    assert memory["parameter"] == parameters(form) * FLOAT
    share = form.state // form.resting
    assert memory["state"] == 2 * parameters(form) // share * FLOAT

    saved = sum(value["bytes"] for value in found["plan"]["entries"]["train"]["saved"])
    assert saved <= 1.1 * L * kept(form) * FLOAT
    peak = memory["train peak"]
    assert saved <= peak <= 1.1 * (L * kept(form) + working(form)) * FLOAT

    # The arena is the sum of its kinds, to the alignment of each tensor.
    held = sum(memory[kind] for kind in ("parameter", "state", "input", "scalar", "shared"))
    assert held <= memory["arena"] <= 1.02 * held
    assert memory["arena"] <= 1.1 * FLOAT * (
        3 * parameters(form) + L * kept(form) + working(form)) + memory["input"]


def test_forms_are_sharp():
    """A form of one device is no bound on half of one: what a recipe leaves whole
    would be seen."""
    whole, half = FORMS["", ""], FORMS["tp=2", "megatron-sp"]
    assert parameters(half) < 0.6 * parameters(whole)
    assert kept(half) < 0.6 * kept(whole)
