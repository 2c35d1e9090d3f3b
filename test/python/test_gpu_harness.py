# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The programs for a machine with a GPU (benchmarks/gpu), on the stand-in of one (test/fake_cuda), whose
times mean nothing. The whole of it with ``CLEAVE_TEST_ALL=1``."""

import contextlib
import glob
import io
import json
import os
import random
import re
import struct
import subprocess
import sys
import tarfile
import time
import types

import pytest
from safetensors.torch import load_file

from benchmark_runs import BUILD, ROOT, figures, full, run
from cleave.testing.tools import tool

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
    """Three files, and in the archive everything, below the date and the hardware: by two processes
    on one card too. On the stand-in an abort alone waits without end, which is a result."""
    lines = go("all", "--limit=1500", "--steps=2", "--modes=eager", "--sustain=0.05", "--only",
               "gpt-f32,gpt-zero2,gpt2-tiny", "--out", str(tmp_path / "one"))
    assert not any(line.get("skipped") for line in lines), lines
    assert {line.get("class") for line in lines} >= {"products", "attention", "kernels",
                                                     "collectives"}
    assert len([line for line in lines if "product" in line]) == 16
    exchanged = {line["nccl"]: line for line in lines if "nccl" in line}
    assert exchanged["two processes on one card"]["works"]
    assert exchanged["a rank is killed"]["passed"] and exchanged["gpt-zero2"]["us_each"] > 0
    assert exchanged["abort"]["hangs"] and set(exchanged) >= {"memory", *shared_costs()}
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["all.tgz", "results.jsonl", "tables.txt"]
    with tarfile.open(tmp_path / "one" / "all.tgz") as packed:
        names = packed.getnames()
    (top,) = {name.split("/")[0] for name in names}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9-]+", top)
    assert {f"{top}/results.jsonl", f"{top}/tables.txt", f"{top}/gpt2-tiny.trace.json"} <= {*names}
    assert not any(name.endswith(".bin") for name in names)


def shared_costs():
    sys.path.insert(0, str(GPU))
    try:
        import shared_card
        return shared_card.COSTS
    finally:
        sys.path.remove(str(GPU))


def cudnn():
    """NVIDIA's, after the stand-in."""
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
    go(tool("cleave-compile"), tmp_path / "gpt.mlir", "--max-grad-norm=1", "--micro-batches=2",
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
    import device_watch

    (tmp_path / "nvml.c").write_text(NVML)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1",
                    tmp_path / "nvml.c"], check=True)
    code = """
import json, pathlib, sys, time
import device_watch
with device_watch.Clocks(pathlib.Path(sys.argv[1]) / "clocks.csv") as clocks:
    began = time.time()
    time.sleep(1.05)
print(json.dumps([clocks.between(began, time.time()), clocks.between(0, 1)]))
"""
    said = subprocess.run([sys.executable, "-c", code, tmp_path], check=True, text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(GPU),
                                                    "LD_LIBRARY_PATH": str(tmp_path)}).stdout
    found, none = json.loads(said)
    lines = (tmp_path / "clocks.csv").read_text().splitlines()
    assert lines[0].split(",") == list(device_watch.COLUMNS) and 7 <= len(lines) - 1 <= 12
    assert found.pop("samples") <= 6 and none is None
    assert found == {"sm_mhz": 1500, "memory_mhz": 2600, "watts": 700.0, "watts_most": 700.0,
                     "celsius": 60, "throttled": 4}
    clocks = device_watch.Clocks(tmp_path / "none.csv")
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

    import one_call

    run = types.SimpleNamespace(options=types.SimpleNamespace(limit=265), note=lambda text: None)
    stages = one_call.Stages(run)
    stages.begin("ncu")
    last = run.deadline
    due = []
    for name in one_call.BUDGETS:
        stages.begin(name)
        due.append(run.deadline)
    assert due == sorted(due) and due[0] == 2.5 and due[-1] == last <= 265


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
    import device_watch

    used = iter([100, 150, 400, 130])
    with device_watch.MemoryWatch(lambda: next(used, 130), interval=0.001) as watch:
        time.sleep(0.1)
    assert watch.peak == 300
    with device_watch.MemoryWatch(None) as watch:
        pass
    assert watch.peak is None


needs_nccl = pytest.mark.skipif(not (FAKE / "libnccl.so.2").exists(),
                                reason="needs the stand-in of a GPU")


class Run:
    """As session.Run."""

    def __init__(self, folder):
        self.folder, self.said, self.failed, self.tables = folder, [], [], {}
        self.say = lambda **facts: self.said.append(facts)
        self.fail = lambda **facts: self.failed.append(facts)
        self.table = lambda title, heads, rows: self.tables.update({title: rows})
        self.left, self.enough = lambda: 60, lambda what: True


@pytest.fixture
def card(gpu_modules, tmp_path, monkeypatch):
    """Processes that share the stand-in, whose queue and communicators are those of a device."""
    import shared_card

    monkeypatch.setattr(shared_card, "MOST_SILENCE", 1)
    return shared_card.Card(Run(tmp_path), {
        **os.environ, "CLEAVE_CUDA_LIBRARIES": str(FAKE), "CLEAVE_FAKE_QUEUE": "1024",
        "CLEAVE_FAKE_NCCL_MEMORY": str(8 << 20)})


