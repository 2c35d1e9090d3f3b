# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Masks that broadcast, as inputs of a model whose sequence is sharded: parameters after native
steps are those of one rank; so are those of attention that is written by hand. What is no attention
is refused at its line."""

import functools

import pytest
import torch
from torch import nn

import cleave
from cleave.compiler.entrance import grouped
from proofs import ALL

B, S, HEADS, WORDS = 4, 12, 4, 31
#: The sizes of dimensions of a mask.
FORMS = {"pairs of samples": (B, 1, S, S), "pairs": (1, 1, S, S), "heads": (1, HEADS, S, S),
         "keys": (B, 1, 1, S), "all": (B, HEADS, S, S)}
RECIPES = ["ring", "context", "two-ring", "ulysses"]
CASES = [(form, recipe) for form in FORMS for recipe in RECIPES]


class Model(nn.Module):
    def __init__(self, scores=None):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, WORDS)
        self.qkv = nn.Linear(32, 96)
        self.sinks, self.scores = nn.Parameter(torch.zeros(HEADS)), scores

    def forward(self, ids, mask):
        q, k, v = (t.view(B, S, HEADS, 8).transpose(1, 2)
                   for t in self.qkv(self.embed(ids)).chunk(3, -1))
        if self.scores:
            y = self.scores(self, (q @ k.transpose(-1, -2)) / 8 ** 0.5, mask) @ v
        else:
            y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.head(y.transpose(1, 2).reshape(B, S, 32))


def softcap(model, scores, mask):
    return (20 * torch.tanh(scores / 20)).masked_fill(~mask, -1e9).softmax(-1)


def sinks(model, scores, mask):
    column = model.sinks.view(1, HEADS, 1, 1).expand(B, HEADS, S, 1)
    return torch.cat([scores.masked_fill(~mask, -1e9), column], -1).softmax(-1)[..., :-1]


def summed(model, scores, mask):
    """The softmax by hand: exponentials by their sum."""
    powers = scores.masked_fill(~mask, -1e9).sub(scores.amax(-1, keepdim=True).detach()).exp()
    return powers / powers.sum(-1, keepdim=True)


def turned(model, scores, mask):
    """A softmax over keys that are not the last dimension, with a bound that is learned."""
    bound = 10 + model.sinks.view(1, HEADS, 1, 1)
    hidden = (bound * torch.tanh(scores / bound)).masked_fill(~mask, -1e9)
    return hidden.transpose(-1, -2).softmax(-2).transpose(-1, -2)


def samples(model, scores, mask):
    """Of samples to each other, at each position."""
    flat = scores.masked_fill(~mask, 0).transpose(0, 2)
    return (flat @ flat.transpose(-1, -2)).tanh().softmax(-1).matmul(flat).transpose(0, 2)


def sent(step):
    """Elements that a rank sends, by kind, of activations."""
    return {entry["kind"]: entry["elements"]
            for entry in step.report()["communication"]["train"]["totals"]
            if entry["kind"] != "all_reduce"}


def batch(shape):
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(shape, generator=generator) < 0.7
    mask[..., 0] = True
    ids, labels = (torch.randint(0, WORDS, (B, S), generator=generator) for _ in range(2))
    return ids, mask, labels


def loss(logits, labels):
    return nn.functional.cross_entropy(logits.reshape(-1, WORDS), labels.reshape(-1))


def compiled(inputs, scores=None, **options):
    torch.manual_seed(0)
    return cleave.compile(Model(scores), inputs, loss_fn=loss,
                          optimizer=cleave.SGD(lr=0.3, momentum=0.9),
                          **grouped(threads=1, **options))


@functools.cache
def after_three_steps(form, recipe, scores=None):
    inputs = batch(FORMS[form])
    step = compiled(inputs, scores, **({"mesh": {"cp": 2}, "plan": recipe} if recipe else {}))
    losses = [float(step(*inputs)) for _ in range(3)]
    state = {f"{name}.{slot}": value for name, own in step.training_state()["optimizer"].items()
             for slot, value in own.items()}
    return losses, {**step.state_dict(), **state}


def check(form, recipe, scores=None):
    losses, found = after_three_steps(form, recipe, scores)
    right, expected = after_three_steps(form, "", scores)
    assert losses == pytest.approx(right, abs=1e-5)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("form, recipe", CASES if ALL else CASES[::3])
def test_a_mask_that_broadcasts(form, recipe):
    check(form, recipe)


@pytest.mark.parametrize("scores", [softcap, sinks, summed, turned])
@pytest.mark.parametrize("recipe", RECIPES)
def test_other_scores_equal_one_rank(recipe, scores):
    check("pairs", recipe, scores)


@pytest.mark.parametrize("recipe", ["context", "ulysses"])
def test_other_scores_send_as_much(recipe):
    """What the op of attention sends."""
    plain, capped = (sent(compiled(batch(FORMS["pairs"]), scores, mesh={"cp": 2}, plan=recipe))
                     for scores in (None, softcap))
    assert capped == plain and plain


@pytest.mark.parametrize("recipe", RECIPES)
def test_similarities_are_refused_at_their_line(recipe):
    """A softmax of matmuls that is no attention over positions of an input."""
    with pytest.raises(cleave.CompileError, match=r"(?s)scores of this softmax") as error:
        compiled(batch(FORMS["pairs"]), samples, mesh={"cp": 2}, plan=recipe)
    assert "test_sequence_masks.py" in str(error.value)
