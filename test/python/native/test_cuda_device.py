# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Whole training steps on a GPU that is a stand-in (test/fake_cuda): the real plugin, the printed
kernels, NVIDIA's libraries replaced by ones that run on the host; against the same steps on the
CPU. It proves the plugin, its order of work and the kernels' structure, not the last bits of
a device's functions, nor anything of its speed."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

import cleave
from cleave import _cleave
from cleave.models import FAMILIES
from cleave.testing.tools import build_dir, run_tool, tool
from cleave.compiler.entrance import grouped
from cuda_fake import FAKE, compile_both, fake_device  # noqa: F401
from proofs import ALL
from step_runs import (LAYOUTS, OPTIMIZERS, PRECISIONS, differences, farther, feed_apart, model,
                       read_given_apart, rounds_alike, run, run_apart)

pytestmark = pytest.mark.skipif(
    not (FAKE / "libcuda.so.1").exists() or not (build_dir() / "lib" / "libcleave_cuda.so").exists(),
    reason="needs NVIDIA's headers and clang")


def plain(precision, layout, *flags):
    return [f"--precision={precision}", *LAYOUTS[layout], "--optimizer=sgd", "--momentum=0", *flags]


# Steps --------------------------------------------------------------------------------

CASES = [(family, precision, "one") for family in FAMILIES for precision in PRECISIONS] + [
    (family, precision, layout) for family in ("gpt", "llama") for precision in ("f32", "bf16")
    for layout in LAYOUTS if layout != "one"]
SAMPLE = [("gpt", "bf16", "one"), ("t5", "f32", "one"),
          ("llama", "f32", "sequence"), ("gpt", "f32", "stages"), ("gpt", "bf16", "zero2"),
          ("llama", "fp8", "one")]


@pytest.mark.parametrize("family, precision, layout", CASES if ALL else SAMPLE)
def test_steps_agree(family, precision, layout, tmp_path, monkeypatch):
    path = model(family, tmp_path)
    native, device = compile_both(path, tmp_path, *plain(precision, layout))
    expected = run(native)
    monkeypatch.setenv("CLEAVE_FAKE_ORDER", "7")
    monkeypatch.setenv("CLEAVE_THREAD_ORDER", "7")
    if precision == "f32":
        assert not list(differences(expected, run_apart(device), precision))
        return
    # Sums in another order round a number here and there to its neighbour, and then what follows:
    # the measure is what all roundings cost.
    monkeypatch.setenv("CLEAVE_FAKE_SUMS", "7")
    found = run_apart(device)
    exact, _ = compile_both(path, tmp_path, *plain("f32", layout))
    # Gradients of gathered keys are f32: the CPU's attention, which computes them from f32,
    # is nearer to f32 there than with one rank, and the device's, from rounded numbers, as near.
    most = 2.5 if layout == "context" else 1.5
    assert not list(farther(run(exact), expected, found, most))
    if family == "mixtral":  # Tokens that have other experts have other logits.
        assert rounds_alike(native, expected, found)
    else:
        assert np.abs(expected[0] - found[0]).max() <= 4e-3 * np.abs(expected[0]).max()


@pytest.mark.parametrize("optimizer", OPTIMIZERS if ALL else ["adamw8bit"])
def test_optimizers_agree(optimizer, tmp_path):
    flags = [f"--optimizer={optimizer}"]
    if optimizer == "muon":
        flags.append("--group=ndim<2: optimizer=adamw")
    native, device = compile_both(model("gpt", tmp_path), tmp_path, *flags)
    # Where a gradient is zero but for rounding, an update of its sign is not.
    assert not [name for name in differences(run(native), run_apart(device), "fp16")
                if not name.endswith("key.bias")]


