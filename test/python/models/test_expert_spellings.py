# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Experts as GShard (arXiv 2006.16668, algorithm 1 in einsums), DeepSpeed and plain `bmm` write
them: three steps over an axis of experts are those of one rank, and of eager PyTorch."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cleave
from cleave.compiler.entrance import grouped
from proofs import ALL

B, S, M, H, EXPERTS, WORDS = 4, 6, 16, 24, 4, 31


class Experts(nn.Module):
    """A block of experts between an embedding and a head."""

    def __init__(self, capacity):
        super().__init__()
        self.capacity = capacity
        self.embed, self.head = nn.Embedding(WORDS, M), nn.Linear(M, WORDS)
        self.gate = nn.Linear(M, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, M, H) / M ** 0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, H, M) / H ** 0.5)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.experts(x))

    def chosen(self, x):
        """Of tokens [..., s, m]: weights of slots [..., s, e, c]."""
        gates = self.gate(x).softmax(-1)
        mask = F.one_hot(gates.argmax(-1), EXPERTS).to(x.dtype)
        place = mask.cumsum(-2) * mask - mask
        mask = mask * (place < self.capacity)
        slots = F.one_hot((place * mask).sum(-1).long(), self.capacity).to(x.dtype)
        weight = (gates * mask).sum(-1)
        return weight[..., None, None] * mask[..., None] * slots[..., None, :]


class GShard(Experts):
    """Groups of tokens, each with its own capacity, in einsums."""

    def experts(self, x):
        combine = self.chosen(x)
        dispatch = (combine > 0).to(x.dtype)
        slots = torch.einsum("gsec,gsm->egcm", dispatch, x)
        hidden = torch.einsum("egcm,emh->egch", slots, self.up).relu()
        made = torch.einsum("egch,ehm->egcm", hidden, self.down)
        return torch.einsum("gsec,egcm->gsm", combine, made)


class DeepSpeed(Experts):
    """All tokens of the batch in one group: `sec,sm->ecm`."""

    def experts(self, x):
        tokens = x.reshape(-1, M)
        combine = self.chosen(tokens)
        slots = torch.einsum("sec,sm->ecm", combine.bool().to(x.dtype), tokens)
        made = torch.bmm(torch.bmm(slots, self.up).relu(), self.down)
        return torch.einsum("sec,ecm->sm", combine, made).reshape(x.shape)


class Every(Experts):
    """Every expert on every token by `bmm`, weighted by the gates: no capacity."""

    def experts(self, x):
        tokens = x.reshape(1, -1, M).expand(EXPERTS, -1, -1)
        made = torch.bmm(torch.bmm(tokens, self.up).relu(), self.down)
        gates = self.gate(x).softmax(-1).reshape(-1, EXPERTS)
        return (made * gates.t()[..., None]).sum(0).reshape(x.shape)


class Listed(DeepSpeed):
    """Experts that are modules in a list: each has its slots of the chunks."""

    def __init__(self, capacity):
        super().__init__(capacity)
        self.each = nn.ModuleList(nn.Linear(M, M) for _ in range(EXPERTS))

    def experts(self, x):
        tokens = x.reshape(-1, M)
        combine = self.chosen(tokens)
        slots = torch.einsum("sec,sm->ecm", combine.bool().to(x.dtype), tokens)
        made = torch.cat([own(part) for own, part in zip(self.each, slots.chunk(EXPERTS))])
        return torch.einsum("sec,ecm->sm", combine, made).reshape(x.shape)


MODELS = {"gshard": lambda: GShard(3), "deepspeed": lambda: DeepSpeed(8), "bmm": lambda: Every(0),
          "list": lambda: Listed(8)}
LAYOUTS = [({"ep": 2}, "expert"), ({"ep": 4}, "expert"), ({"dp": 2, "ep": 2}, "expert,zero1"),
           ({"tp": 2}, "megatron,expert(tp)")]


def batch():
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randint(0, WORDS, (B, S), generator=generator) for _ in range(2))


def loss(logits, labels):
    return F.cross_entropy(logits.reshape(-1, WORDS), labels.reshape(-1))


def module(name):
    torch.manual_seed(0)
    return MODELS[name]()


@functools.cache
def eager(name):
    model, (ids, labels) = module(name).double(), batch()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9), []
    for _ in range(3):
        optimizer.zero_grad()
        value = loss(model(ids), labels)
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return losses, model.state_dict()


def compiled(name, **options):
    return cleave.compile(module(name), batch(), loss_fn=loss,
                          optimizer=cleave.SGD(lr=0.3, momentum=0.9),
                          **grouped(threads=1, **options))


@pytest.mark.parametrize("mesh, plan", LAYOUTS if ALL else LAYOUTS[:1], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_steps_equal_eager(name, mesh, plan):
    step = compiled(name, mesh=mesh, plan=plan)
    losses, expected = eager(name)
    assert [float(step(*batch())) for _ in range(3)] == pytest.approx(losses, rel=2e-6)
    for key, value in expected.items():
        torch.testing.assert_close(step.state_dict()[key].double(), value, rtol=1e-4, atol=2e-6,
                                   msg=key)


def flops(step):
    return step.report()["schedule"]["stages"][0]["contraction_flops"]


def test_a_rank_computes_its_share():
    """Slots are sent twice forward and twice backward; of weights, only gradients of those that
    are no expert's are summed."""
    step = compiled("gshard", mesh={"ep": 2}, plan="expert")
    assert flops(step) <= 0.55 * flops(compiled("gshard"))
    sent = {entry["kind"]: entry["elements"]
            for entry in step.report()["communication"]["train"]["totals"]}
    assert sent.keys() == {"all_to_all", "all_reduce"}
    assert sent["all_to_all"] == 4 * (B * EXPERTS * 3 * M) // 2 // 2
    # Some numbers of the loss and of checks besides.
    assert 0 <= sent["all_reduce"] - (2 * WORDS * M + WORDS + EXPERTS * M) <= 8
