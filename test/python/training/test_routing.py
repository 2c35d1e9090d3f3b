# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Routers beside their choice: z-loss, jitter, a correction that a step updates, and numbers
of experts that are refused. The judge is eager PyTorch, on one device with the whole batch."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import cleave
from cleave import moe, philox
from family_models import build
from proofs import ALL
from training_support import assert_close, token_batches

SEED = 7


class Layer(nn.Module):
    """A layer whose experts are chosen by scores and a correction."""

    def __init__(self, width=16, experts=4, choices=2, amount=0.0, by_hand=False):
        super().__init__()
        self.choices, self.amount, self.by_hand = choices, amount, by_hand
        self.router = nn.Linear(width, experts, bias=False)
        self.register_buffer("correction", torch.zeros(experts))
        self.up = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.3)
        self.down = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.3)

    def forward(self, x):
        read = moe.jitter(x, self.amount) if self.training and self.amount else x
        logits = self.router(read)
        scores = logits.sigmoid()
        index = (scores.detach() + self.correction).topk(self.choices, dim=-1)[1]
        weight = scores.gather(-1, index)
        place, _ = moe.places(index, len(self.up), x.shape[1])
        y = moe.dispatch(x, place, None, len(self.up), x.shape[1])
        y = F.silu(torch.einsum("gech,eih->geci", y, self.up))
        y = moe.combine(torch.einsum("geci,ehi->gech", y, self.down), place,
                        weight / weight.sum(-1, keepdim=True))
        if self.training and self.by_hand:
            with torch.no_grad():
                load = F.one_hot(index, len(self.up)).sum((0, 1, 2)).float()
                self.correction += 0.01 * torch.sign(load.mean() - load)
        elif self.training:
            moe.update_correction(self.correction, index, 0.01)
        z = torch.logsumexp(logits, -1).pow(2).mean() if self.by_hand else moe.z_loss(logits)
        return x + y, z


