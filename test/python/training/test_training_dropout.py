# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Dropout of compiled steps: the same bits for a seed, new masks in each step,
PyTorch's losses when PyTorch is given the same masks, and the same on every mesh."""

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import cleave
from cleave import philox
from device_runs import STEPS, check_devices, optimizer
from dropout_models import dropping
from training_support import (Case, assert_close, cleave_run, compile_case, family, same_bits,
                              snapshot, tokens, torch_run)

SEED = 1234567890123


def numbers_of(step):
    """Numbers of the model's random ops, in the order in which they run."""
    text = step.ir("model")
    start = text.index("func.func @loss")
    body = text[start:text.index("\n  }", start)]
    found = []
    for line in body.splitlines():
        if "= graph.dropout" in line:
            found.append(int(re.search(r"\bid = (\d+)", line)[1]))
        elif "= graph.attention" in line and " rng" in line or "dropout_id" in line:
            match = re.search(r"\bdropout_id = (\d+)", line)
            found.append(int(match[1]) if match else 0)
    return found


class GivenMasks(TorchFunctionMode):
    """Drops what Cleave drops, in the order of the calls."""

    def __init__(self, numbers, step):
        super().__init__()
        self.numbers = iter(numbers)
        self.step = step

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is F.dropout:
            x, rate = args[0], kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            keep = philox.dropout_mask(tuple(x.shape), rate, seed=SEED, step=self.step,
                                       id=next(self.numbers))
            return x * torch.from_numpy(keep) / (1 - rate)
        if function is F.scaled_dot_product_attention:
            q, k, v = args[:3]
            rate = kwargs["dropout_p"]
            scores = q @ k.transpose(-1, -2) * (kwargs.get("scale") or q.shape[-1] ** -0.5)
            assert kwargs.get("is_causal") and kwargs.get("attn_mask") is None
            visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
            keep = philox.attention_dropout_mask(tuple(weights.shape), rate, seed=SEED,
                                                 step=self.step, id=next(self.numbers))
            return weights * torch.from_numpy(keep) / (1 - rate) @ v
        return function(*args, **kwargs)


@pytest.mark.parametrize("parts", [1, 2])
def test_pytorch_with_the_same_masks(parts):
    case = dropping()
    step = compile_case(case, cleave.AdamW(lr=1e-3), micro_batches=parts, seed=SEED)
    numbers = numbers_of(step)
    assert len(numbers) == len(set(numbers)) == 7
    ours = [float(step(*case.batches[0]))]
    gradients = {n: slots["exp_avg"].double() / 0.1
                 for n, slots in step.training_state()["optimizer"].items()}
    ours += [float(step(*case.batches[i % 4])) for i in range(1, 20)]

    plain = Case.loss
    count = [0]

    def loss(module, batch):
        count[0] += 1
        masks = GivenMasks(numbers, count[0])
        with masks:
            result = plain(case, module, batch)
        assert next(masks.numbers, None) is None
        return result

    case.loss = loss
    make = lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3)
    single = torch_run(case, 20, make)
    np.testing.assert_allclose(ours, single.losses, rtol=1e-4)
    count[0] = 0
    double = torch_run(case, 1, make, double=True)
    for name, exact in double.gradients.items():
        error = float((gradients[name].reshape(exact.shape) - exact).norm())
        assert error <= 1e-4 * float(exact.norm()), name
    # Without the masks PyTorch's loss is another one.
    assert abs(float(plain(case, case.build().eval(), case.batches[0])) - ours[0]) > 1e-3


def test_seed_makes_the_bits():
    case = dropping()
    steps = [compile_case(case, cleave.AdamW(lr=1e-3), seed=seed) for seed in (5, 5, 6)]
    losses = [[step(*batch) for batch in case.batches] for step in steps]
    assert losses[0] == losses[1] and losses[0] != losses[2]
    assert same_bits(snapshot(steps[0]), snapshot(steps[1]))
    assert not same_bits(snapshot(steps[0]), snapshot(steps[2]))