@pytest.mark.parametrize("flags", [
    ["--offload=state"],
    ["--offload=state", "--mesh=dp=2", "--plan=zero1", "--precision=bf16"],
    ["--recompute=full"], ["--fused-attention=off"], ["--micro-batches=4", "--precision=fp16"],
    ["--mesh=pp=2", "--micro-batches=4", "--schedule=zb-h1", "--post-validation"],
][slice(None) if ALL else slice(0, 2)], ids=" ".join)
def test_policies_agree(flags, tmp_path):
    precision = next((f.split("=")[1] for f in flags if "precision" in f), "f32")
    native, device = compile_both(model("gpt", tmp_path), tmp_path, "--optimizer=sgd", *flags)
    assert not list(differences(run(native), run_apart(device), precision))


@pytest.mark.parametrize("flags", [
    ["--prune=2:4", "--quantize=int8"], ["--update-delay=1"],
    ["--compress-stages=0.1", "--mesh=pp=2", "--micro-batches=2"], ["--prune=0.5"],
    ["--prune=0.9,cubic,steps=2", "--mesh=dp=2", "--plan=zero1"],
    ["--quantize=int8", "--precision=bf16"], ["--update-delay=2", "--mesh=dp=2", "--plan=zero1"],
    ["--compress-stages=0.1", "--mesh=pp=2,tp=2", "--plan=megatron", "--precision=fp16"],
    ["--compress=powersgd,rank=2", "--mesh=dp=2"], ["--compress=topk,density=0.1", "--mesh=dp=2"],
    ["--compress=threshold,keep=0.1,every=2", "--mesh=dp=2"], ["--compress=int8", "--mesh=dp=2"],
    ["--compress=1bit", "--mesh=dp=2"],
][slice(None) if ALL else slice(0, 3)], ids=" ".join)
def test_lossy_techniques_agree(flags, tmp_path):
    """Pruned and quantized weights, delayed updates, and compressed sums and messages of stages."""
    precision = next((f.split("=")[1] for f in flags if "precision" in f), "f32")
    native, device = compile_both(model("gpt", tmp_path), tmp_path, "--optimizer=sgd", *flags)
    assert not list(differences(run(native, 3), run_apart(device, 3), precision))


def test_graphs_have_the_same_bits(tmp_path, monkeypatch):
    """The third run of an entry is launched as graphs, the first two are not."""
    _, device = compile_both(model("gpt", tmp_path), tmp_path, "--optimizer=adamw",
                             "--precision=bf16", "--micro-batches=2", "--offload=state")
    results = []
    for graphs, order in [("off", "earliest"), ("on", "earliest"), ("on", "latest"),
                          *(("on", str(seed)) for seed in range(8))]:
        monkeypatch.setenv("CLEAVE_CUDA_GRAPHS", graphs)
        monkeypatch.setenv("CLEAVE_FAKE_ORDER", order)
        monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(tmp_path / f"{graphs}{order}"))
        results.append(run_apart(device, 5))
        used = " graph=1 " in (tmp_path / f"{graphs}{order}").read_text()
        assert used == (graphs == "on")
    for given, _, found in results[1:]:
        assert np.array_equal(given, results[0][0])
        assert all(np.array_equal(v, found[k]) for k, v in results[0][2].items())


@pytest.mark.parametrize("order", ["latest", "0", "1", "3"])
def test_inputs_are_read_as_they_were_given(order, tmp_path, monkeypatch):
    """Their copies, which are on a stream of their own, have ended then."""
    _, device = compile_both(model("gpt", tmp_path), tmp_path, "--optimizer=sgd")
    monkeypatch.setenv("CLEAVE_FAKE_ORDER", order)
    assert read_given_apart(device) == 0


def calls_of_a_step(artifact, folder, monkeypatch):
    """The calls of a step after the first two to the driver, but for what is in graphs."""
    counts = []
    for steps in (4, 5):
        record = folder / f"calls{steps}"
        monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(record))
        feed_apart(artifact, ["train"] * steps)
        counts.append(Counter(re.findall(r"^stream=\d+ kind=(\S+)", record.read_text(), re.M)))
    monkeypatch.delenv("CLEAVE_FAKE_RECORD")
    return counts[1] - counts[0]


