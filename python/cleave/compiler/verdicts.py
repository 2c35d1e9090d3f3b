# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What the default check found before, in the cache of compiled programs.

A comparison with eager PyTorch that found no difference is not repeated for the same program
of the same code: the text of the traced module, the options, the versions of Python and torch,
the build of the compiler, the processor, and all Python files that the process has loaded.
Values of parameters and inputs are no part of it: they are others in each run.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Sequence

import torch

if TYPE_CHECKING:
    from ..trace.model import TracedModel

#: Folders of installed packages, whose files change by being installed anew.
_INSTALLED = tuple({folder + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
                    if (path := sysconfig.get_path(name))
                    for folder in (path, os.path.realpath(path))})


def key(model: torch.nn.Module, loss_fn: Any, traced: TracedModel, options: Mapping[str, Any],
        shapes: Sequence[object]) -> list[str] | None:
    """What the result of a comparison follows from; None if code of the model is in no file,
    as in a notebook."""
    if not all(name is None or os.path.isfile(name)
               for name in set(map(_file_of, _code(model, loss_fn)))):
        return None
    # The same whether the trace was made or read.
    files = traced.files or loaded_files()
    if files is None:
        return None
    facts = [sys.version, torch.__version__, torch.version.git_version,
             torch.get_default_dtype(), torch.get_float32_matmul_precision(),
             torch.are_deterministic_algorithms_enabled(), shapes,
             [(type(m).__module__, type(m).__qualname__, m.training) for m in model.modules()]]
    return ["check", repr(facts), json.dumps(dict(options), sort_keys=True), files,
            traced.named_mlir]


def found(key: list[str] | None) -> bool:
    """Whether a comparison found no difference before."""
    from .. import _cleave

    return key is not None and _cleave.is_found(key)


def keep(key: list[str] | None) -> None:
    """Notes that a comparison found no difference."""
    from .. import _cleave

    if key is not None:
        _cleave.note_finding(key)


def _code(model: torch.nn.Module, loss_fn: Any) -> Iterator[object]:
    """The functions that a model is made of, as far as they are not torch's own."""
    for owner in (*model.modules(), loss_fn):
        for kind in type(owner).__mro__:
            yield from vars(kind).values()
        yield from getattr(owner, "__dict__", {}).values()
    yield loss_fn


def _file_of(value: Any) -> str | None:
    """The file that code says it is of, if it is some."""
    value = getattr(value, "__func__", value)
    value = getattr(value, "__wrapped__", value)
    name: str | None = getattr(getattr(value, "__code__", None), "co_filename", None)
    return name


def installed_folders() -> tuple[str, ...]:
    """Folders of installed packages, each with a separator at its end."""
    return _INSTALLED


def loaded_files() -> str | None:
    """The hash of all Python files that are loaded: of installed ones, their sizes and times,
    of others, what is in them. None if the program itself is no file."""
    state = hashlib.sha256()
    if not getattr(sys.modules.get("__main__"), "__file__", None):
        return None
    paths = {file for module in list(sys.modules.values())
             if isinstance(file := getattr(module, "__file__", None), str)
             # Names without a folder are no files: torch.ops has one.
             and (os.path.isabs(file) or os.path.exists(file))}
    for path in sorted(paths):
        fact = file_fact(path)
        if fact is None:
            return None
        state.update(f"{path}\0{fact}\0".encode())
    return state.hexdigest()


def file_fact(path: str) -> str | None:
    """What identifies the content of a Python file; None if it cannot be read."""
    try:
        facts = os.stat(path)
        # A binary module is the build of it.
        if path.startswith(_INSTALLED) or not path.endswith(".py"):
            return f"{facts.st_size} {facts.st_mtime_ns}"
        with open(path, "rb") as file:
            return f"{facts.st_size} {hashlib.sha256(file.read()).hexdigest()}"
    except OSError:
        return None
