# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Norms, softmax, attention, dropout that does nothing."""

import torch
import torch.nn.functional as F

from converter_cases.reductions import ROWS
from converter_cases.registry import case, inf, normal, numbers

aten = torch.ops.aten

SUMS = dict(ulps=64, share=2e-6)

case("layer_norm", lambda x, w, b: F.layer_norm(x, (8,), w, b), normal(3, 8), normal(8, seed=1), normal(8, seed=2), **SUMS)
case("layer_norm, two dimensions", lambda x: F.layer_norm(x, (2, 4)), normal(3, 2, 4), **SUMS)
case("layer_norm of constant rows", lambda x: F.layer_norm(x, (4,)), torch.stack([torch.zeros(4), torch.full((4,), 2.0)]), **SUMS)
case("native_layer_norm", lambda x, w: aten.native_layer_norm.default(x, [8], w, None, 1e-5)[0], normal(3, 8), normal(8, seed=1),
     **SUMS)
case("rms_norm", lambda x, w: F.rms_norm(x, (8,), w, 1e-6), normal(3, 8), normal(8, seed=1), **SUMS)
case("rms_norm of zero rows", lambda x: F.rms_norm(x, (4,)), torch.stack([torch.zeros(4), torch.full((4,), 2.0)]), **SUMS)
case("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), normal(2, 4, 3), normal(4, seed=1), normal(4, seed=2), **SUMS)

#: Rows that torch gives numbers for, and rows that it does not.
SOFTMAX = torch.cat([ROWS[:11], ROWS[-5:], numbers(88, -88, 100, 1e4)[None], numbers(-1e30, 1e30, 0, 1)[None]])
for name in ("softmax", "log_softmax"):
    f = getattr(F, name)
    case(name, lambda x, f=f: f(x, -1), ROWS, ulps=64, share=1e-7)
    case(f"{name} of columns", lambda x, f=f: f(x, 0), ROWS[:7], ulps=64, share=1e-7)
    case(f"_{name}", lambda x, f=getattr(aten, "_" + name).default: f(x, -1, False), SOFTMAX, ulps=64, share=1e-7)
case("softmax of a scalar", lambda x: x.softmax(0) + x.log_softmax(0), normal())
case("softmin", lambda x: F.softmin(x, -1), normal(3, 4), **SUMS)

case("dropout of nothing", lambda x: F.dropout(x, 0.0) + F.dropout(x, 0.5, training=False), normal(5))
case("native_dropout of nothing", lambda x: aten.native_dropout.default(x, 0.0, True)[0], normal(5))
case("feature_dropout of nothing", lambda x: aten.feature_dropout.default(x, 0.0, True), normal(2, 3, 4))

Q, K, V = (normal(1, 2, 3, 4, seed=i) for i in range(3))
sdpa = F.scaled_dot_product_attention
MIN = torch.finfo(torch.float32).min

case("attention", lambda q, k, v: sdpa(q, k, v), Q, K, V, **SUMS)
case("attention, causal", lambda q, k, v: sdpa(q, k, v, is_causal=True), Q, K, V, **SUMS)
case("attention of three dimensions", lambda q, k, v: sdpa(q[0], k[0], v[0]), Q, K, V, **SUMS)
case("attention of two dimensions", lambda q, k, v: sdpa(q[0, 0], k[0, 0], v[0, 0]), Q, K, V, **SUMS)
for name, shapes in {"queries of fewer dimensions": ((3, 4), (2, 1, 3, 4), (2, 2, 3, 4)), "one sample of queries": ((1, 3, 4), (2, 3, 4), (2, 3, 4)),
                     "keys of fewer dimensions": ((2, 2, 3, 4), (2, 3, 4), (1, 3, 4)), "rank 5": ((3, 1, 2, 3, 4), (2, 2, 3, 4), (2, 3, 4))}.items():
    case(f"attention, {name}", lambda q, k, v: sdpa(q, k, v), *(normal(*s, seed=i) for i, s in enumerate(shapes)), **SUMS)
case("attention, a mask of each sample", lambda q, k, v, m: sdpa(q, k, v, m), Q[0], K[0], V[0], normal(2, 1, 3, seed=3), **SUMS)

MASKS = {
    "-1e4": [[0, -1e4, -1e4], [-1e4, -1e4, -1e4], [0, 0, -1e4]],
    "-1e4 that differ": [[-1e4, -1.5e4, -2e4], [-1e4, -10001, -10002], [0, 0, -1e4]],
    "-1e9": [[0, -1e9, 0], [-1e9, -1e9, -1e9], [0, -1e9, -1e9]],
    "least number": [[0, MIN, 0], [MIN, MIN, MIN], [0, 0, MIN]],
    "least number below": [[0, MIN, MIN], [0, 0, MIN], [0, 0, 0]],
    "-inf": [[0, -inf, 0], [1, 2, 3], [0, -inf, -inf]],
    "-inf above": [[0, -inf, -inf], [0, 0, -inf], [0, 0, 0]],
    "-1e4 above": [[0, -1e4, -1e4], [0, 0, -1e4], [0, 0, 0]],
}
for name, mask in MASKS.items():
    bias = torch.tensor(mask)
    case(f"attention, mask of {name}", lambda q, k, v, m=bias: sdpa(q, k, v, attn_mask=m.to(q)), Q, K, V, **SUMS)
    case(f"attention, mask of {name}, large scores", lambda q, k, v, m=bias: sdpa(q, k, v, attn_mask=m.to(q)),
         Q * 300, K * 300, V, ulps=64, share=2e-2, floor=1e-3)
    case(f"attention spelled out, mask of {name}",
         lambda q, k, v, m=bias: (q @ k.transpose(-1, -2) * 0.5 + m.to(q)).softmax(-1) @ v, Q, K, V, **SUMS)
for fill in (-1e4, -1e9, MIN, -inf):
    keep = torch.tensor([[True, False, False], [fill != -inf, False, False], [True, True, False]])
    keep[1] &= fill == -inf
    keep[1, 0] |= fill == -inf
    case(f"attention, masked_fill of {fill}",
         lambda q, k, v, m=keep, f=fill: (q @ k.transpose(-1, -2) * 0.5).masked_fill(~m, f).softmax(-1) @ v, Q, K, V, **SUMS)
case("attention, keys by parameter", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), Q, K, V, normal(3, 3), **SUMS)
BOOLEAN = torch.tensor([[True, False, True], [True, True, True], [False, False, True]])
case("attention, boolean mask", lambda q, k, v: sdpa(q, k, v, attn_mask=BOOLEAN), Q, K, V, **SUMS)
EMPTY = torch.tensor([[True, False, True], [False, False, False], [False, False, True]])
case("attention, no key by a boolean mask", lambda q, k, v: sdpa(q, k, v, attn_mask=EMPTY), Q, K, V, **SUMS)
NOTHING = torch.tensor([[0, -inf, 0], [-inf, -inf, -inf], [-inf, -inf, 2.0]])
case("attention, no key by -inf", lambda q, k, v: sdpa(q, k, v, attn_mask=NOTHING.to(q)), Q, K, V, **SUMS)