@pytest.mark.parametrize("flags", [[], ["--micro-batches=4", "--precision=bf16"],
                                   ["--offload=state"], ["--offload=state,saved"]], ids=" ".join)
def test_a_step_is_two_graphs(flags, tmp_path, monkeypatch):
    """All before the check that the host waits for, and the updates; copies of offload memory are
    in them. Besides, there is what the host gives and takes, and the check."""
    _, device = compile_both(model("gpt", tmp_path), tmp_path, "--optimizer=adamw", "--max-grad-norm=1", *flags)
    calls = calls_of_a_step(device, tmp_path, monkeypatch)
    print(dict(calls))
    assert calls["graph"] == 2
    assert calls["launch"] == 1 and calls["call"] == 0
    # Two inputs and three scalars; the status of checks with all results.
    assert calls["copy-htod"] <= 5 and calls["copy-dtoh"] == 1
    assert calls["wait"] == 1 and calls["event"] <= 4
    expected = feed_apart(device, ["train"] * 5)
    monkeypatch.setenv("CLEAVE_CUDA_GRAPHS", "off")
    found = feed_apart(device, ["train"] * 5)
    assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("precision", ["f32", "bf16"] if ALL else ["f32"])
def test_launches_of_many_uses_have_the_same_bits(precision, tmp_path, monkeypatch):
    """As launches of one use each have; sums of rows for a bias have two stages."""
    text, results, uses = model("gpt", tmp_path, 32, "--batch=8").read_text(), [], []
    for moved in (4 << 20, -1):
        path = tmp_path / f"{moved}.so"
        _cleave.compile(text, json.dumps({
            "target": "cuda", "threads": 1, "micro_batches": 2, "precision": precision,
            "optimizer": cleave.AdamW(lr=1e-2).options() | {"max_grad_norm": 1.0},
            "moved_bytes": moved})).save(str(path))
        uses.append([int(n) for n in re.findall(rb'"uses":(\d+)', path.read_bytes())])
        monkeypatch.setenv("CLEAVE_FAKE_ORDER", str(len(uses)))
        results.append(run_apart(path, 3))
    assert len(uses[0]) > 10 and max(uses[0]) > 8 and not uses[1]
    (given, _, found), (other, _, expected) = results
    assert np.array_equal(given, other)
    assert all(np.array_equal(value, found[name]) for name, value in expected.items())


def test_ranks_share_a_device(tmp_path, monkeypatch):
    _, device = compile_both(model("gpt", tmp_path), tmp_path, *plain("f32", "zero2"))
    monkeypatch.setenv("CLEAVE_FAKE_DEVICES", "1")
    with pytest.raises(RuntimeError, match="a rank needs GPU 1, but this process sees 1 GPU; "
                                           r"--ranks-per-device \(ranks_per_device\) lets ranks share one"):
        run(device)


# What an artifact and a device have to do with each other ----------------------------


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")
    os.environ["CLEAVE_CUDA_LIBRARIES"] = str(FAKE)
    try:
        return compile_both(model("gpt", folder), folder, *plain("f32", "one"))[1]
    finally:
        del os.environ["CLEAVE_CUDA_LIBRARIES"]


def opened(artifact, sharing=1, **environment):
    """The message of opening the artifact in another process."""
    script = ("import sys; from cleave import _runtime; "
              "_runtime.open(sys.argv[1], ranks_per_device=int(sys.argv[2]))")
    result = subprocess.run(
        [sys.executable, "-c", script, str(artifact), str(sharing)], capture_output=True,
        text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment})
    return result.stderr.strip().split("\n")[-1] if result.returncode else ""


def test_a_later_device_runs_ptx(artifact, monkeypatch):
    """The binary is for devices of one major number; for a later one the driver compiles PTX."""
    expected = run_apart(artifact)
    assert opened(artifact, CLEAVE_FAKE_CAPABILITY="9.1") == ""
    monkeypatch.setenv("CLEAVE_FAKE_CAPABILITY", "10.0")
    found = run_apart(artifact)
    assert np.array_equal(expected[0], found[0])
    assert all(np.array_equal(values, found[2][name]) for name, values in expected[2].items())


