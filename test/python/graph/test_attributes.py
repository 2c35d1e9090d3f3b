# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Each attribute of a dialect is checked by the table that names it (docs/Attributes.md).

Every attribute is put, with values of every other form, on what may have it, and on what may not.
`cleave-opt` refuses each, and says which attribute it was.
"""

import pathlib
import random
import re
import subprocess

import pytest

from cleave.testing.tools import tool

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROWS = [tuple(cell.strip(" `") for cell in line.strip("|\n").split(" | "))
        for line in (ROOT / "docs" / "Attributes.md").read_text().splitlines() if line.startswith("| `")]

#: Texts of values by form; the forms of the table, and near ones that none has.
VALUES = {
    "unit": lambda rng: "unit",
    "string": lambda rng: f'"{rng.choice(["text", "w", ""])}"',
    "integer": lambda rng: f"{rng.randint(0, 9)} : i64",
    "number": lambda rng: f"{rng.randint(1, 9)}.5 : f64",
    "type": lambda rng: rng.choice(["f32", "tensor<4xf32>"]),
    "elements": lambda rng: "dense<1.5> : tensor<4xf32>",
    "integers": lambda rng: "array<i64: 4, 1>",
    "array": lambda rng: f'[{rng.randint(0, 9)} : i64, "text", unit]',
    "dictionary": lambda rng: "{text}",
    "an i32": lambda rng: f"{rng.randint(0, 9)} : i32",
    "a flag": lambda rng: rng.choice(["true", "false"]),
    "an f32": lambda rng: "1.5 : f32",
    "numbers of 32 bits": lambda rng: "array<i32: 4, 1>",
}
HOSTS = {
    "op": "func.func @f(%x: tensor<4xf32>) {{\n  // expected-error@below {{{{attribute '{name}'}}}}\n"
          "  %0 = graph.neg %x {{{name} = {value}}} : (tensor<4xf32>) -> tensor<4xf32>\n  return\n}}\n",
    "argument": "// expected-error@below {{{{attribute '{name}'}}}}\n"
                "func.func @f(%x: tensor<4xf32> {{{name} = {value}}}) {{\n  return\n}}\n",
    "result": "// expected-error@below {{{{attribute '{name}'}}}}\n"
              "func.func @f(%x: tensor<4xf32>) -> (tensor<4xf32> {{{name} = {value}}}) {{\n"
              "  return %x : tensor<4xf32>\n}}\n",
}
#: Of the right form, but wrong.
WRONG = {
    "an i64 that is not negative": ["-1 : i64"], "a positive i64": ["0 : i64", "-3 : i64"],
    "a number from 1 to 4096": ["0 : i64", "-3 : i64", "4097 : i64"],
    "f32 or 16bit": ['"f16"', '""'], "each or once, and perhaps the reason": ['"never"'],
    "forward or backward, or none and the reason": ['"later"'],
    "an array of strings": ["[1 : i64]"], "an array of dictionaries": ['["text"]'],
    "an array of buffers with bytes and a kind": ["[{}]", '[{bytes = -1 : i64, kind = "x"}]', "[{bytes = 1 : i64}]"],
    "numbers of buffers": ["array<i64: 0, -1>"], "a dictionary with a name and a kind": ["{}"],
    "a dimension of the tensor": ["1 : i64", "-1 : i64"], "a dimension of the one result": ["1 : i64"],
    "an f64 that is finite and not negative": ["-0.5 : f64", "0x7FF0000000000000 : f64"],
    "a shape with as many elements as the tensor": ["array<i64: 3>"],
    "a positive size for each dimension of the tensor": ["array<i64: 4, 4>", "array<i64: 0>"],
    "one of parameter, buffer, input, state, gradient, scalar, rng": ['"weight"'],
}


def refused(cases):
    """Checks that `cleave-opt` refuses each of the modules, as its comments say."""
    ran = subprocess.run([tool("cleave-opt"), "--split-input-file", "--verify-diagnostics", "-o", "/dev/null"],
                         input="// -----\n".join(cases), capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[:4000]


@pytest.mark.parametrize("dialect", ["graph", "spmd", "pipe", "exec"])
def test_other_values_and_places_are_refused(dialect):
    rng = random.Random(f"attributes of {dialect}")
    rows = [row for row in ROWS if row[0].startswith(dialect + ".")]
    assert len(rows) > 10
    cases = []
    for name, on, form, expected, _ in rows:
        for host, text in HOSTS.items():
            if host not in on.split(", "):
                cases.append(text.format(name=name, value=VALUES.get(form, VALUES["unit"])(rng)))
                continue
            values = [make(rng) for other, make in VALUES.items() if other != form]
            cases += [text.format(name=name, value=value) for value in values + WRONG.get(expected, [])]
    refused(cases)


@pytest.mark.parametrize("dialect", ["graph", "spmd", "pipe", "exec"])
def test_unknown_names_are_refused(dialect):
    cases = [text.format(name=f"{dialect}.no_such_name", value="unit") for text in HOSTS.values()]
    refused(cases)


def test_wrong_values_are_of_rows():
    assert set(WRONG) <= {row[3] for row in ROWS}
    assert {row[2] for row in ROWS} - set(VALUES) == {"other"}


def test_former_names_are_read(tmp_path):
    """Clones of contractions had attributes without a prefix; the executable phase reads them."""
    text = """
func.func private @f.F(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = graph.linear %x, %x {twin = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}
"""
    ran = subprocess.run([tool("cleave-opt"), "--exec-unroll-schedule", "-"], input=text, capture_output=True, text=True,
                         timeout=60)
    assert re.search(r"graph\.twin = 0", ran.stdout), ran.stderr
