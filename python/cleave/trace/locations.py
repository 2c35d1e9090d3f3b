# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Finds the line of the model that an operator or an error comes from, and describes errors
of torch.export."""

from __future__ import annotations

import contextlib
import functools
import importlib
import linecache
import os
import re
import sys
import traceback
import types

import torch

#: Parts of torch's messages about reading a value that a trace does not have.
_VALUES = ("Cannot cast FakeTensor", "data is not allocated yet", "FakeTensor.__format__",
           ".numpy() is not supported for tensor subclasses", "data-dependent",
           "Runtime assertion failed for expression")
#: Names of torch's exceptions for the same reason.
_UNKNOWN = ("DataDependentOutputException", "GuardOnDataDependentSymNode",
            "PendingUnbackedSymbolNotFound")
#: Exceptions with readable messages, by which operators refuse their arguments.
_ARGUMENTS = (IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)
_CONSTANT = "fake tensor in the exported program constant's list"

#: The reason for refusing code that reads a value.
VALUES = ("what is computed depends on the values of a tensor, which a trace does not have "
          "(.item(), .tolist(), .numpy(), a condition, a mask as an index); compute it by "
          "tensors, for example by torch.where or torch.stack; rows that a cross entropy is "
          "to leave out take the label -100 (ignore_index)")
#: The reason for refusing an operator whose result has no static shape.
DYNAMIC = ("its result has a shape, or is a number, that depends on the values of a tensor, and a "
           "compiled step has static shapes; keep all elements and choose by torch.where, or "
           "multiply by the mask; rows that a cross entropy is to leave out take the label -100 "
           "(ignore_index)")

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in ')
#: The folder of torch.
LIBRARY = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LAYERS = tuple(os.path.join(os.path.dirname(os.path.dirname(_HERE)), name)
                for name in ("moe.py", "recurrence.py"))
_IMPORTS = os.path.dirname(importlib.__file__) + os.sep
_CONTEXTS = contextlib.__file__
#: How the files begin that no operator is said to be from.
PASSED = (LIBRARY, _HERE, *_LAYERS, "<eval_with_key>")


def location_of(node: torch.fx.Node) -> tuple[str, int, int] | None:
    """Returns (file, line, column) of the innermost frame outside of torch and Cleave, or
    None; line and column are counted from 1."""
    trace = node.meta.get("stack_trace")
    return _innermost(trace) if trace else None


@functools.lru_cache(maxsize=65536)
def _innermost(trace: str) -> tuple[str, int, int] | None:
    found = None
    for line in trace.splitlines():
        match = _FRAME.match(line)
        if match and not match[1].startswith(PASSED):
            found = (match[1], int(match[2]))
    if found is None:
        return None
    source = linecache.getline(*found)
    return (*found, len(source) - len(source.lstrip()) + 1)


def describe(error: BaseException, file: str | None = None) -> str:
    """Returns the text of `error` on one line, after the location in the user's code that
    raised it: the innermost frame in `file`, or outside of torch and Cleave."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {error.msg}"
    text = _first_paragraph(error)
    if type(error) is not RuntimeError:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return _error_line(error, file) + text


def untraceable(error: Exception) -> str:
    """Returns the reason why torch.export failed, on one line, after the location in the
    user's code: the line that raised `error`, or that of the operator that `error` names."""
    kind, text = type(error).__name__, _first_paragraph(error)
    origin = _innermost(str(error))
    place = _error_line(error) or (f"{origin[0]}:{origin[1]}: " if origin else "")
    if kind == "DynamicOutputShapeException":
        text = f"{error.args[0]}: {DYNAMIC}" if error.args else DYNAMIC
    elif kind in _UNKNOWN or any(part in text for part in _VALUES):
        text = VALUES
    elif _CONSTANT in text:
        text = ("a tensor is computed in a way that tracing does not see (its .data or storage, "
                "or code outside of torch); compute it by operators of torch")
    elif not _raised_by_torch(error):
        # The user's own code raised the error.
        text = f"{kind}: {text}" if text else kind
    elif not isinstance(error, _ARGUMENTS) or not text:
        text = (f"torch fails with {text or 'no message'!r}; compute it by other operators, or "
                "before the model is called")
    return f"torch.export cannot follow the model: {place}{text}"


def _first_paragraph(error: BaseException) -> str:
    """Returns the first paragraph of an error's text, on one line; the rest of
    torch's errors are hints for debugging torch."""
    text = str(error).strip().split("\n\n")[0].split(" This could be because ")[0]
    return " ".join(text.split())


def _raised_by_torch(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith((LIBRARY, _HERE, "<"))


def located(error: BaseException) -> str:
    """Returns the text of an error of Cleave, after the location in the user's code."""
    return _error_line(error) + str(error)


def current_line() -> str:
    """Returns the line of the user's code that is running, as `file:line: `."""
    return _user_line(traceback.extract_stack())


def current_place() -> tuple[str, int] | None:
    """Returns the file and the line of the user's code that is running."""
    frame = current_frame()
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def current_frame() -> types.FrameType | None:
    """Returns the innermost frame of the user's code that is running."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and not _is_user(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _error_line(error: BaseException, file: str | None = None) -> str:
    return _user_line(traceback.extract_tb(error.__traceback__), file)


def _is_user(file: str) -> bool:
    return not file.startswith((LIBRARY, _HERE, _IMPORTS, _CONTEXTS, "<"))


def _user_line(frames: traceback.StackSummary, file: str | None = None) -> str:
    """Returns the innermost frame of the user's code (in `file`, if given and found) as
    `file:line: `; empty if there is none."""
    frames = [f for f in frames if _is_user(f.filename)]
    own = [f for f in frames if f.filename == file] or frames
    return f"{own[-1].filename}:{own[-1].lineno}: " if own else ""