def test_a_device_needs_no_library_of_the_processor(artifact, tmp_path):
    """oneDNN is opened where matmuls are computed on the CPU."""
    (tmp_path / "libdnnl.so.2").write_text("not a library")
    native = compile_both(model("gpt", tmp_path), tmp_path)[0]
    assert opened(artifact, LD_LIBRARY_PATH=str(tmp_path)) == ""
    assert re.search("needs oneDNN, libdnnl.so.[0-9], which cannot be opened: .*; install the package",
                     opened(native, LD_LIBRARY_PATH=str(tmp_path)))


def test_refusals(artifact, tmp_path):
    assert opened(artifact) == ""
    assert re.search("compiled for sm_90, and Fake is 8.0; compile the model again for it "
                     r'\(--arch sm_80, arch="sm_80"\)',
                     opened(artifact, CLEAVE_FAKE_CAPABILITY="8.0"))
    # No driver, and one that lacks functions.
    empty = tmp_path / "empty"
    empty.mkdir()
    assert re.search("running on a GPU needs libcuda.so.1, which cannot be opened.*driver",
                     opened(artifact, CLEAVE_CUDA_LIBRARIES=str(empty)))
    old = tmp_path / "old"
    old.mkdir()
    subprocess.run(["clang++-22", "-shared", "-x", "c", "/dev/null", "-o", old / "libcuda.so.1"],
                   check=True)
    assert "the driver is too old: it has no " in opened(artifact, CLEAVE_CUDA_LIBRARIES=str(old))


