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
    #: Weight of the load-balancing loss; None: the default of the family (switch, mixtral 0.01).
    balance: float | None = None
    #: Side of an image and of a patch, in pixels.
    image: int = 224
    patch: int = 16
    #: Channels of a head; None: hidden / heads. deepseek_v3: those without positions; mamba2: of
    #: the states, of which None is 64.
    head_width: int | None = None
    #: Base of the wavelengths of rotary positions; None: the default of the family.
    rope_base: float | None = None
    #: Factor by which YaRN (arXiv 2309.00071) stretches rotary positions; 1: none; None: the
    #: default of the family (gpt_oss 32).
    rope_factor: float | None = None
    #: Keys that a query of every second block sees (gemma2, gpt_oss), itself among them; None:
    #: the default of the family (gemma2 4096, gpt_oss 128).
    window: int | None = None
    #: Factor of gemma2's scores is 1 / sqrt of it; None: the channels of a head.
    score_width: int | None = None
    #: Rows that deepseek_v3 computes queries of, and keys and values of; None: 12 and 4 heads'.
    query_rank: int | None = None
    latent_rank: int | None = None
    #: Channels of a head with positions, and of its value (deepseek_v3); None: half of
    #: head_width, and head_width.
    rope_width: int | None = None
    value_width: int | None = None
    #: Leading blocks without experts (deepseek_v3); None: 3.
    dense: int | None = None
    #: Width of an expert (deepseek_v3), of which `shared` compute every token; None: such that
    #: the experts of a token are as wide as `ffn`.
    expert_ffn: int | None = None
    shared: int = 1
    #: Groups of experts, and those of them in which a token chooses (deepseek_v3).
    groups: int = 1
    chosen_groups: int = 1
    #: Factor of the experts' weights (deepseek_v3).
    expert_scale: float = 2.5
    #: By how much a step changes the correction of an expert's scores (deepseek_v3); 0: not.
    correction_rate: float = 0.0
    #: Channels of a state, groups of heads that read and write states alike, positions of a
    #: chunk of the scan, and taps of the convolution (mamba2).
    state: int = 128
    state_groups: int = 1
    chunk: int = 256
    taps: int = 4

    def __post_init__(self) -> None:
        for name in ("hidden", "heads", "layers", "seq", "vocab", "image", "patch", "kv_heads",
                     "ffn", "experts", "choices", "every", "head_width", "window", "score_width",
                     "query_rank", "latent_rank", "rope_width", "value_width", "expert_ffn",
                     "shared", "groups", "chosen_groups", "state", "state_groups", "chunk",
                     "taps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if self.head_width is None and self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads}), "
                             "or head_width be given")
        self.kv_heads = self.kv_heads or self.heads
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads "
                             f"({self.kv_heads})")
        if self.choices is not None and self.choices > self.experts:
            raise ValueError(f"choices ({self.choices}) must not exceed experts ({self.experts})")
        if self.experts % self.groups:
            raise ValueError(f"experts ({self.experts}) must be a multiple of groups "
                             f"({self.groups})")
        if self.chosen_groups > self.groups:
            raise ValueError(f"chosen_groups ({self.chosen_groups}) must not exceed groups "
                             f"({self.groups})")
        if self.capacity is not None and self.capacity < 0:
            raise ValueError(f"capacity is {self.capacity}; it must not be negative")
        if self.layers % self.every:
            raise ValueError(f"layers ({self.layers}) must be a multiple of every ({self.every})")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must be at least 0 and below 1")
