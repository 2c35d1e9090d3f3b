# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Every benchmark and example runs to its end, as small as it can be, and prints its
figures. The quick ones always, all with ``CLEAVE_TEST_ALL=1``."""

import glob
import json
import math
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tarfile
import time

import pytest
from safetensors.torch import load_file

from cleave.testing.tools import tool
from proofs import ALL

ROOT = pathlib.Path(__file__).resolve().parents[2]
while not (ROOT / "benchmarks").is_dir():
    ROOT = ROOT.parent
BUILD = pathlib.Path(tool("cleave-compile")).parents[1]

full = pytest.mark.skipif(not ALL, reason="runs with CLEAVE_TEST_ALL=1")


def run(script, *flags, build=("--build", BUILD)):
    """What `script` prints with --smoke; it must end with status 0."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "CLEAVE_TUNING": "off"}
    result = subprocess.run(
        [sys.executable, ROOT / script, *build, "--smoke", *flags], text=True,
        capture_output=True, timeout=900, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def figures(text):
    """The JSON lines, all of whose numbers are finite."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def check(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for part in value:
                check(part)
        elif isinstance(value, float):
            assert math.isfinite(value), text

    check(lines)
    return lines


def need_cores():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs 2 cores")


def make(target):
    subprocess.run(["ninja", "-C", BUILD, target], check=True, stdout=subprocess.DEVNULL)


def test_compile_time():
    lines = figures(run("benchmarks/compile_time.py"))
    assert [line["layers"] for line in lines] == [1, 2]
    assert all(line["wall_s"] > 0 and line["vm_hwm_mib"] > 0 for line in lines)


@full
def test_compile_time_of_micro_batches():
    lines = figures(run("benchmarks/compile_time.py", "--micro-batches", "2", "4", "--layers",
                        "2"))
    assert [line["micro_batches"] for line in lines] == [2, 4]


def test_bubble():
    need_cores()
    lines = figures(run("benchmarks/bubble.py"))
    assert [line["schedule"] for line in lines] == ["gpipe", "1f1b", "zb-h1"]


def test_compression():
    dense, packed = figures(run("benchmarks/compression.py"))
    assert dense["compress"] == "dense" and dense["loss_ratio"] == 1
    assert packed["sent_bytes"] < dense["sent_bytes"]


def test_compression_of_stages():
    dense, packed = figures(run("benchmarks/compression.py", "--stages", "0.1"))
    assert dense["compress"] == "dense" and packed["compress"] == "0.1"
    assert packed["sent_bytes"] < dense["sent_bytes"]


def test_pruning():
    lines = figures(run("benchmarks/pruning.py", build=()))
    assert [line["export"] for line in lines] == ["bf16", "int8", "int8", "sparse"]
    assert lines[0]["loss_ratio"] == 1 and all(line["bytes"] < line["f32_bytes"] for line in lines)


def test_update_delay():
    undelayed, delayed = figures(run("benchmarks/update_delay.py"))
    assert undelayed["delay"] == 0 and undelayed["loss_ratio"] == 1 and delayed["delay"] == 1
    assert delayed["arena_bytes"] > undelayed["arena_bytes"]


def test_recompute():
    lines = figures(run("benchmarks/recompute.py"))
    assert [line["program"] for line in lines[:5]] == ["none", "free", "full", "1 full; none",
                                                       "2 full; none"]
    assert lines[5]["program"].startswith("auto within")
    assert all(line["predicted_ms"] > 0 and line["measured_ms"] > 0 for line in lines)


@full
def test_run():
    (line,) = figures(run("benchmarks/run.py"))
    assert set(line["results"]) == {"cleave", "torch eager", "torch.compile"}
    # The floor is of what the step computes, not of nothing.
    assert line["floor"]["contractions"] > 0 and line["floor"]["attention"] > 0


@full
def test_precision():
    (line,) = figures(run("benchmarks/precision.py"))
    assert set(line["results"]) == {"cleave f32", "cleave bf16", "autocast eager",
                                    "autocast torch.compile"}
    assert line["floor"]["bf16"]["contractions"] > 0
    first = [r["first_loss"] for r in line["results"].values()]
    assert max(first) - min(first) < 0.02


@full
def test_devices():
    need_cores()
    lines = figures(run("benchmarks/devices.py"))
    assert [line["group"] for line in lines if "group" in line] == ["tp", "dp", "zero1"]


@full
def test_fusion():
    (line,) = figures(run("benchmarks/fusion.py"))
    assert set(line["fusions"]) == {"none", "backward", "forward"}


@full
def test_partition_time():
    lines = figures(run("benchmarks/partition_time.py"))
    assert len(lines) == 4 and lines[-1]["ranks"] == [64, 4096]


@full
def test_communicator():
    make("cleave-communicator-bench")
    said = subprocess.run([BUILD / "bin" / "cleave-communicator-bench", "2", "1", "3"], text=True,
                          capture_output=True, check=True, timeout=300).stdout
    assert len(re.findall(r"^\S.*? +[\d.]+ ms +[\d.]+ x copy$", said, re.M)) >= 4


FAKE = BUILD / "fake_cuda"


GPU = ROOT / "benchmarks" / "gpu"
#: As cases of a bundle: sizes, samples and micro-batches of a step.
TINY = {"hidden": 64, "layers": 2, "heads": 2, "seq": 32, "vocab": 128, "batch": 4, "parts": 2}


@full
@pytest.mark.skipif(not (FAKE / "libcuda.so.1").exists(), reason="needs the stand-in of a GPU")
def test_cuda_bundle(tmp_path, monkeypatch):
    """On the stand-in, whose times mean nothing."""
    monkeypatch.setenv("CLEAVE_CUDA_LIBRARIES", str(FAKE))
    monkeypatch.setenv("CLEAVE_FAKE_MEMORY", str(8 << 30))
    monkeypatch.setenv("CLEAVE_TUNING", "off")
    (made,) = figures(run("benchmarks/gpu/bundle.py", "--steps=3", "--out", tmp_path / "bundle"))
    files = [path for path in (tmp_path / "bundle").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 60 << 20 and made["mib"] <= 60
    assert [made[part] for part in ("cases", "timed", "losses")] == [4, 3, 1]
    names = ["gpt-f32", "gpt-zero2", "gpt-bf16-d64-kernels"]
    if library := cudnn():
        monkeypatch.setenv("CLEAVE_FAKE_CUDNN", library)
        monkeypatch.setenv("CLEAVE_FAKE_CUDNN_DEVICE", str(
            ROOT / "test" / "fake_cuda" / "devices" / "h200.json"))
        names.append("gpt-bf16-d64-cudnn")

    def go(*flags, status=0):
        said = subprocess.run([sys.executable, tmp_path / "bundle" / "run_bundle.py", *flags],
                              text=True, capture_output=True, timeout=900)
        assert said.returncode == status, said.stdout + said.stderr
        return figures(said.stdout)

    lines = go("test", "--only", ",".join(names))
    assert [line["case"] for line in lines if line.get("passed")] == names
    assert lines[0]["libraries"]["nccl"] == "2.30.7"
    # Without compute-sanitizer one line says so; with it the checkers run the programs.
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    lines = go("sanitize")
    assert len(lines) == 2 and "nothing is checked" in lines[1]["why"]
    sanitizer = tmp_path / "toolkit" / "bin" / "compute-sanitizer"
    sanitizer.parent.mkdir(parents=True)
    sanitizer.write_text("""#!/bin/sh
checker=$2
while [ "$1" != --log-file ]; do shift; done
echo "ERROR SUMMARY: $checker" > "$2"
shift 2
[ "$checker" = "$FAULTY" ] && exit 86
exec "$@"
""")
    sanitizer.chmod(0o755)
    checked = [line for line in go("sanitize") if line.get("sanitizer")]
    assert [(line["case"], line["sanitizer"], line["passed"], line["says"])
            for line in checked] == [
        ("gpt-f32", name, True, f"ERROR SUMMARY: {name}")
        for name in ("memcheck", "racecheck", "synccheck")]
    monkeypatch.setenv("FAULTY", "racecheck")
    checked = [line for line in go("sanitize", status=1) if line.get("sanitizer")]
    assert [line["passed"] for line in checked] == [True, False, True]
    assert "status 86" in checked[1]["why"]
    lines = go("bench", "--steps=2", "--modes=eager", "--out", str(tmp_path / "results"))
    assert not any("failed" in line for line in lines), lines
    ratios = [line for line in lines if "time_ratio" in line]
    assert [line["model"] for line in ratios] == ["gpt2-tiny", "gpt2-tiny-free", "gpt2-tiny-f32"]
    kinds = {line["kind"] for line in lines if line.get("commands")}
    assert len(kinds) >= 3 and all(line["ms"] > 0 for line in lines if line.get("commands"))
    kept = (tmp_path / "results" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in kept] == lines
    lines = go("loss", "--steps=6", "--modes=eager")
    assert [line["loss"] for line in lines if "rms" in line] == [
        "torch f32", "cleave bf16, residual 16bit", "torch bf16, residual f32",
        "torch bf16, residual 16bit"]
    assert lines[-1]["passed"]
    check_one_call(tmp_path, go)
    # Without time nothing runs, and all is said to be skipped.
    lines = go("bench", "--limit=1", "--modes=eager")
    assert len([line for line in lines if "skipped" in line]) == 6 and len(lines) == 7


def check_one_call(tmp_path, go):
    """Three files, and in the archive everything, below the date and the hardware. NCCL's stand-in
    is of threads, so that what is said of processes is its refusal."""
    lines = go("all", "--limit=400", "--steps=2", "--modes=eager", "--sustain=0.05", "--only",
               "gpt-f32,gpt-zero2,gpt2-tiny", "--out", str(tmp_path / "one"), status=1)
    assert not any("skipped" in line for line in lines), lines
    assert {line.get("class") for line in lines} >= {"products", "attention", "kernels"}
    assert len([line for line in lines if "product" in line]) == 16
    exchanged = [line for line in lines if "nccl" in line]
    assert "connecting ranks 0 1" in exchanged[0]["why"], exchanged
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["all.tgz", "results.jsonl", "tables.txt"]
    with tarfile.open(tmp_path / "one" / "all.tgz") as packed:
        names = packed.getnames()
    (top,) = {name.split("/")[0] for name in names}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9-]+", top)
    assert {f"{top}/results.jsonl", f"{top}/tables.txt", f"{top}/gpt2-tiny.trace.json"} <= {*names}
    assert not any(name.endswith(".bin") for name in names)


def cudnn():
    """NVIDIA's, behind the stand-in."""
    found = os.environ.get("CLEAVE_FAKE_CUDNN") or next(
        (path for place in sys.path for path in glob.glob(
            os.path.join(place, "nvidia", "cudnn", "lib", "libcudnn.so.9"))), None)
    return found


def test_torch_gpt_trains_as_cleave(tmp_path):
    """The model that is timed and compared on a GPU computes the same losses as Cleave, from the
    same weights, on the same tokens."""
    case, steps = json.dumps(TINY), 6
    sizes = [f"--{name}={value}" for name, value in TINY.items() if name != "parts"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}

    def go(*command):
        result = subprocess.run([str(word) for word in command], text=True, capture_output=True,
                                timeout=300, env=environment)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    script = GPU / "torch_gpt.py"
    weights, tokens, log = (tmp_path / name for name in ("own.safetensors", "tokens.bin", "log"))
    go(sys.executable, script, "weights", case, "--weights", weights)
    draw = random.Random(1)
    tokens.write_bytes(struct.pack("<128H", *draw.choices(range(TINY["vocab"]), k=128)))
    schedule = ["--steps", steps, "--warmup=2"]
    (theirs,) = figures(go(sys.executable, script, "loss", case, "--mode=eager", "--precision=f32",
                           "--weights", weights, "--tokens", tokens, "--rate=1e-2", *schedule))
    go(sys.executable, "-m", "cleave.models", "gpt", *sizes, "--no-logits", "--weights",
       tmp_path / "cleave.safetensors", "-o", tmp_path / "gpt.mlir")
    assert "@logits" not in (tmp_path / "gpt.mlir").read_text()
    go(tool("cleave-compile"), tmp_path / "gpt.mlir", "--clip=1", "--micro-batches=2",
       "--threads=1", "-o", tmp_path / "gpt.so")
    go(tool("cleave-run"), tmp_path / "gpt.so", "--weights", weights, "--data", tokens, "--lr=1e-2",
       "--lr-schedule=constant", "--log", log, *schedule)
    ours = [json.loads(line)["loss"] for line in log.read_text().splitlines()]
    assert len(ours) == steps and ours[-1] < ours[0] - 0.5
    assert ours == pytest.approx(theirs["losses"], rel=1e-5)
    # The weights are drawn as those of cleave.models.
    drawn, known = load_file(weights), load_file(tmp_path / "cleave.safetensors")
    assert drawn.keys() == known.keys()
    for name, weight in known.items():
        assert drawn[name].shape == weight.shape
        assert float(drawn[name].std()) == pytest.approx(float(weight.std()), rel=0.1), name


@pytest.fixture
def gpu_modules(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))


