# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Transformers of any size, as plain PyTorch modules.

`gpt`, `llama`, `switch`, `bert` and `vit` return a module whose forward takes inputs and
labels and returns (loss, logits); labels of -100 are ignored. The command
`python -m cleave.models` traces one without allocating its weights.
"""

from __future__ import annotations

import argparse
import math
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

from .model_size import Size
from .moe import Experts


class Attention(nn.Module):
    """Self-attention with grouped heads and, with `rotary`, rotated positions."""

    def __init__(self, size: Size, causal: bool, bias: bool, rotary: bool):
        super().__init__()
        self.heads, self.kv_heads = size.heads, size.kv_heads
        self.width = size.hidden // size.heads
        self.causal, self.rotary, self.dropout = causal, rotary, size.dropout
        self.query = nn.Linear(size.hidden, self.heads * self.width, bias=bias)
        self.key = nn.Linear(size.hidden, self.kv_heads * self.width, bias=bias)
        self.value = nn.Linear(size.hidden, self.kv_heads * self.width, bias=bias)
        self.output = nn.Linear(self.heads * self.width, size.hidden, bias=bias)

    def forward(self, x, table=None, mask=None):
        batch, positions, _ = x.shape

        def split(y, heads):
            return y.view(batch, positions, heads, self.width).transpose(1, 2)

        query = split(self.query(x), self.heads)
        key = split(self.key(x), self.kv_heads)
        value = split(self.value(x), self.kv_heads)
        if self.rotary:
            query, key = rotate(query, *table), rotate(key, *table)
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=self.causal,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.heads != self.kv_heads)
        return self.output(attended.transpose(1, 2).reshape(batch, positions, -1))


def rotate(x, cos, sin):
    """Rotary position embedding (arXiv 2104.09864) of [b, a, s, d]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def rotary_table(positions: int, width: int, device, base: float = 10000.0):
    """cos and sin of the angles, [positions, width] each."""
    index = torch.arange(0, width, 2, dtype=torch.float32, device=device)
    frequency = torch.exp(index * (-math.log(base) / width))
    angle = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * frequency
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


class FeedForward(nn.Module):
    """Two layers with gelu between them, or with `gated` the SwiGLU."""

    def __init__(self, size: Size, gated: bool, bias: bool, tanh: bool = False):
        super().__init__()
        inner = size.ffn or (_swiglu_width(size.hidden) if gated else 4 * size.hidden)
        self.gate = nn.Linear(size.hidden, inner, bias=bias) if gated else None
        self.up = nn.Linear(size.hidden, inner, bias=bias)
        self.down = nn.Linear(inner, size.hidden, bias=bias)
        self.approximate = "tanh" if tanh else "none"

    def forward(self, x):
        if self.gate is not None:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


def _swiglu_width(hidden: int) -> int:
    """Two thirds of four times `hidden`, up to a multiple of 256."""
    return math.ceil(8 * hidden / 3 / 256) * 256


class Block(nn.Module):
    """Attention and feed-forward with residual connections; with `post` the norms
    follow each sum instead of preceding each part."""

    def __init__(self, size: Size, attention: Attention, feed_forward: FeedForward, norm,
                 post: bool = False):
        super().__init__()
        self.norm1, self.attention = norm(size.hidden), attention
        self.norm2, self.feed_forward = norm(size.hidden), feed_forward
        self.dropout = nn.Dropout(size.dropout)
        self.post = post

    def forward(self, x, table=None, mask=None, losses=None):
        """The feed-forward part may have a loss of its own, which is appended to the
        list `losses`."""
        if self.post:
            x = self.norm1(x + self.dropout(self.attention(x, table, mask)))
            return self.norm2(x + self.dropout(self.feed_forward(x)))
        x = x + self.dropout(self.attention(self.norm1(x), table, mask))
        y = self.feed_forward(self.norm2(x))
        if losses is not None:
            y, loss = y
            losses.append(loss)
        return x + self.dropout(y)


