"""Measures the time and memory of `cleave-compile` by the number of layers or micro-batches.

Models of GPT-2's shape are compiled from text to an artifact in several interleaved rounds. The
benchmark prints a JSON line for each number of layers, with medians and their ratios to the
smallest case; with `--micro-batches`, it prints one for each number of micro-batches of one
sequence, in a pipeline of two stages.
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
FLAGS = ["--optimizer", "adamw", "--weight-decay", "0.1", "--no-decay", "ndim<2"]
FLAGS += ["--max-grad-norm", "1.0"]


def trace(family, layers, folder, batch=1):
    """Writes a model of `layers` layers; returns its file and the seconds it took."""
    model = folder / f"{family}-{layers}-{batch}.mlir"
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "cleave.models", family]
        + ["--layers", str(layers), "--batch", str(batch), "-o", str(model)],
        check=True,
        env=dict(os.environ, PYTHONPATH=str(ROOT / "python")),
        stdout=subprocess.DEVNULL,
    )
    return model, time.perf_counter() - start


def compile_once(compiler, model, flags):
    """Compiles a model; returns wall time and user time in seconds, and peak memory in MiB."""
    start = time.perf_counter()
    process = subprocess.Popen([compiler, model, *FLAGS, *flags, "-o", model.with_suffix(".so")])
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"error: cleave-compile failed on {model}")
    return wall, usage.ru_utime, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--family", default="gpt", help="default: %(default)s")
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 48, 96])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[])
    parser.add_argument("--schedule", default="1f1b", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=7)
    options = harness.parse(parser, layers=[1, 2], rounds=1)
    compiler = options.build.resolve() / "bin" / "cleave-compile"
    folder = ROOT / "out" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    counts = sorted(set(options.micro_batches))
    # For each case (key, number): its model, the seconds to trace it, and its flags.
    if counts:
        layers = options.layers[0]
        cases = {("micro_batches", m): (*trace(options.family, layers, folder, m),
                                        ["--mesh", "pp=2", "--micro-batches", str(m),
                                         "--schedule", options.schedule]) for m in counts}
    else:
        cases = {("layers", n): (*trace(options.family, n, folder), [])
                 for n in sorted(set(options.layers))}
    runs = {case: [] for case in cases}
    for _ in range(options.rounds):
        for case, (model, _, flags) in cases.items():
            runs[case].append(compile_once(compiler, model, flags))
    first = None
    for case, (_, traced, _) in cases.items():
        wall, user, rss = (statistics.median(column) for column in zip(*runs[case]))
        first = first or (wall, user)
        summary = {
            "case": f"compile {options.family}",
            case[0]: case[1],
            "trace_s": round(traced, 1),
            "wall_s": round(wall, 3),
            "user_s": round(user, 3),
            "vm_hwm_mib": round(rss),
            "wall_ratio": round(wall / first[0], 2),
            "user_ratio": round(user / first[1], 2),
        }
        print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    main()
