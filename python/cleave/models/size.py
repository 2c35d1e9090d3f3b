# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The shape of a transformer of `cleave.models`."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Size:
    """The shape of a transformer."""

    #: Width of the residual stream, in elements.
    hidden: int = 768
    #: Query heads; each has hidden / heads channels.
    heads: int = 12
    #: Blocks; of an encoder-decoder, those of each of the two.
    layers: int = 12
    #: Number of positions of a sequence.
    seq: int = 1024
    #: Size of the vocabulary, or number of classes of images.
    vocab: int = 50257
    #: Key-value heads, a divisor of heads; None: as many as query heads.
    kv_heads: int | None = None
    #: Width between the two layers of a feed-forward part; None: the default of the
    #: family.
    ffn: int | None = None
    #: Probability of dropping an element, 0 <= p < 1.
    dropout: float = 0.0
    #: Whether the head's weight is the token embedding; None: the default of the
    #: family.
    tied: bool | None = None
    #: Experts of each feed-forward part that has some (switch, mixtral).
    experts: int = 8
    #: Blocks of which the last one has experts, a divisor of layers: 1 of all of them, 2 of
    #: every second one (switch, mixtral).
    every: int = 1
    #: Experts that each token chooses; None: the default of the family (switch 1,
    #: mixtral 2).
    choices: int | None = None
    #: Capacity of an expert, in units of its equal share of the tokens; 0: sufficient
    #: for all tokens; None: the default of the family (switch 1.25, mixtral 0).
    capacity: float | None = None
    #: Whether routing is noisy in training.
    noisy: bool = False
    #: Weight of the load-balancing loss.
    balance: float = 0.01
    #: Side of an image and of a patch, in pixels.
    image: int = 224
    patch: int = 16

    def __post_init__(self) -> None:
        for name in ("hidden", "heads", "layers", "seq", "vocab", "image", "patch", "kv_heads",
                     "ffn", "experts", "choices", "every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        self.kv_heads = self.kv_heads or self.heads
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads "
                             f"({self.kv_heads})")
        if self.choices is not None and self.choices > self.experts:
            raise ValueError(f"choices ({self.choices}) must not exceed experts ({self.experts})")
        if self.capacity is not None and self.capacity < 0:
            raise ValueError(f"capacity is {self.capacity}; it must not be negative")
        if self.layers % self.every:
            raise ValueError(f"layers ({self.layers}) must be a multiple of every ({self.every})")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must be at least 0 and below 1")
