# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models of any size, as plain PyTorch modules.

The functions of `FAMILIES` return a model whose forward takes inputs and labels and returns
(loss, logits); labels of -100 are ignored. The command `python -m cleave.models` traces one
without allocating its weights. `dlrm` returns a model that recommends.

`size` has the arguments, `presets` those of published models. `layers` has what the transformers
have in common, `latent`, `mixtures` and `state_space` parts of some; `causal` is the decoder,
`decoders` the parts of its families; `encoders` and `encoder_decoder` are the other models.
`recommender` has the sizes and the model of `dlrm`.
"""

from __future__ import annotations

import torch
from torch import nn

from . import decoders
from .causal import CausalModel
from .encoder_decoder import EncoderDecoderModel
from .encoders import ImageModel, MaskedModel
from .recommender import Recommender, RecommenderSize
from .size import Size

#: Defaults of a family for what is not given or None, and differs from those of `Size`.
DEFAULTS: dict[str, dict] = {
    "switch": dict(choices=1, capacity=1.25, balance=0.01),
    "mixtral": dict(choices=2, capacity=0.0, balance=0.01),
    "qwen3_moe": dict(choices=2, capacity=0.0, balance=0.001, rope_base=1e6),
    "deepseek_v3": dict(choices=2, capacity=0.0, balance=0.0001, dense=3),
    "gpt_oss": dict(choices=2, capacity=0.0, balance=0.0, window=128, rope_base=150000.0,
                    rope_factor=32.0),
    "gemma2": dict(window=4096),
    "mamba2": dict(head_width=64),
}


def size_of(family: str, settings: dict) -> Size:
    """The size of a family's model, of arguments of `Size`."""
    given = {name: value for name, value in settings.items() if value is not None}
    return Size(**{**DEFAULTS.get(family, {}), **given})


def _decoder(family: str, settings: dict, design, **variant) -> nn.Module:
    size = size_of(family, settings)
    return CausalModel(size, design(size, **variant), *blocks_of_layer(family, size))


def gpt(**size) -> nn.Module:
    """A decoder with learned positions, LayerNorm and gelu; arguments of `Size`."""
    return _decoder("gpt", size, decoders.plain, rotary=False)


def llama(**size) -> nn.Module:
    """A decoder with rotary positions, RMSNorm and SwiGLU; arguments of `Size`."""
    return _decoder("llama", size, decoders.plain, rotary=True)


def bert(**size) -> nn.Module:
    """A masked language model; arguments of `Size`."""
    return MaskedModel(Size(**size))


def vit(**size) -> nn.Module:
    """An image classifier with `vocab` classes; arguments of `Size`."""
    return ImageModel(Size(**size))


def switch(**size) -> nn.Module:
    """A `gpt` whose feed-forward parts are experts, or one of `every`; arguments of `Size`."""
    return _decoder("switch", size, decoders.plain, rotary=False, sparse=True)


def mixtral(**size) -> nn.Module:
    """A `llama` whose feed-forward parts are experts with SwiGLU (arXiv 2401.04088): a token
    chooses two of them by default, and they take any number; arguments of `Size`."""
    return _decoder("mixtral", size, decoders.plain, rotary=True, sparse=True)


def qwen3_moe(**size) -> nn.Module:
    """A `mixtral` whose heads of queries and keys are normed (arXiv 2505.09388); arguments of
    `Size`."""
    return _decoder("qwen3_moe", size, decoders.plain, rotary=True, sparse=True, normed=True)


def deepseek_v3(**size) -> nn.Module:
    """Latent attention, and experts in groups beside shared ones (arXiv 2412.19437); arguments of
    `Size`."""
    return _decoder("deepseek_v3", size, decoders.deepseek)


def gpt_oss(**size) -> nn.Module:
    """Attention with sinks and windows, and experts with biases (arXiv 2508.10925); arguments of
    `Size`. `layers` are even."""
    return _decoder("gpt_oss", size, decoders.gpt_oss)


def gemma(**size) -> nn.Module:
    """Norms with an offset, and a gate of gelu (arXiv 2403.08295); arguments of `Size`."""
    return _decoder("gemma", size, decoders.gemma)


def gemma2(**size) -> nn.Module:
    """A `gemma` with bounds of scores and logits, and windows (arXiv 2408.00118); arguments of
    `Size`. `layers` are even."""
    return _decoder("gemma2", size, decoders.gemma2)


def mamba2(**size) -> nn.Module:
    """State-space layers, whose width is twice `hidden` (arXiv 2405.21060); arguments of `Size`,
    of which `heads` are not read."""
    return _decoder("mamba2", size, decoders.mamba2)


def t5(**size) -> nn.Module:
    """An encoder and a decoder (arXiv 1910.10683) of `layers` blocks each, both of sequences
    of `seq` tokens; arguments of `Size`."""
    return EncoderDecoderModel(Size(**size))


def dlrm(**size) -> nn.Module:
    """Tables of embeddings beside dense features, for clicks (arXiv 1906.00091); arguments of
    `recommender.RecommenderSize`."""
    return Recommender(RecommenderSize(**size))


FAMILIES = {"gpt": gpt, "llama": llama, "switch": switch, "mixtral": mixtral,
            "qwen3_moe": qwen3_moe, "deepseek_v3": deepseek_v3, "gpt_oss": gpt_oss,
            "gemma": gemma, "gemma2": gemma2, "mamba2": mamba2, "bert": bert, "vit": vit,
            "t5": t5}


def blocks_of_layer(family: str, size: Size) -> tuple[int, int]:
    """The blocks of each layer of the lists `LAYERS` of a family, and those before them. Layers
    that these do not make up are a ValueError."""
    blocks, leading = 1, 0
    if family in ("gpt_oss", "gemma2"):
        blocks = 2
    elif family == "deepseek_v3":
        leading = size.dense or 0
    elif family in ("switch", "mixtral", "qwen3_moe"):
        blocks = size.every
    if leading >= size.layers:
        raise ValueError(f"dense ({leading}) must be below layers ({size.layers})")
    if (size.layers - leading) % blocks:
        raise ValueError(f"layers ({size.layers}) must be a multiple of {blocks}")
    return blocks, leading


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
