# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Contractions; the biases that follow them, in every rank."""

from functools import partial

import torch
import torch.nn.functional as F

from cleave import grouped
from converter_cases.registry import case, normal

aten = torch.ops.aten
SUMS = dict(ulps=64, share=2e-6)

#: Shapes of an input of five channels.
INPUTS = {"vector": (5,), "one row": (1, 5), "rows": (3, 5), "rank 3": (2, 3, 5), "rank 3 of ones": (1, 1, 5)}
#: What reads the result.
USES = {
    "output": lambda y, u: y,
    "product": lambda y, u: y @ u,
    "concat": lambda y, u: torch.cat([y, y * 2.0], -1),
    "exp": lambda y, u: y.exp(),
    "itself": lambda y, u: y * y,
    "reshape": lambda y, u: y.reshape(-1, 1),
}
for kind, shape in INPUTS.items():
    for outputs in (1, 4):
        for use, then in USES.items():
            case(f"linear of a {kind} to {outputs}, {use}",
                 lambda x, w, b, u, then=then: then(F.linear(x, w, b), u), normal(*shape), normal(outputs, 5, seed=1),
                 normal(outputs, seed=2), normal(outputs, 2, seed=3), **SUMS)
case("linear of one channel", lambda x, w, b: F.linear(x, w, b), normal(1), normal(4, 1, seed=1), normal(4, seed=2), **SUMS)
case("linear without bias", lambda x, w: F.linear(x, w), normal(5), normal(4, 5, seed=1), **SUMS)
case("matmul plus a scalar", lambda x, w, b: x @ w + b, normal(5), normal(5, 4, seed=1), normal(seed=2), **SUMS)
case("matmul plus one element", lambda x, w, b: x @ w + b, normal(5), normal(5, 4, seed=1), normal(1, seed=2), **SUMS)
case("matmul plus a column", lambda x, w, b: x @ w + b, normal(3, 5), normal(5, 4, seed=1), normal(3, 1, seed=2), **SUMS)
case("matmul plus a matrix", lambda x, w, b: x @ w + b, normal(5), normal(5, 4, seed=1), normal(3, 4, seed=2), **SUMS)
case("mv plus a vector", lambda w, x, b: aten.mv.default(w, x) + b, normal(4, 5), normal(5, seed=1), normal(4, seed=2), **SUMS)
case("dot plus a scalar", lambda a, b, c: aten.dot.default(a, b) + c, normal(5), normal(5, seed=1), normal(seed=2), **SUMS)
case("dot plus a vector", lambda a, b, c: (a @ b + c).exp(), normal(5), normal(5, seed=1), normal(4, seed=2), **SUMS)

for name, a, b in (("matrices", (3, 5), (5, 4)), ("vectors", (5,), (5,)), ("vector and matrix", (5,), (5, 4)),
                   ("matrix and vector", (3, 5), (5,)), ("batches", (2, 3, 5), (2, 5, 4)), ("vector and batches", (5,), (2, 5, 4)),
                   ("broadcast batches", (2, 1, 3, 5), (4, 5, 2)), ("ones", (1, 1), (1, 1))):
    case(f"matmul of {name}", torch.matmul, normal(*a), normal(*b, seed=1), **SUMS)
case("mm", lambda a, b: aten.mm.default(a, b), normal(3, 5), normal(5, 4, seed=1), **SUMS)
case("bmm", torch.bmm, normal(2, 3, 5), normal(2, 5, 4, seed=1), **SUMS)
case("outer", torch.outer, normal(3), normal(4, seed=1), **SUMS)
case("einsum", lambda a, b: torch.einsum("bik,bjk->bij", a, b), normal(2, 3, 5), normal(2, 4, 5, seed=1), **SUMS)
for equation, *shapes in (("ij,jk->ik", (3, 4), (1, 2)), ("ij,ij->ij", (3, 1), (1, 4)),
                          ("ij,ij->j", (1, 1), (3, 4)), ("...j,...jk->...k", (3, 4), (1, 4, 2)),
                          ("ii,ij->ij", (3, 3), (1, 4)), ("ij,jk,jl->ikl", (3, 4), (1, 2), (1, 5))):
    case(f"einsum {equation}, repeated along units", partial(torch.einsum, equation),
         *(normal(*shape, seed=i) for i, shape in enumerate(shapes)), **SUMS)
