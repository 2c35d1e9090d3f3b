# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The page of the examples: each has a row and a picture, and runs by its one command."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

import gallery
from doc_anchors import anchors
from doc_blocks import blocks
from proofs import ALL

EXAMPLES = pathlib.Path(gallery.__file__).parent
PAGE = EXAMPLES / "README.md"


def scripts():
    """The files that are run, by what they have: a `main` and a place to write to."""
    return {path.stem for path in EXAMPLES.glob("*.py")
            if "__main__" in path.read_text() and path.stem != "gallery"}


def test_page_has_all():
    text = PAGE.read_text()
    assert scripts() == {*gallery.PICTURES, "demo"}, "gallery.PICTURES names the examples"
    for name in scripts():
        assert f"[`{name}.py`]({name}.py)" in text
    for picture in gallery.PICTURES.values():
        assert f"](pictures/{picture}.svg)" in text
    assert {path.stem for path in (EXAMPLES / "pictures").iterdir()} == set(gallery.PICTURES.values())


def test_links_lead_somewhere():
    text = re.sub(r"(?ms)^```.*?^```$", "", PAGE.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        assert (EXAMPLES / file).exists(), target
        assert not anchor or anchor in anchors((EXAMPLES / file).read_text()), target


def test_commands_exist():
    """Each command of the page is a file that exists or a target of the Makefile."""
    makefile = (EXAMPLES.parent / "Makefile").read_text()
    for block in blocks(PAGE):
        assert block.language == "sh"
        for line in block.text.splitlines():
            command = line.split("#")[0].split()
            if command[0] == "make":
                assert f"\n{command[1]}:" in makefile
            elif command[1].endswith(".py"):
                assert (EXAMPLES.parent / command[1]).exists()


@pytest.mark.skipif(not ALL, reason="with CLEAVE_TEST_ALL=1")
@pytest.mark.parametrize("name", gallery.PICTURES)
def test_runs(name, tmp_path):
    if name == "hemingway" and not importlib.util.find_spec("sklearn"):
        pytest.skip("examples/requirements.txt is not installed")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "gallery.py"), "--smoke", "--only", name, "--work", str(tmp_path / "work"),
         "--pictures", str(tmp_path / "pictures")], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bit for bit: False" not in done.stdout
    assert "</svg>" in (tmp_path / "pictures" / f"{gallery.PICTURES[name]}.svg").read_text()
