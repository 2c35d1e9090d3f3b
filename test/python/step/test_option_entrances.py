# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Every entrance accepts and refuses the same options, for the same reason.

Sets of options are drawn from the compiler's own table, valid and invalid ones, and given to
`cleave-compile` as flags and to the Python module as JSON. ``CLEAVE_TEST_ALL=1`` draws 1,000.
"""

import importlib.util
import json
import pathlib
import random
import re
import subprocess

import pytest

from cleave import _cleave
from proofs import ALL
from cleave.testing.tools import tool

SETS = 1000 if ALL else 24
ROOT = pathlib.Path(__file__).resolve().parents[3]
TABLE = json.loads(_cleave.option_table())
#: They name files, of which each entrance says its own way that they do not exist.
FILES = {"schedule_file", "measured_costs"}


def draw(rng):
    """Options by key, as texts of the command line."""
    chosen = {}
    for row in rng.sample(TABLE, rng.choice((1, 1, 2, 3, 6))):
        if not row["flag"] or row["key"] in FILES:
            continue
        values = [*row["choices"], *row["drawn"]]
        if row["kind"] == "flag":
            values = ["on", "off"]
        values = values or ["1", "x"]
        chosen[row["key"]] = rng.choice(values + (["other"] if rng.random() < 0.05 else []))
    return chosen


def as_json(row, text):
    """The value that Python would give."""
    kinds = {"flag": {"on": True, "off": False}.get, "integer": int, "number": float}
    try:
        value = kinds.get(row["kind"], str)(text)
    except ValueError:
        return text
    return text if value is None else value


def said_by_command_line(chosen, rows):
    flags = []
    for key, text in chosen.items():
        # A size without a unit counts other bytes there.
        unit = "B" if rows[key]["kind"] == "size" and text.isdecimal() else ""
        flags.append(f"--{rows[key]['flag']}={text}{unit}")
    ran = subprocess.run([tool("cleave-compile"), "there-is-no-such-model.mlir", "--plan-only", *flags],
                         capture_output=True, text=True, timeout=60)
    assert ran.returncode in (1, 2), ran
    lines = [line for line in ran.stderr.splitlines() if not line.startswith("warning: ")]
    return "\n".join(lines)


def reason(text, rows):
    """The message, with options called by their keys."""
    text = re.sub(r"^cleave-compile: |; see cleave-compile --help$|^error: ", "", text)
    for row in sorted(rows.values(), key=lambda row: -len(row["flag"])):
        if row["flag"]:
            text = re.sub(rf"--{re.escape(row['flag'])}\b(?!-)", row["key"], text)
    # A number alone counts other bytes there, and the message says which.
    text = re.sub(r"a number of [KM]iB", "a number of bytes", text)
    return re.sub(r"(\d)B\b", r"\1", text)


@pytest.mark.parametrize("seed", range(SETS))
def test_command_line_and_json_agree(seed):
    rng = random.Random(f"entrances {seed}")
    rows = {row["key"]: row for row in TABLE}
    chosen = draw(rng)
    given = {key: as_json(rows[key], text) for key, text in chosen.items()}
    mine = _cleave.check_options(json.dumps(given))
    theirs = reason(said_by_command_line(chosen, rows), rows)
    if not mine:
        assert "there-is-no-such-model.mlir" in theirs, (chosen, theirs)
    else:
        assert mine == theirs, chosen


def test_sets_are_accepted_and_refused():
    """Both verdicts are drawn often, so that agreement says something."""
    refused = sum(bool(_cleave.check_options(json.dumps(
        {key: as_json(row, text) for key, text in draw(random.Random(f"entrances {seed}")).items()
         for row in TABLE if row["key"] == key}))) for seed in range(1000))
    assert 250 < refused < 800


@pytest.mark.parametrize("options, words", [
    ({"target": "tpu"}, "target is cpu or cuda, not 'tpu'"),
    ({"merge_products": "on"}, "merge_products on needs precision bf16 or fp16"),
    ({"fp8_history": 16}, "fp8_history needs precision fp8"),
    ({"merge_product": "on"}, "unknown option 'merge_product'; did you mean 'merge_products'?"),
    ({"threads": -3}, "threads must be positive"),
    ({"micro_batches": 2, "deterministic": 4}, "micro_batches is replaced by the grains"),
    ({"residual": True}, "residual is 16bit or f32, not true"),
    ({"memory_limit": "lots"}, "memory_limit is a size: a number of bytes, or with a unit"),
])
def test_json_refuses(options, words):
    assert words in _cleave.check_options(json.dumps(options))


def test_each_option_says_what_it_is():
    for row in TABLE:
        assert len(row["help"]) > 20, row["name"]
        assert "{" not in row["help"] or all(
            name in {other["name"] for other in TABLE}
            for name in re.findall(r"\{(.*?)\}", row["help"])), row["name"]


def test_the_page_is_of_the_table():
    """docs/Options.md, which `make docs` writes."""
    spec = importlib.util.spec_from_file_location("write_options", ROOT / "scripts" / "write_options.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "Options.md").read_text() == module.page()
