# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Modules written by hand, with structure spelled in many ways."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave.models
import cleave.trace
from cleave.testing.tools import interpret, optimize
from trace_support import check, count, entry_text, relative, tensors_of, verify

B, S, H, A, V = 2, 6, 16, 4, 20
D = H // A


def ids(high=V, shape=(B, S), seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def scaled(module, seed=0):
    """The module with weights large enough that every part of it matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.1)
    return module


def language_loss(logits, targets):
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class Heads(nn.Module):
    """Projections around an attention that a test writes in its own way."""

    def __init__(self, attend, **buffers):
        super().__init__()
        self.embed = nn.Embedding(V, H)
        self.qkv = nn.Linear(H, 3 * H)
        self.out = nn.Linear(H, V)
        self.attend = attend
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, tokens, documents=None):
        extra = [] if documents is None else [documents]
        x = self.embed(tokens)
        q, k, v = (y.view(*tokens.shape, A, D).transpose(1, 2)
                   for y in self.qkv(x).split(H, dim=2))
        y = self.attend(self, q, k, v, *extra)
        return self.out(y.transpose(1, 2).reshape(*tokens.shape, H))


def attention_of(attend, documents=None, **buffers):
    """Traces and checks; returns the text of @loss and the traced model."""
    inputs = dict(tokens=ids(), documents=documents, target=ids(seed=1))
    inputs = {k: v for k, v in inputs.items() if v is not None}
    traced = check(scaled(Heads(attend, **buffers)), inputs, language_loss)
    return entry_text(traced.mlir), traced


def causal():
    return torch.ones(S, S).tril()


def softmax_attention(m, q, k, v):
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(D))
    scores = scores.masked_fill(m.tril[:, :, :S, :S] == 0, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def triu_attention(m, q, k, v):
    mask = torch.triu(torch.full((S, S), float("-inf")), diagonal=1)
    return ((q @ k.mT) / D ** 0.5 + mask).softmax(-1) @ v


def einsum_attention(m, q, k, v):
    scores = torch.einsum("bhqd,bhkd->bhqk", q * D ** -0.5, k)
    allowed = torch.arange(S)[:, None] >= torch.arange(S)[None, :]
    scores = torch.where(allowed, scores, torch.finfo(scores.dtype).min)
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(dim=-1), v)


def bmm_attention(m, q, k, v):
    q, k, v = (x.reshape(B * A, S, D) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)) * D ** -0.5
    scores = scores + (1.0 - torch.tril(torch.ones(S, S))) * -1e30
    return torch.bmm(F.softmax(scores, -1), v).view(B, A, S, D)


def library_attention(m, q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("attend, buffers", [
    (softmax_attention, dict(tril=causal().view(1, 1, S, S))),
    (triu_attention, {}), (einsum_attention, {}), (bmm_attention, {}), (library_attention, {}),
])
def test_causal_attention_in_many_spellings(attend, buffers):
    loss, traced = attention_of(attend, **buffers)
    assert loss.count("graph.attention") == 1 and " causal" in loss
    assert f"scale = {D ** -0.5}" in loss
    for absent in ("softmax", "mask %", "bias %tr", "graph.select", "tril"):
        assert absent not in loss


def test_window():
    def attend(m, q, k, v):
        distance = torch.arange(S)[:, None] - torch.arange(S)[None, :]
        mask = (distance >= 0) & (distance < 3)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    loss, _ = attention_of(attend)
    assert "causal, window = 3" in loss and "mask %" not in loss


def test_mask_that_is_no_pattern_stays_a_mask():
    def attend(m, q, k, v):
        distance = torch.arange(S)[:, None] - torch.arange(S)[None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=distance.abs() <= 2)
    loss, _ = attention_of(attend)
    assert " mask %" in loss and "causal" not in loss


@pytest.mark.parametrize("number, printed", [
    (-1e4, " bias %"), (-1e9, " bias %"), (torch.finfo(torch.float32).min, " causal")])
def test_finite_numbers_exclude_where_that_is_the_same(number, printed):
    """-1e4 may still be the largest score of a row, the least number may not."""
    def attend(m, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(1 - m.tril) * number)
    loss, _ = attention_of(attend, tril=causal())
    assert printed in loss and " mask %" not in loss


def test_rows_without_keys_keep_finite_masks():
    """Where a row hides all its keys by a finite number, the scores choose."""
    def attend(m, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(1 - m.kept) * -1e30)
    kept = causal()
    kept[0] = 0
    loss, _ = attention_of(attend, kept=kept)
    assert " bias %" in loss and " mask %" not in loss and " causal" not in loss


def test_numbers_in_the_place_of_scores_stay_spelled_out():
    def attend(m, q, k, v):
        return (q @ k.mT * D ** -0.5).masked_fill(m.kept == 0, -1e30).softmax(-1) @ v
    kept = causal()
    kept[0] = 0
    loss, _ = attention_of(attend, kept=kept)
    assert "graph.attention" not in loss and "graph.softmax" in loss


def test_top_left_causal_with_fewer_queries_than_keys():
    def attend(m, q, k, v):
        y = F.scaled_dot_product_attention(q[:, :, :3], k, v, is_causal=True)
        return torch.cat([y, y], dim=2)
    loss, _ = attention_of(attend)
    assert " mask %" in loss


@pytest.mark.parametrize("additive", [False, True])
def test_documents_packed_in_one_row(additive):
    def attend(m, q, k, v, documents):
        same = documents[:, None, :, None] == documents[:, None, None, :]
        same = same & torch.ones(S, S, dtype=torch.bool).tril()
        if additive:
            return (q @ k.mT * D ** -0.5 + torch.zeros(B, 1, S, S).masked_fill(
                ~same, float("-inf"))).softmax(-1) @ v
        return F.scaled_dot_product_attention(q, k, v, attn_mask=same)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1], [4, 4, 5, 5, 5, 6]])
    loss, _ = attention_of(attend, documents)
    assert " segments %documents" in loss
    assert " causal" in loss and " mask %" not in loss


def test_linear_biases():
    def attend(m, q, k, v):
        distance = torch.arange(S)[None, :] - torch.arange(S)[:, None]
        bias = m.slopes[:, None, None] * distance
        bias = bias.masked_fill(distance > 0, float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])
    loss, _ = attention_of(attend, slopes=torch.tensor([0.5, 0.25, 0.125, 0.0625]))
    assert " bias %" in loss and " causal" in loss and " mask %" not in loss


def test_learned_bias():
    class Biased(Heads):
        def __init__(self):
            super().__init__(lambda m, q, k, v: (q @ k.mT * D ** -0.5 + m.table).softmax(-1) @ v)
            self.table = nn.Parameter(torch.randn(1, A, S, S))
    traced = check(scaled(Biased()), dict(tokens=ids(), target=ids(seed=1)), language_loss)
    loss = entry_text(traced.mlir)
    assert "bias %table" in loss and "softmax" not in loss


def test_shared_heads():
    def attend(m, q, k, v):
        k, v = (x[:, :2].repeat_interleave(2, dim=1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v)
    loss, _ = attention_of(attend)
    assert f"tensor<{B}x2x{S}x{D}xf32>, tensor<{B}x2x{S}x{D}xf32>) -> (tensor" in loss
    assert "broadcast" not in loss


# Whole models ----------------------------------------------------------------------


def rotate_half(x):
    low, high = x.chunk(2, -1)
    return torch.cat((-high, low), -1)


def rotate_pairs(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def rope_halves(x, cos, sin):
    return x * torch.cat((cos, cos), -1) + rotate_half(x) * torch.cat((sin, sin), -1)


def rope_split(x, cos, sin):
    x1, x2 = x.chunk(2, -1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)


def rope_pairs(x, cos, sin):
    cos, sin = (y.repeat_interleave(2, -1) for y in (cos, sin))
    return x * cos + rotate_pairs(x) * sin


def rope_stacked(x, cos, sin):
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    x1, x2 = pairs[..., 0], pairs[..., 1]
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), -1).flatten(-2)


@pytest.mark.parametrize("form", [rope_halves, rope_split, rope_pairs, rope_stacked])
def test_rotary_positions_in_many_spellings(form):
    def attend(m, q, k, v):
        angle = torch.arange(S).float()[:, None] * 100.0 ** -(torch.arange(0, D, 2) / D)
        q, k = form(q, angle.cos(), angle.sin()), form(k, angle.cos(), angle.sin())
        return F.scaled_dot_product_attention(q, k, v)
    loss, _ = attention_of(attend)
    assert loss.count("= graph.rope") == 2
    assert loss.count("interleaved") == (2 if form in (rope_pairs, rope_stacked) else 0)


class Norms(nn.Module):

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(H)), nn.Parameter(torch.rand(H))
        self.shift = nn.Parameter(torch.rand(H))
        self.library = nn.RMSNorm(H, eps=1e-5)

    def forward(self, x):
        x = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        x = x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-5) * (1 + self.shift)
        centred = x - x.mean(-1, keepdim=True)
        x = centred / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        x = self.library(x * self.weight + self.bias)
        return F.normalize(x, dim=-1) + F.layer_norm(x, (H,))


def test_norms_in_many_spellings():
    traced = check(Norms(), dict(x=torch.randn(B, S, H), target=torch.randn(B, S, H)), F.mse_loss)
    assert count(traced.mlir, "rms_norm") == 3 and count(traced.mlir, "layer_norm") == 2
    assert count(traced.mlir, "rsqrt") == 0


def gelu_new(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


def gelu_fast(x):
    return 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)))


def gelu_erf(x):
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def swish(x):
    return torch.sigmoid(x) * x


@pytest.mark.parametrize("form, printed", [
    (gelu_new, "graph.gelu %{} {{tanh}}"), (gelu_fast, "graph.gelu %{} {{tanh}}"),
    (gelu_erf, "graph.gelu %{} :"), (swish, "graph.silu %{} :"),
    (lambda x: x / (1 + torch.exp(-x)), "graph.silu %{} :"),
])
def test_activations_in_many_spellings(form, printed):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(H, 8)

        def forward(self, x):
            return form(self.up(x) + 1.0) * 2.0
    # 0.7978845608 is not sqrt(2 / pi) to more than ten digits.
    traced = check(scaled(Layer()), dict(x=torch.randn(B, H) * 3, target=torch.randn(B, 8)),
                   F.mse_loss, bound=1e-8)
    loss = entry_text(traced.mlir)
    assert printed.split("%")[0] in loss and printed.split("}")[-1] in loss
    assert not any(f"graph.{op} " in loss for op in ("tanh", "erf", "sigmoid", "exp"))


def test_activation_that_only_looks_alike_is_not_replaced():
    class Quick(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(H, 8)

        def forward(self, x):
            x = self.up(x)
            return x * torch.sigmoid(1.75 * x)
    traced = check(scaled(Quick()), dict(x=torch.randn(B, H), target=torch.randn(B, 8)),
                   F.mse_loss)
    assert count(traced.mlir, "sigmoid") == 1 and count(traced.mlir, "silu") == 0


class SmallGpt(nn.Module):
    """A decoder as many people write it, returning (logits, loss)."""

    def __init__(self, layers=2, dropout=0.0, flash=True):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, H), nn.Embedding(S, H)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(dict(ln1=nn.LayerNorm(H), qkv=nn.Linear(H, 3 * H, bias=False),
                               proj=nn.Linear(H, H), ln2=nn.LayerNorm(H), up=nn.Linear(H, 4 * H),
                               down=nn.Linear(4 * H, H))) for _ in range(layers))
        self.norm = nn.LayerNorm(H)
        self.head = nn.Linear(H, V, bias=False)
        self.head.weight = self.tokens.weight
        self.drop = nn.Dropout(dropout)
        self.flash, self.p = flash, dropout
        self.register_buffer("bias", torch.tril(torch.ones(S, S)).view(1, 1, S, S))

    def forward(self, idx, targets=None):
        b, s = idx.size()
        x = self.drop(self.tokens(idx) + self.positions(torch.arange(s, device=idx.device)))
        for block in self.blocks:
            q, k, v = (y.view(b, s, A, D).transpose(1, 2)
                       for y in block.qkv(block.ln1(x)).chunk(3, dim=-1))
            if self.flash:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                   dropout_p=self.p if self.training else 0)
            else:
                att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
                att = att.masked_fill(self.bias[:, :, :s, :s] == 0, float("-inf"))
                y = self.drop(F.softmax(att, dim=-1)) @ v
            y = y.transpose(1, 2).contiguous().view(b, s, H)
            x = x + self.drop(block.proj(y))
            x = x + self.drop(block.down(F.gelu(block.up(block.ln2(x)))))
        logits = self.head(self.norm(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, V), targets.view(-1), ignore_index=-1)
        return logits, loss


@pytest.mark.parametrize("flash", [True, False])
def test_decoder_that_returns_logits_and_loss(flash):
    traced = check(scaled(SmallGpt(flash=flash)), dict(idx=ids(), targets=ids(seed=1)),
                   call=lambda m, idx, targets: m(idx, targets)[::-1])
    assert count(traced.mlir, "attention") == 2 and "ignore_index = -1 " in traced.mlir
    assert [t.name for t in traced.buffers] == []
    # Rows stay [batch, position]; the position embedding is not looked up.
    assert count(traced.mlir, "gather") == 1
    assert f"tensor<{B}x{S}x{V}xf32>, tensor<{B}x{S}xi64>) -> (tensor" in traced.mlir


@pytest.mark.parametrize("flash", [True, False])
def test_dropout_in_attention_and_around_it(flash):
    traced = cleave.trace.trace(SmallGpt(dropout=0.2, flash=flash), (ids(), ids()))
    verify(traced)
    loss = entry_text(traced.mlir)
    assert loss.count("dropout = 0.2") == 2 and count(traced.mlir, "dropout") == 5
    assert "dropout" not in entry_text(traced.mlir, "logits")


def test_dropout_off_in_training_is_the_identity():
    module = SmallGpt(dropout=0.2)
    for child in module.modules():
        if isinstance(child, nn.Dropout):
            child.p = 0.0
    module.p = 0.0
    assert "rng" not in cleave.trace.trace(module, (ids(), ids())).mlir


def test_perceptron():
    module = nn.Sequential(nn.Linear(H, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(),
                           nn.Linear(32, 5))
    check(module, dict(input=torch.randn(7, H), target=torch.tensor([0, 1, 2, 3, 4, 0, 1])),
          nn.CrossEntropyLoss(label_smoothing=0.1))


def test_convolution_before_a_transformer():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
            self.point = nn.Conv2d(8, H, 1)
            self.line = nn.Conv1d(H, H, 3, padding="same", dilation=2)
            layer = nn.TransformerEncoderLayer(H, A, 32, dropout=0.0, batch_first=True,
                                               norm_first=True, activation="gelu")
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(H, 5)

        def forward(self, image):
            x = self.point(F.silu(self.depth(F.relu(self.stem(image)))))
            x = F.avg_pool2d(x, 2).flatten(2)
            x = self.line(x).transpose(1, 2)
            return self.head(self.encoder(x).mean(dim=1))
    traced = check(Mixed(), dict(image=torch.randn(B, 3, 16, 16), target=torch.tensor([1, 4])),
                   F.cross_entropy)
    assert count(traced.mlir, "patches") == 5 and count(traced.mlir, "attention") == 2


def test_frozen_base_with_low_rank_updates():
    class LowRank(nn.Module):
        def __init__(self, base, rank=2):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(rank, base.in_features))
            self.b = nn.Parameter(torch.randn(base.out_features, rank))

        def forward(self, x):
            return self.base(x) + (x @ self.a.T) @ self.b.T * 0.5

    module = SmallGpt()
    module.requires_grad_(False)
    for block in module.blocks:
        block["qkv"] = LowRank(block["qkv"])
    traced = check(scaled(module), dict(idx=ids(), targets=ids(seed=1)),
                   call=lambda m, idx, targets: m(idx, targets)[::-1])
    trained = [t.name for t in traced.parameters if not t.frozen]
    assert trained == [f"blocks.{i}.qkv.{n}" for i in range(2) for n in "ab"]
    frozen = [line for line in traced.mlir.splitlines() if "graph.frozen" in line]
    assert len(frozen) == 2 * (len(traced.parameters) - 4)


def test_parameter_that_the_loss_does_not_use_is_frozen():
    class Unused(nn.Linear):
        def __init__(self):
            super().__init__(H, 3)
            self.spare = nn.Parameter(torch.zeros(4))
    traced = check(Unused(), dict(input=torch.randn(B, H), target=torch.tensor([0, 1])),
                   F.cross_entropy)
    assert [t.frozen for t in traced.parameters] == [False, False, True]


class Operators(nn.Module):
    """Operators that no other test uses."""

    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.randn(4, 6))
        self.register_buffer("order", torch.tensor([2, 0, 1]), persistent=False)

    def forward(self, x, n):
        p = self.p
        total = (p.sin().cos() + p.clamp(-0.5, 0.5) + F.softplus(p) + F.leaky_relu(p) + F.elu(p)
                 + F.hardswish(p) + F.mish(p) + p.sigmoid().logit()).sum()
        total = total + p.amax(-1).sum() + p.std(-1).sum() + p.logsumexp(0).mean() + p.max(0)[0].sum()
        total = total + (p.roll(1, 0) * p.flip(0)).sum() + p.repeat(2, 3).var() + torch.outer(p[0], p[1]).sum()
        total = total + p[self.order].sum() * p[:, -1].sum() + p[1:, [1, 3]].sum()
        total = total + p.gather(1, n[:, None] % 6).sum() + F.one_hot(n % 6, 6).mul(p).sum()
        y = p.clone()
        y[:, 0] = 0.5
        y[1:3, 2:4] = p[:2, :2]
        total = total + (y * y).sum() + torch.where(p > 0, p, 2 * p).sum() + p.tril().sum() * p.triu(1).mean()
        total = total + torch.stack(p.unbind(0)[:2], -1).norm() + torch.cat([p, p ** 2], 1).cumsum(1).mean()
        total = total + F.pad(p, (1, 2, 0, 1), value=0.3).pow(3).sum() + (p ** 0.5).isnan().sum()
        total = total + torch.linspace(0, 1, 6).mul(p).sum() + (n // 2 - n.float().floor()).sum()
        total = total + torch.tensor([1.0, 2.0]).sum() + torch.einsum("ij,kj,k->i", p, p, x).sum()
        total = total + F.group_norm(p.view(1, 4, 6), 2).square().mean() + F.glu(p).sum()
        total = total + F.huber_loss(p, p * 2)
        largest, where = p.topk(3)
        smallest, first = p.topk(2, dim=0, largest=False)
        total = total + (largest * (where + 1)).sum() + (smallest * (first + 1)).sum()
        total = total + p.argmax() * p.min(1)[0].sum() + (p.max(1)[1] + p.argmin(1)).sum()
        total = total + torch.min(p, p.mean()).sum() + (p.histc(5, -1, 1) * p[0, :5]).sum()
        # Each row in an order of its own, and all rows in one order.
        own, shared = where, n[:3] % 4
        total = total + (p.gather(1, own) * p[:, :3]).sum()
        total = total + (p.gather(0, shared[:, None].expand(3, 6)) * p[:3]).sum()
        total = total + (p.scatter_add(1, own, largest) * p).sum()
        zeros = torch.zeros(5, 6)
        total = total + (zeros.scatter_add(0, shared[:, None].expand(3, 6), p[:3])[:4] * p).sum()
        return total


def test_operators():
    inputs = dict(x=torch.randn(4), n=torch.tensor([3, 8, 1, 5]))
    check(Operators(), inputs, call=lambda m, **values: (m(**values), None), logits=False)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("loss", [
    lambda r: lambda y, t: F.cross_entropy(y, t, ignore_index=2, reduction=r),
    lambda r: lambda y, t: F.cross_entropy(y, t, label_smoothing=0.2, reduction=r),
    lambda r: lambda y, t: F.cross_entropy(y, t, weight=torch.arange(1.0, 6.0).to(y.dtype), reduction=r),
    lambda r: lambda y, t: F.nll_loss(F.log_softmax(y, 1), t, ignore_index=2, reduction=r),
    lambda r: lambda y, t: F.nll_loss(y, t, reduction=r),
    lambda r: lambda y, t: F.cross_entropy(y, F.one_hot(t, 5).to(y.dtype) * 0.9, reduction=r),
    lambda r: lambda y, t: F.cross_entropy(y.view(2, 3, 5).transpose(1, 2), t.view(2, 3), reduction=r),
    lambda r: lambda y, t: F.smooth_l1_loss(y, F.one_hot(t, 5).to(y.dtype), reduction=r, beta=0.3),
    lambda r: lambda y, t: F.l1_loss(y, F.one_hot(t, 5).to(y.dtype), reduction=r),
    lambda r: lambda y, t: F.binary_cross_entropy_with_logits(y, F.one_hot(t, 5).to(y.dtype), reduction=r),
    lambda r: lambda y, t: F.kl_div(F.log_softmax(y, 1), F.one_hot(t, 5).to(y.dtype), reduction=r),
])
def test_losses(loss, reduction):
    # In f64, so that no constant is rounded.
    check(nn.Linear(H, 5).double(),
          dict(input=torch.randn(6, H).double(), target=torch.tensor([0, 4, 2, 1, 2, 3])),
          loss(reduction))


def test_mean_is_a_sum_divided_by_the_count_of_valid_rows():
    traced = cleave.trace.trace(nn.Linear(H, 5), (torch.randn(6, H), torch.zeros(6, dtype=torch.int64)),
                                F.cross_entropy)
    lines = [line.split("loc(")[0].split() for line in entry_text(traced.mlir).splitlines()]
    ops = [words[2] for words in lines if len(words) > 2 and words[1] == "="]
    assert ops == ["graph.linear", "graph.cross_entropy", "graph.reduce", "graph.constant",
                   "graph.compare", "graph.cast", "graph.reduce", "graph.div"]


@pytest.mark.parametrize("family", cleave.models.FAMILIES)
def test_models_of_the_package(family):
    size = dict(hidden=H, heads=A, layers=2, seq=S, vocab=V, image=8, patch=4)
    if family == "llama":
        size["kv_heads"] = 2
    if family == "switch":
        size.update(experts=4, choices=2, capacity=1.0)
    module = scaled(cleave.models.FAMILIES[family](**size))
    inputs = cleave.models.example_inputs(family, B, cleave.models.Size(**size))
    generator = torch.Generator().manual_seed(3)
    for name, value in inputs.items():
        if value.is_floating_point():
            inputs[name] = torch.randn(value.shape, generator=generator)
        elif name != "attention_mask":
            inputs[name] = torch.randint(0, V, value.shape, generator=generator)
    if family == "bert":
        inputs["attention_mask"][1, 4:] = 0
    traced = check(module, inputs, call=lambda m, **values: m(**values))
    assert count(traced.mlir, "attention") == 2
    assert count(traced.mlir, "rope") == (4 if family == "llama" else 0)
    assert (" causal" in traced.mlir) == (family in ("gpt", "llama", "switch"))
    assert count(traced.mlir, "top_k") == (2 if family == "switch" else 0)


class Detached(nn.Module):
    """Gradients come by one of two factors."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return (torch.tanh(self.a(x)).detach() * self.b(x)).square().mean()


def test_detach():
    torch.manual_seed(0)
    module = Detached()
    inputs = dict(x=torch.randn(5, 4))
    traced = check(module, inputs, call=lambda m, x: (m(x), None), logits=False)
    assert count(traced.mlir, "stop_gradient") == 1
    gradients = interpret(optimize(traced.mlir, "--graph-differentiate"),
                          tensors_of(traced, inputs), entry="train")[1]
    module.double()(inputs["x"].double()).backward()
    # Torch's optimizers skip what has no gradient, and so does a step.
    assert not {"a.weight", "a.bias"} & set(gradients) and module.a.weight.grad is None
    for name in ("weight", "bias"):
        assert relative(gradients[f"b.{name}"], getattr(module.b, name).grad) <= 1e-9
    module.float()
    step = cleave.compile(module, tuple(inputs.values()))
    loss = module(inputs["x"]).item()
    kept = {n: v for n, v in step.state_dict().items() if n.startswith("a.")}
    assert float(step.evaluate(inputs["x"])) == pytest.approx(loss, rel=1e-5)
    assert float(step(inputs["x"])) == pytest.approx(loss, rel=1e-5)
    for name, value in kept.items():
        assert torch.equal(step.state_dict()[name], value)
