# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Loops over experts, as people write them, compute the chosen experts alone: three steps are those
of eager PyTorch in f64, on one rank and over an axis of experts. A loop that computes another sum is computed
as it is written, or refused at its line."""

import functools
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cleave
import cleave.trace
from cleave.compiler.entrance import grouped
from expert_loops import (CHOICES, EXPERTS, HIDDEN, SPELLINGS, WORDS, Expert, Gated, Model, Normed,
                          masks, mistral, mixtral, selected, tutorial)
from proofs import ALL
from torch.utils._pytree import tree_leaves_with_path

LAYOUTS = [({"ep": 2}, "expert"), ({"ep": 4}, "expert"), ({"dp": 2, "ep": 2}, "expert,zero1"),
           ({"tp": 2}, "megatron,expert(tp)"), ({"pp": 2, "ep": 2}, "expert")]


def batch():
    draw = torch.Generator().manual_seed(1)
    return tuple(torch.randint(0, WORDS, (4, 6), generator=draw) for _ in range(2))


def module(make):
    torch.manual_seed(0)
    return make()


def eager(make, steps=3):
    model, optimizer, losses = module(make).double(), None, []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(*batch())
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, model.state_dict()


def compiled(make, **options):
    return cleave.compile(module(make), batch(), optimizer=cleave.SGD(lr=0.3, momentum=0.9),
                          **grouped(threads=1, **options))


def equal_eager(make, **options):
    step = compiled(make, **options)
    losses, expected = eager(make)
    assert [float(step(*batch())) for _ in losses] == pytest.approx(losses, rel=2e-6)
    state = step.state_dict()
    for key, value in expected.items():
        torch.testing.assert_close(state[key].double(), value, rtol=1e-4, atol=2e-6, msg=key)


def products(model):
    """The numbers of grouped linear layers and of others in the trace of a model."""
    text = cleave.trace.trace(model, batch()).mlir
    return text.count("graph.grouped_linear"), text.count("graph.linear")


# Sums over chosen experts -------------------------------------------------------------


@pytest.mark.parametrize("form", SPELLINGS, ids=lambda form: form.__name__)
def test_a_loop_computes_the_chosen_experts(form):
    """Each linear layer is one of a row for each choice."""
    layers = 3 if form.__name__ == "listed" else 2
    assert products(module(lambda: Model(form)))[0] == layers
    equal_eager(lambda: Model(form))


CASES = list(itertools.product(SPELLINGS, LAYOUTS))


@pytest.mark.parametrize("form, layout", CASES if ALL else CASES[::12],
                         ids=lambda v: getattr(v, "__name__", str(v)))
def test_loops_over_ranks(form, layout):
    mesh, plan = layout
    more = {"micro_batches": 2} if "pp" in mesh else {}
    equal_eager(lambda: Model(form, form), mesh=mesh, plan=plan, **more)


@pytest.mark.parametrize("expert", [
    lambda: Expert(bias=True), Gated, Normed,
    lambda: nn.Sequential(nn.Linear(HIDDEN, 5), nn.Dropout(0.0), nn.ReLU(), nn.Linear(5, HIDDEN)),
    lambda: nn.Linear(HIDDEN, HIDDEN)], ids=["bias", "gated", "normed", "sequential", "linear"])
@pytest.mark.parametrize("form", [masks, mixtral] if ALL else [mixtral],
                         ids=lambda form: form.__name__)
def test_what_an_expert_is(form, expert):
    make = functools.partial(Model, form, expert=expert)
    assert products(module(make))[0] in (1, 2)
    equal_eager(make, mesh={"ep": 2}, plan="expert")


def largest(p):
    w, i = p.max(-1)
    return w[:, None], i[:, None]


def sigmoid_like(p):
    i = (p + torch.arange(EXPERTS, device=p.device) * 0.01).topk(3, -1).indices
    return p.gather(1, i) * 2.5, i


def every(p):
    return p.topk(EXPERTS, -1)


def unequal(p):
    """All tokens choose the first two experts, the others get no row."""
    return (p + torch.tensor([9.0, 8.0, 0.0, 0.0], dtype=p.dtype)).topk(CHOICES, -1)


ROUTED = list(itertools.product([masks, mixtral, mistral, tutorial, selected],
                                [largest, sigmoid_like, every, unequal]))


@pytest.mark.parametrize("form, route", ROUTED if ALL else ROUTED[::3],
                         ids=lambda function: function.__name__)
def test_choices(form, route):
    make = functools.partial(Model, form, route=route)
    assert products(module(make))[0] == 2
    equal_eager(make)


def given(m, x, w, i):
    """Choices of any number: no expert has some of them, and a token has some twice."""
    return mixtral_of(m, x, w, (torch.arange(i.numel()).view(i.shape) * 5 // 2) % 7 - 1)


def mixtral_of(m, x, w, i):
    y = torch.zeros_like(x)
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y


def test_choices_of_no_expert_give_nothing():
    assert products(module(lambda: Model(given)))[0] == 2
    equal_eager(lambda: Model(given))


def test_a_write_that_drops_a_second_choice_is_no_sum():
    """`y[t] += …` of a token that chooses an expert twice keeps one of them."""
    def written(m, x, w, i):
        return mistral(m, x, w, i.flip(-1).clamp(0, 1) + i.clamp(0, 1))

    with pytest.raises(cleave.trace.UnsupportedError, match="aten.where.default"):
        cleave.trace.trace(module(lambda: Model(written)), batch())


class Parts(nn.Module):
    """Experts that each compute their own part of the words' numbers."""

    def __init__(self, split, join):
        super().__init__()
        self.split, self.join = split, join
        self.embed, self.head = nn.Embedding(WORDS, HIDDEN), nn.Linear(HIDDEN, WORDS)
        self.experts = nn.ModuleList(Expert(bias=True) for _ in range(2))

    def forward(self, ids, labels):
        x = self.embed(ids)
        y = self.join([expert(own) for expert, own in zip(self.experts, self.split(x))], 1)
        return F.cross_entropy(self.head(x + y.view(x.shape)).flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("split, join", [
    (lambda x: x.chunk(2, 1), torch.cat), (lambda x: x.split(3, dim=1), torch.cat),
    (lambda x: [x[:, :3], x[:, 3:]], torch.cat),
    (lambda x: x.view(4, 2, 3, HIDDEN).unbind(1), torch.stack),
    (lambda x: [x.view(4, 2, 3, HIDDEN)[:, e] for e in range(2)], torch.stack)],
    ids=["chunk", "split", "slice", "unbind", "select"])
def test_parts_are_one_batched_product(split, join):
    make = functools.partial(Parts, split, join)
    text = cleave.trace.trace(module(make), batch()).mlir
    assert text.count("graph.stacked") == 4 and text.count("graph.linear") == 1
    equal_eager(make)
    equal_eager(make, mesh={"ep": 2}, plan="expert")


@pytest.mark.parametrize("make", [
    lambda: Parts(lambda x: [x[:, 1:4], x[:, 3:]], torch.cat),
    lambda: Parts(lambda x: [x[:, 3:], x[:, :3]], torch.cat)], ids=["overlapping", "swapped"])
def test_other_parts_are_computed_as_written(make):
    assert "graph.stacked" not in cleave.trace.trace(module(make), batch()).mlir
    equal_eager(make)


class Halves(nn.Module):
    """An expert of experts, each of its own features."""

    def __init__(self):
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(HIDDEN // 2, HIDDEN // 2) for _ in range(2))

    def forward(self, x):
        return torch.cat([own(part) for own, part in zip(self.own, x.chunk(2, -1))], -1)


@pytest.mark.parametrize("form", [masks, mixtral], ids=lambda form: form.__name__)
def test_experts_of_parts(form):
    make = functools.partial(Model, form, expert=Halves)
    assert products(module(make))[0] == 2
    equal_eager(make)


def half(m, x, w, i):
    """Each expert reads the first features of a token alone, and gives as many."""
    return sum(torch.cat([expert(x[:, :4]), x[:, 4:]], -1) * (w * (i == e)).sum(-1, keepdim=True)
               for e, expert in enumerate(m.experts))


def narrower(m, x, w, i):
    return torch.cat([sum(expert(x) * (w * (i == e)).sum(-1, keepdim=True)
                          for e, expert in enumerate(m.experts)), x[:, 4:]], -1)


def test_experts_of_a_part_of_a_token():
    equal_eager(lambda: Model(half, expert=lambda: nn.Linear(4, 4)))
    make = functools.partial(Model, narrower, expert=lambda: nn.Linear(HIDDEN, 4))
    assert products(module(make))[0] == 1
    equal_eager(make)


# State --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [cleave.AdamW(lr=0.01, weight_decay=0.3), cleave.LAMB(lr=0.01),
                                  cleave.Adafactor(lr=0.01), cleave.Lion(lr=0.01)],
                         ids=lambda rule: type(rule).__name__)
