# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Batches that a model joins, repeats, takes apart or regroups: a rank of dp=2 computes half of the
matmuls, micro-batches are computed where no sample depends on others, and parameters and momentum
after three steps are those of PyTorch."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.testing.tools import interpret, optimize
from cleave.compiler.entrance import grouped
from eager_support import train_beside
from proofs import ALL

SAMPLES, PLACES, WIDTH = 8, 4, 16
HALF = SAMPLES // 2


class Each(nn.Module):
    """What is computed of each sample alone: embedding, attention, norms, dropout, and a linear
    layer over flat tokens."""

    def __init__(self, drop=0.0):
        super().__init__()
        self.table, self.norm = nn.Embedding(13, WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(drop)

    def forward(self, ids):
        x = self.table(ids)
        q, k, v = (self.heads(self.norm(x)).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(y.transpose(1, 2).flatten(2))
        return torch.tanh(self.out(x.reshape(-1, WIDTH))).view(x.shape)


class Joined(nn.Module):
    def __init__(self, form, drop=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.form, self.m = form, Each(drop)

    def forward(self, a, b):
        return self.form(self.m, a, b)


def apart(u, v):
    return (u - v).square().mean() + (u * v).mean()


def cat_and_slices(m, a, b):
    h = m(torch.cat([a, b]))
    return apart(h[:len(a)], h[len(a):])


def cat_and_chunk(m, a, b):
    return apart(*m(torch.cat([a, b])).chunk(2))


def three_of_four(m, a, b):
    h = m(torch.cat([a, b, b.flip(1), a]))
    return apart(h[:3 * len(a)], h[len(a):])


def repeated(m, a, b):
    u, v = m(a.repeat(2, 1)).split(len(a))
    return apart(u, v * b[..., None])


def each_repeated(m, a, b):
    h = m(a.repeat_interleave(3, 0))
    return apart(h[0::3], h[1::3] + h[2::3] * b[..., None])


def stacked(m, a, b):
    h = m(torch.stack([a, b, a]).flatten(0, 1)).view(3, *a.shape, -1)
    return apart(h[0] * h[2], h[1])


def interleaved(m, a, b):
    h = m(torch.stack([a, b], 1).flatten(0, 1))
    return apart(h[0::2], h[1::2])


def joined_tokens(m, a, b):
    h = torch.cat([m(a).flatten(0, 1), m(b).flatten(0, 1)])
    h = m.out(h.sin())
    return apart(h[:a.numel()], h[a.numel():])


def preferences(m, a, b):
    """Pairs as DPO trains: the log-probabilities of chosen and rejected tokens, in one batch."""
    ids = torch.cat([a, b])
    logits = m(ids)[:, :-1] @ m.table.weight.T
    of_tokens = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    chosen, rejected = (of_tokens * (ids[:, 1:] > 2)).sum(-1).split(len(a))
    return -F.logsigmoid(0.1 * (chosen - rejected)).mean()


def triplets(m, a, b):
    x, y, z = m(torch.cat([a, b, b.flip(1)])).mean(1).chunk(3)
    return F.relu((x - y).norm(dim=-1) - (x - z).norm(dim=-1) + 0.5).mean()


def labels_of_joined(m, a, b):
    ids = torch.cat([a, b])
    logits = m(ids) @ m.table.weight.T
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


def routed(m, a, b):
    """Tokens repeated over experts, as some routers compute all of them."""
    h = m(a).flatten(0, 1)
    scores = (h @ m.table.weight[:5].T).sigmoid()
    each = (h.repeat(5, 1) * scores.transpose(0, 1).reshape(-1, 1)).view(5, -1, WIDTH)
    return apart(torch.bmm(each, m.heads.weight.view(-1, WIDTH, WIDTH)[[0, 1, 2, 0, 1]]).sum(0),
                 m(b).flatten(0, 1))


FORMS = [cat_and_slices, cat_and_chunk, three_of_four, repeated, each_repeated, stacked, interleaved,
         joined_tokens, preferences, triplets, labels_of_joined, routed]


def chunks(m, a, b):
    u, v = a.chunk(2)
    return apart(m(u), m(v)) + b.float().mean() * 0


def halves(m, a, b):
    return apart(m(a[:HALF]) * m(b[HALF:]), m(b[:HALF]))


def views(m, a, b):
    pairs = torch.cat([a, b], 1).view(2, HALF, -1)
    return apart(m(pairs[0]), m(pairs[1]))


#: Samples that are paired with others of the same input.
PAIRED = [chunks, halves, views]


def regrouped(m, a, b):
    h = m(a.view(HALF, 2, -1).transpose(0, 1).reshape(SAMPLES, -1))
    return h.square().mean() + m(b).mean()


def both_views(m, a, b):
    """All pairs of samples of two views."""
    z = F.normalize(m(torch.cat([a, b])).mean(1), dim=-1)
    n = len(z)
    scores = (z @ z.T / 0.5).masked_fill(torch.eye(n, dtype=torch.bool), -1e9)
    return F.cross_entropy(scores, torch.arange(n).roll(n // 2))


def drawn(seed):
    """A form that joins, repeats, interleaves and takes apart pieces of whole batches, of tokens and
    of what is computed of them, and compares the pieces."""
    def moved(draw, pieces):
        kind = draw.choice(["cat", "repeat", "split", "stack", "views"])
        if kind == "cat":
            return [torch.cat(draw.choices(pieces, k=draw.randint(2, 4)))]
        x = draw.choice(pieces)
        if kind == "repeat":
            return [x.repeat(draw.randint(2, 3), *[1] * (x.dim() - 1))]
        if kind == "split":
            return list(x.split(SAMPLES))
        if kind == "stack":
            y = draw.choice([piece for piece in pieces if piece.shape == x.shape])
            return [torch.stack([x, y]).flatten(0, 1)]
        return list(x.view(-1, SAMPLES, *x.shape[1:]).unbind(0))

    def form(m, a, b):
        draw = random.Random(seed)
        pieces = [a, b]
        for _ in range(draw.randint(1, 3)):
            pieces += moved(draw, pieces)
        if draw.random() < 0.3:
            # Of each sample, and of a place of each.
            x = torch.stack(draw.choices([a, b, a.flip(1)], k=2), 1).flatten(0, 1)
            hidden = list(m(x).unflatten(0, (-1, 2)).unbind(1))
        else:
            hidden = [m(x) for x in draw.sample(pieces[2:], 1) + [draw.choice(pieces)]]
        for _ in range(draw.randint(0, 2)):
            hidden += moved(draw, hidden)
        whole = [x for h in hidden[-3:] for x in h.split(SAMPLES)]
        return sum((draw.uniform(0.5, 2) * apart(x, y.flip(1)) for x, y in zip(whole, whole[1:])),
                   start=whole[0].square().mean())
    form.__name__ = f"drawn_{seed}"
    return form


DRAWN = [drawn(seed) for seed in range(60 if ALL else 6)]


def batches():
    draw = torch.Generator().manual_seed(3)
    return [tuple(torch.randint(0, 13, (2, SAMPLES, PLACES), generator=draw)) for _ in range(3)]


def flops(step):
    stage = step.report()["schedule"]["stages"][0]
    return stage["contraction_flops"] + stage.get("attention_flops", 0)


def check_training(form, **options):
    """Returns the step after it trained as PyTorch does."""
    model = Joined(form)
    step = cleave.compile(model, batches()[0], optimizer=cleave.SGD(lr=0.3, momentum=0.9),
                          **grouped(threads=1, **options))
    eager = train_beside(step, model, batches(), rel=1e-4, abs=1e-6)
    state = step.training_state()["optimizer"]
    for name, value in step.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-3, atol=1e-5)
        momentum = eager.state[model.get_parameter(name)].get("momentum_buffer")
        if momentum is not None:
            torch.testing.assert_close(state[name]["momentum_buffer"], momentum, rtol=1e-3, atol=1e-5)
    return step


def whole(form):
    return flops(cleave.compile(Joined(form), batches()[0], optimizer=cleave.SGD(lr=0.3)))


@pytest.mark.parametrize("form", FORMS + PAIRED + [regrouped] + DRAWN, ids=lambda f: f.__name__)
def test_data_parallel(form):
    assert flops(check_training(form, mesh={"dp": 2})) <= 0.55 * whole(form)


@pytest.mark.parametrize("options", [dict(micro_batches=4), dict(micro_batches=2, mesh={"dp": 2}),
                                     dict(micro_batches=3)], ids=["mb4", "dp2 mb2", "mb3"])
@pytest.mark.parametrize("form", FORMS + DRAWN, ids=lambda f: f.__name__)
def test_micro_batches(form, options):
    check_training(form, **options)


@pytest.mark.parametrize("form", FORMS + PAIRED + [regrouped] + DRAWN, ids=lambda f: f.__name__)
def test_order(form):
    """The model in the order of samples is the model: losses are equal in f64."""
    model = cleave.trace.trace(Joined(form), batches()[0]).mlir
    ordered = optimize(model, "--spmd-order-samples=mesh=dp=2", "--canonicalize")
    values = {f"m.{name}": value.detach().numpy() for name, value in Joined(form).m.named_parameters()}
    values.update(zip("ab", (x.numpy() for x in batches()[0])))
    (one, _), (other, _) = (interpret(text, values) for text in (model, ordered))
    assert abs(one["loss"] - other["loss"]) <= 1e-12 * abs(one["loss"])


@pytest.mark.parametrize("form", PAIRED + [both_views], ids=lambda f: f.__name__)
def test_micro_batches_of_samples_that_depend_on_others(form):
    """Refused; over ranks the matmuls of each sample are divided."""
    with pytest.raises(cleave.CompileError, match="the model couples samples of the batch"):
        cleave.compile(Joined(form), batches()[0], micro_batches=2)


def test_all_pairs_over_ranks():
    assert flops(check_training(both_views, mesh={"dp": 2})) <= 0.55 * whole(both_views)


@pytest.mark.parametrize("options", [dict(mesh={"dp": 2}), dict(micro_batches=2),
                                     dict(mesh={"dp": 2}, micro_batches=2)], ids=str)
def test_dropout(options):
    """Each row of a joined batch drops the same numbers as in the model's order."""
    def trained(**options):
        step = cleave.compile(Joined(cat_and_slices, 0.5), batches()[0], seed=3,
                              optimizer=cleave.SGD(lr=0.3), **grouped(threads=1, **options))
        losses = [float(step(*batch)) for batch in batches()]
        return losses, step.state_dict(), flops(step)

    (losses, state, all_flops), (found, other, own) = trained(), trained(**options)
    assert found == pytest.approx(losses, rel=1e-5)
    for name, value in state.items():
        torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-6)
    if "mesh" in options:
        assert own <= 0.55 * all_flops


@pytest.mark.parametrize("options", [
    dict(micro_batches=2, mesh={"pp": 2}), dict(mesh={"dp": 4}), dict(mesh={"dp": 2}, plan=["zero3"]),
    dict(mesh={"dp": 2, "pp": 2}, plan=["zero1"], micro_batches=2)], ids=str)
@pytest.mark.parametrize("form", [cat_and_slices, three_of_four, preferences, routed],
                         ids=lambda f: f.__name__)
def test_layouts(form, options):
    check_training(form, **options)


@pytest.mark.parametrize("form", [cat_and_slices, routed], ids=lambda f: f.__name__)
def test_deterministic_steps(form):
    """Grains are those of a batch in the model's order: joined ones are refused."""
    with pytest.raises(cleave.CompileError, match="couples samples.*leave out deterministic"):
        cleave.compile(Joined(form), batches()[0], numerics=cleave.Numerics(deterministic=4))