def started(artifact, folder, *flags, **environment):
    """The message of cleave-run, which must be an error."""
    data = folder / "tokens.bin"
    data.write_bytes((np.arange(4096, dtype=np.uint16) % 64).tobytes())
    result = subprocess.run(
        [tool("cleave-run"), str(artifact), "--random-init", "--data", str(data), "--steps", "1",
         *flags], capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    assert result.returncode == 1 and result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.mark.parametrize("environment, message", [
    ({"CLEAVE_FAKE_DRIVER_VERSION": "12080"},
     "the driver is too old: it is of CUDA 12.8, and Cleave needs one of CUDA 13.0 or later"),
    ({"CLEAVE_FAKE_DEVICES": "0"}, "this machine has NVIDIA's driver, but no GPU that CUDA sees; "
                                   "nvidia-smi lists those of the driver"),
    ({"CLEAVE_FAKE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "7"},
     "no GPU that CUDA sees: CUDA_VISIBLE_DEVICES is '7'")], ids=["old", "none", "hidden"])
def test_drivers_that_are_of_no_use(environment, message, artifact, tmp_path):
    """One message, and the status of an error."""
    assert message in started(artifact, tmp_path, **environment)
    assert opened(artifact, CLEAVE_FAKE_DRIVER_VERSION="13010") == ""


def test_options_without_effect(artifact, tmp_path):
    """They are refused, not ignored."""
    native = compile_both(model("gpt", tmp_path), tmp_path)[0]
    assert "--ranks-per-device (ranks_per_device) is of programs for GPUs" in started(
        native, tmp_path, "--ranks-per-device=4")
    assert "--offload-dir has no effect: the program offloads nothing" in started(
        native, tmp_path, f"--offload-dir={tmp_path}")
    assert "--offload-dir (offload_dir) is of programs for the processor" in started(
        artifact, tmp_path, f"--offload-dir={tmp_path}")


@pytest.mark.parametrize("name, value, allowed", [
    ("CLEAVE_NCCL", "onn", "on or off"), ("CLEAVE_CUDNN", "yes", "on, off or required"),
    ("CLEAVE_CUDA_GRAPHS", "0", "on or off"), ("CLEAVE_SHARED_GPU", "no", "on or off"),
    ("CLEAVE_PATIENCE", "abc", "an integer from 1 to 1048576"),
    ("CLEAVE_PATIENCE", "0", "an integer"), ("CLEAVE_PATIENCE", "1.5", "an integer"),
    ("CLEAVE_PATIENCE", "99999999999999999999", "an integer")])
def test_values_that_mean_nothing(name, value, allowed, artifact):
    assert f"{name} is '{value}'; it must be {allowed}" in opened(artifact, **{name: value})
    assert opened(artifact, **{name: ""}) == ""


def test_too_little_memory(artifact, tmp_path):
    """What is needed in all is said beside what is free, before any rank has memory."""
    pattern = (r"Fake has (\d+) bytes of memory free, and (?:the program needs|2 ranks that share it "
               r"need) (\d+): (\d+) for (?:its arena|arenas), (\d+) for libraries and scratch memory$")
    shared = compile_both(model("gpt", tmp_path), tmp_path, *plain("f32", "zero2"))[1]
    for program, ranks in [(artifact, 1), (shared, 2)]:
        record = tmp_path / f"record{ranks}"
        said = opened(program, ranks, CLEAVE_FAKE_MEMORY="300000")
        assert ("2 ranks that share it" in said) == (ranks == 2)
        free, needed, arenas, others = map(int, re.search(pattern, said).groups())
        planned = re.search(rb'"arenaBytes":(\d+)', program.read_bytes())
        assert (free, arenas) == (300000, ranks * int(planned[1])), said
        assert needed == arenas + others and others >= ranks * 32 << 20
        # One byte less than that is refused too; a page more is enough, but for what ranks that
        # share a device exchange there.
        said = opened(program, ranks, CLEAVE_FAKE_MEMORY=str(needed - 1),
                      CLEAVE_FAKE_RECORD=str(record))
        assert re.search(pattern, said) and f"Fake has {needed - 1} bytes" in said
        # Memory is cleared when it is allocated.
        assert not record.exists() or "kind=set" not in record.read_text()
        enough = dict(CLEAVE_FAKE_MEMORY=str(needed + (4096 if ranks == 1 else 1 << 20)), CLEAVE_FAKE_RECORD=str(record))
        assert opened(program, ranks, **enough) == ""
        assert "kind=set" in record.read_text()
    # Processes that share a device count together too.
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    (tmp_path / "tokens.bin").write_bytes((np.arange(4096, dtype=np.uint16) % 64).tobytes())
    processes = [subprocess.Popen(
        [tool("cleave-run"), str(shared), "--random-init", "--data", str(tmp_path / "tokens.bin"),
         "--steps=1", "--ranks-per-device=2"], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "CLEAVE_PORT": port,
             "CLEAVE_FAKE_MEMORY": "300000"}) for rank in range(2)]
    said = "".join(process.communicate(timeout=60)[1] for process in processes)
    assert [process.returncode for process in processes] == [1, 1]
    assert set(re.search(pattern, said, re.M).groups()[1:]) == {str(needed), str(arenas), str(others)}


def test_code_is_that_of_the_program(tmp_path):
    """The table has the launch of each kernel, and --emit=cuda shows its code."""
    path = model("gpt", tmp_path)
    text = run_tool([tool("cleave-compile"), str(path), "--target=cuda", "--emit=cuda", "-o", "-"])
    assert "cleave_attention_forward_32" in text and "cleave_attention_forward_64" not in text
    for flags, message in [(["--arch=sm_70"], "unknown architecture 'sm_70'"),
                           (["--threads=2"], "--threads is of --target cpu"),
                           (["--emit=llvm"], "--emit=llvm is of --target cpu")]:
        result = subprocess.run([tool("cleave-compile"), path, "--target=cuda", *flags, "-o",
                                 tmp_path / "x.so"], capture_output=True, text=True)
        assert result.returncode == 2 and message in result.stderr


@pytest.mark.parametrize("place", ["", "lib/python3.11/site-packages/nvidia/cu13/lib",
                                   ".venv/lib/python3.12/site-packages/nvidia/cu13/lib"])
def test_compiling_needs_nvrtc(place, tmp_path, monkeypatch):
    """It is found in the Python environment that the compiler is installed in, or beside the
    folder of its build."""
    monkeypatch.setenv("CLEAVE_CUDA_LIBRARIES", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    (tmp_path / "bin").mkdir()
    compiler = shutil.copy(tool("cleave-compile"), tmp_path / "bin")
    if place:
        (tmp_path / place).mkdir(parents=True)
        shutil.copy(FAKE / "libnvrtc.so.13", tmp_path / place)
    else:
        # What is chosen is not replaced by what else the machine has.
        (tmp_path / "libnvrtc.so.13").write_text("no library")
    result = subprocess.run([compiler, model("gpt", tmp_path), "--target=cuda", "-o",
                             tmp_path / "x.so"], capture_output=True, text=True)
    if place:
        assert result.returncode == 0, result.stderr
    else:
        assert result.returncode == 1
        assert "compiling for a GPU needs libnvrtc.so.13" in result.stderr
        assert str(tmp_path / "libnvrtc.so.13") in result.stderr
    assert (tmp_path / "x.so").exists() == bool(place)


# Choices of contractions ---------------------------------------------------------------


def products(record):
    """The products that ran, by device: what it was made of, as text."""
    return re.findall(r"kind=call name=product (.*)", record.read_text()) if record.exists() else []


def test_choices_are_made_once_and_kept(tmp_path, monkeypatch):
    """The first rank measures for all; a checkpoint keeps its choices, which a run that goes on
    takes over. On another kind of GPU it measures again."""
    monkeypatch.delenv("CLEAVE_TUNING")
    record = tmp_path / "record"
    monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(record))
    device = compile_both(model("gpt", tmp_path), tmp_path, *plain("bf16", "zero2"))[1]
    data = tmp_path / "tokens.bin"
    data.write_bytes((np.arange(4096, dtype=np.uint16) % 64).tobytes())

    def train(name, *flags):
        record.unlink(missing_ok=True)
        run_tool([tool("cleave-run"), str(device), "--data", str(data), "--steps=2", "--save-every=1",
                  "--label-shift=0", f"--save-dir={tmp_path / name}", *flags])
        last = sorted((tmp_path / name).glob("step-*"))[-1]
        return (json.loads((last / "training.json").read_text())["contractions"], last,
                len(products(record)))

    chosen, _, measured = train("first", "--random-init", "--stop-at=1")
    assert len(chosen) > 5
    assert all(re.match(r"cublasLt on Fake: \d+ bf16 ", key) for key in chosen), list(chosen)
    # Each of up to three algorithms four times, for each shape once, by one rank.
    resume = f"--resume={tmp_path / 'first' / 'step-1'}"
    kept, _, fewer = train("second", resume)
    assert kept == chosen
    steps = fewer
    assert measured - steps == 12 * len(chosen), (measured, steps, len(chosen))
    # What was kept is what runs, whatever would be chosen.
    state = tmp_path / "first" / "step-1" / "training.json"
    monkeypatch.setenv("CLEAVE_FAKE_NAME", "Fake 2")
    other, _, again = train("third", resume)
    assert all(re.match(r"cublasLt on Fake 2: \d+ bf16 ", key) for key in other)
    assert len(other) == len(chosen) and again == measured
    assert json.loads(state.read_text())["contractions"] == chosen


# Types of products, names of work, and bits ----------------------------------------------


@pytest.mark.parametrize("precision, arch, types", [
    # Numbers of CUDA: 0 is f32, 14 bf16, 28 and 29 the types of 8 bits.
    ("f32", "sm_90", {"0,0,0"}), ("f32", "sm_80", {"0,0,0"}), ("bf16", "sm_90", {"14,14,14", "14,14,0"}),
    ("fp8", "sm_90", {"28,28,14", "28,29,14", "29,28,14", "28,28,0", "28,29,0", "29,28,0"}),
    ("fp8", "sm_80", set())])
def test_types_of_products(precision, arch, types, tmp_path, monkeypatch):
    """All are in f32 without TF32 (68: CUBLAS_COMPUTE_32F; TF32 is 77). From sm_90 on, fp8 layers
    multiply 8-bit factors."""
    path = model("gpt", tmp_path)
    run_tool([tool("cleave-compile"), str(path), "--target=cuda", f"--arch={arch}",
              f"--precision={precision}", "-o", str(tmp_path / "device.so")])
    record = tmp_path / "record"
    monkeypatch.setenv("CLEAVE_FAKE_CAPABILITY", "8.0" if arch == "sm_80" else "9.0")
    monkeypatch.setenv("CLEAVE_FAKE_RECORD", str(record))
    run_apart(tmp_path / "device.so", 1)
    found = products(record)
    assert len(found) > 10
    assert {re.search(r"compute=(\d+)", text)[1] for text in found} == {"68"}
    used = {re.search(r"types=(\S+)", text)[1] for text in found}
    eight = {one for one in used if {"28", "29"} & set(one.split(","))}
    if precision == "fp8":
        assert eight <= types and bool(eight) == bool(types), used
        if types:  # Of forward, and with a gradient.
            assert any("29" in one for one in eight) and any("28,28" in one for one in eight)
    else:
        assert used and used <= types, used


INJECTION = r"""
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
static FILE *out;
static int push(const char *name) { fprintf(out, "+%s\n", name); fflush(out); return 0; }
static int pop(void) { fprintf(out, "-\n"); fflush(out); return 0; }
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  const NvtxExportTableCallbacks *table =
      (const NvtxExportTableCallbacks *)get(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable functions;
  unsigned size = 0;
  if (!table || !table->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &size))
    return 0;
  out = fopen(getenv("NVTX_LOG"), "w");
  *functions[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
  *functions[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
  return 1;
}
"""


def test_ranges_are_named(tmp_path, monkeypatch):
    """A profiler that listens to NVTX sees actions, and in them commands: those of the table, with
    their ops and source lines, in its order."""
    cache = (build_dir() / "CMakeCache.txt").read_text()
    headers = re.search(r"CLEAVE_CUDA_INCLUDE:PATH=(.*)", cache)[1]
    if not os.path.exists(f"{headers}/nvtx3/nvToolsExt.h"):
        pytest.skip("the headers of NVTX are not there")
    device = compile_both(model("gpt", tmp_path), tmp_path, *plain("f32", "one"))[1]
    (tmp_path / "listen.c").write_text(INJECTION)
    subprocess.run(["clang-22", "-shared", "-fPIC", "-isystem", headers, tmp_path / "listen.c", "-o",
                    tmp_path / "listen.so"], check=True)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", str(tmp_path / "listen.so"))
    monkeypatch.setenv("NVTX_LOG", str(tmp_path / "ranges"))
    feed_apart(device, ["train"])
    open_ranges, actions, commands = [], [], {}
    for line in (tmp_path / "ranges").read_text().splitlines():
        if line == "-":
            open_ranges.pop()
            continue
        if not open_ranges:
            actions.append(line[1:])
        else:
            assert len(open_ranges) == 1
            commands.setdefault(actions[-1], []).append(line[1:])
        open_ranges.append(line[1:])
    assert not open_ranges
    # The table is text in the artifact.
    text = device.read_bytes()
    at = text.index(b'"arenaBytes"')
    table = json.loads(text[text.rindex(b"\0", 0, at) + 1:text.index(b"\0", at)])
    parts = [part for part in table["parts"] if part["name"].startswith("train.")]
    assert actions == [part["scheduled"]["name"] for part in parts] and len(actions) == 3
    for part in parts:
        found = commands[part["scheduled"]["name"]]
        assert found == [command["label"] for command in part["commands"]]
        located = [label for label in found if re.search(r"\w+ \w+\.py:\d+", label)]
        assert located or part["scheduled"]["kind"] == "update"


@pytest.mark.parametrize("ways", ["host", "shared"])
def test_deterministic_steps_have_the_same_bits(ways, tmp_path, monkeypatch):
    """In every run, and on one rank and two, as on the CPU: what is summed over grains and
    ranks has one order."""
    monkeypatch.setenv("CLEAVE_NCCL", "off")
    monkeypatch.setenv("CLEAVE_SHARED_GPU", "on" if ways == "shared" else "off")
    path, losses, weights = model("gpt", tmp_path), [], []
    for mesh in ([], ["--mesh=dp=2", "--plan=zero1"]):
        device = tmp_path / "device.so"
        run_tool([tool("cleave-compile"), str(path), "--target=cuda", "--deterministic=4",
                  "--optimizer=adamw", *mesh, "-o", str(device)])
        for order in ["earliest", "latest", "5"]:
            monkeypatch.setenv("CLEAVE_FAKE_ORDER", order)
            given, _, found = run_apart(device, 2, ranks_per_device=2)
            losses.append(given)
            weights.append(found)
    for given, found in zip(losses[1:], weights[1:], strict=True):
        assert np.array_equal(given, losses[0])
        assert all(np.array_equal(value, found[name]) for name, value in weights[0].items())


# The front end and the driver ---------------------------------------------------------


def test_steps_of_python(tmp_path):
    """In another process: the stand-ins stay loaded."""
    script = """
import torch, cleave
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(17, 8), nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 5))
x, y = torch.randint(17, (6,)), torch.randint(5, (6,))
losses = {}
for target in ("cpu", "cuda"):
    step = cleave.compile(model, (x, y), nn.functional.cross_entropy, target=target,
                          optimizer=cleave.AdamW(lr=0.01))
    losses[target] = [float(step(x, y)) for _ in range(4)]
    last = step.state_dict()
    step.save(f"{FOLDER}/{target}")
    if target == "cuda":
        # A checkpoint is of no target.
        step.load(f"{FOLDER}/cpu")
        assert float(step(x, y)) < losses["cpu"][-1]
assert all(abs(a - b) < 1e-5 for a, b in zip(*losses.values())), losses
assert losses["cpu"][-1] < losses["cpu"][0]
"""
    subprocess.run([sys.executable, "-c", f"FOLDER = {str(tmp_path)!r}\n" + script], check=True,
                   timeout=120, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


def test_architectures(tmp_path):
    """Those that NVRTC knows, with the letters that they can have."""
    for name in ["sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103f", "sm_121f"]:
        assert _cleave.check_architecture(name) == "", name
    for name in ["sm_75", "sm_a90", "sm_0090", "sm_999", "sm_90f", "sm_80a", "sm_90aa", "sm_95", "90",
                 "sm_", "", "SM_90", "compute_90"]:
        said = _cleave.check_architecture(name)
        assert f"unknown architecture '{name}': it is one of sm_80, sm_86" in said, name
    result = subprocess.run(
        [tool("cleave-compile"), str(model("gpt", tmp_path)), "--target=cuda", "--arch=sm_a90",
         "-o", str(tmp_path / "x.so")], capture_output=True, text=True)
    assert result.returncode == 2 and "--arch: unknown architecture 'sm_a90'" in result.stderr
    assert "sm_103, sm_110, sm_120, sm_121," in result.stderr


def test_unknown_targets():
    import torch
    one = torch.ones(2, 2)
    for how, message in [({"target": "tpu"}, "target is cpu or cuda, not 'tpu'"),
                         ({"arch": "90"}, "unknown architecture '90'"),
                         ({"ranks_per_device": 0}, "ranks_per_device"),
                         ({"arch": "sm_80"}, 'arch is of target cuda'),
                         ({"ranks_per_device": 2}, 'ranks_per_device is of target cuda'),
                         ({"target": "cuda", "threads": 2}, 'threads is of target cpu'),
                         ({"target": "cuda", "offload": ["state"], "offload_dir": "/tmp"},
                          'offload_dir is of target cpu'),
                         ({"offload_dir": "/tmp"}, "offload_dir has no effect without offload")]:
        with pytest.raises(ValueError, match=message):
            cleave.compile(torch.nn.Linear(2, 2), (one, one), torch.nn.functional.mse_loss,
                           **grouped(**how))
