# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Mixtures of experts: routing by itself, and models of the transformers library."""

import re

import pytest
import torch
import torch.nn.functional as F

import cleave
import cleave.models
import cleave.trace
from cleave import moe

transformers = pytest.importorskip("transformers")

from equality_support import check_equality  # noqa: E402
from expert_models import LIBRARY, Switch, library, own, switch  # noqa: E402
from family_models import build  # noqa: E402
from trace_support import check, count  # noqa: E402
from training_support import ALL, compile_case, family, token_batches  # noqa: E402


# Routing ----------------------------------------------------------------------------


def one_by_one(index, experts, capacity):
    """Places as the definition has them: first choices of all tokens, then second."""
    groups, tokens, choices = index.shape
    place, kept = torch.full(index.shape, -1), torch.zeros(index.shape, dtype=torch.bool)
    for g in range(groups):
        used = [0] * experts
        for k in range(choices):
            for t in range(tokens):
                expert = int(index[g, t, k])
                if used[expert] < capacity:
                    place[g, t, k] = expert * capacity + used[expert]
                    kept[g, t, k] = True
                used[expert] += 1
    return place, kept


@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("capacity", [1, 3, 16])
def test_places_follow_the_order_of_choices_and_tokens(choices, capacity):
    torch.manual_seed(capacity)
    index = torch.rand(3, 16, 5).topk(choices, dim=-1).indices
    place, kept = moe.places(index, 5, capacity)
    expected, expected_kept = one_by_one(index, 5, capacity)
    assert torch.equal(kept, expected_kept)
    assert torch.equal(place[kept], expected[kept])
    assert kept.all() == (capacity == 16)


def test_dispatch_and_combine():
    torch.manual_seed(0)
    index = torch.rand(2, 6, 3).topk(2, dim=-1).indices
    x, weight = torch.randn(2, 6, 4), torch.rand(2, 6, 2)
    place, kept = moe.places(index, 3, 2)
    y = moe.dispatch(x, place, kept, 3, 2)
    assert y.shape == (2, 3, 2, 4)
    assert torch.isclose(y.abs().sum(), (x.abs().sum(-1)[..., None] * kept).sum())
    weight = weight * kept
    scale = torch.arange(1.0, 4.0)[None, :, None, None]
    expected = (weight * (index + 1)).sum(-1)[..., None] * x
    assert torch.allclose(moe.combine(y * scale, place, weight), expected)


class Chosen(torch.nn.Module):
    """Experts of the library with these choices of each token, or the best ones."""

    def __init__(self, index=None):
        super().__init__()
        from transformers.models.mixtral import modeling_mixtral as mixtral
        config = transformers.MixtralConfig(hidden_size=8, intermediate_size=6, num_local_experts=3)
        config._experts_implementation = "eager"
        torch.manual_seed(0)
        self.experts = mixtral.MixtralExperts(config)
        for parameter in self.experts.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        self.router = torch.nn.Linear(8, 3)
        self.index = index

    def forward(self, x):
        scores = self.router(x).softmax(-1)
        index = scores.topk(2).indices if self.index is None else self.index
        return self.experts(x, index, scores.gather(1, index))


@pytest.mark.parametrize("index", [None, [[0, 0], [1, 2], [2, 2], [0, 1], [0, 0], [2, 0]],
                                   [[0, 0]] * 6])
def test_a_token_may_choose_an_expert_twice(index):
    """As a table of experts by token does that was not filled: its weights are added."""
    module = Chosen(index and torch.tensor(index)).train()
    torch.manual_seed(1)
    x, target = torch.randn(6, 8), torch.randn(6, 8)
    step = cleave.compile(module, (x, target), F.mse_loss, optimizer=cleave.SGD(lr=0.1), check="on")
    with torch.no_grad():
        expected = F.mse_loss(module(x), target)
    assert torch.isclose(torch.tensor(float(step(x, target))), expected, rtol=1e-5)
    # Each choice is a row.
    traced = cleave.trace.trace(module, (x, target), F.mse_loss)
    assert count(traced.mlir, "grouped_linear") == 2 and count(traced.mlir, "scatter_add") == 0


