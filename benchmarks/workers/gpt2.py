"""GPT-2 with linear layers that PyTorch's tensor parallelism can shard.

Queries, keys and values are separate matrix multiplications, each of which can be sharded by heads.
Sizes, initial weights and the loss are those of a transformers model.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.head_size = width // heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width) for _ in range(4)
        )

    def forward(self, x):
        """Maps [batch, sequence, width] to the same shape; the heads may be those of this
        rank."""
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads), Mlp(width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt2(nn.Module):
    """Maps token ids [batch, sequence] to logits; head and embedding share one weight."""

    def __init__(self, config):
        super().__init__()
        width = config.n_embd
        self.tokens = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Embedding(config.n_positions, width)
        self.blocks = nn.ModuleList(
            Block(width, config.n_head) for _ in range(config.n_layer)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, config.vocab_size, bias=False)
        self.tie()

    def tie(self):
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        places = torch.arange(ids.shape[1])
        x = self.tokens(ids) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def from_transformers(model):
    """Returns a Gpt2 with the sizes and weights of a GPT2LMHeadModel of transformers."""
    theirs = model.transformer
    ours = Gpt2(model.config)

    @torch.no_grad()
    def copy(layer, source, columns=slice(None)):
        # The library's linear layers store weights as [in, out].
        layer.weight.copy_(source.weight[:, columns].T)
        layer.bias.copy_(source.bias[columns])

    pairs = [(ours.tokens, theirs.wte), (ours.positions, theirs.wpe)]
    pairs += [(ours.norm, theirs.ln_f)]
    width = model.config.n_embd
    for block, source in zip(ours.blocks, theirs.h):
        pairs += [(block.norm1, source.ln_1), (block.norm2, source.ln_2)]
        attention, fused = block.attention, source.attn.c_attn
        for i, layer in enumerate((attention.query, attention.key, attention.value)):
            copy(layer, fused, slice(i * width, (i + 1) * width))
        copy(attention.out, source.attn.c_proj)
        copy(block.mlp.up, source.mlp.c_fc)
        copy(block.mlp.down, source.mlp.c_proj)
    for layer, source in pairs:
        layer.load_state_dict(source.state_dict())
    return ours


def next_tokens(ids):
    """Returns the labels of token ids [batch, sequence]: the next ids, and at the end -100,
    which the loss ignores."""
    return F.pad(ids[:, 1:], (0, 1), value=-100)