case("einsum of a diagonal", lambda a, b: torch.einsum("iki,i->ik", a, b), normal(3, 2, 3), normal(3, seed=1), **SUMS)
case("einsum, a trace beside NaN", lambda a: torch.einsum("iii", a),
     torch.where(torch.arange(27) % 13 == 0, normal(27), torch.nan).view(3, 3, 3), **SUMS)
case("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0), normal(4), normal(3, 5, seed=1), normal(5, 4, seed=2), **SUMS)
case("addmm of one column", lambda c, a, b: torch.addmm(c, a, b), normal(3, 1), normal(3, 5, seed=1), normal(5, 4, seed=2), **SUMS)
case("addmv", lambda c, a, b: torch.addmv(c, a, b), normal(3), normal(3, 5, seed=1), normal(5, seed=2), **SUMS)
case("baddbmm", lambda c, a, b: torch.baddbmm(c, a, b), normal(2, 3, 4), normal(2, 3, 5, seed=1), normal(2, 5, 4, seed=2), **SUMS)
case("conv1d", lambda x, w, b: F.conv1d(x, w, b, padding=1), normal(2, 3, 6), normal(4, 3, 3, seed=1), normal(4, seed=2), **SUMS)
case("conv1d, same", lambda x, w: F.conv1d(x, w, padding="same"), normal(2, 3, 6), normal(4, 3, 3, seed=1), **SUMS)
case("conv2d", lambda x, w, b: F.conv2d(x, w, b, stride=2), normal(2, 3, 6, 6), normal(4, 3, 2, 2, seed=1), normal(4, seed=2), **SUMS)
case("conv2d, same", lambda x, w: F.conv2d(x, w, padding="same"), normal(2, 3, 6, 6), normal(4, 3, 3, 3, seed=1), **SUMS)
case("convolution", lambda x, w: aten.convolution.default(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
     normal(2, 3, 6, 6), normal(4, 3, 2, 2, seed=1), **SUMS)
case("avg_pool2d", lambda x: F.avg_pool2d(x, 2), normal(2, 3, 4, 4), **SUMS)

#: Groups of six rows, of three groups, of which one has none; the ends of groups of four.
CHOSEN, ENDS = torch.tensor([[2, 0], [0, 0], [2, 2]]), torch.tensor([1, 1, 4, 8], dtype=torch.int32)
for transpose in (False, True):
    case(f"grouped_linear{', transposed' * transpose}", lambda x, w, t=transpose: grouped.grouped_linear(x, w, CHOSEN, t),
         normal(3, 2, 5), normal(3, *((4, 5) if transpose else (5, 4)), seed=1), **SUMS)
    case(f"grouped_linear_weight_grad{', transposed' * transpose}",
         lambda x, g, t=transpose: torch.ops.cleave.grouped_linear_weight_grad.default(x, g, CHOSEN, 3, t),
         normal(3, 2, 5), normal(3, 2, 4, seed=1), **SUMS)
for name, shapes, turned in (("rows", ((8, 8), (4, 8, 4)), 0), ("columns", ((4, 4, 8), (8, 8)), 0), ("terms", ((8, 8), (8, 4)), 1)):
    case(f"grouped_mm of {name}", lambda a, b, turned=turned: F.grouped_mm(a.t() if turned else a, b, offs=ENDS)
         if a.dtype != torch.float64 else grouped.grouped_mm(a.t() if turned else a, b, offs=ENDS),
         *(normal(*shape, seed=i) for i, shape in enumerate(shapes)), **SUMS)