def test_bundle_is_small_and_runs_half_an_hour(gpu_modules, tmp_path):
    """Each part takes nine minutes at most, all of them thirty, or one call of all nine; more than
    60 MiB with the repository are a failure."""
    import bundle
    import one_call
    import run_bundle

    parts = {**run_bundle.LIMITS}
    assert parts.pop("all") == 530 >= sum(one_call.BUDGETS.values())
    assert max(parts.values()) <= 540 and sum(parts.values()) <= 1800
    assert "--limit" not in (ROOT / "Makefile").read_text()
    tree = bundle.size_of_tree()
    assert 1 << 20 < tree < 20 << 20
    with open(tmp_path / "program", "wb") as file:
        file.truncate((60 << 20) - tree)
    assert bundle.size_of(tmp_path) == (60 << 20) - tree
    (tmp_path / "one").write_text("more")
    with pytest.raises(SystemExit, match="but they may have at most 60 together"):
        bundle.size_of(tmp_path)


#: A library of NVML, whose device has other clocks and watts in each call.
NVML = """
static int calls;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) { *device = &calls; return i; }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) {
  *mhz = kind == 1 ? 1500 : kind == 2 ? 2600 : 0; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) {
  *mw = ++calls % 2 ? 700000 : 100000; return 0; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *c) { *c = 60; return sensor; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *why) {
  *why = calls % 2 ? 4 : 1; return 0; }
"""