def test_places_of_choices_that_are_counted():
    index = torch.tensor([[[0, 0], [1, 1], [0, 1]]])
    counted = torch.tensor([[[True, False], [True, False], [True, True]]])
    place, kept = moe.places(index, 2, 3, counted)
    assert torch.equal(kept, counted)
    assert place[counted].tolist() == [0, 3, 1, 4]


def test_capacity():
    assert moe.capacity_of(1024, 8, factor=1.25) == 160
    assert moe.capacity_of(1024, 8, choices=2, factor=1.25) == 320
    assert moe.capacity_of(4, 2, choices=2, factor=9.0) == 4


def test_balance():
    """1 where all experts are used alike, their number where one is used alone."""
    index = torch.arange(64).view(2, 32, 1) % 8
    assert torch.isclose(moe.balance_loss(torch.full((2, 32, 8), 1 / 8), index), torch.tensor(1.0))
    collapsed = F.one_hot(torch.zeros(2, 32, dtype=torch.int64), 8).float()
    assert moe.balance_loss(collapsed, torch.zeros(2, 32, 1, dtype=torch.int64)) == 8


# Models ------------------------------------------------------------------------------


def test_mixtral_with_auxiliary_loss():
    model = build("MixtralForCausalLM", "MixtralConfig", hidden_size=32, num_hidden_layers=2,
                  num_attention_heads=4, intermediate_size=64, vocab_size=96,
                  num_key_value_heads=2, num_local_experts=4, output_router_logits=True,
                  experts_implementation="eager", sliding_window=None,
                  router_aux_loss_coef=0.5)
    ids, labels = token_batches()[0]
    traced = check(model, dict(input_ids=ids, labels=labels))
    # The loss asks for the same choices again.
    assert count(traced.mlir, "top_k") == 2


@pytest.mark.parametrize("name", LIBRARY if ALL else ["qwen3_moe", "gpt_oss"])
def test_mixtures_compute_the_chosen_experts(name):
    """Two layers of experts for each mixture, of as many rows as tokens make choices."""
    ids, labels = token_batches()[0]
    model = library(name).build()
    # Of GPT-OSS the trace has numbers that are rounded to f32, as the model's scale of positions.
    bound = {"bound": 1e-7} if name == "gpt_oss" else {}
    traced = check(model, dict(input_ids=ids, labels=labels), **bound)
    layers = sum(type(m).__name__.endswith("Experts") for m in model.modules())
    assert layers and count(traced.mlir, "grouped_linear") == 2 * layers
    rows = re.findall(r"graph.grouped_linear .*: \(tensor<4x8x(\d)x", traced.mlir)
    assert set(rows) == {str(model.config.num_experts_per_tok)}


@pytest.mark.parametrize("capacity", [1, 3, 64])
def test_switch(capacity):
    ids, labels = token_batches()[0]
    # A constant of f32 would be rounded on one side only.
    module = Switch(expert_capacity=capacity).double()
    for router in (m for m in module.modules() if hasattr(m, "expert_capacity")):
        # PyTorch's would be rounded to f32, all else being f64.
        router.dtype = torch.float64
    traced = check(module, dict(input_ids=ids, labels=labels))
    assert count(traced.mlir, "scatter_add") == 2


def test_the_router_computes_in_f32():
    ids, labels = token_batches()[0]
    mlir = cleave.trace.trace(Switch().bfloat16(), (ids, labels), keep_types=True).mlir
    routed = re.findall(r"graph.top_k .*: \((.*?)\)", mlir)
    assert routed and set(routed) == {"tensor<4x8x4xbf16>"}
    weights = re.findall(r"graph.linear .*tensor<4x32xf32>\) -> tensor<4x8x4x(f32)>", mlir)
    assert len(weights) == len(routed)


def test_noise_of_the_router_is_drawn_in_training_alone():
    """By steps natively; without it, both lose alike."""
    batch = token_batches()[0]

    def step(noise):
        return cleave.compile(Switch(router_jitter_noise=noise).train(), batch,
                              optimizer=cleave.SGD(lr=0.1))

    noisy, plain = step(0.5), step(0.0)
    assert float(noisy.evaluate(*batch)) == float(plain.evaluate(*batch))
    assert float(noisy(*batch)) != float(plain(*batch))


