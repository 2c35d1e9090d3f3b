# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Small models drawn by a seed: layers of many kinds, as people write them, and a loss.

They are made for comparisons of types, so that some compute in f32 what 16 bits lose.
"""

import random

import torch
import torch.nn.functional as F
from torch import nn

#: Samples, positions, width.
BATCH, LENGTH, WIDTH = 4, 8, 16


class Piece(nn.Module):
    """A function of the module and a tensor [batch, length, width]."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


def _linear(width=WIDTH, bias=True):
    return nn.Linear(WIDTH, width, bias=bias)


def _attention(m, x):
    q, k, v = (y.view(BATCH, LENGTH, 2, 8).transpose(1, 2) for y in m.qkv(x).chunk(3, -1))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return m.out(y.transpose(1, 2).reshape(x.shape))


def _attention_by_hand(m, x):
    q, k, v = m.qkv(x).chunk(3, -1)
    scores = torch.einsum("bqd,bkd->bqk", q, k) / 4
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    p = scores.masked_fill(mask, float("-inf")).softmax(-1, dtype=torch.float32).to(v.dtype)
    return m.out(p @ v)


def _rms(m, x):
    y = x.float()
    return m.a(y.mul(torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype))


def _norm_of_shifted(m, x):
    y = m.a(x).float() * 3 + 20
    variance = (y * y).mean(-1, keepdim=True) - y.mean(-1, keepdim=True) ** 2
    return m.b(((y - 20) * torch.rsqrt(variance + 1e-2)).to(x.dtype))


def _difference(m, x):
    return m.b(((m.a(x).float() + 100.0) - 100.0).to(x.dtype))


