# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Ways in which people write loops over experts: functions of the block, its tokens [t, h], the
weights [t, k] of their choices, and these choices [t, k]."""

import torch
from torch import nn
from torch.nn import functional as F

EXPERTS, HIDDEN, INNER, CHOICES, WORDS = 4, 8, 12, 2, 32


class Expert(nn.Module):
    def __init__(self, bias=False):
        super().__init__()
        self.up = nn.Linear(HIDDEN, INNER, bias=bias)
        self.down = nn.Linear(INNER, HIDDEN, bias=bias)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Gated(nn.Module):
    """Halves of one layer, biases, a factor for each number."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, 2 * INNER), nn.Linear(INNER, HIDDEN)
        self.scale = nn.Parameter(torch.rand(INNER) + 0.5)

    def forward(self, x):
        one, other = self.up(x).chunk(2, -1)
        return self.down(F.gelu(one) * other * self.scale)


class Normed(nn.Module):
    """A norm between the layers, and a function after them."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)
        self.scale = nn.Parameter(torch.rand(INNER) + 0.5)

    def forward(self, x):
        x = self.up(x)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale
        return torch.tanh(self.down(F.relu(x)))


# On all tokens ------------------------------------------------------------------------


def masks(m, x, w, i):
    y = torch.zeros_like(x)
    for e, expert in enumerate(m.experts):
        y = y + expert(x) * (w * (i == e)).sum(-1, keepdim=True)
    return y


def total(m, x, w, i):
    return sum(expert(x) * (w * (i == e)).sum(-1, keepdim=True)
               for e, expert in enumerate(m.experts))


def gates(m, x, w, i):
    g = torch.zeros(x.shape[0], EXPERTS, dtype=x.dtype).scatter(1, i, w)
    return sum(g[:, e:e + 1] * expert(x) for e, expert in enumerate(m.experts))


def chosen(m, x, w, i):
    y = torch.zeros_like(x)
    for e, expert in enumerate(m.experts):
        y += expert(x) * torch.where(i == e, w, torch.zeros_like(w)).sum(-1, keepdim=True)
    return y


def gathered(m, x, w, i):
    made = torch.stack([expert(x) for expert in m.experts], 1)
    made = torch.gather(made, 1, i[..., None].expand(-1, -1, HIDDEN))
    return (made * w[..., None]).sum(1)


def summed(m, x, w, i):
    made = torch.stack([expert(x) for expert in m.experts], 1)
    g = torch.zeros(x.shape[0], EXPERTS, dtype=x.dtype).scatter(1, i, w)
    return torch.einsum("teh,te->th", made, g)


# On the tokens of an expert -----------------------------------------------------------


def mixtral(m, x, w, i):
    y, mask = torch.zeros_like(x), F.one_hot(i, EXPERTS).permute(2, 1, 0)
    for e, expert in enumerate(m.experts):
        k, t = torch.where(mask[e])
        y.index_add_(0, t, (expert(x[t]) * w[t, k, None]).to(x.dtype))
    return y


def first_mixtral(m, x, w, i):
    y, mask = torch.zeros_like(x), F.one_hot(i, EXPERTS).permute(2, 1, 0)
    for e, expert in enumerate(m.experts):
        k, t = torch.where(mask[e])
        if t.shape[0] == 0:
            continue
        y.index_add_(0, t, expert(x[None, t].reshape(-1, HIDDEN)) * w[t, k, None])
    return y


def mistral(m, x, w, i):
    y = torch.zeros_like(x)
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        y[t] += w[t, k, None] * expert(x[t])
    return y


def deepseek(m, x, w, i):
    flat, x = i.view(-1), x.repeat_interleave(CHOICES, dim=0)
    y = torch.empty_like(x)
    for e, expert in enumerate(m.experts):
        y[flat == e] = expert(x[flat == e])
    return (y.view(*w.shape, -1) * w.unsqueeze(-1)).sum(dim=1)


def added(m, x, w, i):
    """To the result of an expert of all tokens."""
    y = m.shared(x)
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y


def selected(m, x, w, i):
    y = torch.zeros_like(x)
    for e, expert in enumerate(m.experts):
        t = (i == e).any(-1).nonzero().squeeze(-1)
        own = (w * (i == e)).sum(-1)
        y = y.index_add(0, t, expert(x.index_select(0, t)) * own[t].unsqueeze(-1))
    return y


def tutorial(m, x, w, i):
    g, y = torch.zeros(x.shape[0], EXPERTS, dtype=x.dtype).scatter(1, i, w), torch.zeros_like(x)
    for e, expert in enumerate(m.experts):
        mask = (i == e).any(-1)
        if mask.any():
            made = expert(x[mask])
            y[mask] += (made * g[mask, e].unsqueeze(1)).squeeze(1)
    return y


def not_any(m, x, w, i):
    y = torch.zeros_like(x)
    for e, expert in enumerate(m.experts):
        hit = i == e
        if not hit.any():
            continue
        t, k = hit.nonzero(as_tuple=True)
        y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y


def length(m, x, w, i):
    y = m.shared(x)
    for e, expert in enumerate(m.experts):
        t, k = torch.where(i == e)
        if len(t) > 0:
            y = y.index_add(0, t, expert(x[t]) * w[t, k, None])
    return y


def matrices(m, x, w, i):
    """Of one parameter for all experts."""
    y = torch.zeros_like(x)
    for e in range(EXPERTS):
        t, k = torch.where(i == e)
        made = F.silu(x[t] @ m.up[e].t()) @ m.down[e].T + m.bias[e]
        y.index_add_(0, t, made * w[t, k, None])
    return y


def listed(m, x, w, i):
    """Of parameters in lists."""
    y = torch.zeros_like(x)
    for e in range(EXPERTS):
        t, k = torch.where(i == e)
        made = F.linear(F.silu(F.linear(x[t], m.ups[e])) * F.linear(x[t], m.gates[e]), m.downs[e])
        y.index_add_(0, t, made * w[t, k, None])
    return y


SPELLINGS = [masks, total, gates, chosen, gathered, summed, mixtral, first_mixtral, mistral,
             deepseek, added, selected, tutorial, not_any, length, matrices, listed]


class Block(nn.Module):
    def __init__(self, form, expert=Expert, route=None):
        super().__init__()
        self.form, self.route = form, route
        self.gate = nn.Linear(HIDDEN, EXPERTS)
        self.experts = nn.ModuleList(expert() for _ in range(EXPERTS))
        self.shared = nn.Linear(HIDDEN, HIDDEN)
        self.up = nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER) / 3)
        self.bias = nn.Parameter(torch.randn(EXPERTS, HIDDEN) / 3)
        for name, shape in (("ups", (INNER, HIDDEN)), ("gates", (INNER, HIDDEN)),
                            ("downs", (HIDDEN, INNER))):
            setattr(self, name, nn.ParameterList(torch.randn(shape) / 3 for _ in range(EXPERTS)))

    def forward(self, x):
        flat = x.reshape(-1, HIDDEN)
        if self.route is None:
            w, i = self.gate(flat).softmax(-1).topk(CHOICES, -1)
            w = w / w.sum(-1, keepdim=True)
        else:
            w, i = self.route(self.gate(flat).softmax(-1))
        return self.form(self, flat, w, i).view(x.shape)


class Model(nn.Module):
    """Blocks of experts between an embedding and a head; it returns the mean squared distance of its
    results and the labels' words."""

    def __init__(self, *forms, expert=Expert, route=None):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, HIDDEN), nn.Linear(HIDDEN, WORDS)
        self.blocks = nn.ModuleList(Block(form, expert, route) for form in forms)

    def forward(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())
