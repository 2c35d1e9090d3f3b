# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Linear recurrences along a sequence, as an operator of PyTorch, and the layers made of them.

Eager code computes the operator position by position; a trace has one op. The forms of layers are
blockwise: their cost is linear in the length.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def linear_scan(factor: Tensor, input: Tensor, dim: int = -1, reverse: bool = False) -> Tensor:
    """Returns `h` with `h[t] = factor[t] * h[t - 1] + input[t]` along `dim`, from `h[-1] = 0`;
    with `reverse`, `h[t] = factor[t] * h[t + 1] + input[t]`, from the last.

    `factor` and `input` have one type, and are broadcast to one shape. Differentiable in both, any
    number of times.
    """
    if factor.dtype != input.dtype or not input.is_floating_point():
        raise TypeError(f"factor and input need one floating-point type, not {factor.dtype} and "
                        f"{input.dtype}")
    factor, input = torch.broadcast_tensors(factor, input)
    if input.dim() == 0 or input.shape[dim] == 0:
        return input.clone()
    return _linear_scan(factor, input, dim % input.dim(), reverse)


@torch.library.custom_op("cleave::linear_scan", mutates_args=())
def _linear_scan(factor: Tensor, input: Tensor, dim: int, reverse: bool) -> Tensor:
    rows = list(zip(factor.unbind(dim), input.unbind(dim)))
    if reverse:
        rows.reverse()
    state, states = torch.zeros_like(rows[0][1]), []
    for a, x in rows:
        state = a * state + x
        states.append(state)
    if reverse:
        states.reverse()
    return torch.stack(states, dim)


@_linear_scan.register_fake
def _(factor, input, dim, reverse):
    return torch.empty(input.shape, dtype=input.dtype, device=input.device)


def _keep(ctx, inputs, output):
    factor, _, ctx.dim, ctx.reverse = inputs
    ctx.save_for_backward(factor, output)


def _gradients(ctx, g):
    factor, states = ctx.saved_tensors
    total = _linear_scan(shifted(factor, ctx.dim, not ctx.reverse), g, ctx.dim, not ctx.reverse)
    return total * shifted(states, ctx.dim, ctx.reverse), total, None, None


_linear_scan.register_autograd(_gradients, setup_context=_keep)


def shifted(x: Tensor, dim: int, back: bool = False) -> Tensor:
    """Returns `y` with `y[t] = x[t - 1]` along `dim`, or with `back` `x[t + 1]`; 0 where `x` has
    none."""
    size = x.shape[dim]
    zero = x.new_zeros(()).expand_as(x.narrow(dim, 0, 1))
    kept = x.narrow(dim, 1 if back else 0, size - 1)
    return torch.cat([kept, zero] if back else [zero, kept], dim)


# Layers -------------------------------------------------------------------------------