def _rotary(m, x):
    half = WIDTH // 2
    angle = torch.outer(torch.arange(LENGTH).float() + 500, 100.0 ** (-torch.arange(half) / half))
    a, b = m.a(x).chunk(2, -1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return m.b(torch.cat([a * cos - b * sin, a * sin + b * cos], -1))


def _gated(m, x):
    return m.out(F.silu(m.a(x)) * m.b(x))


def _experts(m, x):
    weights = F.softmax(m.router(x).float(), dim=-1)
    top, chosen = weights.topk(2, -1)
    gates = torch.zeros_like(weights).scatter(-1, chosen, top / top.sum(-1, keepdim=True))
    return torch.einsum("ble,bled->bld", gates.to(x.dtype), m.a(x).view(BATCH, LENGTH, 4, WIDTH))


def _pooled(m, x):
    segments = torch.arange(LENGTH) // 2
    sums = torch.zeros(BATCH, 4, WIDTH, dtype=x.dtype).index_add(1, segments, m.a(x).to(x.dtype))
    return m.b(sums)[:, segments]


def _convolution(m, x):
    return m.conv(x.transpose(1, 2)).transpose(1, 2)


def _outer(m, x):
    y = torch.einsum("bli,blj->blij", m.a(x)[..., :4], m.b(x)[..., :4]).reshape(x.shape)
    return m.out(y)


def _decayed(m, x):
    rate = -torch.exp(m.rate.float())
    decay = torch.exp(rate * F.softplus(m.a(x)).float())
    return m.b((decay * x.float()).cumsum(1).to(x.dtype))


def _one_hot(m, x):
    index = torch.arange(LENGTH).remainder(3)
    return m.a((F.one_hot(index, LENGTH).to(x.dtype) @ x))


def _parameter(*shape):
    return nn.Parameter(torch.randn(*shape) / 2)


#: The layers: a function that builds one.
PIECES = {
    "linear": lambda: _linear(),
    "mlp": lambda: nn.Sequential(_linear(32), nn.GELU(), nn.Linear(32, WIDTH)),
    "relu": lambda: nn.Sequential(_linear(), nn.ReLU()),
    "tanh": lambda: nn.Sequential(_linear(), nn.Tanh()),
    "sigmoid": lambda: nn.Sequential(_linear(), nn.Sigmoid(), _linear()),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "group norm": lambda: Piece(lambda m, x: m.norm(x.transpose(1, 2)).transpose(1, 2), norm=nn.GroupNorm(4, WIDTH)),
    "attention": lambda: Piece(_attention, qkv=_linear(3 * WIDTH), out=_linear()),
    "attention by hand": lambda: Piece(_attention_by_hand, qkv=_linear(3 * WIDTH), out=_linear()),
    "rms norm": lambda: Piece(_rms, a=_linear()),
    "norm of shifted": lambda: Piece(_norm_of_shifted, a=_linear(), b=_linear()),
    "difference": lambda: Piece(_difference, a=_linear(), b=_linear()),
    "rotary": lambda: Piece(_rotary, a=_linear(), b=_linear()),
    "gated": lambda: Piece(_gated, a=_linear(), b=_linear(), out=_linear()),
    "experts": lambda: Piece(_experts, a=_linear(4 * WIDTH), router=_linear(4)),
    "pooled": lambda: Piece(_pooled, a=_linear(), b=_linear()),
    "convolution": lambda: Piece(_convolution, conv=nn.Conv1d(WIDTH, WIDTH, 3, padding=1)),
    "outer": lambda: Piece(_outer, a=_linear(), b=_linear(), out=_linear()),
    "decayed": lambda: Piece(_decayed, a=_linear(), b=_linear(), rate=_parameter(WIDTH)),
    "one hot": lambda: Piece(_one_hot, a=_linear()),
    "sine": lambda: Piece(lambda m, x: m.b(torch.sin(m.a(x) * 3)), a=_linear(), b=_linear()),
    "scale": lambda: Piece(lambda m, x: x * m.scale + m.shift, scale=_parameter(WIDTH), shift=_parameter(LENGTH, WIDTH)),
    "dot": lambda: Piece(lambda m, x: m.a(x) * torch.dot(m.u, m.v), a=_linear(), u=_parameter(64), v=_parameter(64)),
    "soft cap": lambda: Piece(lambda m, x: (5 * torch.tanh(m.a(x).float() / 5)).to(x.dtype), a=_linear()),
}


def _cross_entropy(m, x, labels):
    return F.cross_entropy(m.head(x).float().flatten(0, 1), labels.flatten())


def _squares(m, x, labels):
    return (m.head(x).float() - labels[..., None].float() / 8).square().mean()


def _log_probabilities(m, x, labels):
    logits = m.head(x.mean(1))
    return -(torch.log_softmax(logits, -1).gather(1, labels[:, :1])).mean()


LOSSES = {"cross entropy": _cross_entropy, "squares": _squares, "log probabilities": _log_probabilities}


class Drawn(nn.Module):
    """Layers, some of them residual, between an embedding or a linear layer, and a loss."""

    def __init__(self, seed):
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.names = draw.choices(list(PIECES), k=draw.randint(2, 5))
        self.residual = [draw.random() < 0.5 for _ in self.names]
        self.loss = draw.choice(list(LOSSES))
        self.tokens = draw.random() < 0.5
        self.start = nn.Embedding(16, WIDTH) if self.tokens else nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(PIECES[n]() for n in self.names)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x, labels):
        x = self.start(x)
        for layer, residual in zip(self.layers, self.residual):
            x = x + layer(x) if residual else layer(x)
        return LOSSES[self.loss](self, x, labels)

    def described(self):
        layers = [f"+{n}" if r else n for n, r in zip(self.names, self.residual)]
        return ", ".join(["tokens" if self.tokens else "numbers", *layers, self.loss])


def drawn(seed):
    """A model and its inputs."""
    model = Drawn(seed)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 8, (BATCH, LENGTH), generator=generator)
    if model.tokens:
        return model, (torch.randint(0, 16, (BATCH, LENGTH), generator=generator), labels)
    return model, (torch.randn(BATCH, LENGTH, WIDTH, generator=generator), labels)
