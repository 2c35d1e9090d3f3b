# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Every entrance accepts and refuses the same options, for the same reason.

Sets of options are drawn from the compiler's own table, valid and invalid ones, and given to
`cleave-compile` as flags, to the native module as JSON and to `cleave.compile` in their groups.
``CLEAVE_TEST_ALL=1`` draws 1,000. Every option of the table is at every entrance.
"""

import importlib.util
import json
import pathlib
import random
import re
import subprocess

import pytest
import torch

import cleave
from cleave import _cleave
from cleave.compiler import api
from cleave.compiler.entrance import GROUPS, OWNERS, grouped
from proofs import ALL
from cleave.testing.tools import run_tool, tool

SETS = 1000 if ALL else 24
ROOT = pathlib.Path(__file__).resolve().parents[3]
TABLE = json.loads(_cleave.option_table())
#: They name files, of which each entrance says its own way that they do not exist.
FILES = {"schedule_file", "measured_costs"}
#: Options that no random set has, and why.
NOT_DRAWN = {
    "schedule_text": "the command line has files", "schedule_file": "it names a file",
    "measured_costs": "it names a file", "dump_phases": "it names a folder", "stages": "any names are valid without a model",
    "cpu": "the names are those of LLVM", "moved_bytes": "the command line does not have it",
}


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


class Accepted(Exception):
    """`cleave.compile` has accepted its options."""


def said_by_python(given, monkeypatch):
    """The reason of `cleave.compile`, "" if it goes on to the model."""

    def accept(*arguments):
        raise Accepted

    monkeypatch.setattr(api, "Builder", accept)
    # A model may ask for a precision of its own.
    arguments = grouped(**{"precision": "f32", **given, "ranks": "threads"})
    try:
        cleave.compile(torch.nn.Linear(2, 2), (torch.ones(1, 2),), **arguments)
    except Accepted:
        return ""
    except cleave.OptionError as error:
        # Only Python takes a name for that of a file.
        return str(error).removesuffix("; there is no file of this name either")
    raise AssertionError("nothing was compiled, and nothing refused")


@pytest.mark.parametrize("seed", range(SETS))
def test_entrances_agree(seed, monkeypatch):
    rng = random.Random(f"entrances {seed}")
    rows = {row["key"]: row for row in TABLE}
    chosen = draw(rng)
    given = {key: as_json(rows[key], text) for key, text in chosen.items()}
    mine = _cleave.check_options(json.dumps(given))
    # Settings of optimizers and of loss scales are objects there.
    if all(rows[key]["argument"] == key for key in given):
        assert said_by_python(given, monkeypatch) == mine, chosen
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
    ({"merge_matmuls": "on"}, "merge_matmuls on needs precision bf16 or fp16"),
    ({"fp8_history": 16}, "fp8_history needs precision fp8"),
    ({"merge_matmul": "on"}, "unknown option 'merge_matmul'; did you mean 'merge_matmuls'?"),
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


def loaded(name):
    """A module of scripts/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_of_the_table():
    """docs/Options.md, which `make docs` writes."""
    assert (ROOT / "docs" / "Options.md").read_text() == loaded("write_options").page()


def test_the_groups_are_of_the_table():
    """python/cleave/compiler/groups.py, which `make docs` writes."""
    path = ROOT / "python" / "cleave" / "compiler" / "groups.py"
    assert path.read_text() == loaded("write_groups").text()


@pytest.fixture(scope="module")
def help_text():
    return run_tool([tool("cleave-compile"), "--help"])


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["name"])
def test_an_option_is_at_every_entrance(row, help_text):
    """What is declared in one place is everywhere."""
    flag, key, argument = row["flag"], row["key"], row["argument"]
    # The command line, and the page of its options.
    if flag:
        assert re.search(rf"^ +--{flag}\b(?!-)", help_text, re.M)
        assert re.search(rf"^\| `{key}`, `--{flag}`", (ROOT / "docs" / "Options.md").read_text(), re.M)
    # JSON knows it, whatever it says of the value.
    assert "unknown option" not in _cleave.check_options(json.dumps({key: row["default"]}))
    # Python: an argument, a field of its group, or a setting of an object.
    if argument == key and row["class"]:
        kind = getattr(cleave, row["class"])
        assert OWNERS[key] == row["class"].lower() and f"{key}:" in kind.__doc__
        assert f"{key}=" in repr(grouped(**{key: 1})[OWNERS[key]])
    elif argument == key:
        assert f"        {key}: " in cleave.compile.__doc__
    else:
        assert argument in ("", "optimizer", "loss_scale", "schedule")
    # Random sets have values, of which some are refused.
    values = row["drawn"] or row["choices"] or row["kind"] == "flag"
    assert bool(values) != (key in NOT_DRAWN), row


def test_former_names_are_not_those_of_options():
    names = {row["name"] for row in TABLE}
    former = [own["name"] for row in TABLE for own in row["former"]]
    assert len(former) == len(set(former)) and not names & set(former)


def test_groups_are_as_the_table_has_them():
    assert {row["class"] for row in TABLE if row["class"]} <= {k.__name__ for k, _ in GROUPS.values()}
    assert sum(len(kind.__dataclass_fields__) for kind, _ in GROUPS.values()) == len(OWNERS)