def test_each_expert_is_updated_as_a_parameter_of_its_own(rule, monkeypatch):
    def state(gather):
        with monkeypatch.context() as patch:
            if not gather:
                patch.setattr("cleave.trace.export.gather_expert_loops",
                              lambda program, module, groups, skips: {})
            model = module(lambda: Model(masks, expert=lambda: Expert(bias=True)))
            step = cleave.compile(model, batch(), optimizer=rule, **grouped(threads=1))
            for _ in range(3):
                step(*batch())
            found = {**step.training_state(), "model": step.state_dict()}
            return {str(path): value for path, value in tree_leaves_with_path(found)
                    if isinstance(value, torch.Tensor)}

    one, other = state(True), state(False)
    assert one.keys() == other.keys() and len(one) > 20
    for key, value in other.items():
        torch.testing.assert_close(one[key], value, rtol=1e-5, atol=1e-6, msg=key)


def test_a_checkpoint_has_the_names_of_the_model(tmp_path):
    step = compiled(lambda: Model(mixtral), mesh={"ep": 2}, plan="expert")
    step(*batch())
    step.save(tmp_path / "saved")
    model = cleave.load(tmp_path / "saved", module(lambda: Model(mixtral)))
    for key, value in step.state_dict().items():
        assert torch.equal(model.state_dict()[key], value)
    again = cleave.load(tmp_path / "saved", compiled(lambda: Model(mixtral)))
    assert float(again(*batch())) == pytest.approx(float(step(*batch())), rel=1e-6)


