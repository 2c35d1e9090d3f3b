# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Reductions, and ops that move elements."""

import torch
import torch.nn.functional as F

from op_cases.registry import case


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
    if d.flag():
        # Enough that k can be large.
        shape = [*shape[:-1][:2], d.integer(9, 30)]
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


def recurrence(factor, x, dim, reverse):
    """The states of linear_scan, place by place."""
    rows = list(zip(factor.unbind(dim), x.unbind(dim)))
    states, state = [], 0.0
    for a, value in reversed(rows) if reverse else rows:
        state = a * state + value
        states.append(state)
    return torch.stack(states[::-1] if reverse else states, dim)


@case("linear_scan")
def linear_scan(d):
    shape = d.shape(1)
    dim = d.integer(0, len(shape) - 1)
    factor, x = d.param(shape), d.param(shape)
    for reverse in (False, True):
        d.observe(
            d.op(
                "linear_scan",
                [factor, x],
                lambda a, b: recurrence(a, b, dim, reverse),
                {"dim": dim, **({"reverse": True} if reverse else {})},
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


@case("pack_bits", "unpack_bits")
def packed_bits(d):
    shape = d.shape(1, 3)
    shape[-1] = d.integer(1, 40) if d.flag() else 8 * d.integer(1, 4)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, -128])
    count = -(-shape[-1] // 8)

    def pack(t):
        bits = F.pad(t.long(), (0, 8 * count - shape[-1])).reshape([*shape[:-1], count, 8])
        return (bits * weights).sum(-1).to(torch.int8)

    def unpack(t):
        flags = t[..., None].long() >> torch.arange(8) & 1
        return flags.bool().reshape([*shape[:-1], 8 * count])[..., :shape[-1]]

    x = d.param(shape)
    zero = d.constant(torch.zeros(shape, dtype=torch.float64))
    flags = d.op("compare", [x, zero], torch.gt, {"predicate": "!4 : i32"})
    packed = d.op("pack_bits", [flags], pack)
    again = d.op("unpack_bits", [packed], unpack)
    d.observe(packed, again, d.op("select", [again, x, zero], torch.where))


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
