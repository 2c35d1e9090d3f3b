# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Operators of PyTorch's own database through the front end.

A sample of every fourth operator, drawn by a seed, is compared with torch in f64 by the
interpreter: all its results, and the gradient of every input that has one. With
``CLEAVE_TEST_ALL=1`` every sample of all is (of some operators 64, drawn by a seed), and two of
each operator, and those at edges, as native code.
`operators_refused.json` says what is refused; the tests fail where it is not true.
"""

import random

import pytest

import ledger
import operator_samples
import operator_table
from converter_support import recorded
from operator_checks import accepted, expect, interpreted, trace, trace_all
from operator_samples import operators  # noqa: F401
from proofs import ALL

#: Parts that run one by one, so that several processes share them.
PARTS = 24 if ALL else 4
SEED = 20
#: Samples of one module.
TOGETHER = 60


def part_of(operators, part):
    every = PARTS if ALL else 6 * PARTS
    return {n: op for i, (n, op) in enumerate(operators.items()) if i % every == part}


def drawn(name, op):
    """The samples of an operator that are tried."""
    own = operator_samples.tried(op, name)
    return own if ALL else [random.Random(f"{SEED} {name}").choice(own)]


def run(operators, part):
    """The operators traced, refused (by operator and sample) and tried (by operator)."""
    members, refused, count = [], {}, {}
    for name, op in part_of(operators, part).items():
        own = accepted(drawn(name, op))
        members += own
        refused[name], count[name] = {}, len(own)
    with recorded() as called:
        traced, errors = trace_all(members)
    # Its check_all wants a test of every converter.
    ledger.note("test_converters", sorted(map(str, called)))
    for sample, error in errors.items():
        refused[sample.rpartition("#")[0]][sample] = error
    return traced, refused, count


def in_modules(traced):
    """Lists of what is traced, of about as many samples each as one module takes."""
    part, size = [], 0
    for one in traced:
        part.append(one)
        size += len(one.members)
        if size >= TOGETHER:
            yield part
            part, size = [], 0
    if part:
        yield part


@pytest.mark.parametrize("part", range(PARTS))
def test_operators(operators, part):
    traced, refused, count = run(operators, part)
    unclear = {k: str(e) for found in refused.values() for k, e in found.items() if not e.clear}
    assert not unclear
    check_table({n: {k: str(e) for k, e in found.items()} for n, found in refused.items()}, count)
    found = {k: v for some in in_modules(traced) for k, v in interpreted(some).items()}
    assert not {k: v for k, v in found.items() if v}


def check_table(refused, count):
    """The messages are those of the table, and what it refuses is refused."""
    table, found = operator_table.read(), operator_table.entries(refused, count)
    if ALL:
        assert found == {n: table[n] for n in count if n in table}
        return
    for name, entry in found.items():
        assert name in table, f"{name} is refused: {entry['reasons']}"
        assert set(entry["reasons"]) <= set(table[name]["reasons"]), name
    works = [n for n in count if count[n] and n not in found
             and table.get(n, {}).get("samples") == "all"]
    assert not works, "these are traced now: write the table anew"


def test_the_page_is_that_of_the_table(operators):
    table = operator_table.read()
    assert set(table) <= set(operators)
    assert operator_table.PAGE.read_text() == operator_table.page(
        table, len(operators), operator_samples.LEFT_OUT)


def test_most_operators_are_traced(operators):
    table = operator_table.read()
    all_refused = [n for n, entry in table.items() if entry["samples"] == "all"]
    assert len(operators) - len(table) >= 0.75 * len(operators)
    assert len(operators) - len(all_refused) >= 0.85 * len(operators)


def test_a_wrong_value_and_a_wrong_gradient_are_seen(operators):
    """The comparison is not vacuous."""
    sample = operator_samples.samples(operators["sin"], "sin")[0]
    expected = expect(sample)
    assert interpreted([trace([(sample, expected)])]) == {sample.name: None}
    for change in ("values", "gradients"):
        expected = expect(sample)
        if change == "values":
            expected.values = expected.values + 1e-4
        else:
            expected.gradients = {i: g + 1e-3 for i, g in expected.gradients.items()}
        found = interpreted([trace([(sample, expected)])])[sample.name]
        assert found.startswith(change[:5])


def test_samples_that_draw_are_left_out(operators):
    """Also where they set a seed of their own."""
    name = "nn.functional.scaled_dot_product_attention"
    own = operator_samples.samples(operators[name], name)
    kept = {s.name for s, _ in accepted(own)}
    # Of four, the last two have a dropout of one half.
    assert [s.name in kept for s in own[:24]] == [True, True, False, False] * 6
    sin = operator_samples.samples(operators["sin"], "sin")
    assert len(accepted(sin)) == len(sin)


#: Operators whose native code is compared in every run; with all tests, every operator.
NATIVE = ("atan", "cumprod", "hypot", "logit", "nn.functional.max_pool2d",
          "nn.functional.softshrink", "remainder", "scatter", "sort", "xlogy")


@pytest.mark.parametrize("part", range(PARTS if ALL else 1))
def test_native_code(operators, part):
    from operator_native import compiled
    chosen = part_of(operators, part) if ALL else {n: operators[n] for n in NATIVE}
    members = []
    for name, op in chosen.items():
        # Native code needs an element in every tensor.
        own = [s for s in operator_samples.samples(op, name) if all(x.numel() for x in s.leaves)]
        own = random.Random(f"{SEED} {name}").sample(own, min(len(own), 2))
        own += operator_samples.edge_samples(op, name)
        members += accepted(own)
    traced, _ = trace_all(members)
    assert not {k: v for some in in_modules(traced) for k, v in compiled(some).items() if v}
