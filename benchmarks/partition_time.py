"""Measures the time and memory of partitioning GPT 175B over devices, up to the `local` phase.

The model is written without weights. The plans are compiled from text in several interleaved
rounds. Then the first plan is compiled for few and for many ranks, with the same number of
sequences for each position of the axis dp. The benchmark prints a JSON line with CPU times
for each plan and for the comparison.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import harness

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = ["--hidden", "12288", "--heads", "96", "--seq", "2048", "--vocab", "51200"]
FLAGS = ["--optimizer", "adamw", "--max-grad-norm", "1.0", "--emit=local", "-o", os.devnull]
PLANS = [
    ("dp=128,tp=8", "megatron-sp,zero1"),
    ("dp=128,tp=8", "megatron,zero3"),
    ("dp=128,cp=8", "ulysses,zero3"),
]


def partition(compiler, model, mesh, plan):
    """Compiles a model; returns wall time and CPU time in seconds, and peak memory in
    MiB."""
    start = time.perf_counter()
    command = [compiler, model, "--mesh", mesh, "--plan", plan, *FLAGS]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"error: {' '.join(map(str, command))} failed")
    cpu = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - start, cpu, usage.ru_maxrss / 1024


def medians(rows):
    wall, cpu, rss = (statistics.median(column) for column in zip(*rows))
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "vm_hwm_mib": round(rss)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--layers", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3, help="of each plan")
    parser.add_argument("--pairs", type=int, default=9, help="of few and many ranks")
    options = harness.parse(parser, layers=1, rounds=1, pairs=1)
    compiler = options.build.resolve() / "bin" / "cleave-compile"
    folder = ROOT / "out" / "bench"
    folder.mkdir(parents=True, exist_ok=True)

    def write(batch):
        model = folder / f"gpt-175b-{options.layers}-{batch}.mlir"
        subprocess.run(
            [sys.executable, "-m", "cleave.models", "gpt", *SHAPE, "--batch", str(batch)]
            + ["--layers", str(options.layers), "-o", str(model)],
            check=True,
            env=dict(os.environ, PYTHONPATH=str(ROOT / "python")),
            stdout=subprocess.DEVNULL,
        )
        return model

    model = write(512)
    rows = {plan: [] for plan in PLANS}
    for _ in range(options.rounds):
        for mesh, plan in PLANS:
            rows[mesh, plan].append(partition(compiler, model, mesh, plan))
    for mesh, plan in PLANS:
        print(json.dumps({"mesh": mesh, "plan": plan, **medians(rows[mesh, plan])}), flush=True)

    sizes = {64: 8, 4096: 512}
    models = {n: write(dp) for n, dp in sizes.items()}
    ranks = {n: [] for n in sizes}
    for _ in range(options.pairs):
        for n, dp in sizes.items():
            ranks[n].append(partition(compiler, models[n], f"dp={dp},tp=8", PLANS[0][1]))
    few, many = (medians(ranks[n]) for n in sizes)
    print(json.dumps({"ranks": list(sizes), "cpu_s": [few["cpu_s"], many["cpu_s"]],
                      "cpu_ratio": round(many["cpu_s"] / few["cpu_s"], 3)}), flush=True)


if __name__ == "__main__":
    main()
