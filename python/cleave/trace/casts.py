# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The meaning of the casts to f32 in a model's code.

A model in f32 casts between equal types. `x.float()` and `x.to(torch.float32)` ask for f32, and
`x.to(y.dtype)` for a type that may be another one: what is written tells them apart.
"""

from __future__ import annotations

import ast
import functools
import linecache
import types
from typing import Any

import torch

#: A cast to f32 begins a region, ends it, does either, by its operand, or has another's type.
BEGINS, ENDS, TURNS, FOLLOWS = "begins", "ends", "turns", "follows"
_METHODS = {torch.Tensor.to, torch.Tensor.type}
_NAMES = {"float32", "float", "single", "FloatTensor"}


def meaning(function: Any, args: Any, kwargs: Any, caller: types.FrameType | None) -> str | None:
    """Returns what a call by the frame `caller` means if it casts a tensor to f32, or computes with
    it in f32 by `dtype=torch.float32`; else None."""
    if function is torch.Tensor.float:
        return BEGINS
    if function is torch.Tensor.type_as:
        return FOLLOWS
    given = (*args[1:], *kwargs.values())
    if function is torch.Tensor.to and any(isinstance(x, torch.Tensor) for x in given):
        return FOLLOWS
    if not any(x is torch.float32 or isinstance(x, str) and x == "torch.FloatTensor"
               for x in given) or not (args and isinstance(args[0], torch.Tensor)):
        return None
    if function not in _METHODS:
        name = getattr(function, "__name__", "")
        return None if name.startswith("new_") or name.endswith(("_like", "view")) else BEGINS
    place = _place(caller)
    call = _calls(caller.f_code.co_filename).get(place) if place else None
    if call is None:
        return TURNS
    written = [k.value for k in call.keywords if k.arg == "dtype"] or call.args
    found = {_written(x, _assigned(caller, x)) for x in written} - {None}
    return found.pop() if len(found) == 1 else TURNS


def _place(frame: types.FrameType | None) -> tuple[int, ...] | None:
    """Returns the lines and columns of the expression that a frame evaluates."""
    if frame is None or not hasattr(frame.f_code, "co_positions"):
        return None
    position = _positions(frame.f_code)[frame.f_lasti // 2]
    return None if None in position else position


@functools.lru_cache(maxsize=256)
def _positions(code: types.CodeType) -> list[tuple[Any, ...]]:
    """Returns the lines and columns of each instruction."""
    return list(code.co_positions())


@functools.lru_cache(maxsize=64)
def _tree(path: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return None


@functools.lru_cache(maxsize=64)
def _calls(path: str) -> dict[tuple[int, ...], ast.Call]:
    """Returns the calls of a file by their lines and columns."""
    tree = _tree(path)
    return {(x.lineno, x.end_lineno, x.col_offset, x.end_col_offset): x
            for x in (ast.walk(tree) if tree else ()) if isinstance(x, ast.Call)}


def _written(value: ast.expr, assigned: list[ast.expr]) -> str | None:
    """Returns whether an expression names f32 or the type of something; None if neither.
    `assigned` has what is assigned to it, if it is a name."""
    if isinstance(value, ast.Attribute):
        return (BEGINS if value.attr in _NAMES else
                ENDS if value.attr.endswith("dtype") else None)
    if isinstance(value, ast.Name):
        if value.id in _NAMES:
            return BEGINS
        found = {_written(x, []) for x in assigned}
        return found.pop() if len(found) == 1 else None
    if isinstance(value, ast.Constant) and value.value == "torch.FloatTensor":
        return BEGINS
    return None


def _assigned(frame: types.FrameType, value: ast.expr) -> list[ast.expr]:
    """Returns what the function of a frame assigns to a name."""
    tree = _tree(frame.f_code.co_filename) if isinstance(value, ast.Name) else None
    first = frame.f_code.co_firstlineno
    for x in ast.walk(tree) if tree else ():
        if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef)) and first in (
                x.lineno, *(d.lineno for d in x.decorator_list)):
            return [y.value for y in ast.walk(x) if isinstance(y, ast.Assign)
                    and any(isinstance(t, ast.Name) and t.id == value.id for t in y.targets)]
    return []
