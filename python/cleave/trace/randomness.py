# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The results of random operators: numbers that are drawn, or the same in each run."""

from __future__ import annotations

import enum
import math

import torch


class Randomness(enum.Enum):
    """The results of the random operators of an entry."""

    #: Numbers of the generator.
    DRAWN = enum.auto()
    #: No randomness, as in evaluation: dropout keeps all elements, and uniform numbers are 0.5.
    NONE = enum.auto()
    #: Dropout keeps all elements, and uniform numbers follow from their place in the tensor, so
    #: that eager code can be run on the same (`counted`).
    COUNTED = enum.auto()


#: The uniform number at place k of a tensor is ((k * STRIDE) mod COUNT + 0.5) / COUNT: an odd
#: stride gives each of COUNT places another number, and neighbours ones that are far apart. All
#: steps are exact in f32.
COUNT = 1 << 23
STRIDE = 5184519


def counted(shape: tuple[int, ...], device: torch.device | None = None) -> torch.Tensor:
    """Returns the uniform numbers of `Randomness.COUNTED` in f32."""
    places = torch.arange(math.prod(shape), dtype=torch.int64, device=device)
    numbers = places.mul_(STRIDE).remainder_(COUNT).to(torch.float32)
    return numbers.add_(0.5).mul_(1 / COUNT).reshape(shape)
