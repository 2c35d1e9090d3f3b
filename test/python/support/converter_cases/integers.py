# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Integers: their bits, the largest of them and where it is."""

import torch

from converter_cases.registry import case, normal, numbers, pairs

aten = torch.ops.aten
WHOLE = pairs(0, 1, 2, 3, -1, -2, 5, -7, 127, -128, 4097, -65536)
#: Of equal elements the first is chosen.
TIED = numbers(3, 1, 3, -2, 0, 0, 0, 0, -5, -1, -1, -9, 7, 8, 9, 9).reshape(4, 4)
LARGE = torch.tensor([2**62 + 1, -2**63, 2**63 - 1, -2**62, 1])

for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__"):
    f = getattr(aten, name)
    case(f"{name} of integers", lambda a, b, f=f.Tensor: f(a.long(), b.long()), *WHOLE)
    case(f"{name} of booleans and integers", lambda a, b, f=f.Tensor: f(a > 0, b.int()), *WHOLE)
    case(f"{name} of integers, Scalar", lambda a, f=f.Scalar: f(a.long(), 13), WHOLE[0])
case("bitwise_and of large integers", lambda x: x * ((LARGE & (LARGE * 3)) % 1000), normal(5))
case("bitwise_not of integers", lambda a: ~a.long(), WHOLE[0])
for name in ("bitwise_left_shift", "bitwise_right_shift"):
    f = getattr(aten, name).Tensor_Scalar
    case(f"{name}, Tensor_Scalar", lambda a, f=f: f(a.long(), 3), WHOLE[0])
case("__lshift__, Scalar", lambda a: aten.__lshift__.Scalar(a.long(), 2), WHOLE[0])
case("__rshift__, Scalar", lambda a: aten.__rshift__.Scalar(a.long(), 2), WHOLE[0])
for name in ("argmax", "argmin"):
    f = getattr(torch, name)
    case(f"{name} of integers", lambda x, f=f: f(x.long(), -1), TIED)
    case(f"{name} of integers, columns", lambda x, f=f: f(x.int(), 0, keepdim=True), TIED)
    case(f"{name} of all integers", lambda x, f=f: f(x.long()), TIED)
for name in ("max", "min"):
    f = getattr(torch, name)
    case(f"{name} of integers along rows", lambda x, f=f: sum(f(x.long(), -1)), TIED)
case("topk of integers", lambda x: x.long().topk(2, -1)[0], TIED)
case("topk of integers, smallest", lambda x: x.long().topk(3, 0, largest=False)[0], TIED)

BYTES, WORDS = torch.tensor([0, 1, 200, 255], dtype=torch.uint8), torch.tensor([7, -3], dtype=torch.int16)
RANGE = numbers(0, 1, 2.7, 100, 127, 128, 200, 255)
case("uint8 of booleans", lambda x: (x > 0).to(torch.uint8).float() * x, normal(9))
case("uint8 of numbers", lambda x: x.to(torch.uint8).float() * x, RANGE)
case("uint8 of integers wraps", lambda x: (x.long() * 77 - 9000).to(torch.uint8).float() * x, RANGE)
case("int16 of integers wraps", lambda x: (x.long() * 7777 - 900000).to(torch.int16).float() * x, RANGE)
case("uint8 moved and compared", lambda x: torch.where(
    torch.cat([(x > 0).byte(), BYTES[:2]]).reshape(-1, 2).t().eq(1), 1.0, x.sum()), normal(6), share=1e-6)
case("uint8 that is known", lambda x: x * (BYTES + 60).float() + x * (~BYTES).bool(), normal(4))
case("int16 that is known", lambda x: torch.where((x > 0)[:2], WORDS, WORDS[:1]).float() * x[:2], normal(4))