def next_token_loss(logits, labels):
    """Mean cross entropy of predicting position i + 1 of `labels` at i."""
    targets = F.pad(labels[:, 1:], (0, 1), value=-100)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class CausalModel(nn.Module):
    """A decoder: from tokens to logits of the next token."""

    def __init__(self, size: Size, *, rotary: bool, sparse: bool = False):
        super().__init__()
        self.balance = size.balance if sparse else None
        self.width = size.hidden // size.heads
        if rotary and self.width % 2:
            raise ValueError(f"hidden / heads is {self.width}; rotary positions turn pairs of "
                             "channels, so it must be even")
        norm = (lambda n: nn.RMSNorm(n, eps=1e-5)) if rotary else nn.LayerNorm
        self.tokens = nn.Embedding(size.vocab, size.hidden)
        self.positions = None if rotary else nn.Embedding(size.seq, size.hidden)
        self.dropout = nn.Dropout(size.dropout)
        self.blocks = nn.ModuleList(
            Block(size, Attention(size, True, not rotary, rotary),
                  Experts(size.hidden, size.ffn or 4 * size.hidden, size.experts,
                          choices=size.choices, capacity=size.capacity or None,
                          noisy=size.noisy) if sparse
                  else FeedForward(size, rotary, not rotary, tanh=True), norm)
            for _ in range(size.layers))
        self.norm = norm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocab, bias=False)
        tied = (not rotary) if size.tied is None else size.tied
        initialize(self, size.layers)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, input_ids, labels):
        length = input_ids.shape[1]
        x = self.tokens(input_ids)
        table = None
        if self.positions is not None:
            x = x + self.positions(torch.arange(length, device=input_ids.device))
        else:
            table = rotary_table(length, self.width, input_ids.device)
        x = self.dropout(x)
        losses = None if self.balance is None else []
        for block in self.blocks:
            x = block(x, table, losses=losses)
        logits = self.head(self.norm(x))
        loss = next_token_loss(logits, labels)
        if losses:
            loss = loss + self.balance * sum(losses)
        return loss, logits


class MaskedModel(nn.Module):
    """An encoder: from tokens, some of them masked, to logits of the masked ones."""

    def __init__(self, size: Size):
        super().__init__()
        self.tokens = nn.Embedding(size.vocab, size.hidden)
        self.positions = nn.Embedding(size.seq, size.hidden)
        self.norm = nn.LayerNorm(size.hidden)
        self.dropout = nn.Dropout(size.dropout)
        self.blocks = nn.ModuleList(
            Block(size, Attention(size, False, True, False), FeedForward(size, False, True),
                  nn.LayerNorm, post=True) for _ in range(size.layers))
        self.transform = nn.Linear(size.hidden, size.hidden)
        self.transform_norm = nn.LayerNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocab)
        initialize(self, size.layers)
        if size.tied is not False:
            self.head.weight = self.tokens.weight

    def forward(self, input_ids, attention_mask, labels):
        x = self.tokens(input_ids)
        x = x + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        x = self.dropout(self.norm(x))
        mask = attention_mask.bool()[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask=mask)
        logits = self.head(self.transform_norm(F.gelu(self.transform(x))))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


class ImageModel(nn.Module):
    """An encoder of image patches that classifies by a class token."""

    def __init__(self, size: Size):
        super().__init__()
        if size.patch > size.image:
            raise ValueError(f"a patch of {size.patch} pixels is larger than an image of "
                             f"{size.image}")
        count = (size.image // size.patch) ** 2
        self.patches = nn.Conv2d(3, size.hidden, size.patch, size.patch)
        self.summary = nn.Parameter(torch.zeros(1, 1, size.hidden))
        self.positions = nn.Parameter(torch.zeros(1, count + 1, size.hidden))
        self.dropout = nn.Dropout(size.dropout)
        self.blocks = nn.ModuleList(
            Block(size, Attention(size, False, True, False), FeedForward(size, False, True),
                  nn.LayerNorm) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocab)
        initialize(self, size.layers)
        for parameter in (self.summary, self.positions):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, pixel_values, labels):
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat((self.summary.expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x[:, 0]))
        return F.cross_entropy(logits, labels), logits


def initialize(module: nn.Module, layers: int) -> None:
    """Normal weights of deviation 0.02, smaller for the last layer of a block's
    part."""
    for name, child in module.named_modules():
        if isinstance(child, (nn.Linear, nn.Embedding)):
            last = name.endswith((".output", ".down"))
            nn.init.normal_(child.weight, std=0.02 / math.sqrt(2 * layers) if last else 0.02)
        if isinstance(child, nn.Linear) and child.bias is not None:
            nn.init.zeros_(child.bias)


def gpt(**size) -> nn.Module:
    """A decoder with learned positions, LayerNorm and gelu; arguments of `Size`."""
    return CausalModel(Size(**size), rotary=False)


def llama(**size) -> nn.Module:
    """A decoder with rotary positions, RMSNorm and SwiGLU; arguments of `Size`."""
    return CausalModel(Size(**size), rotary=True)


def bert(**size) -> nn.Module:
    """A masked language model; arguments of `Size`."""
    return MaskedModel(Size(**size))


def vit(**size) -> nn.Module:
    """An image classifier with `vocab` classes; arguments of `Size`."""
    return ImageModel(Size(**size))


def switch(**size) -> nn.Module:
    """A `gpt` whose feed-forward parts are experts; arguments of `Size`."""
    return CausalModel(Size(**size), rotary=False, sparse=True)


FAMILIES = {"gpt": gpt, "llama": llama, "bert": bert, "vit": vit, "switch": switch}


