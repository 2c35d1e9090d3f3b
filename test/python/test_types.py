# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Types in Python, which `make lint` checks, and the stubs of the native modules that it reads."""

import ast
import importlib
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import cleave
from cleave import _cleave, _runtime

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "cleave"

#: An error, and its code.
WRONG = {
    "def seeded(step):\n    return step\n": "no-untyped-def",
    "seeded: int = constant(0.1)\n": "assignment",
    "def seeded(rate: Schedule | None) -> float:\n    return rate.lr\n": "union-attr",
    "def seeded(rates: list) -> None: ...\n": "type-arg",
    "seeded: int = 'a'  # type: ignore\n": "ignore-without-code",
    "seeded: int = 1  # type: ignore[assignment]\n": "unused-ignore",
}


#: A program that uses the package, and the code of the error of a line.
USER = """import cleave
cleave.AdamW(lr="a")  # arg-type
cleave.cosine(0.1)  # call-arg
loss: str = cleave.Loss(1.0, grad_norm=None, auxiliary=[], lr=0.1, tokens_per_s=1.0, step=1)  # assignment
weight: float = cleave.Evaluation(1.0, weight=2.0).weight  # assignment
def trained(step: cleave.Step) -> float:
    return step.loss_scale  # return-value
def caught() -> None:
    try:
        cleave.P("dp", None)
    except (cleave.CompileError, cleave.StepError):
        pass
"""


def lint(folder, *names):
    """The lines of mypy on modules of a copy of the package, by the configuration of `make lint`; torch
    is not read."""
    done = subprocess.run([sys.executable, "-m", "mypy", "--no-site-packages", *names,
                           "--cache-dir", str(folder / "cache")],
                          cwd=folder, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.fixture
def copied(tmp_path):
    """A folder with the configuration and the package, without its modules."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(PACKAGE, tmp_path / "python" / "cleave", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def test_users_have_types(copied):
    """Of the public names, without a build."""
    (copied / "python" / "user.py").write_text(USER)
    code, lines = lint(copied, "-m", "user")
    found = re.findall(r"user.py:(\d+): error: .*\[([a-z-]+)\]$", "\n".join(lines), re.M)
    assert code == 1 and found == [(str(i), line.partition("  # ")[2])
                                   for i, line in enumerate(USER.splitlines(), 1) if "  # " in line], lines
    assert (PACKAGE / "py.typed").exists()


def test_public_names_have_types():
    """The names that `cleave` imports when it is asked for are there for programs that check types."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    named = {alias.name: node.module or f"{alias.name}" for node in block.body if isinstance(node, ast.ImportFrom)
             for alias in node.names if alias.asname == alias.name}
    named |= {node.targets[0].id: node.value.value.id for node in block.body if isinstance(node, ast.Assign)}
    lazy = {**cleave._LAZY, **cleave._MODULES}
    assert named.keys() == lazy.keys()
    for name, module in named.items():
        own = getattr(cleave, name)
        assert lazy[name] == module or own is getattr(importlib.import_module(f"cleave.{module}"), name), name


def test_lint_fails_on_an_error(copied):
    file = copied / "python" / "cleave" / "training" / "schedules.py"
    text = file.read_text()
    code, before = lint(copied, "-p", "cleave.training")
    assert not [line for line in before if "schedules.py" in line], before
    file.write_text(text + "\n\n" + "".join(WRONG).replace("seeded", "seeded_{}").format(*range(len(WRONG))))
    code, after = lint(copied, "-p", "cleave.training")
    found = [line for line in after if "schedules.py" in line and ": error: " in line]
    assert code == 1 and sorted(re.findall(r"\[([a-z-]+)\]$", "\n".join(found), re.M)) == sorted(WRONG.values()), after


def test_lint_is_what_is_run():
    """`make lint` runs mypy by the configuration, continuous integration runs `make lint`, and
    CONTRIBUTING.md names it."""
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)[1]
    assert "-m mypy\n" in recipe and "-m ruff check\n" in recipe
    assert "\nmake lint\n" in (ROOT / ".ci" / "run").read_text()
    assert re.search(r"`make lint` finds nothing \(.*mypy", (ROOT / "CONTRIBUTING.md").read_text())


def test_ignored_errors_have_a_reason():
    """At most ten places are left out, each by the code of its error and with the reason."""
    checked = re.search(r"\[tool.mypy\](.*?)\n\[", (ROOT / "pyproject.toml").read_text(), re.S)[1]
    places = [PACKAGE.parent / name.replace(".", "/") for name in re.findall(r'"(cleave\.[\w.]+)"', checked)]
    files = [file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")])]
    assert len(files) > 30
    found = [(file.name, line) for file in files for line in file.read_text().splitlines() if "type: ignore" in line]
    assert len(found) <= 10
    for name, line in found:
        assert re.search(r"# type: ignore\[[a-z-]+\]  # \w", line), (name, line)


@pytest.mark.parametrize("module", [_cleave, _runtime], ids=["_cleave", "_runtime"])
def test_stubs_are_of_the_modules(module):
    """The text that scripts/write_stubs.py writes."""
    spec = importlib.util.spec_from_file_location("write_stubs", ROOT / "scripts" / "write_stubs.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    name = module.__name__.rpartition(".")[2]
    assert (PACKAGE / f"{name}.pyi").read_text() == script.stub(name)


def test_stubs_name_what_a_session_gives():
    """The types that nanobind does not know name the keys that there are."""
    source = (ROOT / "python" / "native" / "Session.cpp").read_text()
    classes = {node.name: {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}
               for node in ast.parse((PACKAGE / "runtime" / "native.py").read_text()).body
               if isinstance(node, ast.ClassDef)}
    for function, types in (("tensors", ("_Always", "TensorFacts")), ("communication", ("Sent",))):
        body = source.partition(f"PySession::{function}() const {{")[2].partition("\n}\n")[0]
        assert set(re.findall(r'facts\["(\w+)"\]', body)) == set().union(*(classes[t] for t in types))
