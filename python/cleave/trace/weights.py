# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Writes what a trace yields: the module's text and its tensors."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Callable, Mapping

import torch

from .model import TracedModel


def write_atomically(path: str, write: Callable[[str], None]) -> None:
    """Calls `write` with a path beside `path` and moves the result there, so
    that no partial file is left. Raises OSError."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"no folder '{folder}' to write '{path}' to")
    handle, scratch = tempfile.mkstemp(dir=folder, prefix=os.path.basename(path) + ".")
    os.close(handle)
    try:
        write(scratch)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(scratch, 0o666 & ~mask)
        os.replace(scratch, path)
    except BaseException:
        if os.path.exists(scratch):
            os.unlink(scratch)
        raise


def save_module(traced: TracedModel, path: str) -> None:
    """Writes the MLIR text. Raises OSError."""
    def write(scratch: str) -> None:
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(traced.mlir)
    write_atomically(path, write)


def save_weights(traced: TracedModel, path: str,
                 values: Mapping[str, torch.Tensor] | None = None) -> None:
    """Writes parameters and buffers to a safetensors file by `graph.name`, tied
    ones once; metadata "aliases" holds their further names as JSON. `values`
    replaces tensors of the trace. Raises ValueError where a tensor lies on the
    meta device, OSError."""
    from safetensors.torch import save_file

    tensors, aliases = {}, {}
    for entry in traced.tensors:
        tensor = (values or {}).get(entry.name, entry.tensor).detach()
        if tensor.is_meta:
            raise ValueError(f"'{entry.name}' is on the meta device and has no values to write")
        tensors[entry.name] = tensor.cpu().contiguous().clone()
        for alias in entry.aliases:
            aliases[alias] = entry.name
    metadata = {"format": "pt", "aliases": json.dumps(aliases)}
    write_atomically(path, lambda scratch: save_file(tensors, scratch, metadata))
