# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Damaged files of tensors, as Python reads them: each is an error with the reason, or has what the
library of safetensors reads."""

import json
import random
import struct

import pytest
import safetensors
import safetensors.torch
import torch

from cleave.exporting import read_export
from cleave.runtime.tensor_file import read_tensors
from proofs import ALL

VALUES = [None, 0, -1, 2 ** 31, 2 ** 64, 1.5, float("inf"), True, "", "F32", "BOOL", [], [0], [0, 0],
          [0, 2 ** 70], [2 ** 62, 2, 0], [3, 4], [4, 3], [-1, -12], [3.0, 4], ["3"], {}, [[1]],
          [0, 48], [48, 96], [48, 0], [0, 10 ** 12]]
HEADERS = [b"", b"[]", b"null", b"3", b"{", b"[" * 100000, b'{"a":' * 2000, b"\xff", b"9" * 10000]


@pytest.fixture
def whole(tmp_path):
    path = tmp_path / "whole.safetensors"
    safetensors.torch.save_file(
        {"a": torch.randn(3, 4), "b": torch.arange(6), "c": torch.ones(2, dtype=torch.bfloat16),
         "e": torch.zeros(0, 3)}, path, metadata={"tied": "{}"})
    return path.read_bytes()


def compare(path):
    """Returns whether a file is taken."""
    try:
        values, metadata = read_tensors(path)
    except (OSError, ValueError) as error:
        assert str(error)
        return False
    assert all(isinstance(x, str) for pair in metadata.items() for x in pair)
    try:
        expected = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, ValueError):
        return True
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(values[name], value, rtol=0, atol=0, equal_nan=True)
    return True


def test_headers(whole, tmp_path):
    path = tmp_path / "file.safetensors"
    path.write_bytes(whole)
    assert compare(path)
    for header in HEADERS:
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(100))
        assert not compare(path)


@pytest.mark.parametrize("forms", [
    "{", "[]", "3", '{"a": 3}', '{"a": {"form": "2:4"}}', '{"a": {"form": "mask", "shape": [9]}}',
    '{"a": {"form": "int8"}}', '{"none": {"form": "int8", "inputs": [0]}}',
])
def test_damaged_exports(tmp_path, forms):
    path = tmp_path / "file.safetensors"
    for aliases in ({"cleave.aliases": "{}"}, {"cleave.aliases": "["}, {}):
        safetensors.torch.save_file({"a": torch.randn(3, 4)}, path,
                                    metadata={"cleave.forms": forms, **aliases})
        with pytest.raises(ValueError, match="file.safetensors is damaged"):
            read_export(path)


def test_drawn_damage(whole, tmp_path):
    path, draw = tmp_path / "file.safetensors", random.Random(1)
    size = struct.unpack("<Q", whole[:8])[0]
    taken = 0
    for _ in range(20000 if ALL else 500):
        if draw.random() < 0.3:
            data = bytearray(whole)
            data[draw.randrange(size + 8)] = draw.randrange(256)
        else:
            header = json.loads(whole[8:8 + size])
            name = draw.choice(list(header))
            if name == "__metadata__" or draw.random() < 0.1:
                header[name] = draw.choice(VALUES)
            elif draw.random() < 0.1:
                del header[name][draw.choice(list(header[name]))]
            else:
                header[name][draw.choice(list(header[name]))] = draw.choice(VALUES)
            text = json.dumps(header).encode()
            data = struct.pack("<Q", len(text)) + text + whole[8 + size:]
        path.write_bytes(data)
        taken += compare(path)
    assert taken > 5
