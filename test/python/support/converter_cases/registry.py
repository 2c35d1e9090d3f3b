# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Cases of converters: a function of tensors, whose value and gradients are compared.

A case is checked at the tensors that it gives: random ones, and edges of f32.
"""

import dataclasses
import math
from typing import Callable

import torch

inf, nan = math.inf, math.nan

#: Zeros, subnormal, tiny, usual, large and huge numbers, infinities and NaN.
EDGES = [0.0, -0.0, *(s * x for x in (1e-45, 1e-40, 1e-30, 1e-8, 1e-6, 1e-4, 0.01, 0.5, 1.0, 2.0, 3.0, 6.0, 10.0,
                                      16.0, 20.0, 21.0, 50.0, 90.0, 110.0, 1e4, 1e10, 1e30, inf)
                      for s in (1, -1)), nan]


def numbers(*values):
    return torch.tensor([float(v) for v in values])


def normal(*shape, seed=0, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def edges(*more):
    """The edges of f32, `more`, and some random numbers: one vector."""
    return torch.cat([numbers(*EDGES, *more), normal(14, scale=3.0)])


def pairs(*values):
    """Two vectors that hold every pair of `values`."""
    grid = torch.cartesian_prod(numbers(*values), numbers(*values))
    return grid[:, 0].clone(), grid[:, 1].clone()


#: Pairs in which each is below, equal to and above the other, and special numbers.
PAIRS = pairs(0.0, -0.0, 1e-30, 0.3, -0.3, 1.0, -1.0, 2.5, -7.0, 1e4, 1e30, -1e30, inf, -inf, nan)
#: The same without infinities and NaN.
FINITE_PAIRS = pairs(0.0, 1e-30, 0.3, -0.3, 1.0, -1.0, 2.5, -7.0, 1e4, -1e10)


@dataclasses.dataclass
class Case:
    """One function and the tensors of which it is one."""

    function: Callable[..., torch.Tensor]
    values: tuple[torch.Tensor, ...]
    #: Largest relative error, in units of 2^-24.
    ulps: float = 16
    #: What is added to the bound, as a share of the largest finite element: for
    #: sums, whose terms may cancel.
    share: float = 0.0
    #: Largest absolute error: for sums of terms that cancel altogether.
    floor: float = 0.0


#: The cases by name.
CASES: dict[str, Case] = {}


def case(name, function, *values, ulps=16, share=0.0, floor=0.0):
    assert name not in CASES, name
    CASES[name] = Case(function, values, ulps, share, floor)
