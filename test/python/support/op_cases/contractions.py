# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Contractions and attention."""

import torch
import torch.nn.functional as F

from cleave.philox import attention_dropout_mask
from op_cases.movements import part, size_of
from op_cases.registry import case


@case("contract")
def contract(d):
    letters = list("abcdef")[: d.integer(1, 6)]
    sizes = {letter: d.integer(1, 4) for letter in letters}
    left = [x for x in letters if d.flag(0.6)]
    right = [x for x in letters if d.flag(0.6)]
    out = [x for x in letters if d.flag() and (x in left or x in right)]
    for some in (left, right, out):
        d.rng.shuffle(some)
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


def drawn_groups(d):
    """Shape and groups of rows; how many groups a weight holds, and from which on of how many."""
    leading, held = d.shape(1, 3), d.integer(1, 4)
    begin, whole, origin = part(d, held)
    # All rows may be of one group, and groups may have no rows.
    few = d.integer(0, whole - 1) if d.flag(0.3) else None
    groups = d.integers(leading, *((0, whole - 1) if few is None else (few, few)))
    return leading, d.input(groups), held, begin, whole, origin


def in_groups(matrices, groups, begin, whole):
    """The matrix of each row, [..., k, m]; 0 for those of groups that are not held."""
    low, high = (matrices.new_zeros(n, *matrices.shape[1:])
                 for n in (begin, whole - begin - len(matrices)))
    return torch.cat([low, matrices, high])[groups]


@case("grouped_linear")
def grouped_linear(d):
    leading, groups, held, begin, whole, origin = drawn_groups(d)
    inner, outer, transpose = d.integer(1, 5), d.integer(1, 5), d.flag()
    rows = d.param(leading + [inner])
    weight = d.param([held, outer, inner] if transpose else [held, inner, outer])

    def compute(x, w, groups, _):
        own = in_groups(w.transpose(1, 2) if transpose else w, groups, begin, whole)
        return (x[..., None, :] @ own)[..., 0, :]

    d.observe(d.op("grouped_linear", [rows, weight, groups, origin], compute,
                   {"transpose": transpose, "global_size": size_of(whole, origin)}))


@case("grouped_linear_weight_grad")
def grouped_linear_weight_grad(d):
    leading, groups, held, begin, whole, origin = drawn_groups(d)
    inner, outer, transpose = d.integer(1, 5), d.integer(1, 5), d.flag()
    rows, gradient = d.param(leading + [inner]), d.param(leading + [outer])

    def compute(x, g, groups, _):
        of_rows = F.one_hot(groups, whole)[..., begin:begin + held].to(x.dtype)
        return torch.einsum("...e,...k,...m->emk" if transpose else "...e,...k,...m->ekm",
                            of_rows, x, g)

    d.observe(d.op("grouped_linear_weight_grad", [rows, gradient, groups, origin], compute,
                   {"size": held, "transpose": transpose, "global_size": size_of(whole, origin)}))


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

    def extra():
        """The shape of a mask or bias: of several queries, it has the keys of their block."""
        own = d.broadcastable(shape)
        if blocks and len(own) > 1 and own[-2] > 1 and own[-1] > 1:
            own[-1] //= blocks
        return own

    added = d.param(extra()) if bias else None
    allowed = d.input(d.normal(extra()) > -0.5) if mask else None
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
        if blocks:
            added, allowed = (t.repeat(*[1] * (t.ndim - 1), blocks) if t is not None and t.ndim > 1
                              and t.shape[-2] > 1 and t.shape[-1] > 1 else t
                              for t in (added, allowed))
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
        if added is not None:  # two numbers, whose sum it is
            largest = torch.where(seen[..., 0], scores.amax(-1), -torch.inf)
            lse = torch.stack([largest, torch.where(seen[..., 0], lse - largest, 0.0)], -1)
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
def attention_blocks_extras(d):
    attention_case(d, blocks=d.integer(2, 3), causal=d.flag(), mask=d.flag(), bias=d.flag())


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
