# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Value and gradients of every op against PyTorch autograd in f64.

Each case draws models at random that use one op, differentiates them with
``--graph-differentiate``, runs them in exact mode and compares the loss and the
gradient of every parameter: relative error at most 1e-9.
"""

import math
import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cleave.philox import attention_dropout_mask, dropout_mask, uniform
from cleave.testing.dual import Draw, Model, relative_error
from cleave.testing.tools import interpret, list_ops, optimize

DRAWS = 200 if os.environ.get("CLEAVE_TEST_ALL") else 20
TOLERANCE = 1e-9

CASES = {}


def case(*ops):
    """Registers a function that draws a model; ``ops`` are those it tests."""

    def register(function):
        assert function.__name__ not in CASES
        CASES[function.__name__] = (function, ops)
        return function

    return register


# ---------------------------------------------------------------------------
# One operand
# ---------------------------------------------------------------------------


def unary(name, compute, low=-3.0, high=3.0, attributes=None):
    def draw(d):
        x = d.param(d.uniform(d.shape(), low, high))
        d.observe(d.op(name, [x], compute, attributes))

    suffix = "_tanh" if attributes else ""
    draw.__name__ = name + suffix
    case(name)(draw)


unary("neg", torch.neg)
unary("abs", torch.abs)
unary("exp", torch.exp)
unary("log", torch.log, 0.1, 4.0)
unary("sqrt", torch.sqrt, 0.1, 4.0)
unary("rsqrt", torch.rsqrt, 0.1, 4.0)
unary("sin", torch.sin)
unary("cos", torch.cos)
unary("tanh", torch.tanh)
unary("erf", torch.erf)
unary("sigmoid", torch.sigmoid)
unary("silu", F.silu)
unary("relu", torch.relu)
unary("floor", torch.floor)
unary("gelu", F.gelu)
unary("gelu", lambda x: F.gelu(x, approximate="tanh"), attributes={"tanh": True})


@case("stop_gradient")
def stop_gradient(d):
    """The gradient comes by the factor that is not stopped."""
    x = d.param(d.uniform(d.shape(), -3.0, 3.0))
    stopped = d.op("stop_gradient", [x], torch.detach)
    d.observe(d.op("mul", [stopped, d.op("exp", [x], torch.exp)], torch.mul))


@case("abs", "relu")
def kinks(d):
    """At 0 both have the gradient 0."""
    x = d.param(d.integers(d.shape(1), -1, 1).double())
    d.observe(d.op("abs", [x], torch.abs), d.op("relu", [x], torch.relu))


@case("cast")
def cast(d):
    x = d.param(d.shape())
    truncated = d.op("cast", [x], lambda x: x.to(torch.int32))
    flags = d.op("cast", [truncated], lambda x: x.to(torch.bool))
    same = d.op("cast", [x], lambda x: x * 1.0)
    d.observe(same, truncated, flags, d.op("cast", [flags], lambda x: x.long()))


@case("constant", "iota")
def sources(d):
    shape = d.shape(1)
    x = d.param(shape)
    dim = d.integer(0, len(shape) - 1)
    start = d.integer(-3, 3)
    view = [1] * len(shape)
    view[dim] = shape[dim]

    def count():
        return torch.arange(start, start + shape[dim]).view(view).expand(shape).double().clone()

    places = d.op("iota", [], count, {"dim": dim, "start": start})
    table = d.constant(d.normal(shape))
    d.observe(d.op("mul", [d.op("mul", [x, places], torch.mul), table], torch.mul))


# ---------------------------------------------------------------------------
# Several operands, every pattern of broadcasting
# ---------------------------------------------------------------------------


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
    """Pieces of the whole tensor along one dimension, in another order."""
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


# ---------------------------------------------------------------------------
# Reductions and movements
# ---------------------------------------------------------------------------


def some_dims(d, rank):
    return [dim for dim in range(rank) if d.flag()]


@case("reduce")
def reduce(d):
    shape = d.shape(1)
    dims = some_dims(d, len(shape))
    d.rng.shuffle(dims)
    for kind, compute in enumerate((torch.sum, torch.amax, torch.amin)):
        # With few values there are ties: the gradient is shared equally.
        data = d.normal(shape) if d.flag() else d.integers(shape, -1, 1).double()
        x = d.param(data)
        over = lambda t: compute(t, dims) if dims else t * 1.0
        d.observe(d.op("reduce", [x], over, {"kind": f"!{kind} : i32", "dims": dims}))


@case("top_k")
def top_k(d):
    shape = d.shape(1)
    k = d.integer(1, shape[-1])
    # Of few values many are equal.
    x = d.param(d.normal(shape) if d.flag() else d.integers(shape, -1, 1).double())

    def compute(t):
        values, indices = torch.sort(t, dim=-1, descending=True, stable=True)
        return values[..., :k], indices[..., :k]

    d.observe(*d.op("top_k", [x], compute, {"k": k}))


@case("cumulative_sum")
def cumulative_sum(d):
    shape = d.shape(1)
    dim = d.integer(0, len(shape) - 1)
    x = d.param(shape)
    d.observe(d.op("cumulative_sum", [x], lambda t: torch.cumsum(t, dim), {"dim": dim}))
    d.observe(
        d.op(
            "cumulative_sum",
            [x],
            lambda t: torch.flip(torch.cumsum(torch.flip(t, [dim]), dim), [dim]),
            {"dim": dim, "reverse": True},
        )
    )


@case("reshape")
def reshape(d):
    factors = [d.integer(1, 3) for _ in range(4)]
    a, b, c, e = factors
    shape = d.choice([[a * b, c * e], [a * b * c * e], [a, b, 1, c, e], [a, b * c * e]])
    x = d.param(factors)
    d.observe(d.op("reshape", [x], lambda t: t.reshape(shape)))
    scalar = d.param([])
    d.observe(d.op("reshape", [scalar], lambda t: t.reshape([1, 1])))


@case("transpose")
def transpose(d):
    shape = d.shape()
    order = list(d.rng.permutation(len(shape)))
    x = d.param(shape)
    d.observe(d.op("transpose", [x], lambda t: t.permute([int(i) for i in order]), {"permutation": order}))


@case("broadcast")
def broadcast(d):
    shape = d.shape()
    x = d.param(d.broadcastable(shape))
    d.observe(d.op("broadcast", [x], lambda t: t.broadcast_to(shape).clone()))


@case("slice")
def slices(d):
    shape = d.shape(0, 4, 8)
    places, starts, sizes, steps = [], [], [], []
    for size in shape:
        start, step = d.integer(0, size - 1), d.integer(1, 3)
        count = d.integer(1, (size - 1 - start) // step + 1)
        starts.append(start)
        sizes.append(count)
        steps.append(step)
        places.append(slice(start, start + (count - 1) * step + 1, step))
    x = d.param(shape)
    d.observe(
        d.op(
            "slice",
            [x],
            lambda t: t[tuple(places)] * 1.0,
            {"offsets": starts, "sizes": sizes, "strides": steps},
        )
    )


@case("pad")
def pad(d):
    shape = d.shape(1, 3)
    low, high, between = ([d.integer(0, 2) for _ in shape] for _ in range(3))
    value = float(d.integer(-2, 2))
    whole = [a + (n - 1) * (i + 1) + 1 + b for n, a, b, i in zip(shape, low, high, between)]
    places = tuple(slice(a, a + (n - 1) * (i + 1) + 1, i + 1) for n, a, i in zip(shape, low, between))

    def compute(t):
        result = torch.full(whole, value, dtype=torch.float64)
        result[places] = t
        return result

    x = d.param(shape)
    d.observe(d.op("pad", [x], compute, {"value": value, "low": low, "high": high, "interior": between}))


@case("concat")
def concat(d):
    shape = d.shape(1)
    dim = d.integer(0, len(shape) - 1)
    parts = []
    for _ in range(d.integer(1, 4)):
        shape[dim] = d.integer(1, 4)
        parts.append(d.param(shape))
    parts.append(parts[0])  # one part twice
    d.observe(d.op("concat", parts, lambda *t: torch.cat(t, dim), {"dim": dim}))


def part(d, size):
    """Where `size` elements lie in a global dimension: begin, its size, operand."""
    if not (d.shards and d.flag()):
        return 0, size, None
    begin = d.integer(0, 4)
    return begin, begin + size + d.integer(0, 4), d.input(torch.tensor([begin]))


def size_of(whole, origin):
    return None if origin is None else whole


@case("gather")
def gather(d):
    shape = d.shape(1, 3)
    dim = d.integer(0, len(shape) - 1)
    begin, whole, origin = part(d, shape[dim])
    index = d.input(d.integers(d.shape(0, 3), 0, whole - 1))
    # The value of a padding row is read, but it receives no gradient.
    padding = d.integer(0, whole - 1) if d.flag() else None

    def compute(t, i, _):
        # What is not here is 0.
        low, high = (t.new_zeros(shape[:dim] + [n] + shape[dim + 1 :])
                     for n in (begin, whole - begin - shape[dim]))
        t = torch.cat([low, t, high], dim)
        if padding is not None:
            live = torch.arange(whole) != padding
            live = live.view([-1] + [1] * (len(shape) - dim - 1))
            t = torch.where(live, t, t.detach())
        flat = torch.index_select(t, dim, i.reshape(-1))
        return flat.reshape(shape[:dim] + list(i.shape) + shape[dim + 1 :])

    x = d.param(shape)
    d.observe(d.op("gather", [x, index, origin], compute,
                   {"dim": dim, "padding_index": padding, "global_size": size_of(whole, origin)}))


@case("scatter_add")
def scatter_add(d):
    before, after = d.shape(0, 2, 3), d.shape(0, 2, 3)
    places = d.shape(0, 2)
    size = d.integer(1, 5)
    begin, whole, origin = part(d, size)
    padding = d.integer(0, whole - 1) if d.flag() else None
    index = d.input(d.integers(places, 0, whole - 1))
    x = d.param(before + places + after)
    dim = len(before)

    def compute(t, i, _):
        flat, rows = i.reshape(-1), t.reshape(before + [-1] + after)
        if padding is not None:
            live = (flat != padding).double().view([-1] + [1] * len(after))
            rows = rows * live
        sums = torch.zeros(before + [whole] + after, dtype=torch.float64).index_add(dim, flat, rows)
        return sums.narrow(dim, begin, size)

    d.observe(d.op("scatter_add", [x, index, origin], compute,
                   {"dim": dim, "size": size, "padding_index": padding,
                    "global_size": size_of(whole, origin)}))


def batched(function, batch, arguments):
    """`function` of each slice of the arguments along their first `batch` dims."""
    if batch == 0:
        return function(*arguments)
    return torch.stack([batched(function, batch - 1, row) for row in zip(*arguments)])


@case("gather")
def gather_in_batches(d):
    batch = d.shape(1, 2, 3)
    before, after, own = d.shape(0, 1, 3), d.shape(0, 2, 3), d.shape(0, 2, 3)
    size, dim = d.integer(1, 5), len(before)
    begin, whole, origin = part(d, size)
    index = d.input(d.integers(batch + own, 0, whole - 1))

    def compute(t, i, _):
        def one(t, i):
            held = F.pad(t.movedim(dim, -1), (begin, whole - begin - size)).movedim(-1, dim)
            return held.index_select(dim, i.reshape(-1)).reshape(before + own + after)
        return batched(one, len(batch), (t, i))

    x = d.param(batch + before + [size] + after)
    d.observe(d.op("gather", [x, index, origin], compute,
                   {"dim": len(batch) + dim, "batch": len(batch),
                    "global_size": size_of(whole, origin)}))


@case("scatter_add")
def scatter_add_in_batches(d):
    batch = d.shape(1, 2, 3)
    before, after, own = d.shape(0, 1, 3), d.shape(0, 2, 3), d.shape(0, 2, 3)
    size, dim = d.integer(1, 5), len(before)
    begin, whole, origin = part(d, size)
    padding = d.integer(0, whole - 1) if d.flag() else None
    index = d.input(d.integers(batch + own, 0, whole - 1))

    def compute(t, i, _):
        def one(t, i):
            flat = i.reshape(-1)
            rows = t.reshape(before + [-1] + after)
            if padding is not None:
                rows = rows * (flat != padding).double().view([-1] + [1] * len(after))
            sums = torch.zeros(before + [whole] + after, dtype=torch.float64)
            return sums.index_add(dim, flat, rows).narrow(dim, begin, size)
        return batched(one, len(batch), (t, i))

    x = d.param(batch + before + own + after)
    d.observe(d.op("scatter_add", [x, index, origin], compute,
                   {"dim": len(batch) + dim, "size": size, "batch": len(batch),
                    "padding_index": padding, "global_size": size_of(whole, origin)}))


@case("one_hot")
def one_hot(d):
    size = d.integer(1, 5)
    begin, whole, origin = part(d, size)
    ignored = d.choice([None, -100, 0])
    indices = d.integers(d.shape(0, 3), 0, whole - 1)
    if ignored is not None and indices.dim():
        indices[..., 0] = ignored
    index = d.input(indices)

    def compute(i, _):
        hit = i[..., None] == torch.arange(begin, begin + size)
        return hit if ignored is None else hit & (i[..., None] != ignored)

    hit = d.op("one_hot", [index, origin], compute,
               {"size": size, "ignore_index": ignored, "global_size": size_of(whole, origin)})
    x = d.param([size])
    zero = d.constant(torch.zeros(size, dtype=torch.float64))
    d.observe(hit, d.op("select", [hit, x, zero], torch.where))


def window(d):
    """Kernel, stride, padding, dilation, and an image in which it fits."""
    kernel, stride, padding, dilation, image = [], [], [], [], []
    for _ in range(2):
        kernel.append(d.integer(1, 3))
        stride.append(d.integer(1, 3))
        padding.append(d.integer(0, 2))
        dilation.append(d.integer(1, 2))
        span = dilation[-1] * (kernel[-1] - 1) + 1
        image.append(max(1, span - 2 * padding[-1]) + d.integer(0, 4))
    return image, dict(kernel=kernel, stride=stride, padding=padding, dilation=dilation)


def unfold(t, w):
    n, c = t.shape[:2]
    columns = F.unfold(t, w["kernel"], w["dilation"], w["padding"], w["stride"])
    spans = [w["dilation"][i] * (w["kernel"][i] - 1) + 1 for i in range(2)]
    places = [(t.shape[2 + i] + 2 * w["padding"][i] - spans[i]) // w["stride"][i] + 1 for i in range(2)]
    return columns.reshape([n, c, *w["kernel"], *places]).permute(0, 4, 5, 1, 2, 3)


@case("patches")
def patches(d):
    image, w = window(d)
    x = d.param([d.integer(1, 2), d.integer(1, 3), *image])
    d.observe(d.op("patches", [x], lambda t: unfold(t, w), w))


@case("patches_grad")
def patches_grad(d):
    image, w = window(d)
    n, c = d.integer(1, 2), d.integer(1, 3)
    shape = unfold(torch.zeros(n, c, *image), w).shape

    def fold(t):
        columns = t.permute(0, 3, 4, 5, 1, 2).reshape(n, c * w["kernel"][0] * w["kernel"][1], -1)
        return F.fold(columns, image, w["kernel"], w["dilation"], w["padding"], w["stride"])

    x = d.param(shape)
    d.observe(d.op("patches_grad", [x], fold, {"image": image, **w}))


# ---------------------------------------------------------------------------
# Contractions
# ---------------------------------------------------------------------------


@case("contract")
def contract(d):
    letters = list("abcdef")[: d.integer(1, 6)]
    sizes = {letter: d.integer(1, 4) for letter in letters}
    left = [x for x in letters if d.flag(0.6)]
    right = [x for x in letters if d.flag(0.6)]
    out = [x for x in letters if d.flag() and (x in left or x in right)]
    for part in (left, right, out):
        d.rng.shuffle(part)
    equation = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
    a = d.param([sizes[x] for x in left])
    b = d.param([sizes[x] for x in right])
    d.observe(d.op("contract", [a, b], lambda a, b: torch.einsum(equation, a, b), {"equation": equation}))


@case("linear")
def linear(d):
    inputs, outputs = d.integer(1, 7), d.integer(1, 7)
    x = d.param(d.shape(0, 3) + [inputs])
    w = d.param([outputs, inputs])
    b = d.param([outputs]) if d.flag() else None
    d.observe(d.op("linear", [x, w, b], F.linear))


def attention_case(
    d, *, causal=False, window=None, mask=False, segments=False, bias=False, p=0.0, square=False,
    blocks=None
):
    batch, groups = d.integer(1, 2), d.integer(1, 2)
    heads = groups * d.integer(1, 3)
    queries = d.integer(1, 6)
    keys = queries if square or segments else queries + d.integer(-queries + 1, 4)
    if blocks:
        queries, keys = blocks * 2 * d.integer(1, 3), blocks * 2 * d.integer(1, 3)
    inner, outer = d.integer(1, 5), d.integer(1, 5)
    q = d.param([batch, heads, queries, inner])
    k = d.param([batch, groups, keys, inner])
    v = d.param([batch, groups, keys, outer])
    shape = [batch, heads, queries, keys]
    added = d.param(d.broadcastable(shape)) if bias else None
    allowed = d.input(d.normal(d.broadcastable(shape)) > -0.5) if mask else None
    documents = d.input(d.integers([batch, queries], 0, 1)) if segments else None
    key_documents = d.input(d.integers([batch, keys], 0, 1)) if segments and blocks else None
    scale = float(d.rng.uniform(0.2, 1.0))
    rng, id, seed = None, 7, (3, 1)
    if p:
        seed = (d.integer(0, 2**62), d.integer(1, 1000))
        rng, id = d.input(torch.tensor(seed)), d.integer(0, 99)
    place, origin, shift = {}, None, keys - queries
    if p and not blocks and d.flag() and d.shards:
        start = [d.integer(0, 9) for _ in shape[:3]] + [d.integer(0, 9)]
        whole = [a + b + d.integer(0, 9) for a, b in zip(start, shape)]
        place = {"origin": start, "global_shape": whole}
        origin = d.input(torch.tensor(start))
        # Causality and windows go by the places in the whole.
        shift = start[2] + whole[3] - whole[2] - start[3]
    kept = torch.tensor(attention_dropout_mask(shape, p, seed=seed[0], step=seed[1], id=id, **place))
    # In blocks, each of them two pieces of another order.
    rows, columns, starts, beside = torch.arange(queries), torch.arange(keys), [None, None], True
    if blocks:
        order = []
        for n in (queries, keys):
            first = d.rng.permutation(2 * blocks).reshape(blocks, 2)
            first.sort(axis=1)
            first = torch.tensor(first.reshape(-1)) * (n // (2 * blocks))
            order.append(first)
        starts = [d.input(first) for first in order]
        rows, columns = (torch.cat([s + torch.arange(n // (2 * blocks)) for s in first])
                         for first, n in zip(order, (queries, keys)))
        beside = (torch.arange(queries).view(-1, 1) // (queries // blocks)
                  == torch.arange(keys) // (keys // blocks))
        kept = kept[:, :, rows][..., columns]

    def compute(q, k, v, added, allowed, documents, _rng, _origin, key_documents=None, *_starts):
        k, v = (t.repeat_interleave(heads // groups, 1) for t in (k, v))
        scores = scale * q @ k.transpose(-1, -2)
        if added is not None:
            scores = scores + added
        i = rows.view(-1, 1) + shift
        j = columns
        visible = torch.ones(shape, dtype=torch.bool) & beside
        if causal:
            visible = visible & (j <= i)
        if window is not None:
            visible = visible & (j > i - window)
        if documents is not None:
            other = documents if key_documents is None else key_documents
            visible = visible & (documents[:, None, :, None] == other[:, None, None, :])
        if allowed is not None:
            visible = visible & allowed
        # A row that sees nothing is computed as if it saw all, and then set to 0.
        seen = visible.any(-1, keepdim=True)
        scores = torch.where(visible | ~seen, scores, -torch.inf)
        probabilities = torch.where(seen, torch.softmax(scores, -1), 0.0)
        lse = torch.where(seen[..., 0], torch.logsumexp(scores, -1), -torch.inf)
        return (probabilities * kept / (1 - p)) @ v, lse

    attributes = {
        "scale": scale,
        "causal": causal,
        "window": window,
        "dropout": p,
        "dropout_id": id,
        "global_shape": place.get("global_shape"),
        "blocks": blocks,
    }
    operands = [q, k, v, added, allowed, documents, rng, origin, key_documents, *starts, None, None]
    output, _ = d.op("attention", operands, compute, attributes, segments=True)
    d.observe(output)


@case("attention")
def attention_plain(d):
    attention_case(d)


@case("attention")
def attention_causal(d):
    attention_case(d, causal=True)


@case("attention")
def attention_window(d):
    attention_case(d, causal=d.flag(), window=d.integer(1, 4))


@case("attention")
def attention_mask(d):
    attention_case(d, causal=d.flag(), mask=True)


@case("attention")
def attention_segments(d):
    attention_case(d, causal=d.flag(), segments=True)


@case("attention")
def attention_bias(d):
    attention_case(d, causal=d.flag(), bias=True, mask=d.flag())


@case("attention")
def attention_dropout(d):
    attention_case(d, causal=d.flag(), bias=d.flag(), p=float(d.rng.uniform(0.1, 0.6)))


@case("attention")
def attention_blocks(d):
    attention_case(d, blocks=d.integer(1, 3), causal=d.flag(), segments=d.flag())


@case("attention")
def attention_blocks_dropout(d):
    attention_case(d, blocks=d.integer(2, 3), causal=d.flag(), window=d.integer(1, 9), p=0.3)


@case("attention")
def attention_onto(d):
    """The softmax over the keys of two ops, of which the second has no gradient."""
    batch, heads, queries, keys, size = 2, 2, 4, 6, 3
    q, k, v = (d.input(d.normal([batch, heads, n, size])) for n in (queries, keys, keys))
    k1, v1 = (d.input(d.normal([batch, heads, keys, size])) for _ in range(2))

    def compute(q, k, v, *before):
        o, lse = before[-2:] if before else (None, None)
        scores = 0.5 * q @ k.transpose(-1, -2)
        scores = torch.where(torch.arange(keys) <= torch.arange(queries).view(-1, 1) + keys - queries,
                             scores, -torch.inf)
        own = torch.logsumexp(scores, -1)
        output = torch.softmax(scores, -1) @ v
        if o is None:
            return output, own
        total = torch.logaddexp(own, lse)
        return (torch.exp(own - total)[..., None] * output
                + torch.exp(lse - total)[..., None] * o), total

    attributes = {"scale": 0.5, "causal": True}
    first = d.op("attention", [q, k, v] + [None] * 10, lambda q, k, v, *_: compute(q, k, v),
                 attributes, segments=True)
    output, lse = d.op("attention", [q, k1, v1] + [None] * 8 + [*first], compute, attributes,
                       segments=True)
    d.observe(d.op("mul", [output, d.param([1])], lambda x, y: x * y))


@case("attention")
def attention_all(d):
    attention_case(
        d, causal=True, window=d.integer(1, 5), mask=True, segments=True, bias=True, p=0.25, square=True
    )


# ---------------------------------------------------------------------------
# Norms, softmax, losses, positions
# ---------------------------------------------------------------------------


@case("layer_norm")
def layer_norm(d):
    shape = d.shape(0, 3) + [d.integer(2, 8)]
    weight = d.param(shape[-1:]) if d.flag(0.7) else None
    bias = d.param(shape[-1:]) if d.flag(0.7) else None
    # Two values are normalised to 1 and -1, whatever they are: without a large
    # epsilon the gradient is nothing but rounding.
    epsilon = d.choice([1e-5, 1e-12, 0.1]) if shape[-1] > 2 else 0.1

    def compute(x, w, b):
        mean = x.mean(-1)
        rstd = torch.rsqrt(((x - mean[..., None]) ** 2).mean(-1) + epsilon)
        return F.layer_norm(x, shape[-1:], w, b, epsilon), mean, rstd

    output, mean, rstd = d.op(
        "layer_norm", [d.param(shape), weight, bias], compute, {"epsilon": epsilon}, segments=True
    )
    d.observe(output)
    if d.flag():
        d.observe(mean, rstd)


@case("rms_norm")
def rms_norm(d):
    shape = d.shape(0, 3) + [d.integer(1, 8)]
    weight = d.param(shape[-1:]) if d.flag(0.7) else None
    epsilon = d.choice([1e-5, 1e-8, 0.1])

    def compute(x, w):
        rstd = torch.rsqrt((x**2).mean(-1) + epsilon)
        return F.rms_norm(x, shape[-1:], w, epsilon), rstd

    output, rstd = d.op("rms_norm", [d.param(shape), weight], compute, {"epsilon": epsilon})
    d.observe(output)
    if d.flag():
        d.observe(rstd)


@case("softmax")
def softmax(d):
    x = d.param(d.normal(d.shape(0, 3) + [d.integer(1, 8)]) * 3)
    d.observe(d.op("softmax", [x], lambda x: torch.softmax(x, -1)))
    d.observe(d.op("softmax", [x], lambda x: torch.log_softmax(x, -1), {"log": True}))


def targets_for(d, shape, classes):
    """Targets, some of them ignored, and the index that says so."""
    ignore = d.choice([-100, -1, classes - 1])
    targets = d.integers(shape, 0, classes - 1)
    return d.input(torch.where(d.uniform(shape, 0, 1) < 0.3, ignore, targets)), ignore


@case("cross_entropy")
def cross_entropy(d):
    rows, classes = d.shape(0, 2), d.integer(2, 8)
    targets, ignore = targets_for(d, rows, classes)
    smoothing = d.choice([0.0, 0.1, 0.7])

    def compute(x, t):
        loss = F.cross_entropy(
            x.reshape(-1, classes),
            t.reshape(-1),
            ignore_index=ignore,
            reduction="none",
            label_smoothing=smoothing,
        )
        return loss.reshape(rows), torch.logsumexp(x, -1)

    x = d.param(d.normal(rows + [classes]) * 3)
    loss, lse = d.op(
        "cross_entropy", [x, targets], compute, {"ignore_index": ignore, "label_smoothing": smoothing}
    )
    d.observe(loss)
    if d.flag():
        d.observe(lse)


@case("head_loss")
def head_loss(d):
    rows, inner, classes = d.shape(0, 2), d.integer(1, 6), d.integer(2, 8)
    targets, ignore = targets_for(d, rows, classes)
    smoothing = d.choice([0.0, 0.2])

    def compute(x, w, b, t, _):
        return F.cross_entropy(
            F.linear(x, w, b).reshape(-1, classes),
            t.reshape(-1),
            ignore_index=ignore,
            reduction="none",
            label_smoothing=smoothing,
        ).reshape(rows)

    x, w = d.param(rows + [inner]), d.param([classes, inner])
    b = d.param([classes]) if d.flag() else None
    attributes = {"ignore_index": ignore, "label_smoothing": smoothing}
    d.observe(d.op("head_loss", [x, w, b, targets, None], compute, attributes, segments=True))


@case("rope")
def rope(d):
    shape = [d.integer(1, 3), d.integer(1, 3), d.integer(1, 5), 2 * d.integer(1, 4)]
    interleaved, adjoint = d.flag(), d.flag()
    tables = d.choice([shape, shape[2:], [1, 1, *shape[2:]], [shape[0], 1, *shape[2:]]])

    def rotate(x):
        if interleaved:
            pairs = x.reshape(*x.shape[:-1], -1, 2)
            return torch.stack([-pairs[..., 1], pairs[..., 0]], -1).reshape(x.shape)
        low, high = x.chunk(2, -1)
        return torch.cat([-high, low], -1)

    def compute(x, cos, sin):
        if not adjoint:
            return x * cos + rotate(x) * sin
        # The transposed map: rotate is antisymmetric.
        return x * cos - rotate(x * sin)

    x, cos, sin = d.param(shape), d.input(d.normal(tables)), d.input(d.normal(tables))
    d.observe(d.op("rope", [x, cos, sin], compute, {"interleaved": interleaved, "adjoint": adjoint}))


# ---------------------------------------------------------------------------
# The tests
# ---------------------------------------------------------------------------


def draw_model(name, draws=DRAWS, first_seed=0, shards=True):
    """The draws of a case in one model; with `shards`, ops may be on a shard already."""
    function, _ = CASES[name]
    number = sorted(CASES).index(name)
    drawn = []
    for i in range(draws):
        d = Draw([number, first_seed + i], prefix=f"d{i}_")
        d.shards = shards
        function(d)
        drawn.append(d)
    return Model(drawn)


def gradient_floor(key, gradients):
    """What a gradient that should be 0 is compared with: 1e-4 of the draw's norm.

    A bias that shifts all scores alike, say, has the gradient 0 up to rounding.
    """
    draw = key.split("_")[0] + "_"
    squares = sum(np.sum(g**2) for k, g in gradients.items() if k.startswith(draw))
    return 1e-4 * math.sqrt(squares)


@pytest.mark.parametrize("name", sorted(CASES))
def test_gradients(name):
    model = draw_model(name)
    train = optimize(model.text(), "--graph-differentiate")
    results, gradients = interpret(train, model.inputs(), entry="train")
    values, expected = model.expected()
    assert set(gradients) == set(expected)
    for key, value in values.items():
        assert relative_error(results[key], value) <= TOLERANCE, f"{key} of\n{model.text()}"
    for key, value in expected.items():
        error = relative_error(gradients[key], value, gradient_floor(key, expected))
        assert error <= TOLERANCE, (
            f"gradient of {key}: relative error {error}\n{gradients[key]}\nbut PyTorch has\n{value}\n"
            f"{model.text()}"
        )


def test_every_op_has_a_case():
    """An op that can be differentiated does not land without a gradient test."""
    covered = {op for _, ops in CASES.values() for op in ops}
    differentiable = {
        name.removeprefix("graph.") for name, facts in list_ops().items() if facts["differentiable"]
    }
    # It has no result: there is nothing to differentiate. See test_reference.py.
    differentiable.remove("check")
    assert differentiable - covered == set()


def test_every_op_has_reference_semantics():
    assert [name for name, facts in list_ops().items() if not facts["reference"]] == []


def test_a_wrong_gradient_is_seen():
    """The comparison is not vacuous."""
    model = draw_model("sin")
    train = optimize(model.text(), "--graph-differentiate")
    wrong = train.replace("graph.cos", "graph.sin")
    assert wrong != train
    results, gradients = interpret(wrong, model.inputs(), entry="train")
    values, expected = model.expected()
    assert all(relative_error(results[k], v) <= TOLERANCE for k, v in values.items())
    assert all(relative_error(gradients[k], v) > 1e-3 for k, v in expected.items())