def test_experts_are_trained_as_one_and_keep_their_names():
    """Weights and optimizer state of each expert, there and back."""
    case = switch()
    one, two = (compile_case(case, cleave.AdamW(lr=1e-3)) for _ in range(2))
    one(*case.batches[0])
    state, training = one.state_dict(), one.training_state()
    assert list(state) == list(case.build().state_dict())
    trained = {n for n, _ in case.build().named_parameters()}
    assert set(training["optimizer"]) == trained
    with pytest.raises(KeyError, match=r"missing .*expert_1\.wi\.weight"):
        two.load_state_dict({n: t for n, t in state.items() if "expert_1.wi" not in n})
    two.load_state_dict(state)
    two.load_training_state(training)
    assert float(one(*case.batches[1])) == float(two(*case.batches[1]))
    for name, value in one.state_dict().items():
        assert torch.equal(two.state_dict()[name], value), name
    missing = {n: s for n, s in training["optimizer"].items() if "expert_1.wo" not in n}
    with pytest.raises(KeyError, match="'exp_avg' of .*wo.weight"):
        two.load_training_state({**training, "optimizer": missing})


def test_experts_need_one_setting():
    case = switch()
    with pytest.raises(ValueError, match="need one weight decay"):
        compile_case(case, cleave.AdamW(lr=1e-3, weight_decay=0.1,
                                        no_decay=lambda name, _: "expert_1" in name))
    compile_case(case, cleave.AdamW(lr=1e-3, weight_decay=0.1,
                                    no_decay=lambda name, p: p.dim() == 2))


def test_the_models_own_forward_is_back_after_tracing():
    model = Switch()
    ids, labels = token_batches()[0]
    before = model(ids, labels).loss
    cleave.trace.trace(model, (ids, labels))
    assert all("forward" not in vars(m) and "to" not in vars(m) for m in model.modules())
    assert torch.equal(model(ids, labels).loss, before)


@pytest.mark.parametrize("case", [
    family("mixtral"),
    family("mixtral", output_router_logits=True, router_aux_loss_coef=0.5),
    switch(),
    own(),
    own(choices=2, capacity=0.75),
], ids=["mixtral", "mixtral-aux", "switch", "own", "own-two-choices"])
def test_twenty_steps(case):
    check_equality(case)


class Looped(torch.nn.ModuleList):
    """Experts one after another, each on the tokens that chose it; a scale that its
    code has and its structure does not show."""

    def __init__(self, scale=1.0):
        super().__init__(torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.GELU(),
                                             torch.nn.Linear(12, 8)) for _ in range(3))
        self.scale = scale

    def forward(self, x, index, weights):
        result = torch.zeros_like(x)
        for number, expert in enumerate(self):
            token, choice = torch.where(index == number)
            if len(token):
                result.index_add_(0, token, expert(x[token]) * weights[token, choice, None] * self.scale)
        return result


class Routed(torch.nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.gate, self.experts = torch.nn.Linear(8, 3), Looped(scale)

    def forward(self, x):
        weights, index = self.gate(x).softmax(-1).topk(2)
        return self.experts(x, index, weights).square().mean()


def test_a_container_of_experts_is_recognised_by_what_it_computes():
    import cleave
    torch.manual_seed(0)
    model, x = Routed(), torch.randn(10, 8)
    step = cleave.compile(model, (x,), optimizer=cleave.SGD(lr=0.1), check="on")
    loss = model(x)
    assert abs(float(step(x)) - loss.item()) <= 1e-5 * abs(loss.item())
    loss.backward()
    for name, value in step.state_dict().items():
        parameter = model.get_parameter(name)
        assert torch.allclose(value, parameter - 0.1 * parameter.grad, rtol=1e-4, atol=1e-6)
    with pytest.raises(cleave.trace.TraceError, match="depends on the values of a tensor"):
        cleave.trace.trace(Routed(scale=2.0), (x,))
