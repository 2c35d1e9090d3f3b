# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The commands of CONTRIBUTING.md do what it says, as they stand there."""

import os
import re
import subprocess

import pytest

import proofs
from doc_blocks import ROOT

from cleave.testing.tools import build_dir

TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def commands():
    """The commands of its shell blocks, but for the build."""
    lines = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.S)
             for line in re.sub(r"\\\n *", "", block).splitlines()]
    assert lines[0] == "make build" and len(lines) >= 9
    return lines[1:]


def run(line, folder):
    tools = os.pathsep.join([str(build_dir() / "bin"), str(ROOT / ".venv" / "bin"), os.environ["PATH"]])
    environment = {**os.environ, "PATH": tools, "PYTHONPATH": str(ROOT / "python")}
    return subprocess.run(line, shell=True, cwd=folder, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=500)


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("make ")],
                         ids=lambda line: line.split()[1])
def test_one_test_is_run(line):
    """Through the targets' own command: tests do not build."""
    if "check-py" in line and not proofs.ALL:
        pytest.skip("CLEAVE_TEST_ALL=1 runs it: all Python tests are collected")
    suite, words = re.fullmatch(r"make check-(lit|unit|py) FILTER=(\S+)", line).groups()
    shown = run(f"make -n {line[5:]}", ROOT).stdout
    own = [text for text in shown.splitlines() if "test/run.py" in text]
    assert len(own) == 1 and f"--suite {suite.replace('py', 'python')}" in own[0] and words in own[0]
    seen = run(f"{own[0]} --build {build_dir()}", ROOT)
    assert seen.returncode == 0, seen.stdout
    passed = int(re.fullmatch(r"(\d+) passed, 0 failed, \d+ skipped", seen.stdout.splitlines()[-1])[1])
    assert 1 <= passed <= 20


def test_other_commands(tmp_path):
    """One after another, in one folder; those that name files of the repository, there."""
    others = [line for line in commands() if not line.startswith(("make ", "export "))]
    for line in others:
        of_repository = "test/" in line or line.startswith("build/")
        seen = run(line.replace("build/", f"{build_dir()}/") if of_repository else line,
                   ROOT if of_repository else tmp_path)
        assert seen.returncode == 0, f"{line}\n{seen.stdout}"
        assert " 0 tests" not in seen.stdout, line
        if "--debug-only" in line:
            assert "part @train.F of stage 0: reads" in seen.stdout
        if "--pass-counts" in line:
            assert "Results of ops that are partial on an axis" in seen.stdout
    assert "spmd.mesh" in (tmp_path / "local.mlir").read_text()


@pytest.mark.skipif(not proofs.ALL, reason="a long proof: it builds the project")
def test_the_first_hour(tmp_path):
    """All commands, in a fresh clone of what is committed, with a clean environment."""
    clone = tmp_path / "cleave"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    own = {"HOME": str(tmp_path), "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin",
           **{name: value for name, value in os.environ.items() if name.startswith("PIP_")}}
    # In one shell, which writes each command before it runs it, and ends at the first that fails.
    seen = subprocess.run(["bash", "-exo", "pipefail", "-c", "\n".join(["make build", *commands()])],
                          cwd=clone, env=own, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=4 * 3600)
    assert seen.returncode == 0, seen.stdout[-4000:]
