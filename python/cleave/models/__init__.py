# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models of any size, as plain PyTorch modules.

`gpt`, `llama`, `switch`, `mixtral`, `bert`, `vit` and `t5` return a transformer whose forward
takes inputs and labels and returns (loss, logits); labels of -100 are ignored. The command
`python -m cleave.models` traces one without allocating its weights. `dlrm` returns a model that
recommends.

`size` has the arguments, `layers` what the transformers have in common, `causal`, `encoders` and
`encoder_decoder` the models; `recommender` has the sizes and the model of `dlrm`.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from .causal import CausalModel, blocks_of
from .encoder_decoder import EncoderDecoderModel
from .encoders import ImageModel, MaskedModel
from .recommender import Recommender, RecommenderSize
from .size import Size


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
    """A `gpt` whose feed-forward parts are experts, or one of `every`; arguments of `Size`."""
    return CausalModel(_routed(size, choices=1, capacity=1.25), rotary=False, sparse=True)


def mixtral(**size) -> nn.Module:
    """A `llama` whose feed-forward parts are experts with SwiGLU (arXiv 2401.04088): a token
    chooses two of them by default, and they take any number; arguments of `Size`."""
    return CausalModel(_routed(size, choices=2, capacity=0.0), rotary=True, sparse=True)


def _routed(arguments: dict, **defaults) -> Size:
    """The size with a family's defaults for what is None."""
    size = Size(**arguments)
    return dataclasses.replace(size, **{name: default for name, default in defaults.items()
                                        if getattr(size, name) is None})


def t5(**size) -> nn.Module:
    """An encoder and a decoder (arXiv 1910.10683) of `layers` blocks each, both of sequences
    of `seq` tokens; arguments of `Size`."""
    return EncoderDecoderModel(Size(**size))


def dlrm(**size) -> nn.Module:
    """Tables of embeddings beside dense features, for clicks (arXiv 1906.00091); arguments of
    `recommender.RecommenderSize`."""
    return Recommender(RecommenderSize(**size))


FAMILIES = {"gpt": gpt, "llama": llama, "switch": switch, "mixtral": mixtral, "bert": bert,
            "vit": vit, "t5": t5}


def blocks_of_layer(family: str, size: Size) -> int:
    """The number of blocks of each layer of the lists `LAYERS` of a family."""
    return blocks_of(size, family in ("switch", "mixtral"))


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