def example_inputs(family: str, batch: int, size: Size, device: str = "cpu"):
    """Zeros of the shapes and types of a step's inputs, by name."""
    with torch.device(device):
        if family == "vit":
            return dict(pixel_values=torch.zeros(batch, 3, size.image, size.image),
                        labels=torch.zeros(batch, dtype=torch.int64))
        ids = torch.zeros(batch, size.seq, dtype=torch.int64)
        if family == "bert":
            return dict(input_ids=ids, attention_mask=torch.ones_like(ids),
                        labels=ids.clone())
        return dict(input_ids=ids, labels=ids.clone())


# The command ----------------------------------------------------------------------

_EPILOG = """example:
  python -m cleave.models gpt --hidden 768 --heads 12 --layers 12 --seq 1024 \\
      --vocab 50257 -o gpt.mlir

No weights are allocated unless --weights asks for initial ones.

exit status: 0, 1 for an error, 2 for a mistake in the arguments."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cleave.models", epilog=_EPILOG,
        description="Writes a transformer of any size as a Cleave module.",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("family", choices=sorted(FAMILIES))
    add("-o", "--output", metavar="FILE.mlir", required=True, help="the module to write")
    add("--batch", type=int, default=1, help="samples of a step (default: %(default)s)")
    add("--hidden", type=int, default=768, help="width (default: %(default)s)")
    add("--heads", type=int, default=12, help="query heads (default: %(default)s)")
    add("--kv-heads", type=int, help="key-value heads (default: as many as query heads)")
    add("--layers", type=int, default=12, help="blocks (default: %(default)s)")
    add("--ffn", type=int, help="width of the feed-forward part (default: 4 * hidden; llama: "
        "8/3 * hidden, up to a multiple of 256)")
    add("--seq", type=int, default=1024, help="positions (default: %(default)s)")
    add("--vocab", type=int, help="tokens, or classes of vit (default: 50257; vit: 1000)")
    add("--dropout", type=float, default=0.0, help="probability (default: %(default)s)")
    add("--experts", type=int, default=8, help="switch: experts (default: %(default)s)")
    add("--choices", type=int, default=1, help="switch: of a token (default: %(default)s)")
    add("--capacity", type=float, default=1.25, help="switch: places of an expert, in units of "
        "its equal share; 0: enough for all (default: %(default)s)")
    add("--noisy", action="store_true", help="switch: route with noise in training")
    add("--image", type=int, default=224, help="vit: side of an image (default: %(default)s)")
    add("--patch", type=int, default=16, help="vit: side of a patch (default: %(default)s)")
    add("--weights", metavar="FILE.safetensors", help="write initial weights too")
    add("--seed", type=int, default=0, help="of the initial weights (default: %(default)s)")
    options = parser.parse_args(arguments)
    vocab = options.vocab
    if vocab is None:
        vocab = 1000 if options.family == "vit" else 50257
    settings = dict(hidden=options.hidden, heads=options.heads, layers=options.layers,
                    seq=options.seq, vocab=vocab, kv_heads=options.kv_heads, ffn=options.ffn,
                    dropout=options.dropout, experts=options.experts, choices=options.choices,
                    capacity=options.capacity, noisy=options.noisy, image=options.image,
                    patch=options.patch)
    try:
        size = Size(**settings)
    except ValueError as error:
        parser.error(str(error))
    if options.batch < 1:
        parser.error("--batch must be at least 1")
    if not 0 <= options.seed < 2**63:
        parser.error("--seed must be at least 0 and below 2^63")
    if options.weights and os.path.realpath(options.weights) == os.path.realpath(options.output):
        parser.error(f"'{options.output}' cannot be both the module and its weights")
    return write(options, settings, size)


def write(options: argparse.Namespace, settings: dict, size: Size) -> int:
    from .trace import TraceError, UnsupportedError, trace
    from .trace.weights import check_writable, save_module, save_weights

    device = "cpu" if options.weights else "meta"
    try:
        check_writable(options.output)
        if options.weights:
            check_writable(options.weights)
        torch.manual_seed(options.seed)
        try:
            with torch.device(device):
                module = FAMILIES[options.family](**settings)
        except RuntimeError as error:
            # The sizes are above the limits of tensors, or of this machine's memory.
            raise ValueError(f"a model of this size cannot be built: {error}") from error
        traced = trace(module, example_inputs(options.family, options.batch, size, device))
        if options.weights:
            save_weights(traced, options.weights)
        save_module(traced, options.output)
    except (TraceError, UnsupportedError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    count = sum(t.tensor.numel() for t in traced.parameters)
    print(f"{options.output}: {len(traced.parameters)} parameters of {count:,} elements; inputs "
          + ", ".join(f"{n} {list(s)}" for n, (s, _) in traced.input_types.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
