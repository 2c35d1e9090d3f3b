# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Finds the line of the model that an operator or an error comes from."""

from __future__ import annotations

import contextlib
import functools
import importlib
import linecache
import os
import re
import traceback

import torch

#: What torch says where a value is asked for that a trace does not have.
_VALUES = ("Cannot cast FakeTensor", "data is not allocated yet", "FakeTensor.__format__",
           ".numpy() is not supported for tensor subclasses", "data-dependent")
#: Exceptions of torch that say the same.
_UNKNOWN = ("DataDependentOutputException", "GuardOnDataDependentSymNode",
            "PendingUnbackedSymbolNotFound")
#: Errors by which operators refuse their arguments, in words for people.
_ARGUMENTS = (IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)
_CONSTANT = "fake tensor in the exported program constant's list"

#: Why an operator is refused whose result has no static shape.
DYNAMIC = ("its result has a shape, or is a number, that depends on the values of a tensor, and a "
           "compiled step has static shapes; keep all elements and choose by torch.where, or "
           "multiply by the mask; rows that a cross entropy is to leave out take the label -100 "
           "(ignore_index)")

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in ')
_LIBRARY = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_EXPERTS = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "moe.py")
_IMPORTS = os.path.dirname(importlib.__file__) + os.sep
_CONTEXTS = contextlib.__file__


def location_of(node: torch.fx.Node) -> tuple[str, int, int] | None:
    """(file, line, column) of the innermost frame outside torch, or None."""
    trace = node.meta.get("stack_trace")
    return _innermost(trace) if trace else None


@functools.lru_cache(maxsize=65536)
def _innermost(trace: str) -> tuple[str, int, int] | None:
    found = None
    for line in trace.splitlines():
        match = _FRAME.match(line)
        if match and not match[1].startswith((_LIBRARY, _HERE, _EXPERTS, "<eval_with_key>")):
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
    text = _first_paragraph(error)
    if type(error) is not RuntimeError:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return _place(error, file) + text


def untraceable(error: Exception) -> str:
    """What torch.export cannot follow, on one line, after the line of the person's
    code: that which raised `error`, or the one of the operator that `error` names."""
    kind, text = type(error).__name__, _first_paragraph(error)
    origin = _innermost(str(error))
    place = _place(error) or (f"{origin[0]}:{origin[1]}: " if origin else "")
    if kind == "DynamicOutputShapeException":
        text = f"{error.args[0]}: {DYNAMIC}" if error.args else DYNAMIC
    elif kind in _UNKNOWN or any(part in text for part in _VALUES):
        text = ("what is computed depends on the values of a tensor, which a trace does not have "
                "(.item(), .tolist(), .numpy(), a condition, a mask as an index); compute it by "
                "tensors, for example by torch.where or torch.stack; rows that a cross entropy is "
                "to leave out take the label -100 (ignore_index)")
    elif _CONSTANT in text:
        text = ("a tensor is computed in a way that tracing does not see (its .data or storage, "
                "or code outside of torch); compute it by operators of torch")
    elif not _raised_by_torch(error):
        # The person's own code refuses something.
        text = f"{kind}: {text}" if text else kind
    elif not isinstance(error, _ARGUMENTS) or not text:
        text = (f"torch fails here and says {text or 'nothing'!r}; compute it by other operators, "
                "or before the model is called")
    return f"torch.export cannot follow the model: {place}{text}"


def _first_paragraph(error: BaseException) -> str:
    """What an error says: what follows is how to debug torch."""
    text = str(error).strip().split("\n\n")[0].split(" This could be because ")[0]
    return " ".join(text.split())


def _raised_by_torch(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith((_LIBRARY, _HERE, "<"))


def located(error: BaseException) -> str:
    """The text of one of Cleave's own errors after the line of the person's code."""
    return _place(error) + str(error)


def here() -> str:
    """The line of the person's code that is running, as `file:line: `."""
    return _own(traceback.extract_stack())


def _place(error: BaseException, file: str | None = None) -> str:
    return _own(traceback.extract_tb(error.__traceback__), file)


def _own(frames: traceback.StackSummary, file: str | None = None) -> str:
    frames = [f for f in frames
              if not f.filename.startswith((_LIBRARY, _HERE, _IMPORTS, _CONTEXTS, "<"))]
    own = [f for f in frames if f.filename == file] or frames
    return f"{own[-1].filename}:{own[-1].lineno}: " if own else ""