def test_clocks_and_watts(gpu_modules, tmp_path):
    """Ten times a second, by NVML; means are of what is at work. Without NVML there is no file."""
    import device_clocks

    (tmp_path / "nvml.c").write_text(NVML)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1",
                    tmp_path / "nvml.c"], check=True)
    code = """
import json, pathlib, sys, time
import device_clocks
with device_clocks.Clocks(pathlib.Path(sys.argv[1]) / "clocks.csv") as clocks:
    began = time.time()
    time.sleep(1.05)
print(json.dumps([clocks.between(began, time.time()), clocks.between(0, 1)]))
"""
    said = subprocess.run([sys.executable, "-c", code, tmp_path], check=True, text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(GPU),
                                                    "LD_LIBRARY_PATH": str(tmp_path)}).stdout
    found, none = json.loads(said)
    lines = (tmp_path / "clocks.csv").read_text().splitlines()
    assert lines[0].split(",") == list(device_clocks.COLUMNS) and 7 <= len(lines) - 1 <= 12
    assert found.pop("samples") <= 6 and none is None
    assert found == {"sm_mhz": 1500, "memory_mhz": 2600, "watts": 700.0, "watts_most": 700.0,
                     "celsius": 60, "throttled": 4}
    clocks = device_clocks.Clocks(tmp_path / "none.csv")
    if clocks.sample is None:
        with clocks:
            pass
        assert clocks.between(0, 1e12) is None and not (tmp_path / "none.csv").exists()


