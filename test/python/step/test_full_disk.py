# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Where nothing can be written: an OSError that says which file and why; what was there
stays, nothing is left, and the step goes on."""

import contextlib
import os
import resource

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.trace.weights import save_module, save_weights

X = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))


def compiled():
    torch.manual_seed(0)
    return cleave.compile(nn.Linear(64, 64), (X, X), F.mse_loss, optimizer=cleave.SGD(lr=0.1))


@contextlib.contextmanager
def files_up_to(size):
    """No file can become larger than `size` bytes: a write beyond it fails, as on a full
    disk. Python ignores the signal that there is also."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(v, other[k]) for k, v in one.items())


@pytest.mark.parametrize("size", [100, 8192, 16384])
def test_checkpoints(tmp_path, size):
    step = compiled()
    step(X, X)
    step.save(tmp_path / "c")
    before = step.state_dict()
    step(X, X)
    for name in ("c", "d"):
        with files_up_to(size), pytest.raises(OSError, match=f"{name}.*: cannot write: File too large"):
            step.save(tmp_path / name)
    assert os.listdir(tmp_path) == ["c"]
    assert step(X, X).step == 3
    step.load(tmp_path / "c")
    assert step.step == 1 and same(step.state_dict(), before)


@pytest.mark.parametrize("size", [100, 4096, 8192, 12288])
def test_artifacts(tmp_path, size):
    step = compiled()
    path = tmp_path / "a.so"
    with files_up_to(size), pytest.raises(OSError, match="cannot write '.*'") as caught:
        step.save_artifact(path)
    assert "PLEASE" not in str(caught.value) and "\n" not in str(caught.value)
    assert not os.listdir(tmp_path)
    step.save_artifact(path)
    content = path.read_bytes()
    with files_up_to(size), pytest.raises(OSError):
        step.save_artifact(path)
    assert path.read_bytes() == content and os.listdir(tmp_path) == ["a.so"]


def test_modules_and_weights(tmp_path):
    traced = cleave.trace.trace(nn.Linear(64, 64), (X, X), F.mse_loss)
    for write in (lambda path: save_weights(traced, str(path)),
                  lambda path: save_module(traced, str(path))):
        (tmp_path / "f").write_text("old")
        with files_up_to(100), pytest.raises(OSError, match="cannot write '.*f': .*too large"):
            write(tmp_path / "f")
        assert os.listdir(tmp_path) == ["f"] and (tmp_path / "f").read_text() == "old"


@pytest.mark.parametrize("path", ["none/c", "file/c", "/proc/none/c"])
def test_folders_that_cannot_be_written(tmp_path, path):
    (tmp_path / "file").write_text("")
    step = compiled()
    with pytest.raises(OSError, match="c"):
        step.save_artifact(tmp_path / path)
    if path != "none/c":
        with pytest.raises(OSError, match="c"):
            step.save(tmp_path / path)
    assert step(X, X).step == 1
