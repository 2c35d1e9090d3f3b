# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Every benchmark and example runs to its end, as small as it can be, and prints its
figures. The quick ones always, all with ``CLEAVE_TEST_ALL=1``."""

import os
import re
import subprocess

import pytest

from benchmark_runs import BUILD, ROOT, figures, full, run

while not (ROOT / "benchmarks").is_dir():
    ROOT = ROOT.parent


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


def test_experts():
    lines = figures(run("benchmarks/experts.py", build=()))
    layers = [line for line in lines if line["case"] == "layer"]
    assert [line["precision"] for line in layers] == ["f32", "bf16"]
    assert all(set(line["cpu_ms"]) == {"cleave", "grouped_mm", "bmm", "loop"} for line in layers)
    models = [line for line in lines if line["case"] == "model"]
    assert [(line["experts"], line["choices"]) for line in models] == [(8, 2), (64, 8)]
    # Memory is planned, not measured.
    assert all(line["arena_over_form"] <= 1.2 for line in models)


def test_scans():
    lines = figures(run("benchmarks/scans.py", build=()))
    assert [line["model"] for line in lines] == ["mamba", "mamba2", "qwen3_next"]
    assert all(set(line["cpu_ms"]) == {"cleave 16", "cleave 64", "cleave 128", "torch 16"}
               for line in lines)


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


def test_activation_reduction():
    """Ranks send fewer bytes, and losses are near those of f32 sums."""
    *lines, last = figures(run("benchmarks/activation_reduction.py", build=()))
    assert [line["activation_reduction"] for line in lines] == ["f32", "products", "16bit", None]
    sent = [line["bytes_sent"] for line in lines[:3]]
    assert sent[0] >= sent[1] > sent[2]
    assert all(abs(own["mean"]) < 0.01 for own in last["less_f32_sums"].values())


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


@full
def test_attention():
    make("cleave-attention-bench")
    said = subprocess.run([BUILD / "bin" / "cleave-attention-bench", "1024", "1", "3"], text=True,
                          capture_output=True, check=True, timeout=300).stdout
    assert len(re.findall(r"^\S.*? +[\d.]+ ms +[\d.]+ ms( +[\d.]+){3} x$", said, re.M)) == 7


@full
def test_demo(tmp_path):
    said = run("examples/demo.py", "--work", tmp_path)
    rows = re.findall(r"^ +\d+ +([\d.]+) +([\d.]+) ", said, re.M)
    assert len(rows) == 2
    for ours, theirs in rows:
        assert float(ours) == pytest.approx(float(theirs), rel=1e-4)