@pytest.mark.skipif(not (FAKE / "libcublasLt.so.13").exists(), reason="needs the stand-in of a GPU")
def test_products_of_a_model(gpu_modules):
    """On the stand-in, which checks types, layouts and workspaces: each distinct product of a
    model, and one with an epilogue."""
    import one_call

    shapes = one_call.shapes_of({"name": "own", **TINY})
    assert len(shapes) == 15 and shapes[0] == ["own qkv", 192, 64, 64, 1, 0]
    said = subprocess.run(
        [sys.executable, GPU / "products.py", json.dumps(shapes[6:9] + shapes[:1]),
         "--sustain=0.01", "--candidates=2"], capture_output=True, text=True, timeout=120,
        env={**os.environ, "CLEAVE_CUDA_LIBRARIES": str(FAKE)})
    assert said.returncode == 0, said.stderr
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    assert [line["product"] for line in lines] == [
        "own up", "own up, of inputs", "own up, of weights", "own qkv",
        "own up with bias and gelu"]
    assert all(line["candidates"] == 2 and line["us"] > 0 for line in lines)
    assert lines[-1]["epilogue"] == 164 and "sustained_tflops" in lines[0]


def test_each_part_has_its_time(gpu_modules):
    """What a part leaves, later ones have."""
    import types

    import one_call

    run = types.SimpleNamespace(options=types.SimpleNamespace(limit=265), note=lambda text: None)
    stages = one_call.Stages(run)
    due = []
    for name in one_call.BUDGETS:
        stages.begin(name)
        due.append(run.deadline)
    assert due == sorted(due) and due[0] == 2.5 and due[-1] <= 265


