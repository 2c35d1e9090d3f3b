# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The commands of an installed package: compiler, interpreter and passes run in the extension
module, `cleave-run` is the program in `bin`."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from typing import NoReturn

import cleave


def _run(name: str, arguments: list[str]) -> NoReturn:
    """Runs a tool in this process, which ends with its status."""
    # As in a program: Python would see Ctrl-C only when the tool has returned.
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    status = cleave._cleave.run_tool(name, [name, *arguments])
    sys.stdout.flush()
    sys.stderr.flush()
    # Nothing of Python is left to do, and the tool has ended the libraries' state.
    os._exit(status)


def compile() -> NoReturn:
    _run("cleave-compile", sys.argv[1:])


def opt() -> NoReturn:
    _run("cleave-opt", sys.argv[1:])


def reference() -> NoReturn:
    _run("cleave-reference", sys.argv[1:])


def run() -> NoReturn:
    """Becomes `cleave-run`, which needs no Python; its `--reference` is another tool."""
    if "--reference" in sys.argv[1:]:
        _run("cleave-reference", [word for word in sys.argv[1:] if word != "--reference"])
    program = pathlib.Path(__file__).parent / "bin" / "cleave-run"
    if not program.exists():
        sys.exit(f"error: {program} is not there: this package is not an installed one, whose build "
                 "has the program in its folder bin")
    os.execv(program, [str(program), *sys.argv[1:]])
