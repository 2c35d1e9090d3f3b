# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Installed packages in the hash of what a trace may read: what a program may have replaced or set in
them. Their files are hashed as files."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from .hashed_code import (FIXED, OF_PROCESS, PLAIN, SKIPPED, is_foreign, is_installed, is_standard, is_standing,
                          within)

if TYPE_CHECKING:
    from .hashed_objects import Objects

#: Packages whose modules hold nothing that a trace reads.
_UNREAD = {"sympy", "mpmath", "torchgen", "asyncio", "pytest", "_pytest", "pluggy", "xdist", "execnet",
           "jinja2", "yaml", "httpx2", "httpcore2", "httpx", "httpcore", "anyio", "h11", "email",
           "filelock", "huggingface_hub", "tqdm", "markupsafe", "unittest", "ssl", "http", "urllib",
           "logging", "importlib", "multiprocessing", "concurrent", "hypothesis", "coverage"}
#: Of torch, those of its compiler, which a trace does not run.
_UNREAD_TORCH = ("torch._inductor", "torch._dynamo.", "torch.testing", "torch.onnx", "torch.profiler",
                 "torch.distributed", "torch._refs", "torch._prims", "torch._numpy", "torch.jit",
                 "torch.package", "torch.quantization", "torch.ao", "torch.utils.data", "torch.ops",
                 "torch._ops.", "torch._vendor", "torch.utils.benchmark", "torch.utils.tensorboard")
#: Modules of these whose tables a program may have changed.
_READ = ("torch.nn.modules.module", "torch.utils.checkpoint", "cleave.trace.registry",
         "cleave.trace.replacements")


def hash_installed(walk: Objects, name: str, module: Any) -> None:
    """Hashes what a program may have replaced in an installed module, and what is set in one
    that is not of torch."""
    top = name.split(".", 1)[0]
    if top in _UNREAD or name.startswith(_UNREAD_TORCH) or top == "__main__":
        return
    values = getattr(module, "__dict__", None)
    file = getattr(module, "__file__", None)
    if type(values) is not dict or (file is not None and not is_installed(file)):
        return
    # A module of a class of its own loads others when they are asked for.
    fixed = (file is None or top in FIXED or is_standard(top)
             or type(module) is not types.ModuleType)
    walk.say("module", name)
    # Their order may be that of a set.
    for key, value in sorted(values.items(), key=_first):
        if key in SKIPPED or key in OF_PROCESS:
            continue
        kind = type(value)
        if kind is types.FunctionType:
            _function_of(walk, key, value, fixed)
        elif isinstance(value, type):
            _class_of(walk, key, value, name, fixed)
        elif kind in PLAIN:
            if not fixed or name.startswith("torch.nn"):
                walk.say(key, kind.__name__, repr(value))
        elif kind is types.BuiltinFunctionType:
            walk.say(key, value.__module__, value.__qualname__)
        elif isinstance(value, types.ModuleType):
            walk.say(key, value.__name__)
        elif not fixed or name in _READ:
            walk.say(key)
            walk.visit_loosely(value)
        else:
            walk.say(key, kind.__module__, kind.__qualname__)
            function = (value.func if kind is functools.partial else
                        value.__func__ if kind is types.MethodType else None)
            if not is_standing(kind) or (
                    type(function) is types.FunctionType and is_foreign(function)):
                walk.visit(value)


def _function_of(walk: Objects, key: str, value: types.FunctionType, fixed: bool) -> None:
    """Hashes a function in an installed module."""
    code = value.__code__
    if is_foreign(value):
        walk.say("replaced", key)
        walk.visit(value)
        return
    walk.text.append(f"{key} {value.__qualname__} {code.co_firstlineno}")
    if code.co_filename != value.__globals__.get("__file__"):
        walk.text.append(code.co_filename)
    if value.__defaults__:
        walk.text.append(" ".join([repr(v) for v in value.__defaults__ if type(v) in PLAIN]))
    if value.__closure__ and not fixed:
        walk.visit_loosely(value)


def _class_of(walk: Objects, key: str, value: type, module: str, fixed: bool) -> None:
    """Hashes a class in an installed module."""
    walk.text.append(f"{key} {value.__module__}.{value.__qualname__}")
    if value.__module__ != module:
        if any(is_foreign(f) for f in map(within, vars(value).values())
               if type(f) is types.FunctionType):
            walk.say("replaced")
            walk.visit_class(value)
        return  # Else where it is defined.
    for name, member in sorted(vars(value).items(), key=_first):
        if name in SKIPPED:
            continue
        member = within(member)
        kind = type(member)
        if kind is types.FunctionType:
            _function_of(walk, name, member, fixed)
        elif not fixed or (kind in PLAIN and module.startswith("torch.nn")):
            walk.say(name)
            walk.visit_loosely(member)
        elif kind not in PLAIN:
            walk.text.append(name + kind.__name__)


def _first(item: tuple[Any, Any]) -> str:
    return str(item[0])
