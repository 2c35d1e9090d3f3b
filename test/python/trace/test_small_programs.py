# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Small programs as people write them, beside eager PyTorch: the loss and the gradient of every
parameter, or a refusal that says what and where."""

import dataclasses
import re

import pytest
import torch
import torch.nn.functional as F
from torch import distributions as D
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import cleave
from eager_support import X, Y, Two, compiled, eager, same


def attribute(name, make):
    """Gives a module a submodule or a buffer."""
    def prepare(module):
        value = make()
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            module.register_buffer(name, value)
        else:
            setattr(module, name, value)
    return prepare


def rows(x):
    """[8, 4] as two samples of four positions."""
    return x.view(2, 4, 4)


MASK = torch.tensor([[False, False, False, True], [False, False, True, True]])
CAUSAL = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)


def rope(m, x):
    q = torch.view_as_complex(rows(m.a(x)).reshape(2, 4, 2, 2))
    return torch.view_as_real(q * torch.view_as_complex(m.freqs)).reshape(8, 4) + m.b(x)


def frequencies():
    angles = torch.outer(torch.arange(4.0), torch.tensor([1.0, 0.1]))
    return torch.view_as_real(torch.polar(torch.ones_like(angles), angles))


def encoder_layer(norm_first=False, activation="relu"):
    return nn.TransformerEncoderLayer(4, 2, 8, 0.0, activation, batch_first=True, norm_first=norm_first)


def decoder(m, x):
    y = rows(m.a(x))
    return m.inner(y, rows(m.b(x)), tgt_mask=nn.Transformer.generate_square_subsequent_mask(4),
                   tgt_is_causal=True, memory_key_padding_mask=MASK).reshape(8, 4)


def inner(make):
    return attribute("inner", make)


def heads(**settings):
    return inner(lambda: nn.MultiheadAttention(4, 2, batch_first=True, **settings))


def head(m, x, **given):
    q = rows(m.a(x))
    return m.inner(q, q, q, **given)[0].reshape(8, 4) + m.b(x)


def in_place(m, x):
    y = m.a(x)
    y[:, 0] = y[:, 1] * 2
    y[2:4] += 1
    y.mul_(0.5)
    return m.b(y)


def written(m, x):
    y = m.a(x).clone()
    y[torch.tensor([0, 3]), torch.tensor([1, 2])] = 3.0
    return m.b(y)


def put(m, x):
    y = m.a(x)
    return m.b(y.index_put((torch.tensor([1, 1, 5]),), y[:3], accumulate=True))


def ema(m, x):
    y = m.a(x)
    if m.training:
        with torch.no_grad():
            m.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
    return m.b(y - m.mean)


def functional(m, x):
    return m.b(torch.func.functional_call(m.a, {"weight": m.b.weight, "bias": m.a.bias}, (x,)))


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    other: torch.Tensor | None = None


def tied(m):
    m.b.weight = m.a.weight


def listed(m, x):
    for i, (a, b) in enumerate(zip(m.layers, reversed(m.layers))):
        x = a(x) + i * torch.tanh(b(x))
    return x


def ctc(m, x):
    log = m.a(x).view(4, 2, 4).log_softmax(-1)
    loss = F.ctc_loss(log, torch.tensor([[1, 2], [3, 1]]), torch.tensor([4, 4]), torch.tensor([2, 1]))
    return m.b(x) + loss


def conv(m, x):
    return m.b(m.inner(m.a(x).view(2, 4, 4)).reshape(8, 4))


def half(m, x):
    y = m.a(x)
    return m.b(torch.where(y > 0, y, 0.5))


#: Name to (forward, what the module has beside its two layers).
PROGRAMS = {
    "rope": (rope, attribute("freqs", frequencies)),
    "encoder": (lambda m, x: m.inner(rows(m.a(x)), src_key_padding_mask=MASK).reshape(8, 4) + m.b(x),
                inner(lambda: nn.TransformerEncoder(encoder_layer(), 2))),
    "encoder causal": (lambda m, x: m.inner(rows(m.a(x)), mask=CAUSAL, is_causal=True).reshape(8, 4) + m.b(x),
                       inner(lambda: nn.TransformerEncoder(encoder_layer(True, "gelu"), 1, enable_nested_tensor=False))),
    "decoder": (decoder, inner(lambda: nn.TransformerDecoder(
        nn.TransformerDecoderLayer(4, 2, 8, 0.0, batch_first=True), 1))),
    "heads": (lambda m, x: head(m, x, need_weights=False), heads()),
    "heads bool mask": (lambda m, x: head(m, x, attn_mask=CAUSAL), heads()),
    "heads padding": (lambda m, x: head(m, x, key_padding_mask=MASK), heads()),
    "heads both": (lambda m, x: head(m, x, key_padding_mask=MASK, attn_mask=CAUSAL, need_weights=False),
                   heads(add_bias_kv=True)),
    "heads float mask": (lambda m, x: head(m, x, attn_mask=torch.zeros(4, 4).masked_fill(CAUSAL, -1e4), average_attn_weights=False),
                         heads(bias=False)),
    "normal": (lambda m, x: -D.Normal(m.a(x), F.softplus(m.b(x))).log_prob(x), None),
    "categorical": (lambda m, x: -D.Categorical(logits=m.a(x)).log_prob(x.argmax(-1))[:, None] + m.b(x),
                    None),
    "categorical entropy": (lambda m, x: D.Categorical(logits=m.a(x)).entropy()[:, None] * m.b(x),
                            None),
    "bernoulli": (lambda m, x: -D.Bernoulli(logits=m.a(x)).log_prob((x > 0).float()) + m.b(x),
                  None),
    "kl normal": (lambda m, x: D.kl_divergence(D.Normal(m.a(x), m.b(x).exp()), D.Normal(0.0, 1.0)),
                  None),
    "kl categorical": (lambda m, x: D.kl_divergence(D.Categorical(logits=m.a(x)), D.Categorical(logits=m.b(x)))[:, None].expand(8, 4),
                       None),
    "laplace": (lambda m, x: -D.Laplace(m.a(x), m.b(x).exp()).log_prob(x), None),
    "independent": (lambda m, x: -D.Independent(D.Normal(m.a(x), m.b(x).exp()), 1).log_prob(x)[:, None].expand(8, 4),
                    None),
    "einsum one": (lambda m, x: torch.einsum("bi,bi->bi", m.a(x), m.b(x)[:, :1]), None),
    "einsum ellipsis": (lambda m, x: torch.einsum("...i,ji->...j", rows(m.a(x)), m.b.weight).reshape(8, 4),
                        None),
    "einsum diagonal": (lambda m, x: torch.einsum("ii,bi->bi", m.a.weight, m.b(x)), None),
    "topk ties": (lambda m, x: m.b(x) * (m.a(x).round().relu() * m.a(x)).topk(2, -1)[0].sum(-1, keepdim=True),
                  None),
    "sort": (lambda m, x: m.b(m.a(x).sort(dim=-1, descending=True, stable=True)[0]), None),
    "argsort": (lambda m, x: m.b(x).gather(1, m.a(x).argsort(-1)), None),
    "max ties": (lambda m, x: m.b(x) + m.a(x).relu().amax(0), None),
    "median": (lambda m, x: m.b(x) + m.a(x).median(1, keepdim=True)[0], None),
    "weight norm": (lambda m, x: m.b(m.a(x)), lambda m: parametrizations.weight_norm(m.a)),
    "spectral norm eval": (lambda m, x: m.b(m.a(x)), lambda m: parametrizations.spectral_norm(m.a).eval()),
    "orthogonal scale": (lambda m, x: m.b(m.a(x)) * m.scale,
                         attribute("scale", lambda: nn.Parameter(torch.tensor(2.0)))),
    "in place": (in_place, None),
    "written": (written, None),
    "index put": (put, None),
    "index add": (lambda m, x: m.b(m.a(x).index_add(0, torch.tensor([1, 1]), x[:2], alpha=2)),
                  None),
    "index copy": (lambda m, x: m.b(m.a(x).index_copy(0, torch.tensor([1, 4]), x[:2])), None),
    "index fill": (lambda m, x: m.b(m.a(x).index_fill(1, torch.tensor([1]), 2.0)), None),
    "masked fill": (lambda m, x: m.b(m.a(x).masked_fill((x > 0) & ~(x > 1) | (x < -1), -2.0)),
                    None),
    "masked scatter constant": (lambda m, x: m.b(m.a(x) * torch.logical_xor(x > 0, x > 0.5)), None),
    "scatter": (lambda m, x: m.b(m.a(x).scatter(1, torch.tensor([[0, 2]] * 8), x[:, :2])), None),
    "scatter add": (lambda m, x: m.b(m.a(x).scatter_add(1, torch.tensor([[0, 0]] * 8), m.b(x)[:, :2])),
                    None),
    "scatter reduce mean": (lambda m, x: m.b(m.a(x).scatter_reduce(0, torch.tensor([[0, 1, 1, 0]] * 8), x * m.b.bias, "mean")),
                            None),
    "scatter reduce amax": (lambda m, x: m.b(m.a(x).scatter_reduce(0, torch.tensor([[0, 1, 1, 0]] * 8), m.b(x), "amax")),
                            None),
    "scatter reduce amin": (lambda m, x: m.b(m.a(x).scatter_reduce(0, torch.tensor([[0, 1, 1, 0]] * 8), m.b(x), "amin", include_self=False)),
                            None),
    "cumsum": (lambda m, x: m.b(m.a(x).cumsum(0)), None),
    "cumprod": (lambda m, x: m.b(m.a(x).cumprod(1)), None),
    "cumprod zero": (lambda m, x: m.b((m.a(x) * (x > 0)).cumprod(1)), None),
    "cummax": (lambda m, x: m.b(m.a(x).cummax(1)[0]), None),
    "logcumsumexp": (lambda m, x: m.b(m.a(x).logcumsumexp(1)), None),
    "ctc": (ctc, None),
    "pad constant": (lambda m, x: m.b(F.pad(m.a(x), (1, -1, 0, 0), value=2.0)), None),
    "pad reflect": (lambda m, x: m.b(F.pad(rows(m.a(x)), (2, 1), mode="reflect")[..., 1:5].reshape(8, 4)),
                    None),
    "pad circular": (lambda m, x: m.b(F.pad(rows(m.a(x)), (2, 1), mode="circular")[..., 1:5].reshape(8, 4)),
                     None),
    "pad replicate": (lambda m, x: m.b(F.pad(rows(m.a(x)), (3, 0), mode="replicate")[..., 1:5].reshape(8, 4)),
                      None),
    "max pool": (lambda m, x: m.b(F.max_pool1d(rows(m.a(x)), 3, 1, 1).reshape(8, 4)), None),
    "avg pool": (lambda m, x: m.b(F.avg_pool1d(rows(m.a(x)), 3, 1, 1, count_include_pad=False).reshape(8, 4)),
                 None),
    "adaptive pool": (lambda m, x: m.b(F.adaptive_avg_pool1d(rows(m.a(x)), 3).repeat(1, 1, 2)[..., :4].reshape(8, 4)),
                      None),
    "lp pool": (lambda m, x: m.b(x) + F.lp_pool1d(rows(m.a(x)), 2.0, 4).reshape(8, 1), None),
    "group norm": (conv, inner(lambda: nn.GroupNorm(2, 4))),
    "instance norm": (conv, inner(lambda: nn.InstanceNorm1d(4, affine=True))),
    "instance norm running": (conv,
                              inner(lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True))),
    "batch norm": (lambda m, x: m.b(m.inner(torch.tanh(m.a(x)))), inner(lambda: nn.BatchNorm1d(4))),
    "batch norm cumulative": (lambda m, x: m.b(m.inner(torch.tanh(m.a(x))[:, :, None])[:, :, 0]),
                              inner(lambda: nn.BatchNorm1d(4, momentum=None))),
    "ema": (ema, attribute("mean", lambda: torch.zeros(4))),
    "tied": (lambda m, x: m.b(torch.tanh(m.a(x))), tied),
    "vmap": (lambda m, x: torch.func.vmap(lambda r: m.b(m.a(r)))(x), None),
    "functional call": (functional, None),
    "module list": (listed, attribute("layers", lambda: nn.ModuleList(nn.Linear(4, 4) for _ in range(3)))),
    "dict": (lambda m, x: {"logits": m.a(x), "other": m.b(x)}["logits"] + m.b(x), None),
    "dataclass": (lambda m, x: dataclasses.replace(Output(m.a(x)), other=m.b(x)).other + m.a(x),
                  None),
    "zero size": (lambda m, x: m.b(torch.cat([m.a(x)[:, :0], m.a(x)], 1)) + m.a(x)[:0].sum(), None),
    "zero-d": (lambda m, x: m.b(x) * m.a(x).mean() + m.s,
               attribute("s", lambda: nn.Parameter(torch.tensor(0.5)))),
    "python float": (lambda m, x: 2.5 - m.b(m.a(x) / 3 ** 0.5) ** 2, None),
    "where scalar": (half, None),
    "where both scalars": (lambda m, x: m.b(m.a(x) * torch.where(x > 0, 1.0, -1.0)), None),
    "clamp tensors": (lambda m, x: m.b(m.a(x).clamp(m.b.bias - 1, m.b.bias + 1)), None),
    "clamp one": (lambda m, x: m.b(m.a(x).clamp(min=x)), None),
    "sparse folded": (lambda m, x: m.b(m.a(x)) * torch.eye(8).to_sparse().to_dense()[:, :4], None),
    "nan to num": (lambda m, x: m.b(torch.nan_to_num(m.a(x))), None),
    "safe sqrt": (lambda m, x: m.b(torch.where(m.a(x) > 0, m.a(x).clamp(min=1e-3).sqrt(), 0.0)),
                  None),
    "norm of zero": (lambda m, x: m.b(x) + (m.a(x) * 0).norm(dim=-1, keepdim=True), None),
    "xlogy": (lambda m, x: m.b(torch.xlogy(m.a(x).relu(), m.b(x).exp())), None),
    "nansum": (lambda m, x: m.b(x) + m.a(x).nansum(-1, keepdim=True), None),
    "no grad": (lambda m, x: m.b(x) + m.a(x).detach() * m.a(x), None),
    "checkpoint": (lambda m, x: m.b(checkpoint(lambda y: torch.tanh(m.a(y)), x, use_reentrant=False)),
                   None),
    "unbind stack": (lambda m, x: torch.stack([m.b(r) for r in m.a(x).unbind(0)]), None),
    "tensor split": (lambda m, x: torch.cat([t * i for i, t in enumerate(m.b(m.a(x)).tensor_split(3, 1))], 1),
                     None),
    "roll flip": (lambda m, x: m.b(m.a(x).roll((1, 2), (0, 1)).flip(0)), None),
    "tril": (lambda m, x: m.b(x) @ m.a.weight.tril(-1), None),
    "bilinear": (lambda m, x: m.inner(m.a(x), m.b(x)), inner(lambda: nn.Bilinear(4, 4, 4))),
    "cdist": (lambda m, x: torch.cdist(m.a(x), m.b(x))[:, :4], None),
    "cosine": (lambda m, x: F.cosine_similarity(m.a(x), m.b(x))[:, None] + m.b(x), None),
    "prelu": (lambda m, x: m.b(m.inner(torch.tanh(m.a(x)))), inner(nn.PReLU)),
    "glu": (lambda m, x: m.b(F.glu(torch.cat([m.a(x), x], 1))), None),
    "repeat interleave": (lambda m, x: m.b(m.a(x)[:4].repeat_interleave(2, 0)), None),
    "addmm": (lambda m, x: torch.addmm(m.b.bias, m.a(x), m.b.weight, beta=0.5, alpha=2.0), None),
    "unfold": (lambda m, x: m.b(m.a(x).unfold(1, 3, 1).sum(-1).repeat(1, 2)), None),
    "lstm cell": (lambda m, x: m.b(m.inner(m.a(x))[0]), inner(lambda: nn.LSTMCell(4, 4))),
    "embedding": (lambda m, x: m.b(m.inner((x[:, 0] > 0).long())) + m.a(x),
                  inner(lambda: nn.Embedding(2, 4, padding_idx=0))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name):
    forward, prepare = PROGRAMS[name]
    module = Two(forward, prepare)
    theirs = eager(module)
    same(compiled(module, check="off"), theirs)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return -g


def hooked(m, x):
    y = m.a(x)
    y.register_hook(lambda g: g * 2)
    return m.b(y)


def sparse(m, x):
    return m.b(torch.sparse.mm(torch.eye(8).to_sparse(), m.a(x)))


def branch(m, x):
    if m.a(x).sum() > 0:
        return m.b(x)
    return m.a(x)


def loop(m, x):
    for _ in range(int(x.sum().abs())):
        x = m.a(x)
    return m.b(x)


def selected(m, x):
    return m.b(m.a(x)[x[:, 0] > 0]).mean()[None].expand(8, 4)


def reverse(m, x):
    return m.b(Reversed.apply(m.a(x)))


VALUES = "depends on the values of a tensor"

#: Programs that are not traced, and why.
REFUSED = [
    (reverse, "Reversed is an autograd.Function whose backward is not the derivative"),
    (hooked, r"a hook on a tensor's gradient \(register_hook\)"),
    (sparse, r"an operand is not dense \(sparse_coo\); call to_dense\(\)"),
    (branch, VALUES),
    (loop, VALUES),
    (selected, VALUES),
]


@pytest.mark.parametrize("forward, reason", REFUSED)
def test_refused_with_a_line(forward, reason):
    line = forward.__code__.co_firstlineno
    with pytest.raises((cleave.trace.TraceError, cleave.trace.UnsupportedError), match=reason) as raised:
        cleave.trace.trace(Two(forward), (X, Y), F.mse_loss)
    said = re.findall(r"test_small_programs\.py:(\d+)", str(raised.value))
    assert said and line < int(said[0]) <= line + 4