@pytest.mark.skipif(not (FAKE / "libnccl.so.2").exists(), reason="needs the stand-in of a GPU")
def test_versions_of_libraries(tmp_path):
    """Of those that can be opened."""
    def ask(folder):
        said = subprocess.run([sys.executable, GPU / "library_versions.py"], capture_output=True,
                              text=True, check=True, timeout=60, env={
                                  **os.environ, "CLEAVE_CUDA_LIBRARIES": str(folder)}).stdout
        return json.loads(said)

    found = ask(FAKE)
    assert found.pop("cudnn")
    assert found == {"driver": "CUDA 13.0", "cublasLt": "13.1.1", "nccl": "2.30.7",
                     "nvrtc": "13.0"}
    (tmp_path / "libnccl.so.2").write_text("no library")
    assert ask(tmp_path)["nccl"] is None


def test_rates_of_kernels(gpu_modules, tmp_path):
    import kernel_rates

    def event(name, cat, ts, dur):
        return {"name": name, "cat": cat, "ph": "X", "ts": ts, "dur": dur}

    def command(label, kind, count, size, seconds):
        return {"label": label, "kind": kind, "count": count, "launches": count, "operations": 2e9,
                "bytes": size, "seconds": seconds}

    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [
        event("traced step 1", "step", 0, 90), event("add a.py:1", "row-wise", 1, 80),
        event("traced step 2", "step", 100, 90), event("F0", "forward", 100, 50),
        event("add a.py:1", "row-wise", 101, 10), event("add a.py:1", "row-wise", 111, 30),
        event("contract a.py:2", "contraction", 141, 20),
        event("adamw m.mlir:3", "optimizer", 161, 6), event("adamw m.mlir:4", "optimizer", 167, 4),
        event("copy a.py:9", "row-wise", 171, 5)]}))
    measured = kernel_rates.last_step(trace)
    assert measured["add a.py:1", "kernels"] == [2, 40]
    joined, rest = kernel_rates.join(measured, [
        command("add a.py:1", "kernels over rows", 1, 1e8, 3e-5),
        command("add a.py:1", "kernels over elements", 1, 1e8, 1e-5),
        command("contract a.py:2", "products of 16 bits", 1, 1e6, 1e-5),
        command("adamw m.mlir:3", "kernels over elements", 1, 7e7, 5e-6),
        command("adamw m.mlir:4", "kernels over elements", 1, 7e7, 5e-6),
        command("fill a.py:7", "copies", 1, 1e6, 2e-6)])
    assert rest == {"unlisted_us": 5, "unseen_s": 2e-6}
    rows = kernel_rates.by_label(joined, 28e12)
    assert [(row["label"], row["count"], row["us_each"]) for row in rows] == [
        ("add a.py:1", 1, 30), ("add a.py:1", 1, 10), ("adamw", 2, 5)]
    # 70 MB in 5 us.
    assert rows[2]["gb_per_s"] == pytest.approx(14e3)
    assert rows[2]["share_of_copy"] == pytest.approx(0.5)
    kinds = {row["kind"]: row for row in kernel_rates.by_kind(joined)}
    assert kinds["kernels over elements"]["ms"] == pytest.approx(0.02)
    assert kinds["kernels over elements"]["predicted_ms"] == pytest.approx(0.02)
    assert kinds["products of 16 bits"]["tflops"] == pytest.approx(100)
    classes = kernel_rates.by_class(measured, [{"kind": "products of 16 bits", "seconds": 1e-5},
                                               {"kind": "copies", "seconds": 11e-6}])
    assert [(row["kind"], row["commands"], row["ratio"]) for row in classes] == [
        ("kernels", 5, pytest.approx(5)), ("products", 1, pytest.approx(2))]


def test_watch_of_memory(gpu_modules):
    import device_memory

    used = iter([100, 150, 400, 130])
    with device_memory.MemoryWatch(lambda: next(used, 130), interval=0.001) as watch:
        time.sleep(0.1)
    assert watch.peak == 300
    with device_memory.MemoryWatch(None) as watch:
        pass
    assert watch.peak is None


@full
def test_demo(tmp_path):
    said = run("examples/demo.py", "--work", tmp_path)
    rows = re.findall(r"^ +\d+ +([\d.]+) +([\d.]+) ", said, re.M)
    assert len(rows) == 2
    for ours, theirs in rows:
        assert float(ours) == pytest.approx(float(theirs), rel=1e-4)
