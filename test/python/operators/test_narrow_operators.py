# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Gradients of operators of PyTorch's own database in bf16 and fp16 are as near to f64 as eager ones.

Two samples of each operator, drawn by a seed, are compiled with each type. Their errors are at most
3 times those of `torch.autocast`, and, with leaves of the type, of eager code in the type, as
`model.bfloat16()` computes; or what f32 loses, where eager code computes in f32. At most 2 % are
beyond, each listed with the reason. With ``CLEAVE_TEST_ALL=1`` all operators are compared, and counted.
"""

import random

import pytest

import ledger
import operator_samples
from operator_checks import trace_all
from operator_narrow import TYPES, compiled, fitting, rounded
from operator_samples import operators  # noqa: F401
from proofs import ALL

PARTS = 24 if ALL else 1
#: Operators that are compared in every run: what moves, multiplies or sums elements of parameters.
SOME = ("addmv", "cross", "nn.functional.glu", "nn.functional.grid_sample", "nn.functional.layer_norm",
        "nn.functional.scaled_dot_product_attention")
#: Samples of one module.
TOGETHER = 60

#: Samples in a type that are beyond the error of autocast, and why.
BEYOND = {
    # Those of the factors of rows, which eager code multiplies by an f32 table.
    **{("nn.functional.embedding_bag#2", kind): "an embedding reads a 16-bit table"
       for kind in TYPES},
    ("corrcoef#0", "bf16"): "a gradient of 0 is the difference of equal terms, one of them rounded",
}
#: Those that are beyond the error of eager code in the type.
BEYOND_TYPED = {
    ("corrcoef#0", "bf16"): BEYOND["corrcoef#0", "bf16"],
    ("topk#6", "bf16"): "rounded elements are equal, and PyTorch takes another one of them than the first",
}
#: When all operators are compared each judge has as many cases or more; at most 2 % are listed.
CASES = {"autocast": 893, "type": 892}


def drawn(operators, part):
    every = operators if ALL else SOME
    for name in list(every)[part::PARTS]:
        own = [s for s in operator_samples.samples(operators[name], name)
               if all(x.numel() for x in s.leaves)]
        yield from random.Random(f"20 {name}").sample(own, min(len(own), 2))


def found_of(samples, precision, autocast):
    if not autocast:
        samples = [rounded(s, precision) for s in samples]
    # One at once: more are traced again where one of them is refused.
    traced, _ = trace_all(fitting(samples, precision), 1)
    found, some = {}, []
    for i, one in enumerate(traced):
        some.append(one)
        if sum(len(x.members) for x in some) >= TOGETHER or i + 1 == len(traced):
            found |= {(k, precision): v for k, v in compiled(some, precision, autocast).items()}
            some = []
    return found


def differ(found, listed):
    """What is beyond and not listed, and what is listed and not beyond."""
    beyond = {k: v for k, v in found.items() if not v.within(3)}
    return ({k: v for k, v in beyond.items() if k not in listed},
            [k for k in listed if k in found and k not in beyond])


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("part", range(PARTS))
def test_as_near_as_autocast(operators, part, precision):
    found = found_of(drawn(operators, part), precision, True)
    ledger.note("test_narrow_operators", {"autocast": sorted(name for name, _ in found)})
    assert len(found) > len(SOME)
    assert differ(found, BEYOND) == ({}, [])


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.skipif(not ALL, reason="as the judge above; with CLEAVE_TEST_ALL")
def test_as_near_as_the_type(operators, part, precision):
    found = found_of(drawn(operators, part), precision, False)
    ledger.note("test_narrow_operators", {"type": sorted(name for name, _ in found)})
    assert differ(found, BEYOND_TYPED) == ({}, [])


def test_few_are_listed():
    assert len(BEYOND) <= 0.02 * CASES["autocast"]
    assert len(BEYOND_TYPED) <= 0.02 * CASES["type"]


def check_all(facts):
    """There are as many cases as few are compared with, and what is listed is one of them."""
    if not ALL:
        return
    for judge, listed in (("autocast", BEYOND), ("type", BEYOND_TYPED)):
        names = [name for fact in facts for name in fact.get(judge, ())]
        assert len(names) >= CASES[judge], (judge, len(names))
        assert {name for name, _ in listed} <= set(names)