class Model(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(96, 16)
        self.layers = nn.ModuleList(Layer(**settings) for _ in range(2))
        self.head = nn.Linear(16, 96)

    def forward(self, ids, labels):
        x, loss = self.embedding(ids), 0
        for layer in self.layers:
            x, z = layer(x)
            loss = loss + 0.1 * z
        logits = self.head(x[:, :-1]).flatten(0, 1)
        return loss + F.cross_entropy(logits, labels[:, 1:].flatten())


class GivenNumbers(TorchFunctionMode):
    """Draws what Cleave draws, in the order of the calls."""

    def __init__(self, numbers, step):
        super().__init__()
        self.numbers, self.step = iter(numbers), step

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.uniform_:
            x, low, high = args
            drawn = philox.uniform(tuple(x.shape), seed=SEED, step=self.step,
                                   id=next(self.numbers))
            return x.copy_(torch.from_numpy(drawn) * (high - low) + low)
        return function(*args, **(kwargs or {}))


def agrees(settings, numbers=(), **layout):
    batches = token_batches(3)
    step = cleave.compile(Model(**settings).train(), batches[0], seed=SEED, check="off",
                          optimizer=cleave.AdamW(lr=1e-2, eps=1e-3, weight_decay=0.1), **layout)
    if settings.get("amount"):
        numbers = [int(n) for n in re.findall(r"graph\.uniform .*\bid = (\d+)", step.ir("model")
                                              .partition("func.func @evaluate")[0])]
        assert len(numbers) == 2
    module = Model(**settings).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-3, weight_decay=0.1)
    for number, batch in enumerate(batches, 1):
        optimizer.zero_grad()
        with GivenNumbers(numbers, number):
            loss = module(*batch)
        loss.backward()
        optimizer.step()
        assert_close(float(step(*batch)), float(loss.detach()), rtol=1e-5)
    weights = step.state_dict()
    for name, value in module.state_dict().items():
        assert_close(weights[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
    assert module.layers[0].correction.any()
    slots = step.training_state()["optimizer"]
    names = {p: n for n, p in module.named_parameters()}
    for parameter, state in optimizer.state.items():
        for slot in ("exp_avg", "exp_avg_sq"):
            expected = state[slot]
            assert_close(slots[names[parameter]][slot].reshape(expected.shape), expected,
                         rtol=1e-3, atol=1e-5 * float(expected.abs().max()) + 1e-9)


LAYOUTS = [dict(micro_batches=2), dict(mesh={"pp": 2}, micro_batches=2),
           dict(mesh={"dp": 2}, plan="zero2", micro_batches=2),
           dict(mesh={"ep": 2}, plan="expert"), dict(mesh={"tp": 2}, plan="megatron"),
           dict(mesh={"pp": 2, "dp": 2}, micro_batches=2)]


@pytest.mark.parametrize("layout", LAYOUTS if ALL else LAYOUTS[1:3], ids=str)
def test_three_steps_equal_eager(layout):
    """With the functions of the package, and with a person's own code."""
    number = LAYOUTS.index(layout)
    for settings in (dict(amount=0.1), dict(by_hand=True)):
        if ALL or (number % 2 == 0) == ("amount" in settings):
            agrees(settings, **layout)


def test_jitter_of_the_library():
    """Mixtral's multiplies what enters a layer of experts, in training alone; the same numbers on
    every mesh."""
    def made(noise):
        return build("MixtralForCausalLM", "MixtralConfig", vocab_size=96, hidden_size=32,
                     intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
                     num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
                     sliding_window=None, router_jitter_noise=noise).train()

    def compiled(**layout):
        return cleave.compile(made(0.2), dict(zip(("input_ids", "labels"), batches[0])), seed=SEED,
                              check="off", optimizer=cleave.SGD(lr=0.1), **layout)

    batches = token_batches(2)
    one, other = compiled(), compiled(mesh={"dp": 2}, micro_batches=2)
    plain = made(0.0)(**dict(zip(("input_ids", "labels"), batches[0]))).loss
    losses = [float(one(*batch)) for batch in batches]
    assert abs(losses[0] - float(plain.detach())) > 1e-5
    assert_close([float(other(*batch)) for batch in batches], losses, rtol=1e-5)
    for name, value in one.state_dict().items():
        assert_close(other.state_dict()[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_the_correction_of_the_package():
    """DeepSeek-V3's is a buffer that a step changes by a rate."""
    def made(rate):
        torch.manual_seed(0)
        return cleave.models.deepseek_v3(
            hidden=32, heads=4, layers=2, dense=1, seq=8, vocab=96, ffn=64, experts=4,
            correction_rate=rate).train()

    batch = token_batches(1)[0]
    module = made(0.01)
    module(*batch)
    step = cleave.compile(made(0.01), batch, micro_batches=2, check="off")
    step(*batch)
    name = "blocks.0.feed_forward.router.correction"
    assert torch.equal(step.state_dict()[name], module.state_dict()[name])
    assert module.state_dict()[name].abs().max() == 0.01
    still = made(0.0)
    still(*batch)
    assert not still.state_dict()[name].any()


@pytest.mark.parametrize("experts, choices, words", [
    (0, 1, "experts is 0; it must be at least 1"),
    (4, 5, "choices is 5; 4 experts allow 1 to 4"),
    (4, 0, "choices is 0; 4 experts allow 1 to 4"),
])
def test_numbers_of_experts(experts, choices, words):
    with pytest.raises(ValueError, match=words):
        moe.Experts(8, 16, experts, choices=choices)
    with pytest.raises(ValueError, match=f"chooses {choices} of {experts} experts; there must"):
        moe.capacity_of(8, experts, choices)
    said = "experts is 0" if not experts else "choices"
    for family in ("switch", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"):
        with pytest.raises(ValueError, match=said):
            getattr(cleave.models, family)(hidden=32, heads=4, layers=4, seq=8, vocab=96, ffn=64,
                                           experts=experts, choices=choices)


def mixtral(experts, choices):
    return build("MixtralForCausalLM", "MixtralConfig", vocab_size=96, hidden_size=32,
                 intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
                 num_key_value_heads=2, num_local_experts=experts, num_experts_per_tok=choices,
                 sliding_window=None).train()


@pytest.mark.parametrize("experts, choices", [(4, 6), (0, 1), (4, 0)])
def test_numbers_of_experts_in_the_library(experts, choices):
    batch = dict(zip(("input_ids", "labels"), token_batches(1)[0]))
    with pytest.raises(cleave.trace.TraceError,
                       match=f"has {experts} experts, of which a token chooses {choices}; it must "
                             ".* change the number"):
        cleave.compile(mixtral(experts, choices), batch)


def test_experts_that_an_axis_does_not_divide():
    """They are padded; fewer experts than ranks are an error that says how many ranks there may be."""
    batch = token_batches(1)[0]
    named = dict(zip(("input_ids", "labels"), batch))

    def compiled(experts):
        return cleave.compile(mixtral(experts, 2), named, mesh={"ep": 4}, plan="expert",
                              check="off")

    loss = mixtral(6, 2)(**named, use_cache=False).loss
    assert_close(float(compiled(6)(*batch)), float(loss.detach()), rtol=1e-5)
    with pytest.raises(cleave.CompileError, match="has 2 experts, fewer than the 4 positions of "
                                                  "axis \"ep\": use 2 positions"):
        compiled(2)