def test_masks_differ_by_step_and_not_by_parts():
    case = dropping()
    ids, labels = case.batches[0]
    losses = {}
    for parts in (1, 4):
        step = compile_case(case, cleave.SGD(lr=0.0), micro_batches=parts, seed=SEED)
        losses[parts] = [float(step(ids, labels)) for _ in range(5)]
        assert len(set(losses[parts])) == 5
        # Dropout is off.
        exact = case.build().eval()
        with torch.no_grad():
            expected = float(case.loss(exact, (ids, labels)))
        assert step.evaluate(ids, labels) == pytest.approx(expected, rel=1e-5)
        assert step.evaluate(ids, labels) == step.evaluate(ids, labels)
    np.testing.assert_allclose(losses[1], losses[4], rtol=2e-6)


class Odd(nn.Module):
    """Attention whose samples are not its first dimension, or that reads none."""

    def __init__(self, folded):
        super().__init__()
        self.folded = folded
        self.embedding = nn.Embedding(96, 32)
        self.memory = nn.Parameter(torch.randn(1, 4, 8, 8))

    def forward(self, ids):
        x = self.embedding(ids)
        batch, length, width = x.shape
        heads = x.view(batch, length, 4, 8).transpose(1, 2)
        kept = heads.reshape(1, batch * 4, length, 8) if self.folded else self.memory
        kept = F.scaled_dot_product_attention(kept, kept, kept, dropout_p=0.4)
        if self.folded:
            kept = kept.view(batch, 4, length, 8)
        return ((heads + kept) ** 2).mean()


@pytest.mark.parametrize("folded", [True, False])
def test_masks_follow_the_samples_wherever_they_are(folded):
    torch.manual_seed(4)
    module, (ids, _) = Odd(folded), tokens()
    losses = [[float(step(ids)) for _ in range(3)] for step in (
        cleave.compile(module, (ids,), optimizer=cleave.SGD(lr=0.0), micro_batches=parts, seed=SEED)
        for parts in (1, 2, 4))]
    assert len(set(losses[0])) == 3
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-6)
    np.testing.assert_allclose(losses[2], losses[0], rtol=2e-6)


def test_without_dropout_the_seed_means_nothing():
    case = family("gpt2")
    losses = [compile_case(case, cleave.AdamW(), seed=seed)(*case.batches[0]) for seed in (1, 2)]
    assert losses[0] == losses[1]


# On a mesh ----------------------------------------------------------------------------


def test_dropout_does_not_depend_on_the_mesh():
    """Each element draws by its place in the whole, attention's too."""
    case = family("gpt2", batch=8, resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.2)
    one, many = check_devices(case, 4, micro_batches=2)
    still = cleave_run(family("gpt2", batch=8), STEPS, optimizer())
    assert abs(one.losses[0] - still.losses[0]) > 1e-3


@pytest.mark.parametrize("name, length, mesh, plan", [
    ("gpt2", 24, {"cp": 4}, "ring"),
    ("llama", 256, {"cp": 2}, "ring"),
    ("bert", 24, {"cp": 4}, "ring"),
    ("llama", 24, {"cp": 4}, "two-ring"),
    ("gpt2", 24, {"cp": 4}, "context"),
])
def test_dropout_of_a_split_sequence(name, length, mesh, plan):
    rates = {"gpt2": dict(resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.2),
             "llama": dict(attention_dropout=0.2),
             "bert": dict(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)}[name]
    positions = {} if name == "llama" else {("n_positions" if name == "gpt2" else "max_position_embeddings"): 64}
    case = family(name, length=length, batch=4, **rates, **positions)
    one = cleave_run(case, STEPS, optimizer())
    many = cleave_run(case, STEPS, optimizer(), mesh=mesh, plan=plan)
    assert_close(many.losses, one.losses, rtol=2e-5)
