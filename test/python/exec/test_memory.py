# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The memory of a run, seen from outside: by a library that is preloaded into
`cleave-run` and records what each step allocates.

The model of GPT-2's size runs with CLEAVE_TEST_ALL=1.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from cleave.models import __main__ as models
from cleave.testing.tools import build_dir, tool
from training_support import ALL

FOLDER = build_dir() / "test" / "unit" / "Memory"
PAGE = os.sysconf("SC_PAGESIZE")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says")
STEPS = 20

SIZES = {
    "small": "--hidden 128 --heads 4 --layers 2 --seq 64 --vocab 500 --batch 4",
    "gpt2-124m": "--hidden 768 --heads 12 --layers 12 --seq 256 --vocab 50257",
}


@dataclasses.dataclass
class Run:
    """The facts of a run of STEPS steps."""

    #: Bytes of the arena, as the compiler reports.
    arena: int
    #: The log's lines.
    metrics: list
    #: The recorded events: allocations, and page faults after each step.
    allocations: list
    faults: dict
    #: Mappings of the process after the last step: start, end, KiB by name.
    mappings: list
    #: /proc/self/status then, in bytes by name.
    status: dict
    #: The output of the program.
    output: str


def record(command, folder, last):
    """Runs a command that logs to `log`; returns what it printed."""
    env = {**os.environ, "LD_PRELOAD": str(FOLDER / "recorder.so"), "RECORDER_LOG": "log",
           "RECORDER_OUTPUT": "record", "RECORDER_LAST": str(last), "CLEAVE_TUNING": "off"}
    result = subprocess.run([str(c) for c in command], cwd=folder, env=env, text=True,
                            capture_output=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def parse_mappings(text):
    found = []
    for line in text.splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            found.append((int(match[1], 16), int(match[2], 16), {}))
        elif match := re.match(r"(\w+): +(\d+) kB", line):
            found[-1][2][match[1]] = int(match[2])
    return found


@pytest.fixture(scope="module", params=[
    pytest.param(size, marks=pytest.mark.skipif(
        size != "small" and not ALL, reason="runs with CLEAVE_TEST_ALL=1")) for size in SIZES])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    assert models.main(["gpt", *SIZES[request.param].split(), "-o", str(folder / "m.mlir")]) == 0
    compiled = subprocess.run([tool("cleave-compile"), "m.mlir", "-o", "m.so", "--max-grad-norm", "1",
                               "--report", "report.json", "--threads", "2"], cwd=folder,
                              capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
    tokens = np.random.default_rng(0).integers(0, 500, 20000)
    np.save(folder / "data.npy", tokens.astype(np.uint16))
    output = record([tool("cleave-run"), "m.so", "--random-init", "--data", "data.npy", "--steps",
                     STEPS, "--log", "log", "--report-memory"], folder, STEPS)
    events = lines(folder / "record")
    status = dict(re.findall(r"(\w+):\s+(\d+) kB", (folder / "record.status").read_text()))
    return Run(
        arena=json.loads((folder / "report.json").read_text())["memory"]["arena"],
        metrics=lines(folder / "log"),
        allocations=[e for e in events if "call" in e],
        faults={e["step"]: e["minor"] + e["major"] for e in events if "minor" in e},
        mappings=parse_mappings((folder / "record.smaps").read_text()),
        status={name: int(size) << 10 for name, size in status.items()},
        output=output)


def test_recorder_sees_every_way_to_allocate(tmp_path):
    record([FOLDER / "control"], tmp_path, last=3)
    events = lines(tmp_path / "record")
    calls = {s: [e["call"] for e in events if e["step"] == s and "call" in e] for s in (1, 2, 3)}
    assert "mmap" in calls[1] and calls[3] == []
    assert calls[2] == ["malloc", "calloc", "realloc", "reallocarray", "posix_memalign",
                        "aligned_alloc", "memalign", "valloc", "mmap", "mremap"]
    assert all(e["bytes"] == 65537 for e in events if e["step"] == 2 and "call" in e)
    faults = {e["step"]: e["minor"] for e in events if "minor" in e}
    assert faults[3] - faults[2] >= 100


def test_steps_allocate_nothing_large(run):
    """Nothing above 64 KiB from the second step on; before, the arena is seen."""
    assert len(run.metrics) == STEPS and set(run.faults) >= set(range(1, STEPS + 1))
    assert any(e["call"] == "mmap" and e["bytes"] >= run.arena for e in run.allocations)
    assert [e for e in run.allocations if 2 <= e["step"] <= STEPS] == []


def test_steps_take_no_page_faults(run):
    """None that the program causes: a stray one may be the system's, or the
    first access to a page of the data."""
    assert run.metrics[0]["page_faults"] > 0
    assert sum(line["page_faults"] for line in run.metrics[1:]) <= 2
    assert run.faults[STEPS] - run.faults[1] <= 8


def test_arena_is_what_the_report_says(run):
    whole = -(-run.arena // PAGE) * PAGE
    # A huge page more is asked for, to align what is kept.
    asked = [e["bytes"] for e in run.allocations if e["call"] == "mmap"]
    assert [size for size in asked if run.arena <= size <= 2 * run.arena] == [whole + (2 << 20)]
    candidates = [(start, end) for start, end, _ in run.mappings if end - start == whole]
    assert len(candidates) == 1
    sizes = next(s for start, _, s in run.mappings if start == candidates[0][0])
    # All of it is in memory, and no page more.
    assert sizes["Rss"] << 10 == whole
    assert f"{run.arena / 2**20:10.1f} MiB  arena\n" in run.output


def test_little_lies_beside_arena_and_files(run):
    rest = (run.status["VmHWM"] - run.arena - run.status["RssFile"]) / 2**20
    print(f"arena {run.arena / 2**20:.1f} MiB, beside arena and files {rest:.1f} MiB")
    assert 0 < rest <= 150
    peak = float(re.search(r"([\d.]+) MiB  peak resident", run.output)[1])
    assert peak == pytest.approx(run.status["VmHWM"] / 2**20, abs=1)


@pytest.mark.parametrize("family", ["gpt", "llama", "bert"])
def test_memory_of_attention_is_linear_in_the_sequence(family, tmp_path):
    """Each doubling of the sequence adds twice what the one before it added, up
    to a twentieth; the scores alone would add four times as much."""
    lengths = (512, 1024, 2048, 4096)
    arenas = []
    for length in lengths:
        assert models.main([family, "--hidden", "64", "--heads", "8", "--layers", "2", "--ffn",
                            "64", "--vocab", "64", "--seq", str(length), "-o",
                            str(tmp_path / "m.mlir")]) == 0
        subprocess.run([tool("cleave-compile"), "m.mlir", "--threads", "2", "--report", "r.json"],
                       cwd=tmp_path, check=True)
        arenas.append(json.loads((tmp_path / "r.json").read_text())["memory"]["arena"])
    growth = [after - before for before, after in zip(arenas, arenas[1:])]
    for before, after in zip(growth, growth[1:]):
        assert after == pytest.approx(2 * before, rel=0.05), arenas
    # One head's scores at the longest would fill more than all there is.
    assert arenas[-1] < lengths[-1] ** 2 * 4
