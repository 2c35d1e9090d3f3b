# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Sizes of memory on the command line and in Python: with units, and as plain numbers."""

import json
import subprocess

import pytest
import torch

import cleave
from cleave.models.__main__ import main as write_model
from cleave.runtime.state import byte_count
from cleave.testing.tools import tool
from cleave.compiler.entrance import grouped

MIB = 1 << 20
#: Bytes of each text; a plain number counts `None`.
SIZES = {"80GB": 80 * 10**9, "24GiB": 24 << 30, "1.5 MiB": 3 << 19, "2tb": 2 * 10**12,
         "1TiB": 1 << 40, "4096B": 4096, "7kB": 7000, "7 KiB": 7168, ".5GiB": 1 << 29}
WRONG = ["80G", "24 gigabytes", "GiB", "", "-1GiB", "1e", "nan", "1,5GB", "0x10MiB"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("sizes") / "gpt.mlir"
    assert write_model(["gpt", *"--layers 1 --hidden 16 --heads 2 --seq 8 --vocab 64 --batch 2".split(),
                        "-o", str(path)]) == 0
    return path


def plan(model, *flags):
    return subprocess.run([tool("cleave-compile"), model, "--plan-only", "--report=-", *flags],
                          capture_output=True, text=True)


@pytest.mark.parametrize("text", [*SIZES, "6700", "0.5"])
def test_the_command_line_and_python_read_alike(model, text):
    expected = SIZES.get(text, float(text) * MIB if text not in SIZES else None)
    done = plan(model, f"--memory-limit={text}")
    assert f"{int(expected)} bytes" in done.stderr or json.loads(
        done.stdout)["recompute"]["limit"] == expected
    if text in SIZES:
        assert byte_count("x", text, 1) == expected


@pytest.mark.parametrize("flag, unit", [
    ("memory-limit", "MiB"), ("max-logits-bytes", "bytes"), ("bucket-bytes", "bytes"),
    ("collective-chunk-bytes", "bytes"), ("max-saved-bytes", "bytes"),
    ("max-logits-mib", "MiB"), ("bucket-kib", "KiB"), ("collective-chunk-kib", "KiB"), ("max-saved-mib", "MiB")])
def test_what_is_no_size(model, flag, unit):
    for text in WRONG:
        done = plan(model, f"--{flag}={text}")
        assert done.returncode and f"a size: a number of {unit}, or with a unit, as 80GB" in done.stderr


def test_sizes_of_a_compiled_step():
    def compiled(**options):
        return cleave.compile(torch.nn.Linear(4, 4), (torch.ones(2, 4),),
                              lambda y: y.square().sum(), **grouped(**options))

    step = compiled(memory_limit="24GiB", bucket_bytes="1 MiB", max_logits_bytes="1GB")
    assert step.report()["recompute"]["limit"] == 24 << 30
    assert byte_count("x", 80, 1) == 80 == byte_count("x", "80", 1)
    for text in WRONG:
        with pytest.raises(ValueError, match="memory_limit is a size: a number of bytes, or"):
            compiled(memory_limit=text)
    for value, error in ((1.5, TypeError), (True, TypeError), (0, ValueError), ("0GB", ValueError)):
        with pytest.raises(error, match="memory_limit (is|must be) "):
            compiled(memory_limit=value)


def test_a_limit_that_is_said_can_be_given(model):
    """Messages have MiB, rounded up, and bytes."""
    said = plan(model, "--memory-limit=0.001").stderr
    smallest = said.split("a plan was found for is ")[1].split(" MiB")[0]
    assert plan(model, f"--memory-limit={smallest}").returncode == 0
    assert f"{float(smallest) - 0.001:.3f} MiB" not in said
    assert plan(model, f"--memory-limit={float(smallest) - 0.002:.3f}").returncode == 1
