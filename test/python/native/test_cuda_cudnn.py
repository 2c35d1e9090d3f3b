# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Attention by cuDNN on a GPU that is a stand-in: the real library plans, compiles its kernels and
says what memory they need, and the graphs that it was given are computed on the host
(test/fake_cuda/FakeCudnn.cpp). It proves the graphs and the plugin, not cuDNN's kernels."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from cleave.models.__main__ import main as write_model
from cleave.testing.tools import build_dir, run_tool, tool
from proofs import ALL
from step_runs import LAYOUTS, differences, run, run_apart

FAKE = build_dir() / "fake_cuda"
TESTS = build_dir() / "unit" / "CleaveCudnnTests"
DEVICES = pathlib.Path(__file__).resolve().parents[2] / "fake_cuda" / "devices"


def cudnn():
    """The library of the environment, or None."""
    given = os.environ.get("CLEAVE_FAKE_CUDNN")
    found = [given] if given else map(str, pathlib.Path(sys.prefix).glob(
        "lib/python3*/site-packages/nvidia/cudnn/lib/libcudnn.so.9"))
    return next(iter(found), None)


pytestmark = [
    pytest.mark.skipif(not TESTS.exists(), reason="built without the headers of cuDNN and "
                       "cudnn-frontend (requirements-cuda.txt)"),
    pytest.mark.skipif(not cudnn(), reason="needs cuDNN (requirements-cuda.txt)")]


@pytest.fixture(autouse=True)
def fake_device(monkeypatch):
    monkeypatch.setenv("CLEAVE_CUDA_LIBRARIES", str(FAKE))
    monkeypatch.setenv("CLEAVE_FAKE_CUDNN", cudnn())
    monkeypatch.setenv("CLEAVE_FAKE_CUDNN_DEVICE", str(DEVICES / "h200.json"))
    monkeypatch.setenv("CLEAVE_FAKE_DEVICES", "4")
    monkeypatch.setenv("CLEAVE_CUDNN", "required")
    monkeypatch.setenv("CLEAVE_TUNING", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("device", ["h200", "a100", "h100", "b200"] if ALL else ["h200"])
def test_plans(device, monkeypatch):
    """What cuDNN needs is what is planned, what it is asked for is what is meant, and what it does
    not compute is refused."""
    monkeypatch.setenv("CLEAVE_FAKE_CUDNN_DEVICE", str(DEVICES / f"{device}.json"))
    result = subprocess.run([TESTS], capture_output=True, text=True, timeout=1200)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "SKIPPED" not in result.stdout


def compiled(folder, family, *flags, heads=4, targets=("native", "device")):
    path = folder / f"{family}.mlir"
    assert write_model([family, "--hidden=64", f"--heads={heads}", "--layers=2", "--seq=16",
                        "--vocab=64", "--batch=4", "--image=16", "--patch=4", "-o",
                        str(path)]) == 0
    options = {"native": ["--threads=1"], "device": ["--target=cuda"]}
    for name in targets:
        run_tool([tool("cleave-compile"), str(path), "--optimizer=sgd", "--momentum=0",
                  "--activation-reduction=16bit", *flags,
                  *options[name], "-o", str(folder / f"{name}.so")])
    return [folder / f"{name}.so" for name in targets]


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    """GPT in bf16, for the CPU and for a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEAVE_CUDA_LIBRARIES", str(FAKE))
        return compiled(tmp_path_factory.mktemp("gpt"), "gpt", "--precision=bf16")


def calls(record):
    return re.findall(r"cudnn-(?:forward|backward)", record.read_text())


def check_steps(native, device, tmp_path, monkeypatch):
    expected = run(native)
    monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(tmp_path / "record"))
    monkeypatch.setenv("CLEAVE_FAKE_ORDER", "7")
    found = run_apart(device)
    assert set(calls(tmp_path / "record")) == {"cudnn-forward", "cudnn-backward"}
    # Probabilities are rounded to 16 bits here, and not on the CPU.
    assert not list(differences(expected, found, "fp16"))


def test_steps_agree(gpt, tmp_path, monkeypatch):
    check_steps(*gpt, tmp_path, monkeypatch)


CASES = [("vit", "fp16", "one"), ("llama", "bf16", "one"), ("gpt", "fp16", "zero2"),
         ("llama", "bf16", "stages")]


@pytest.mark.skipif(not ALL, reason="a long proof")
@pytest.mark.parametrize("family, precision, layout", CASES)
def test_steps_of_families_agree(family, precision, layout, tmp_path, monkeypatch):
    artifacts = compiled(tmp_path, family, f"--precision={precision}", *LAYOUTS[layout])
    check_steps(*artifacts, tmp_path, monkeypatch)


def test_graphs_have_the_same_bits(gpt, tmp_path, monkeypatch):
    results = []
    for graphs in ("off", "on"):
        monkeypatch.setenv("CLEAVE_CUDA_GRAPHS", graphs)
        monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(tmp_path / graphs))
        results.append(run_apart(gpt[1], 4))
        in_graph = [line for line in (tmp_path / graphs).read_text().split("\n")
                    if "cudnn-" in line and " graph=1 " in line]
        assert bool(in_graph) == (graphs == "on")
    (given, _, values), (others, _, found) = results
    assert np.array_equal(given, others)
    assert all(np.array_equal(value, found[name]) for name, value in values.items())


def stopped(artifact):
    """The message of opening the artifact in another process."""
    result = subprocess.run(
        [sys.executable, "-c", "import sys; from cleave import _runtime; _runtime.open(sys.argv[1])",
         str(artifact)], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    return result.stderr.strip().split("\n")[-1] if result.returncode else ""


def test_generated_kernels_run_the_rest(gpt, tmp_path, monkeypatch):
    """Where cuDNN needs more than was planned, is missing, or is not wanted, the kernels beside it
    run, with the same bits."""
    device = gpt[1]
    monkeypatch.setenv("CLEAVE_FAKE_CUDNN_BYTES", "1000000")
    assert re.search("cuDNN: it needs [0-9]+ bytes of workspace, and [0-9]+ are planned",
                     stopped(device))
    monkeypatch.setenv("CLEAVE_CUDNN", "on")
    monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(tmp_path / "record"))
    results = [run_apart(device)]
    monkeypatch.delenv("CLEAVE_FAKE_CUDNN_BYTES")
    monkeypatch.setenv("CLEAVE_CUDNN", "off")
    results.append(run_apart(device))
    monkeypatch.setenv("CLEAVE_CUDNN", "on")
    monkeypatch.setenv("CLEAVE_FAKE_CUDNN", "")
    results.append(run_apart(device))
    assert not calls(tmp_path / "record")
    for given, _, values in results[1:]:
        assert np.array_equal(given, results[0][0])
        assert all(np.array_equal(value, results[0][2][name]) for name, value in values.items())
    monkeypatch.setenv("CLEAVE_CUDNN", "required")
    assert "cuDNN: a handle: " in stopped(device)


@pytest.mark.skipif(not ALL, reason="a long proof")
def test_what_is_refused_is_generated(tmp_path, monkeypatch):
    """Heads of 4 channels, in a program that must use cuDNN where it can."""
    device, = compiled(tmp_path, "gpt", "--precision=bf16", "--micro-batches=2", heads=16,
                       targets=["device"])
    monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(tmp_path / "record"))
    run_apart(device, 1)
    assert not calls(tmp_path / "record")