@needs_nccl
def test_processes_on_one_card(card, monkeypatch):
    """What NCCL takes of the device, each way in which it takes both processes, and no failure where
    it takes none; another error is one."""
    import shared_card

    assert shared_card.find_way(card) and card.way == "hosts" and not card.run.failed
    (table,) = card.run.tables.values()
    assert len(table) == 3 and all(row[1] > 0 for row in table)
    assert card.run.said[1]["tracked"][3] == 8 << 20
    ways = {"plain": lambda rank: {}, "one host": shared_card.WAYS["one host"]}
    monkeypatch.setattr(shared_card, "WAYS", ways)
    assert shared_card.find_way(card) and card.way == "one host" and not card.run.failed
    del ways["one host"]
    assert not shared_card.find_way(card) and not card.run.failed
    assert card.run.said[-1]["refused"] and "NCCL refuses two ranks" in card.run.said[-1]["why"]
    assert "using the same GPU" in card.run.said[-2]["why"]
    ways["plain"] = lambda rank: {"CLEAVE_FAKE_DEVICES": "0"}
    assert not shared_card.find_way(card) and len(card.run.failed) == 1
    assert not card.run.failed[0]["refused"]


@needs_nccl
def test_what_nccl_costs_the_host(card):
    """The host waits in the launch for which a queue has no room, also after a collective that does
    not end, until another thread aborts it; aborts of one group do not wait for each other."""
    card.way = "hosts"
    codes, lines, why = card.measure("host", 2, 60, "--calls=20")
    assert codes == [0, 0], why
    assert [(line["calls"], line["bytes"]) for line in lines] == [
        ("do not block", 4), ("do not block", 1 << 20), ("block", 4), ("block", 1 << 20)]
    assert all(0 < line["us_called"] <= line["us_under_way"] for line in lines)
    codes, (line,), why = card.measure("watchdog", 2, 60, "--stuck=2")
    assert codes == [0, 0] and line["freed"] and line["host_waits_in"] == 1023, why
    codes, (line,), why = card.measure("abort-grouped", 2, 60)
    assert codes == [0, 0] and line["stuck"] and line["ms_aborted"] < 15000, why
    card.environment["CLEAVE_FAKE_NCCL_PATIENCE"] = "2"
    codes, lines, why = card.measure("abort", 2, 60)
    assert codes[0] != 0 and not lines and "no exchange ends" in why


@needs_nccl
def test_launches_behind_a_kernel(card):
    card.way = "hosts"
    card.environment["CLEAVE_FAKE_ORDER"] = "latest"
    codes, (line,), why = card.measure("launches", 1, 60, "--spin=0.05")
    assert codes == [0] and line["launches"] == 1100, why
    # What was done before it is in the queue of the stand-in too.
    assert 1000 <= line["host_waits_in"] <= 1024
    del card.environment["CLEAVE_FAKE_ORDER"]
    codes, lines, why = card.measure("lazy", 1, 60, "--spin=0.02")
    assert codes == [0], why
    assert [line["step"] for line in lines] == ["load", "find", "launch", "run", "product",
                                                "run product"]


def write_archive(path, name, machine, extra=()):
    files = {"results.jsonl": json.dumps({"machine": machine}) + "\n", "own.trace.json": "x" * 300_000,
             **dict(extra)}
    with tarfile.open(path, "w:gz") as packed:
        for file, text in files.items():
            member = tarfile.TarInfo(f"{name}/{file}")
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    return path


def test_results_are_kept(gpu_modules, tmp_path):
    """In a folder named by date and hardware, which git knows; what is no result of a GPU is not."""
    import keep_results

    results, name = tmp_path / "results", "2026-01-02-nvidia-h200"
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for key, value in (("user.name", "A"), ("user.email", "a@b"), ("commit.gpgsign", "false")):
        subprocess.run(["git", "-C", tmp_path, "config", key, value], check=True)
    archive = write_archive(tmp_path / "all.tgz", name, "NVIDIA H200, 1")

    def keep(*flags, path=archive):
        return subprocess.run([sys.executable, GPU / "keep_results.py", path, "--results", results,
                               *flags], capture_output=True, text=True)

    assert keep("--commit").returncode == 0
    listed = subprocess.run(["git", "-C", tmp_path, "ls-tree", "-r", "--name-only", "HEAD"],
                            capture_output=True, text=True, check=True).stdout.split()
    assert listed == [f"results/{name}/own.trace.json.gz", f"results/{name}/results.jsonl"]
    again = keep()
    assert again.returncode == 1 and "has these results already" in again.stderr
    other = write_archive(tmp_path / "other.tgz", name, "NVIDIA H200, 2")
    assert keep(path=other).returncode == 0 and (results / f"{name}-2").is_dir()
    for bad, why in [(write_archive(tmp_path / "a.tgz", name, "no GPU"), "not measured on a GPU"),
                     (write_archive(tmp_path / "b.tgz", "elsewhere", "NVIDIA H200"), "no archive of"),
                     (write_archive(tmp_path / "c.tgz", name, "NVIDIA H200", [("../x", "")]),
                      "is no file of results")]:
        with pytest.raises(SystemExit, match=why), contextlib.redirect_stdout(io.StringIO()):
            keep_results.keep(bad, results)
    assert {path.name for path in results.iterdir()} == {name, f"{name}-2"}


def test_a_part_that_fails_does_not_end_the_others(gpu_modules, tmp_path, monkeypatch):
    import device_watch
    import equality
    import one_call

    run = Run(tmp_path)
    run.options, run.note = types.SimpleNamespace(limit=530), lambda text: None
    monkeypatch.setattr(device_watch.Nvml, "open", lambda: None)
    monkeypatch.setattr(equality, "test", lambda run, cases: 1 / 0)
    monkeypatch.setattr(one_call, "find_ncu", lambda: None)
    one_call.everything(run, {"test": [], "nccl": [], "bench": []})
    assert [line["part"] for line in run.failed] == ["equality"]
    assert "ZeroDivisionError" in run.failed[0]["failed"]
    assert run.said[-1] == {"samples": 0, "of_the_clocks": False}
