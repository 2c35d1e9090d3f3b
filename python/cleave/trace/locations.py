# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Finds the line of the model that an operator or an error comes from."""

from __future__ import annotations

import functools
import importlib
import linecache
import os
import re
import traceback

import torch

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in ')
_LIBRARY = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_EXPERTS = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "moe.py")
_IMPORTS = os.path.dirname(importlib.__file__) + os.sep


def location_of(node: torch.fx.Node) -> tuple[str, int, int] | None:
    """(file, line, column) of the innermost frame outside torch, or None."""
    trace = node.meta.get("stack_trace")
    return _innermost(trace) if trace else None


@functools.lru_cache(maxsize=65536)
def _innermost(trace: str) -> tuple[str, int, int] | None:
    found = None
    for line in trace.splitlines():
        match = _FRAME.match(line)
        if match and not match[1].startswith((_LIBRARY, _HERE, _EXPERTS)):
            found = (match[1], int(match[2]))
    if found is None:
        return None
    source = linecache.getline(*found)
    return (*found, len(source) - len(source.lstrip()) + 1)


def describe(error: BaseException, file: str | None = None) -> str:
    """What `error` says, on one line, after the line of the person's code that
    raised it: the innermost one of `file`, or outside of torch and Cleave."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {error.msg}"
    frames = [f for f in traceback.extract_tb(error.__traceback__)
              if not f.filename.startswith((_LIBRARY, _HERE, _IMPORTS, "<"))]
    own = [f for f in frames if f.filename == file] or frames
    place = f"{own[-1].filename}:{own[-1].lineno}: " if own else ""
    # The first paragraph says what; the next ones how to debug torch.
    text = " ".join(str(error).strip().split("\n\n")[0].split())
    if type(error).__name__ == "GuardOnDataDependentSymNode":
        text = "what is computed depends on the values of a tensor"
    elif type(error) is not RuntimeError:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return place + text
