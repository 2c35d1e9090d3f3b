# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Reads safetensors files. They are not mapped: one that others shorten meanwhile is an error, and
not the end of the process."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from io import FileIO

_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors and the metadata of a file. Raises OSError, or ValueError for one that is
    damaged, with the reason alone."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            return _read(file, size)
        except (AttributeError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"its header is none of safetensors: {error!r}") from None


def _read(file: FileIO, size: int) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    head = bytearray(8)
    _fill(file, head)
    length = int.from_bytes(head, "little")
    if length > size - 8:
        raise ValueError(f"the file is truncated: the header has {length} bytes, but {size - 8} "
                         "follow")
    head = bytearray(length)
    _fill(file, head)
    header = json.loads(head)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its metadata are not a dict of text")
    values = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if (dtype := _TYPES.get(entry["dtype"])) is None:
            raise ValueError(f"tensor '{name}' has the unknown dtype '{entry['dtype']}'")
        shape, (begin, end) = entry["shape"], entry["data_offsets"]
        # Before memory of that size is asked for.
        if (min(shape, default=0) < 0 or not 0 <= begin <= end <= size
                or math.prod(shape) * dtype.itemsize != end - begin):
            raise ValueError(f"tensor '{name}': {end - begin} bytes are not those of {shape}")
        values[name] = torch.empty(shape, dtype=dtype)
        file.seek(8 + length + begin)
        _fill(file, values[name].reshape(-1).view(torch.uint8).numpy().data)
    return values, metadata


def _fill(file: FileIO, buffer: bytearray | memoryview) -> None:
    """Reads as many bytes as `buffer` has."""
    view = memoryview(buffer)
    while len(view):
        count = file.readinto(view)
        if not count:
            raise ValueError("the file is shorter than it says, or was shortened while it was read")
        view = view[count:]
