# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The cases that `make test` runs of the largest files follow from the tree: over many trees each
is drawn as often as any other, and what a run leaves out is counted."""

import ast
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import pytest

import sample

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("share", "count"), [(2, 2), (2, 7), (3, 3), (5, 3), (6, 40), (8, 1), (8, 9), (8, 100)])
def test_each_case_is_drawn_as_often_as_any_other(share, count):
    trees = 4000
    drawn = [0] * count
    for tree in range(trees):
        own = sample.places(f"{tree:040x}", "test_x.test_y", share, count)
        assert max(1, count // share) <= len(own) <= -(-count // share)
        for place in own:
            drawn[place] += 1
    expected = trees / min(share, count)
    # Five standard deviations.
    assert all(abs(times - expected) < 5 * expected ** 0.5 for times in drawn), drawn


def test_tests_are_drawn_one_by_one():
    """One of two cases of each of 20 tests: not all the first."""
    for tree in range(20):
        first = [sample.places(str(tree), f"test_{test}", 2, 2)[0] for test in range(20)]
        assert 0 < sum(first) < 20


class Item:
    """Of a case of pytest what a sample reads."""

    def __init__(self, module, test, case):
        self.module = types.SimpleNamespace(__name__=module)
        self.nodeid = f"test/python/{module}.py::{test}[{case}]"
        self.callspec = case


def test_tests_of_long_files_take_turns(monkeypatch):
    """Each is drawn as often as any other, with the cases that it would have otherwise."""
    monkeypatch.setitem(sample.IN_TURN, "test_x", 3)
    monkeypatch.setitem(sample.SAMPLED, "test_x", 2)
    items = [Item("test_x", f"test_{test}", case) for test in range(7) for case in range(4)]
    drawn = collections.Counter()
    for tree in range(3000):
        dropped = sample.left_out(f"{tree:040x}", items)
        left = collections.Counter(item.nodeid.partition("[")[0] for item in items if item not in dropped)
        assert len(left) in (2, 3) and set(left.values()) == {2}
        drawn.update(left.keys())
    assert len(drawn) == 7 and all(abs(times - 1000) < 160 for times in drawn.values()), drawn


def modules():
    """The paths of test modules by name."""
    return {path.stem: path for path in (ROOT / "test" / "python").rglob("test_*.py")}


@pytest.mark.parametrize("name", sample.IN_TURN)
def test_files_whose_tests_take_turns_have_several(name):
    """And nothing that only all of them show."""
    functions = {node.name for node in ast.walk(ast.parse(modules()[name].read_text()))
                 if isinstance(node, ast.FunctionDef)}
    assert sum(function.startswith("test_") for function in functions) >= sample.IN_TURN[name]
    assert "check_all" not in functions


@pytest.mark.parametrize("name", sample.SAMPLED)
def test_files_of_the_sample_can_be_cut(name):
    """They exist, have tests of several cases, and nothing that only all of their tests show."""
    tree = ast.parse(modules()[name].read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert any(f.name.startswith("test_") and "parametrize" in ast.unparse(f.decorator_list) for f in functions
               if f.decorator_list) or "pytest_generate_tests" in {f.name for f in functions}
    assert "check_all" not in {f.name for f in functions}


def git(folder, *arguments):
    mine = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    return subprocess.run(("git", "-C", folder, *mine, *arguments), check=True, text=True,
                          stdout=subprocess.PIPE).stdout.strip()


@pytest.fixture
def plain(monkeypatch):
    """No sample is given, and no repository."""
    for name in (sample.NAME, *(name for name in os.environ if name.startswith("GIT_"))):
        monkeypatch.delenv(name, raising=False)


def test_the_working_tree_has_a_hash(tmp_path, plain):
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("*.o\n")
    (tmp_path / "a.txt").write_text("1\n")
    assert sample.of_tree(tmp_path) == sample.git_tree(tmp_path), "without a commit and an index"
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "a")
    index, objects = (tmp_path / ".git" / "index").read_bytes(), git(tmp_path, "count-objects", "-v")
    seen = [sample.of_tree(tmp_path)]
    assert seen[0] == git(tmp_path, "rev-parse", "HEAD^{tree}")
    for name, text in (("a.txt", "2\n"), ("b.txt", "1\n"), ("a.txt", "3\n")):
        (tmp_path / name).write_text(text)
        seen.append(sample.of_tree(tmp_path))
    (tmp_path / "a.o").write_text("ignored")
    assert sample.of_tree(tmp_path) == seen[-1] and len(set(seen)) == 4
    assert (tmp_path / ".git" / "index").read_bytes() == index
    assert git(tmp_path, "count-objects", "-v") == objects
    git(tmp_path, "add", "-A")
    assert git(tmp_path, "write-tree") == seen[-1]


def test_files_without_git_have_a_hash(tmp_path, plain, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.cpp").write_text("1\n")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert sample.git_tree(tmp_path) is None and sample.git_tree(tmp_path / "none") is None
    seen = [sample.of_tree(tmp_path)]
    for name, text in (("a.cpp", "2\n"), ("b.cpp", "2\n")):
        (tmp_path / "lib" / name).write_text(text)
        seen.append(sample.of_tree(tmp_path))
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "a.o").write_text("1")
    (tmp_path / "lib" / "a.pyc").write_text("1")
    assert sample.of_tree(tmp_path) == seen[-1] and len(set(seen)) == 3
    monkeypatch.setenv(sample.NAME, "chosen")
    assert sample.of_tree(tmp_path) == "chosen"


def test_processes_draw_the_same_and_count_it(tmp_path):
    """With this folder's conftest, in two processes, as test/run.py starts it."""
    folder = tmp_path / "test" / "python"
    (folder / "step").mkdir(parents=True)
    shutil.copy(ROOT / "test" / "python" / "conftest.py", folder)
    (folder / "support").symlink_to(ROOT / "test" / "python" / "support")
    (tmp_path / "python").mkdir()
    # Processes start sooner; conftest only sets their seeds.
    (tmp_path / "python" / "torch.py").write_text("def manual_seed(seed):\n    pass\n"
                                                 "def __getattr__(name):\n    return lambda *args: None\n")
    (tmp_path / "python" / "numpy.py").write_text("class random:\n    seed = staticmethod(print)\n")
    (folder / "step" / "test_joined_batches.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('case', range(20))\n"
        "def test_a(case):\n    pass\n"
        "def test_b():\n    pass\n"
        "def check_all(facts):\n    assert False, 'of a part'\n")
    count = tmp_path / "count"
    environment = {**os.environ, sample.NAME: "f00d", sample.COUNT: str(count), "CLEAVE_TEST_ALL": "0"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    seen = subprocess.run(
        (sys.executable, "-m", "pytest", "-v", "-n", "2", "-p", "no:cacheprovider", "test/python"), cwd=tmp_path,
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    assert seen.returncode == 0, seen.stdout
    places = sample.places("f00d", "test_joined_batches.test_a", sample.SAMPLED["test_joined_batches"], 20)
    assert sorted(map(int, re.findall(r"PASSED \S+::test_a\[(\d+)\]", seen.stdout))) == list(places)
    assert "PASSED test/python/step/test_joined_batches.py::test_b" in seen.stdout
    left = 20 - len(places)
    assert f"sample f00d leaves out {left} of 21 cases" in seen.stdout
    assert "CLEAVE_TEST_SAMPLE=f00d repeats it" in seen.stdout
    assert count.read_text() == f"{left} of 21"
