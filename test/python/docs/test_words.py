# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""scripts/check_words.py finds the words to avoid, with their lines, and the repository has no more."""

import importlib.util
import shutil
import subprocess
import sys
from unittest import mock

import pytest

from doc_blocks import ROOT

SCRIPT = ROOT / "scripts" / "check_words.py"


def load(root):
    """The module of the script in a repository at `root`."""
    spec = importlib.util.spec_from_file_location("check_words", root / "scripts" / "check_words.py")
    module = importlib.util.module_from_spec(spec)
    # A text that changes within a second, and keeps its size, is not told from its bytecode.
    with mock.patch.object(sys, "dont_write_bytecode", True):
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def repository(tmp_path):
    """One with the script, in which each word is allowed once in comments, and a file of each kind."""
    def git(*command):
        subprocess.run(["git", "-c", "user.name=Test", "-c", "user.email=test@example.com", *command],
                       cwd=tmp_path, check=True, capture_output=True)
    for folder in ("scripts", "docs", "lib/Scheduling", "python/cleave"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "scripts")
    module = load(tmp_path)
    text = SCRIPT.read_text()
    for word in module.WORDS:
        text = text.replace(f'"{word.better}", {word.allowed}', f'"{word.better}", 1')
    (tmp_path / "scripts" / "check_words.py").write_text(text)
    (tmp_path / "docs" / "Page.md").write_text("# A page\n\nAfter it.\n\n```sh\necho behind\n```\n")
    (tmp_path / "lib" / "Pass.cpp").write_text("// Comes behind the loop.\nint behind; // A stage.\n")
    (tmp_path / "lib" / "Scheduling" / "Order.h").write_text("/// The order of a position.\n")
    (tmp_path / "python" / "cleave" / "file.py").write_text('"""Reads `behind`."""\nbehind = 1\n')
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "Begin")
    return tmp_path


def check(root, capsys, *arguments):
    code = load(root).main(list(arguments))
    return code, capsys.readouterr().out.splitlines()


def test_the_repository_passes(capsys):
    assert check(ROOT, capsys) == (0, [])


def test_code_and_numbers_are_left_alone(repository, capsys):
    assert check(repository, capsys) == (0, [])


@pytest.mark.parametrize("file, text, line, said", [
    ("docs/Page.md", "# A page\n\nThe step\nruns behind `it`.\n", 4, "'behind': write after"),
    ("docs/Page.md", "# What fits\n\nIt is on a processor.\n", 3, "'processor': write CPU"),
    ("docs/Page.md", "# A page\n\nIt ends. What it computes is lost.\n", 3, "'What': write a noun"),
    ("python/cleave/file.py", '"""Reads.\n\nIt is no file.\n"""\n', 3, "'is no': write is not a"),
    ("python/cleave/file.py", "x = 1\ny = 2  # Behind and behind it.\n", 2, "'behind': write after"),
])
def test_a_word_is_found(file, text, line, said, repository, capsys):
    (repository / file).write_text(text)
    code, out = check(repository, capsys)
    assert code == 1 and len(out) == 1 and out[0].startswith(f"{file}:{line}: {said}")


@pytest.mark.parametrize("file, text, said", [
    ("lib/Pass.cpp", "// Comes behind the loop.\nint a;\nint b; // It is behind.\n",
     ["lib/Pass.cpp:3: 'behind': write after", "comments have 'behind' 2 times, and may have it 1 times"]),
    ("lib/Scheduling/Order.h", "/// The order of a device.\n/// Of each device.\n",
     ["lib/Scheduling/Order.h:1: 'device': write pipeline position",
      "lib/Scheduling/Order.h:2: 'device': write pipeline position",
      "comments have 'device' 2 times, and may have it 1 times"]),
])
def test_one_more_in_comments_is_found(file, text, said, repository, capsys):
    """Of the comments of a word that has a number, those are named that are new."""
    (repository / file).write_text(text)
    assert check(repository, capsys) == (1, said)


def test_numbers_become_smaller_only(repository, capsys):
    (repository / "lib" / "Pass.cpp").write_text("int a;\n")
    (repository / "lib" / "Scheduling" / "Order.h").write_text("// A device, a device.\n")
    assert check(repository, capsys, "--lower") == (0, [])
    allowed = {word.name: word.allowed for word in load(repository).WORDS}
    assert allowed["behind"] == 0 and allowed["device"] == 1 and allowed["tier"] == 0