def selective_scan(x: Tensor, steps: Tensor, decay: Tensor, write: Tensor,
                   read: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the outputs [b, d, l] of states [d, n], where at each position `state = exp(step *
    decay) * state + step * x * write` and `output = state * read`, summed over n; and the last
    state, [b, d, n]. (Gu and Dao, Mamba, arXiv 2312.00752, algorithm 2.)

    `x`, `steps`: [b, d, l]; `decay`: [d, n]; `write`, `read`: [b, n, l].
    """
    factor = torch.exp(decay[:, :, None] * steps[:, :, None, :])
    states = linear_scan(factor, (steps * x)[:, :, None, :] * write[:, None])
    return (states * read[:, None]).sum(2), states[..., -1]


def chunked_scan(x: Tensor, steps: Tensor, decay: Tensor, write: Tensor, read: Tensor,
                 chunk: int) -> tuple[Tensor, Tensor]:
    """Returns the outputs [b, l, a, p] of states [a, p, n], where at each position `state =
    exp(step * decay) * state + step * x * write` and `output = state * read`, summed over n; and
    the state after the last chunk, [b, a, p, n]. (Dao and Gu, Mamba-2, arXiv 2405.21060, section
    6.)

    `x`: [b, l, a, p]; `steps`: [b, l, a]; `decay`: [a]; `write`, `read`: [b, l, g, n]. Within a
    chunk of positions outputs are computed as attention is; the states between chunks, by the
    factors that are left of each chunk's.
    """
    batch, length, heads, width = x.shape
    groups = write.shape[2]
    count = -(-length // chunk)
    rest = count * chunk - length

    def chunks(y, *shape):
        y = F.pad(y, (0,) * (2 * (y.dim() - 2)) + (0, rest)) if rest else y
        return y.reshape(batch, count, chunk, *shape)

    # Letters: b batch, c chunks, l and s positions of a chunk, g groups, r heads of a group, p
    # channels, n those of a state.
    own = heads // groups
    values = chunks(x * steps[..., None], groups, own, width)
    write, read = (chunks(y, groups, y.shape[-1]) for y in (write, read))
    # Logarithms of what is left at a position of the state before the chunk, [b, c, g, r, l].
    left = chunks(steps * decay, groups, own).permute(0, 1, 3, 4, 2).cumsum(-1)
    between = (left[..., :, None] - left[..., None, :]).masked_fill(
        ~_until(chunk, x.device), -math.inf).exp()
    scores = torch.einsum("bclgn,bcsgn->bcgls", read, write)[:, :, :, None] * between
    inside = torch.einsum("bcgrls,bcsgrp->bclgrp", scores, values)
    last = left[..., -1:]
    kept = values * (last - left).exp().permute(0, 1, 4, 2, 3)[..., None]
    added = torch.einsum("bclgn,bclgrp->bcgrpn", write, kept)
    result = inside
    if count > 1:
        after = linear_scan(last.exp()[..., None], added, 1)
        carried = torch.einsum("bclgn,bcgrpn->bclgrp", read, shifted(after, 1))
        result = inside + carried * left.exp().permute(0, 1, 4, 2, 3)[..., None]
        added = after
    return (result.reshape(batch, -1, heads, width)[:, :length],
            added[:, -1].reshape(batch, heads, width, -1))


def gated_delta_rule(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor,
                     chunk: int) -> tuple[Tensor, Tensor]:
    """Returns the outputs [b, a, l, v] of states [a, k, v], where at each position `state =
    exp(decay) * state`, then `state = state + key * (beta * (value - key * state))` and `output =
    query * state`; and the last state, [b, a, k, v]. (Yang et al., Gated Delta Networks, arXiv
    2412.06464, section 3.3. With a decay of each row of the state: Kimi Linear, arXiv 2510.26692,
    section 3.)

    `query`, `key`: [b, a, l, k]; `value`: [b, a, l, v]; `beta`: [b, a, l]; `decay`: [b, a, l] or
    [b, a, l, k]. `chunk` is a power of two. Within a chunk all updates are one matmul with the inverse of a triangular
    matrix; from chunk to chunk the state is multiplied by a matrix, and one is added.
    """
    batch, heads, length, width = value.shape
    count = -(-length // chunk)
    # About as many blocks as chunks in each.
    blocks = 1 << (count.bit_length() // 2) if count >= 4 else 1
    count = -(-count // blocks) * blocks
    rest = count * chunk - length

    def chunks(y):
        y = F.pad(y, (0,) * (2 * (y.dim() - 3)) + (0, rest)) if rest else y
        return y.reshape(batch, heads, count, chunk, *y.shape[3:])

    decay = decay if decay.dim() == key.dim() else decay[..., None]
    query, key, value, decay, beta = (chunks(y) for y in (query, key, value, decay, beta[..., None]))
    # Logarithms of what is left at a position of the state before the chunk, [.., l, k or 1], and at
    # a position of what another one added, [.., l, l, k or 1].
    left = decay.cumsum(-2)
    between = (left[..., :, None, :] - left[..., None, :, :]).masked_fill(
        ~_until(chunk, value.device)[..., None], -math.inf).exp()

    def scores(x, y):
        if between.shape[-1] == 1:
            return x @ y.transpose(-1, -2) * between[..., 0]
        return (x[..., :, None, :] * y[..., None, :, :] * between).sum(-1)

    weighted = key * beta
    solved = unit_lower_inverse(scores(weighted, key))
    fresh = solved @ (value * beta)
    seen = solved @ (weighted * left.exp())
    # The sum that a chunk adds to the state, and the matrix of the part that it removes.
    last = left[..., -1:, :]
    kept = (key * (last - left).exp()).transpose(-1, -2)
    added, removed = kept @ fresh, kept @ seen
    eye = torch.eye(key.shape[-1], dtype=key.dtype, device=key.device)
    before, after = _matrix_scan(last.exp() * eye - removed, added, blocks)
    result = (query * left.exp()) @ before + scores(query, key) @ (fresh - seen @ before)
    return result.reshape(batch, heads, -1, width)[:, :, :length], after


def _matrix_scan(factor: Tensor, added: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """Returns the states [b, a, c, k, v] before each of c updates `state = factor @ state + added`,
    the first 0, and the state after the last.

    `factor`: [b, a, c, k, k]; `added`: [b, a, c, k, v]. Updates are in `blocks` of equal length, a
    divisor of c. All blocks are computed at once from 0, with the matrix by which the state before
    a block is multiplied; then blocks follow each other. So one after the other there are blocks +
    c / blocks matmuls instead of c, and blocks may be on several devices.
    """
    batch, heads, count, rows, width = added.shape
    each = count // blocks
    factor = factor.reshape(batch, heads, blocks, each, rows, rows)
    added = added.reshape(batch, heads, blocks, each, rows, width)
    states = torch.zeros_like(added[:, :, :, 0])
    if blocks > 1:
        # Beside the state, the matrix.
        eye = torch.eye(rows, dtype=factor.dtype, device=factor.device)
        states = torch.cat([states, eye.expand(batch, heads, blocks, rows, rows)], -1)
        added = F.pad(added, (0, rows))
    before = []
    for i in range(each):
        before.append(states)
        states = added[:, :, :, i] + (factor[:, :, :, i] @ states if i or blocks > 1 else 0)
    own = torch.stack(before, 3)
    if blocks == 1:
        return own[:, :, 0], states[:, :, 0]
    ends, through = states.split([width, rows], -1)
    starts = [torch.zeros_like(ends[:, :, 0])]
    for i in range(blocks):
        starts.append(ends[:, :, i] + (through[:, :, i] @ starts[-1] if i else 0))
    own, through = own.split([width, rows], -1)
    own = own + through @ torch.stack(starts[:-1], 2)[:, :, :, None]
    return own.reshape(batch, heads, count, rows, width), starts[-1]


def unit_lower_inverse(matrix: Tensor) -> Tensor:
    """Returns the inverse of `matrix` [.., n, n] with its diagonal taken as ones and nothing above
    it. n is a power of two. Blocks on the diagonal are inverted, and then twice as large ones: of
    `[[a, 0], [b, c]]` the lower left is `-inverse(c) b inverse(a)`."""
    size = matrix.shape[-1]
    if size & (size - 1):
        raise ValueError(f"{size} rows are not a power of two")
    # Matmuls of fewer rows take no less time than of so many.
    side = min(size, 8)

    def blocks(side, step, below):
        """Of each `step` rows the `side` that begin `below` the diagonal: [.., n / step, side, side]."""
        starts = range(0, size, step)
        return torch.stack([matrix[..., i + below:i + below + side, i:i + side] for i in starts], -3)

    inverse = _small_inverse(blocks(side, side, 0))
    while side < size:
        corner = blocks(side, 2 * side, side)
        inverse = inverse.unflatten(-3, (-1, 2))
        upper, lower = inverse[..., 0, :, :], inverse[..., 1, :, :]
        inverse = torch.cat([F.pad(upper, (0, side)),
                             torch.cat([-(lower @ corner @ upper), lower], -1)], -2)
        side *= 2
    return inverse.squeeze(-3)


def _small_inverse(matrix: Tensor) -> Tensor:
    """The same by matmuls of the whole matrix, of which some is used."""
    size = matrix.shape[-1]
    place = torch.arange(size, device=matrix.device)
    inverse = torch.eye(size, dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    half = 1
    while half < size:
        row, col = place[:, None] // half, place[None, :] // half
        below = (row == col + 1) & (col % 2 == 0)
        corner = torch.where(below, matrix, 0)
        inverse = inverse - (corner if half == 1 else inverse @ corner @ inverse)
        half *= 2
    return inverse


def _until(count: int, device) -> Tensor:
    """Which places are at most the row's: [count, count]."""
    place = torch.arange(count, device=device)
    return place[None, :] <= place[:, None]