# Others -------------------------------------------------------------------------------


def detached(m, x, w, i):
    return masks(m, x, w.detach(), i) + sum(
        expert(x) * (w.detach() * (i == e)).sum(-1, keepdim=True) * 0.5
        for e, expert in enumerate(m.experts))


def reversed_order(m, x, w, i):
    return sum(expert(x) * (w * (i == e)).sum(-1, keepdim=True)
               for e, expert in enumerate(reversed(m.experts)))


def cut(m, x, w, i):
    """Weights below a half are none, which each expert decides."""
    return sum(expert(x) * (torch.where(w > 0.5, w, 0) * (i == e)).sum(-1, keepdim=True)
               for e, expert in enumerate(m.experts))


def capped(m, x, w, i):
    """Three tokens of each expert."""
    kept = F.one_hot(i, EXPERTS).sum(1).cumsum(0) <= 3
    return sum(expert(x) * (w * (i == e)).sum(-1, keepdim=True) * kept[:, e:e + 1]
               for e, expert in enumerate(m.experts))


def soft(m, x, w, i):
    g = m.gate(x).softmax(-1)
    return sum(expert(x) * g[:, e:e + 1] for e, expert in enumerate(m.experts))


def squared(m, x, w, i):
    return sum((expert(x) * (w * (i == e)).sum(-1, keepdim=True)) ** 2
               for e, expert in enumerate(m.experts))


