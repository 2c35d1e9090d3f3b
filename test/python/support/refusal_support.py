# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What every tool owes to a bad input: one message, a status, and no debris."""

import os
import re
import subprocess
import sys

from cleave.models import __main__ as models
from cleave.testing.tools import tool

SIZE = "--hidden 32 --heads 4 --layers 1 --seq 16 --vocab 50 --batch 4"
#: What a crash, or a program that gave up, prints.
CRASH = re.compile(r"Stack dump|LLVM ERROR|Traceback|Assertion|terminate called")


def listing(folder):
    """Paths of all files below, but not what cached data is."""
    return {os.path.join(root, name)
            for root, folders, files in os.walk(folder) for name in (*folders, *files)}


def refuse(command, folder, message, *, code=1, leaves=(), stdout=subprocess.PIPE, env=None,
           cache=None):
    """Runs a command in `folder`, where it must end with status `code` and one
    message that matches the pattern `message`, and leave no file but `leaves`.
    Returns the message."""
    before = listing(folder)
    environment = {**os.environ, "CLEAVE_TUNING": "off", "CLEAVE_PYTHON": sys.executable,
                   "XDG_CACHE_HOME": str(cache or os.path.join(folder, os.pardir, "cache")),
                   **(env or {})}
    result = subprocess.run([str(part) for part in command], cwd=folder, stdout=stdout,
                            stderr=subprocess.PIPE, text=True, timeout=120, env=environment,
                            errors="replace")
    text = result.stderr
    assert result.returncode == code, f"{result.returncode}\n{text}"
    assert not CRASH.search(text), text
    assert re.search(message, text), text
    if code == 1:
        assert text.count("error:") == 1, text
    else:
        # A usage error has a line, and may have a second one that helps.
        assert 1 <= text.count("\n") <= 2, text
    assert listing(folder) - before == {str(folder / name) for name in leaves}
    return text


def make_model(folder, *flags):
    """g.mlir, g.safetensors and g.so of a small model in `folder`."""
    assert models.main(["gpt", *SIZE.split(), *flags, "-o", str(folder / "g.mlir"), "--weights",
                        str(folder / "g.safetensors")]) == 0
    subprocess.run([tool("cleave-compile"), "g.mlir", "-o", "g.so", "--threads", "2"],
                   cwd=folder, check=True)
    return folder
