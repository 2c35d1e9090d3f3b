# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Finds the line of the model that an operator comes from."""

from __future__ import annotations

import functools
import linecache
import os
import re

import torch

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in ')
_LIBRARY = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def location_of(node: torch.fx.Node) -> tuple[str, int, int] | None:
    """(file, line, column) of the innermost frame outside torch, or None."""
    trace = node.meta.get("stack_trace")
    return _innermost(trace) if trace else None


@functools.lru_cache(maxsize=65536)
def _innermost(trace: str) -> tuple[str, int, int] | None:
    found = None
    for line in trace.splitlines():
        match = _FRAME.match(line)
        if match and not match[1].startswith((_LIBRARY, _HERE)):
            found = (match[1], int(match[2]))
    if found is None:
        return None
    source = linecache.getline(*found)
    return (*found, len(source) - len(source.lstrip()) + 1)
