# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Writes a traced model to files: the text of the module, and its tensors."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
from typing import Callable, Mapping

import torch

from .model import TracedModel


def check_writable(path: str) -> None:
    """Raises OSError if no file can be created at `path`; creates nothing."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"cannot write '{path}': there is no folder '{folder}'")
    if os.path.isdir(path):
        raise IsADirectoryError(f"cannot write '{path}': it is a folder")
    if not os.access(path if _is_special(path) else folder, os.W_OK):
        raise PermissionError(f"cannot write '{path}': permission denied")


def _is_special(path: str) -> bool:
    """Returns whether `path` is a device or a pipe, which renaming a file to it would replace."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def sync_file(file) -> None:
    """Waits until what was written to an open file is on the disk."""
    file.flush()
    _sync(file.fileno())


def sync_folder(path: str) -> None:
    """Waits until the names in a folder are on the disk."""
    handle = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(handle)
    finally:
        os.close(handle)


def _sync(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        # A file system that does not do it, or has no disk.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise


def write_atomically(path: str, write: Callable[[str], None]) -> None:
    """Calls `write` with a temporary path in the same folder and renames the file to `path`, so
    that no partial file is left, also after a power cut; devices and pipes are written in place. Raises OSError,
    whose text names `path`."""
    check_writable(path)
    try:
        if _is_special(path):
            write(path)
            return
        # The target of a symbolic link is replaced, not the link.
        target = os.path.realpath(path)
        handle, scratch = tempfile.mkstemp(dir=os.path.dirname(target),
                                           prefix=os.path.basename(target) + ".")
        os.close(handle)
        try:
            write(scratch)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(scratch, 0o666 & ~mask)
            with open(scratch, "rb") as file:
                _sync(file.fileno())
            os.replace(scratch, target)
            sync_folder(os.path.dirname(target))
        except BaseException:
            if os.path.exists(scratch):
                os.unlink(scratch)
            raise
    except OSError as error:
        raise OSError(f"cannot write '{path}': {error.strerror or error}") from error


def save_module(traced: TracedModel, path: str) -> None:
    """Writes the MLIR text to `path`; `-` is standard output. Raises OSError."""
    if path == "-":
        try:
            sys.stdout.write(traced.mlir)
            sys.stdout.flush()
        except OSError as error:
            raise OSError(f"cannot write standard output: {error.strerror or error}") from error
        return

    def write(scratch: str) -> None:
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(traced.mlir)
    write_atomically(path, write)


def save_weights(traced: TracedModel, path: str,
                 values: Mapping[str, torch.Tensor] | None = None) -> None:
    """Writes parameters and buffers to a safetensors file, by `graph.name`; tied tensors are
    written once. The metadata holds JSON: "aliases" maps further names of tied tensors to the
    written one, "stacks" the name of each stacked tensor to the names of its parts, in order.
    `values` replaces tensors of the trace. Raises ValueError for a tensor on the meta device,
    and OSError."""
    tensors, aliases, stacks = {}, {}, {}
    for entry in traced.tensors:
        tensor = (values or {}).get(entry.name, entry.tensor).detach()
        if tensor.is_meta:
            raise ValueError(f"'{entry.name}' is on the meta device and has no values to write")
        tensors[entry.name] = tensor.cpu().contiguous().clone()
        for alias in entry.aliases:
            aliases[alias] = entry.name
        if entry.parts:
            stacks[entry.name] = entry.parts
    metadata = {"format": "pt", "aliases": json.dumps(aliases)}
    if stacks:
        metadata["stacks"] = json.dumps(stacks)

    write_tensors(path, tensors, metadata)


def write_tensors(path: str, tensors: Mapping[str, torch.Tensor],
                  metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file, whole or not at all. Raises OSError, whose text names `path`."""
    from safetensors import SafetensorError
    from safetensors.torch import save, save_file

    def write(scratch: str) -> None:
        try:
            if _is_special(scratch):
                # `save_file` would replace the device or pipe by a file.
                with open(scratch, "wb") as file:
                    file.write(save(dict(tensors), dict(metadata)))
            else:
                save_file(dict(tensors), scratch, dict(metadata))
        except SafetensorError as error:
            raise OSError(str(error)) from error
    write_atomically(path, write)
