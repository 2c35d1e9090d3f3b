# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Every op in every element type as native code: what the interpreter computes in the same type.

The cases are those of test_native.py. What an op does not take, its verifier refuses with the line;
what the verifier takes is compiled. Each run takes one type of each case; all with
``CLEAVE_TEST_ALL=1``.
"""

import re

import pytest
import torch

from cleave.testing.tools import ToolError
from float8_runs import by_interpreter, natively
from op_cases import CASES
from proofs import ALL
from typed_draws import draw

FLOATS = ["f32", "bf16", "f16", "f8E4M3FN", "f8E5M2"]
INTEGERS = ["i64", "i32", "i8", "i1"]
TYPES = FLOATS + INTEGERS

#: Refused ops in floats below f32, and why.
REFUSED = {
    "attention_onto": "onto must have the types of the results",  # of which one is f32
    "uniform_numbers": "result must be f32 or f64: a narrower type rounds to 1",
}
#: What is taken in integers, but that flags do not count; `integers` tests quotients, which have no
#: zeros there.
TAKEN = """abs add broadcast cast concat cumulative_sum flags gather gather_in_batches integers
    maximum minimum mul neg one_hot packed_bits pad reduce reshape slices sources sub ties transpose""".split()


def difference(found, wanted):
    """The largest difference, relative to the largest number; infinite where infinities differ."""
    found, wanted = found.double(), wanted.double()
    finite = wanted.isfinite()
    if not (torch.equal(finite, found.isfinite())
            and torch.equal(found[~finite].nan_to_num(7), wanted[~finite].nan_to_num(7))):
        return float("inf")
    if not finite.any():
        return 0.0
    most = max(float(wanted[finite].abs().max()), 1e-6)
    return float((found[finite] - wanted[finite]).abs().max()) / most


def compare(folder, text, given):
    wanted, found = by_interpreter(folder, text, given), natively(folder, text, given)
    return {k: d for k in wanted if k.startswith("r") and (d := difference(found[k], wanted[k])) > 1e-5}


@pytest.mark.parametrize("element", TYPES)
def test_ops(element, tmp_path):
    differ, taken = {}, set()
    names = [n for n in sorted(CASES) if element in FLOATS or n not in ("div", "rem")]
    if not ALL:
        names = names[TYPES.index(element)::len(TYPES)]
    for name in names:
        drawn = draw(name, element)
        try:
            text = drawn.text()
        except ToolError as error:
            assert re.match(r"<stdin>:\d+:\d+: error: 'graph\.\w+' op ", error.stderr)
            if element in FLOATS:
                assert REFUSED[name] in error.stderr
            continue
        taken.add(name)
        if found := compare(tmp_path, text, drawn.given()):
            differ[name] = found
    assert not differ
    if element in FLOATS:
        assert taken == set(names) - (set(REFUSED) if element != "f32" else set())
    else:
        assert taken == set(names) & set(TAKEN) - ({"sources"} if element == "i1" else set())


@pytest.mark.parametrize("element", FLOATS)
def test_factors_from_integers(element, tmp_path):
    """Flags and integers are factors of products, after a cast."""
    arguments, lines, results, given = [], [], [], {"w": torch.ones(3)}
    random = torch.Generator().manual_seed(3)
    given["y"] = torch.randn(6, 5, generator=random)
    for kind, own in zip(INTEGERS, (torch.int64, torch.int32, torch.int8, torch.bool)):
        given[kind] = torch.randint(0, 2 if kind == "i1" else 5, (4, 6), generator=random).to(own)
        arguments.append(f'%{kind}: tensor<4x6x{kind}> {{graph.name = "{kind}", graph.role = "input"}}')
        lines.append(f"""%c_{kind} = graph.cast %{kind} : (tensor<4x6x{kind}>) -> tensor<4x6x{element}>
          %p_{kind} = graph.contract "ab,bc->ac" %c_{kind}, %t : (tensor<4x6x{element}>,
              tensor<6x5x{element}>) -> tensor<4x5x{element}>
          %r_{kind} = graph.cast %p_{kind} : (tensor<4x5x{element}>) -> tensor<4x5xf32>""")
        results.append(f"r_{kind}")
    body = "\n".join(lines)
    types = "".join(f', tensor<4x5xf32> {{graph.name = "{r}"}}' for r in results)
    text = f"""func.func @loss({", ".join(arguments)},
        %y: tensor<6x5xf32> {{graph.name = "y", graph.role = "input"}},
        %w: tensor<3xf32> {{graph.name = "w", graph.role = "parameter"}})
        -> (tensor<f32> {{graph.name = "loss"}}{types}) {{
      %t = graph.cast %y : (tensor<6x5xf32>) -> tensor<6x5x{element}>
      {body}
      %l = graph.contract "a,a->" %w, %w : (tensor<3xf32>, tensor<3xf32>) -> tensor<f32>
      return %l, {", ".join("%" + r for r in results)} : tensor<f32>{", tensor<4x5xf32>" * len(results)}
    }}"""
    assert not compare(tmp_path, text, given)


def test_a_wrong_number_is_seen(tmp_path):
    """The comparison is not vacuous: another type rounds otherwise."""
    drawn = draw("exp", "bf16")
    text, other = drawn.text(), draw("exp", "f16").text()
    wanted = by_interpreter(tmp_path, other, drawn.given())
    found = natively(tmp_path, text, drawn.given())
    assert any(difference(found[k], wanted[k]) > 1e-5 for k in wanted if k.startswith("r"))
