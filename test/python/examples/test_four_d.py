# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The example of four axes: what it prints is complete, and its losses are those of one
device."""

import collections
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

from proofs import ALL

ROOT = pathlib.Path(__file__).resolve().parents[3]
RUNS = [("ring", "1f1b"), ("ulysses", "zb-v"), ("ulysses", "interleaved"), ("ring", "dualpipe-v")]


def run(*flags):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "CLEAVE_CHECK": "off"}
    return subprocess.run([sys.executable, ROOT / "examples" / "four_d.py", *map(str, flags)],
                          text=True, capture_output=True, timeout=300, env=environment)


def numbers(text):
    """0-3, 7 as a set."""
    found = set()
    for entry in text.split(", "):
        first, _, last = entry.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize("plan, schedule", RUNS if ALL else RUNS[:1])
def test_what_it_says(tmp_path, plan, schedule):
    result = run("--smoke", "--plan", plan, "--schedule", schedule, "--work", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = re.findall(r"(?m)^ +(\d+)  (\d)  (\d)  (\d)  (\d)  +(\S.*?)  +(\S.*?)  +(\S.*?)  +(\S+)$",
                      result.stdout)
    assert [int(row[0]) for row in rows] == list(range(16))
    # Along each axis ranks have other parts of one thing, which are all of it, and all the
    # others are the same.
    whole = [4, 2, 16, 4]
    columns = dict(pp=(1, 5, 0), dp=(2, 6, 1), cp=(3, 7, 2), tp=(4, 8, 3))
    for place, part, what in columns.values():
        parts = collections.defaultdict(set)
        for row in rows:
            parts[row[place]].add(row[part])
        assert all(len(entries) == 1 for entries in parts.values())
        first, second = (numbers(*parts[index]) for index in "01")
        assert first | second == set(range(whole[what]))
        # A layer may be cut between stages.
        assert what == 0 or not first & second
    if plan == "ring":
        # An early and a late chunk: under a causal mask ranks have equal work.
        assert {row[7] for row in rows} == {"0-3, 12-15", "4-7, 8-11"}
    sent = re.findall(r"(?m)^  along (\S+) +\S+ +([\d,]+)$", result.stdout)
    assert {axis for axes, _ in sent for axis in axes.split(",")} == {"pp", "dp", "cp", "tp"}
    losses = re.findall(r"(?m)^ +\d+ +([\d.]+) +([\d.]+) +\S+$", result.stdout)
    assert len(losses) == 2
    for one, many in losses:
        assert float(many) == pytest.approx(float(one), rel=1e-5)
    boxes = xml.parse(tmp_path / "ranks.svg").getroot().findall("{*}rect")
    assert len(boxes) == 1 + 16
    assert xml.parse(tmp_path / "schedule.svg").getroot().tag.endswith("svg")


def test_bad_flags(tmp_path):
    result = run("--smoke", "--plan", "rings", "--work", tmp_path)
    assert result.returncode == 2 and "invalid choice: 'rings'" in result.stderr
    result = run("--smoke", "--heads", "5", "--work", tmp_path)
    assert result.returncode == 1 and "error: hidden (32) must be a multiple of heads (5)" in \
        result.stderr
