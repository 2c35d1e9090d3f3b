# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Movements and indexing: bits are kept, infinities and NaN among them."""

import torch
import torch.nn.functional as F

from converter_cases.registry import case, inf, nan, normal, numbers

aten = torch.ops.aten
X = torch.cat([numbers(nan, inf, -inf, 1e-45, -0.0, 1e30), normal(18)]).reshape(4, 6)
Y = normal(4, 6, seed=1)
# Made outside of functions: beside a tensor that is made inside, the framework takes
# operators apart in the whole program.
I, BACK, PLACES = torch.tensor([2, 0, 2]), torch.tensor([-1, 0, -6]), torch.tensor([[0, 1, 1, 5, 0, 3]] * 4)

for name, f in {
    "view": lambda x: x.view(2, 12), "_unsafe_view": lambda x: aten._unsafe_view.default(x, [24]),
    "reshape": lambda x: aten.reshape.default(x, [3, 8]), "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: aten.squeeze.default(x.view(1, 4, 6)), "squeeze, dim": lambda x: x.view(1, 4, 6).squeeze(0),
    "squeeze, dims": lambda x: x.view(1, 4, 1, 6).squeeze((0, 2)), "flatten": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(1, (2, 3)), "view_as": lambda x: x.view_as(x.reshape(2, 12)),
    "reshape_as": lambda x: aten.reshape_as.default(x, x.reshape(2, 12)), "ravel": torch.ravel,
    "permute": lambda x: x.permute(1, 0), "transpose": lambda x: x.transpose(0, 1),
    "swapaxes": lambda x: aten.swapaxes.default(x, 0, 1), "movedim": lambda x: x.view(2, 2, 6).movedim(0, -1),
    "movedim, list": lambda x: x.view(2, 2, 6).movedim((0, 1), (1, 2)), "t": lambda x: x.t(), "T": lambda x: x.T,
    "mT": lambda x: x.mT, "expand": lambda x: x.view(4, 1, 6).expand(4, 3, 6), "expand_as": lambda x: x[0].expand_as(x),
    "broadcast_tensors": lambda x: aten.broadcast_tensors.default([x[0], x])[0],
    "repeat": lambda x: x.repeat(2, 1, 3), "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "slice": lambda x: x[1:3, ::2], "select": lambda x: x[2], "narrow": lambda x: aten.narrow.default(x, 1, 2, 3),
    "split": lambda x: x.split(4, 1)[1], "split, sizes": lambda x: aten.split.sizes(x, [1, 5], 1)[1],
    "split_with_sizes": lambda x: aten.split_with_sizes.default(x, [1, 5], 1)[0], "chunk": lambda x: x.chunk(3, 1)[2],
    "unbind": lambda x: x.unbind(1)[3], "cat": lambda x: torch.cat([x, x[:1]]), "concat": lambda x: aten.concat.default([x, x], 1),
    "stack": lambda x: torch.stack([x, x], 1), "pad": lambda x: F.pad(x, (1, 2, -1, 1), value=3.0),
    "constant_pad_nd": lambda x: aten.constant_pad_nd.default(x, [2, 0], 1.0), "roll": lambda x: x.roll(2, 1),
    "roll of all": lambda x: x.roll(5), "flip": lambda x: x.flip(0, 1), "tril": torch.tril, "triu": lambda x: x.triu(1),
    "tril of booleans": lambda x: (x > 0).tril(), "index_select": lambda x: x.index_select(0, I),
    "index": lambda x: x[I], "index, negative": lambda x: x[:, BACK], "index, two": lambda x: x[I, I],
    "gather": lambda x: x.gather(1, I.expand(4, 3)), "take_along_dim": lambda x: x.take_along_dim(I[None], 1),
    "embedding": lambda x: F.embedding(I, x), "embedding, padding": lambda x: F.embedding(I, x, padding_idx=2),
}.items():
    # Only gradients of these are sums.
    summed = name.startswith(("expand", "repeat", "broadcast", "index", "embedding", "gather", "take_along"))
    case(name, f, X, floor=1e-6 if summed else 0.0)
ROWS = torch.arange(X.shape[0])
LAST = torch.arange(X.shape[0]) * 3 % X.shape[1] - 2
case("index, a column of each row", lambda x: x[ROWS, LAST], X)
EACH, THREE, ONE, BACKWARDS = ROWS[:, None], torch.stack([LAST, LAST * 0, LAST], 1), torch.tensor(1), ROWS.flip(0)
case("index, columns of each row", lambda x: x[EACH, THREE], X, floor=1e-6)
case("index, one column of rows", lambda x: x[ROWS, ONE], X)
case("index, rows in another order", lambda x: x[BACKWARDS, LAST], X)
case("slice_scatter", lambda x, y: x.slice_scatter(y[1:3], 0, 1, 3), X, Y)
case("select_scatter", lambda x, y: x.select_scatter(y[0], 0, 2), X, Y)
case("scatter_add", lambda x, y: x.scatter_add(1, PLACES, y), Y, Y * 2, share=1e-7)
case("as_strided", lambda x: x.as_strided((3, 2, 4), (6, 5, 1), 1), Y, floor=1e-6)
case("as_strided of a transpose", lambda x: x.t().contiguous().t().as_strided((4, 3), (2, 6)), Y, floor=1e-6)
case("as_strided_copy", lambda x: torch.as_strided_copy(x, (5,), (0,), 7), Y, floor=1e-6)
case("cat with what has no elements", lambda x: torch.cat([x[:, 6:] * 2, x, x[:, :0]], 1), X)
case("sum and matmul of no elements", lambda x: x + x[:0].sum() + x[:0].sum(0) + (x[:, :0] @ x[:, :0].t()).sum(), Y)
