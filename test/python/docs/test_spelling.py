# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Pages, examples, benchmarks and tests give options by the names that they have now."""

import ast
import json
import pathlib
import re
import subprocess

import pytest

from cleave import _cleave
from cleave.compiler.entrance import GROUPS, OWNERS, former_names

ROOT = pathlib.Path(__file__).resolve().parents[3]
FILES = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
#: These are about former names.
ABOUT = {"CHANGELOG.md", "docs/Options.md"}
PAGES = [name for name in FILES if name.endswith(".md") and name not in ABOUT
         and (name.startswith(("docs/", "examples/")) or "/" not in name)]
SCRIPTS = [name for name in FILES if name.endswith(".py") and name.startswith(("examples/", "benchmarks/", "test/python/"))]
FLAGS = [own["name"] for row in json.loads(_cleave.option_table()) for own in row["former"]]


def outside_of_groups(code):
    """Arguments of calls of `cleave.compile` that are in a group, or have another name, now."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "cleave.compile":
            names = {keyword.arg for keyword in node.keywords}
            found += sorted(name for name in names if name in former_names()
                            or (name in OWNERS and name not in GROUPS))
    return found


def calls_in(page):
    """The calls of a page, in blocks or in a line, each as far as its parentheses match."""
    for match in re.finditer(r"cleave\.compile\(", page):
        depth, end = 1, match.end()
        while depth and end < len(page):
            depth += {"(": 1, ")": -1}.get(page[end], 0)
            end += 1
        yield page[match.start():end].replace("...", "_")


def test_a_call_with_former_names_is_found():
    assert outside_of_groups('cleave.compile(m, x, schedule="1f1b", chunks=2, seed=1)') == ["chunks", "schedule"]
    assert not outside_of_groups('cleave.compile(m, x, precision="bf16", memory=cleave.Memory(offload=["state"]))')


@pytest.mark.parametrize("name", PAGES)
def test_pages(name):
    page = (ROOT / name).read_text()
    for call in calls_in(page):
        try:
            found = outside_of_groups(call)
        except SyntaxError:
            continue  # a call in words: no code
        assert not found, call
    former = re.findall(rf"--(?:{'|'.join(FLAGS)})(?![\\w-])", page)
    assert not former, former


def test_scripts():
    wrong = {name: found for name in SCRIPTS if (ROOT / name).exists()
             and "cleave.compile(" in (text := (ROOT / name).read_text())
             and (found := outside_of_groups(text))
             and name not in ("test/python/options/test_former_names.py",)}
    assert not wrong
