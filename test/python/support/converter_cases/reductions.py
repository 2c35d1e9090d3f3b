# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Reductions, norms of vectors, order."""

import torch
import torch.nn.functional as F

from converter_cases.registry import case, inf, nan, normal, numbers

aten = torch.ops.aten

#: Rows of four: constant, zero, tied, tiny, huge, with infinities, with NaN, random.
ROWS = torch.stack([numbers(*row) for row in (
    (2, 2, 2, 2), (0, 0, 0, 0), (-0.0, 0, 0, -0.0), (3, 1, 3, 3), (-1, -1, 4, 4), (1e-30, 2e-30, -1e-30, 0),
    (1e4, 1e4 + 1, 1e4, -1e4), (1e15, 2e15, -1e15, 3e15), (1, inf, 2, 3), (-inf, 1, 2, 3), (inf, inf, 0, 1),
    (-inf, -inf, -inf, -inf), (inf, -inf, 0, 1), (nan, 1, 2, 3), (nan, nan, nan, nan), (1, nan, inf, 0))] + [*normal(5, 4)])
#: Those whose sums are numbers.
FINITE = torch.cat([ROWS[:7], ROWS[-5:]])
#: Those whose squares are numbers other than 0.
SQUARED = torch.cat([ROWS[:5], ROWS[-5:], normal(2, 4, seed=3, scale=1e4)])

case("sum", torch.sum, normal(7, 3), share=1e-6)
case("sum of rows", lambda x: x.sum(-1), ROWS, share=0)
case("sum, keepdim", lambda x: x.sum((0, 2), keepdim=True), normal(3, 4, 2), share=1e-6)
case("mean", torch.mean, normal(7, 3), share=1e-6)
case("mean of rows", lambda x: x.mean(-1), ROWS, ulps=32)
for name in ("amax", "amin"):
    f = getattr(torch, name)
    case(f"{name} of rows", lambda x, f=f: f(x, -1), ROWS)
    case(f"{name} of columns", lambda x, f=f: f(x, 0), ROWS[3:9])
    case(f"{name}, keepdim", lambda x, f=f: f(x, (0, 1), keepdim=True), ROWS[:5])
for name in ("max", "min"):
    f = getattr(torch, name)
    case(f"{name} of all", f, numbers(1, 2, 2, -3, -3))
    case(f"{name} of all, infinite", f, numbers(inf, -inf, inf, -inf))
    case(f"{name} along rows", lambda x, f=f: f(x, -1)[0], ROWS)
    case(f"{name} along columns", lambda x, f=f: f(x, 0)[0], FINITE)
    case(f"arg{name}", lambda x, f=getattr(torch, "arg" + name): f(x, -1), ROWS)
    case(f"arg{name} of all", lambda x, f=getattr(torch, "arg" + name): f(x), FINITE)
case("topk", lambda x: x.topk(2, -1)[0], normal(6, 5))
case("topk, smallest", lambda x: x.topk(2, 0, largest=False)[0], normal(6, 5))
case("topk of infinities", lambda x: x.topk(2, -1)[0], ROWS[7:10])
case("histc", lambda x: x.histc(4, -1, 1), numbers(-1, -0.5, 0, 0.25, 0.5, 0.75, 1, 2, -2))
case("any", lambda x: (x > 0).any() | (x > 1).any(-1).any(0), ROWS)
case("any of rows", lambda x: (x > 0).any(-1), ROWS)
case("any of dims", lambda x: aten.any.dims((x > 2), [0, 1]), ROWS)
case("all", lambda x: (x < 9).all() | (x > -1).all(-1).all(0), ROWS)
case("all of rows", lambda x: (x > 0).all(-1), ROWS)
case("all of dims", lambda x: aten.all.dims((x > 2), [0, 1]), ROWS)
for name in ("var", "std"):
    f = getattr(torch, name)
    case(f"{name} of rows", lambda x, f=f: f(x, -1), SQUARED, share=1e-6)
    case(f"{name}, biased", lambda x, f=f: f(x, -1, correction=0), SQUARED, share=1e-6)
    case(f"{name} of special rows", lambda x, f=f: f(x, -1), ROWS[8:16])
    case(f"{name} of one", lambda x, f=f: f(x, -1), normal(3, 1))
    case(f"{name} of one, biased", lambda x, f=f: f(x, -1, unbiased=False), normal(3, 1))
    case(f"{name} of all", f, normal(4, 5), share=1e-6)
    case(f"{name}, dim", lambda x, f=getattr(aten, name): f.dim(x, [0], True, keepdim=True), normal(4, 5), share=1e-6)
    case(f"{name}, default", lambda x, f=getattr(aten, name): f.default(x, False), normal(4, 5), share=1e-6)
case("var_mean", lambda x: torch.cat(torch.var_mean(x, -1)), SQUARED, share=1e-6)
case("logsumexp", lambda x: x.logsumexp(-1), ROWS, ulps=64)
case("logsumexp of columns", lambda x: x.logsumexp((0,), keepdim=True), ROWS[3:10], ulps=64)
case("logsumexp of all", lambda x: x.logsumexp((0, 1)), ROWS[:7], ulps=64)
case("cumsum", lambda x: x.cumsum(-1), normal(4, 9), share=1e-6)
case("cumsum of edges", lambda x: x.cumsum(0), numbers(1, 2, inf, 3, nan, 1))
case("diff", lambda x: x.diff(dim=-1), normal(4, 9))
case("diff, twice", lambda x, y: x.diff(n=2, dim=0, prepend=y), normal(4, 9), normal(1, 9), share=1e-6)
case("one_hot", lambda x: F.one_hot(x.long(), 4), numbers(0, 3, 1))
for order in (3, 0.5):
    case(f"norm {order} of rows", lambda x, order=order: torch.linalg.vector_norm(x, order, -1), SQUARED, ulps=64)
for order in (1, 2, inf, -inf, 0):
    case(f"norm {order} of rows", lambda x, order=order: torch.linalg.vector_norm(x, order, -1), FINITE, ulps=64)
    case(f"norm {order} of special rows", lambda x, order=order: torch.linalg.vector_norm(x, order, -1),
         ROWS[8:13] if abs(order) == inf else ROWS[8:16], ulps=64)
case("var_mean, correction", lambda x: torch.cat(torch.var_mean(x, (0,), correction=0)), normal(4, 5), share=1e-6)
case("var_mean of all", lambda x: torch.stack(aten.var_mean.default(x)), normal(4, 5), share=1e-6)
case("norm, Scalar", lambda x: aten.norm.Scalar(x, 2), normal(4, 5), share=1e-6)
case("norm, ScalarOpt_dim", lambda x: aten.norm.ScalarOpt_dim(x, 2, [0], True), normal(4, 5), share=1e-6)
case("norm of all", torch.norm, normal(4, 5), share=1e-6)
case("norm of zeros", torch.norm, torch.zeros(5))
case("norm of a column", lambda x: x.norm(dim=0, keepdim=True), FINITE, ulps=64)
case("normalize", lambda x: F.normalize(x, dim=-1), FINITE, ulps=128, share=1e-7)
case("normalize, order 1", lambda x: F.normalize(x, p=1.0, dim=-1), FINITE, ulps=128, share=1e-7)
case("pairwise_distance", lambda x, y: F.pairwise_distance(x, y), FINITE, normal(12, 4), ulps=128, share=1e-6)
