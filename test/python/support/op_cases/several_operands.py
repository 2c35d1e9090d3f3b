# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Ops of several operands in every pattern of broadcasting, comparisons, random numbers."""

import torch

from cleave.philox import dropout_mask, uniform
from op_cases.registry import case


def binary(name, compute, left=None, right=None):
    def draw(d):
        shape = d.shape()
        a, b = d.broadcastable(shape), d.broadcastable(shape)
        x = d.param(d.uniform(a, *left) if left else a)
        y = d.param(d.uniform(b, *right) if right else b)
        d.observe(d.op(name, [x, y], compute))
        if a == b:  # one tensor as both operands
            d.observe(d.op(name, [x, x], compute))

    draw.__name__ = name
    case(name)(draw)


binary("add", torch.add)
binary("sub", torch.sub)
binary("mul", torch.mul)
binary("div", torch.div, right=(0.5, 2.0))
binary("rem", torch.fmod, right=(0.5, 2.0))
binary("maximum", torch.maximum)
binary("minimum", torch.minimum)
binary("pow", torch.pow, left=(0.1, 3.0), right=(-2.0, 3.0))


@case("maximum", "minimum")
def ties(d):
    """Between equals the gradient is halved."""
    shape = d.shape(1)
    x = d.param(d.integers(shape, -1, 1).double())
    y = d.param(d.integers(d.broadcastable(shape), -1, 1).double())
    d.observe(d.op("maximum", [x, y], torch.maximum))
    d.observe(d.op("minimum", [x, y], torch.minimum))


@case("pow")
def constant_powers(d):
    """Constant exponents, which also take negative bases, and bases of 0."""
    shape = d.shape()
    for exponent in (2.0, 3.0, 1.0, 0.0, -1.0):
        x = d.param(d.uniform(shape, -2.0, -0.5) if d.flag() else d.uniform(shape, 0.5, 2.0))
        power = d.constant(torch.tensor(exponent, dtype=torch.float64))
        d.observe(d.op("pow", [x, power], torch.pow))
    zeros = d.param(torch.zeros(3, dtype=torch.float64))
    squares = d.param(d.uniform([3], 1.5, 3.0))
    d.observe(d.op("pow", [zeros, squares], torch.pow))


COMPARISONS = [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge]


@case("compare", "select", "and", "or", "not")
def flags(d):
    shape = d.shape(1)
    x = d.param(d.integers(shape, -1, 1).double())
    y = d.param(d.integers(d.broadcastable(shape), -1, 1).double())
    predicate = d.integer(0, 5)
    first = d.op("compare", [x, y], COMPARISONS[predicate], {"predicate": f"!{predicate} : i32"})
    i = d.input(d.integers(d.broadcastable(shape), -1, 1))
    j = d.input(d.integers(shape, -1, 1))
    other = d.integer(0, 5)
    second = d.op("compare", [i, j], COMPARISONS[other], {"predicate": f"!{other} : i32"})
    both = d.op("and", [first, second], torch.logical_and)
    either = d.op("or", [first, second], torch.logical_or)
    neither = d.op("not", [either], torch.logical_not)
    for condition in (both, neither):
        a, b = d.param(d.broadcastable(shape)), d.param(d.broadcastable(shape))
        d.observe(d.op("select", [condition, a, b], torch.where))


@case("add", "sub", "mul", "div", "neg", "abs", "maximum", "minimum", "reduce", "cumulative_sum")
def integers(d):
    """Ops on integers, as values only."""
    shape = d.shape(1, 3)
    x, y = d.input(d.integers(shape, -9, 9)), d.input(d.integers(shape, 1, 4))
    d.observe(d.op("mul", [d.param([]), d.constant(torch.ones(shape, dtype=torch.float64))], torch.mul))
    for name, compute in {
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "maximum": torch.maximum,
        "minimum": torch.minimum,
    }.items():
        d.observe(d.op(name, [x, y], compute))
    d.observe(d.op("neg", [x], torch.neg), d.op("abs", [x], torch.abs))
    dim = d.integer(0, len(shape) - 1)
    for kind, compute in enumerate((torch.sum, torch.amax, torch.amin)):
        d.observe(d.op("reduce", [x], lambda t: compute(t, dim), {"kind": f"!{kind} : i32", "dims": [dim]}))
    d.observe(d.op("cumulative_sum", [x], lambda t: torch.cumsum(t, dim), {"dim": dim}))


@case("dropout")
def dropout(d):
    shape = d.shape(1, 4, 7)
    p, id = d.rng.uniform(0.1, 0.9), d.integer(0, 2**31 - 1)
    rng = d.input(torch.tensor([d.integer(0, 2**62), d.integer(1, 2**32)]))
    place = {}
    origin = None
    if d.flag():
        start = [d.integer(0, 9) for _ in shape]
        whole = [a + b + d.integer(0, 9) for a, b in zip(start, shape)]
        origin = d.input(torch.tensor(start))
        place = {"origin": start, "global_shape": whole}
    seed, step = rng.tensor.tolist()
    kept = torch.tensor(dropout_mask(shape, p, seed=seed, step=step, id=id, **place))
    attributes = {"probability": float(p), "id": id, "global_shape": place.get("global_shape")}
    x = d.param(shape)
    d.observe(d.op("dropout", [x, rng, origin, None], lambda x, *_: x * kept / (1 - p), attributes,
                   segments=True))


@case("dropout")
def dropout_of_pieces(d):
    """Pieces of the global tensor along one dimension, in another order."""
    shape = d.shape(1, 4, 7)
    dim, pieces = d.integer(0, len(shape) - 1), d.integer(1, 4)
    size, shape[dim] = shape[dim], shape[dim] * pieces
    order = torch.tensor(d.rng.permutation(pieces)) * size
    p, id = d.rng.uniform(0.1, 0.9), d.integer(0, 99)
    rng = d.input(torch.tensor([d.integer(0, 2**62), d.integer(1, 2**32)]))
    seed, step = rng.tensor.tolist()
    kept = torch.tensor(dropout_mask(shape, p, seed=seed, step=step, id=id))
    kept = torch.cat([kept.narrow(dim, int(at), size) for at in order], dim)
    x = d.param(shape)
    d.observe(d.op("dropout", [x, rng, None, d.input(order)], lambda x, *_: x * kept / (1 - p),
                   {"probability": float(p), "id": id, "starts_dim": dim}, segments=True))


@case("uniform")
def uniform_numbers(d):
    shape = d.shape(1, 4, 7)
    id = d.integer(0, 2**31 - 1)
    rng = d.input(torch.tensor([d.integer(0, 2**62), d.integer(1, 2**32)]))
    place, origin = {}, None
    if d.shards and d.flag():
        start = [d.integer(0, 9) for _ in shape]
        whole = [a + b + d.integer(0, 9) for a, b in zip(start, shape)]
        origin = d.input(torch.tensor(start))
        place = {"origin": start, "global_shape": whole}
    seed, step = rng.tensor.tolist()
    drawn = torch.tensor(uniform(shape, seed=seed, step=step, id=id, **place))
    numbers = d.op("uniform", [rng, origin], lambda *_: drawn,
                   {"id": id, "global_shape": place.get("global_shape")})
    d.observe(d.op("mul", [d.param(shape), numbers], torch.mul))
