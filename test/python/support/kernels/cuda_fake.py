# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The fake device of a test."""

import pytest

from cleave.testing.tools import build_dir, run_tool, tool

FAKE = build_dir() / "fake_cuda"


@pytest.fixture(autouse=True)
def fake_device(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("CLEAVE_CUDA_LIBRARIES", str(FAKE))
    monkeypatch.setenv("CLEAVE_FAKE_DEVICES", "4")
    monkeypatch.setenv("CLEAVE_TUNING", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def compile_both(path, folder, *flags):
    """The artifacts for the CPU and for a GPU, whose products are rounded by default."""
    narrow = {"--precision=bf16", "--precision=fp16"} & set(flags)
    rounded = ["--activation-reduction=16bit"] if narrow else []
    for name, target in (("native", ["--threads=1", *rounded]), ("device", ["--target=cuda"])):
        run_tool([tool("cleave-compile"), str(path), *flags, *target, "-o",
                  str(folder / f"{name}.so")])
    return folder / "native.so", folder / "device.so"
