# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Whole models written by hand, and the models of the package."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave.models
import cleave.trace
from cleave.testing.tools import interpret, optimize
from module_support import A, B, D, H, S, V, ids, scaled
from trace_support import check, count, entry_text, raised, relative, tensors_of, verify


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
    loss = raised(traced.mlir)
    assert loss.count("dropout = 2.000000e-01") == 2 and count(traced.mlir, "dropout") == 5
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
    assert count(traced.mlir, "patches") == 4 and count(traced.mlir, "attention") == 2


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


@pytest.mark.parametrize("family", ["bert", "gpt", "llama", "mixtral", "switch", "t5", "vit"])
def test_models_of_the_package(family):
    """The others, which transformers has too, are those of `test_package_decoders`."""
    size = dict(hidden=H, heads=A, layers=2, seq=S, vocab=V, image=8, patch=4)
    if family in ("llama", "mixtral"):
        size["kv_heads"] = 2
    if family in ("switch", "mixtral"):
        size["experts"] = 4
    if family == "switch":
        size.update(choices=2, capacity=1.0)
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
    # Two of the six are the causal ones of the decoder, by their bias.
    assert count(traced.mlir, "attention") == (6 if family == "t5" else 2)
    assert count(traced.mlir, "rope") == (4 if family in ("llama", "mixtral") else 0)
    assert ("causal" in raised(traced.mlir)) == (family not in ("bert", "vit"))
    assert count(traced.mlir, "top_k") == (2 if family in ("switch", "mixtral") else 0)


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