def mean(m, x, w, i):
    return sum(expert(x.mean(0, keepdim=True)) * (w * (i == e)).sum(-1, keepdim=True)
               for e, expert in enumerate(m.experts))


def around(m, x, w, i):
    """The mean of an expert's results beside a token, which is that of the token if it is linear."""
    return sum(expert(torch.stack([x + 1, x - 1])).sum(0) * 0.5 * (w * (i == e)).sum(-1, keepdim=True)
               for e, expert in enumerate(m.experts))


@pytest.mark.parametrize("form", [reversed_order, cut, capped, soft, squared, mean, around])
def test_other_functions_are_computed_as_written(form):
    assert products(module(lambda: Model(form)))[0] == 0
    equal_eager(lambda: Model(form))


def test_gradients_that_stop_stay_stopped():
    """Both loops read weights that have no gradient; one adds its result to the other's."""
    equal_eager(lambda: Model(detached))


class Across(nn.Module):
    """An expert that mixes tokens."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x):
        x = self.up(x)
        return x - x.mean(0, keepdim=True)


def test_experts_that_mix_tokens_are_computed_as_written():
    make = functools.partial(Model, masks, expert=Across)
    assert products(module(make))[0] == 0
    equal_eager(make)


def counted(m, x, w, i):
    y, n = torch.zeros_like(x), 0
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        if t.numel() == 0:
            continue
        n += 1
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y / n


def beside(m, x, w, i):
    y, more = torch.zeros_like(x), 0
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        if t.numel() == 0:
            continue
        more = more + w.mean()
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y * more


def but_one(m, x, w, i):
    y = torch.zeros_like(x)
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        if t.numel() <= 1:
            continue
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y


def of_the_next(m, x, w, i):
    y = torch.zeros_like(x)
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        if not (i == (e + 1) % EXPERTS).any():
            continue
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y


def parity(m, x, w, i):
    """Of an even number of experts all that are skipped leave what none leaves."""
    y, sign = torch.zeros_like(x), 1
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        if t.numel() == 0:
            continue
        sign = -sign
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y * sign


def last(m, x, w, i):
    y, found = torch.zeros_like(x), EXPERTS - 1
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        if t.numel() == 0:
            continue
        found = e
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y * (found + 1)


def attribute(m, x, w, i):
    y, m.sign = torch.zeros_like(x), 1
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        if t.numel() == 0:
            continue
        m.sign = -m.sign
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y * m.sign


def items(m, x, w, i):
    y, m.found = torch.zeros_like(x), {"sign": 1}
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        if t.numel() == 0:
            continue
        m.found["sign"] *= -1
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y * m.found["sign"]


def but_first_token(m, x, w, i):
    y = torch.zeros_like(x)
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        if not (i[1:] == e).any():
            continue
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y


def first_choice(m, x, w, i):
    y = torch.zeros_like(x)
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        if not (i[:, 0] == e).any():
            continue
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y


def at_least_two(m, x, w, i):
    y = torch.zeros_like(x)
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        if len(t) < 2:
            continue
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y


@pytest.mark.parametrize("form", [counted, beside, but_one, of_the_next, at_least_two, parity,
                                  last, attribute, items, but_first_token, first_choice])
def test_skipping_an_expert_must_skip_nothing_else(form):
    line = form.__code__.co_firstlineno
    with pytest.raises(cleave.trace.TraceError, match=r"test_expert_loops.py:(\d+): ") as error:
        cleave.trace.trace(module(lambda: Model(form)), batch())
    assert line < int(str(error.value).split("test_expert_loops.py:")[1].split(":")[0]) <= line + 6


def test_equal_loops_are_evaluated_once(monkeypatch):
    from cleave.trace.expert_loops import meaning
    calls, computes = [], meaning._computes
    monkeypatch.setattr(meaning, "_computes", lambda *a: calls.append(1) or computes(*a))
    cleave.trace.trace(module(lambda: Model(*[mixtral] * 3)), batch(), logits=False)
    assert len(calls) == 1
