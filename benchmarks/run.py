"""Compares the time and memory of a training step with PyTorch and with the floor.

Each worker is a separate process; steps are interleaved, one step of each worker in a round,
and medians are reported. The floor, a lower bound of the step's time, is the time of the step's
contractions and those of attention, each by the fastest variant of the library; it is measured
once in each round, too.
Results are printed as JSON lines.
"""

import argparse
import json
import subprocess
import sys

import harness
from harness import Worker

CASES = [
    ("gpt2-124m", 0.0),
    ("gpt2-124m", 0.1),
    ("llama-768", 0.0),
]


def run_case(model, dropout, options, folder):
    threads = options.threads
    base = harness.trace_case(model, dropout, folder)
    harness.compile_case(base, options.build, threads, f"{base}.so")
    torch_step = [sys.executable, harness.SCRIPTS / "torch_step.py", "--model", model]
    torch_step += ["--dropout", dropout, "--threads", threads]
    cleave_step = harness.cleave_command(base, f"{base}.so", threads)
    workers = [
        Worker("cleave", cleave_step, threads),
        Worker("torch eager", torch_step, threads),
        Worker("torch.compile", torch_step + ["--compile"], threads),
    ]
    floor = harness.Floor("floor", options.build, f"{base}.so", threads)
    floor.explore(options.explore)
    for round_ in range(options.warmup + options.steps):
        for worker in [*workers, floor]:
            worker.step(measured=round_ >= options.warmup)
    results = {}
    for worker in workers:
        breakdown = worker.request("profile")
        results[worker.name] = {
            "median_ms": worker.median(),
            "min_ms": min(worker.times),
            "breakdown_ms": breakdown,
            "last_loss": worker.losses[-1],
            **worker.quit(),
        }
    floor.quit()
    least = floor.median()
    ours = results["cleave"]
    peers = {k: v for k, v in results.items() if k != "cleave"}
    best = min(peers.values(), key=lambda r: r["median_ms"])
    leanest = min(r["vm_hwm_mib"] for r in peers.values())
    ms = ours["median_ms"]
    other = lambda r: sum(
        v
        for k, v in r["breakdown_ms"].items()
        if k in ("row_wise", "optimizer", "communication")
    )
    summary = {
        "case": model,
        "dropout": dropout,
        "threads": threads,
        "arena_mib": workers[0].facts["arena"] / 2**20,
        "floor_ms": least["ms"],
        "floor": least,
        "step_over_best_peer": ms / best["median_ms"],
        "step_over_floor": ms / least["ms"],
        "best_peer_over_floor": best["median_ms"] / least["ms"],
        "memory_over_leanest_peer": ours["vm_hwm_mib"] / leanest,
        "row_wise_and_optimizer_over_best_peer": other(ours) / other(best),
        "results": results,
    }
    print(json.dumps(summary), flush=True)
    return summary


def show(summary):
    """Prints a summary to standard error."""
    log = lambda text: print(text, file=sys.stderr, flush=True)
    log(f"{summary['case']}, dropout {summary['dropout']}:")
    for name, r in summary["results"].items():
        parts = harness.describe(r["breakdown_ms"])
        log(
            f"  {name:14} {r['median_ms']:7.0f} ms   {r['vm_hwm_mib']:6.0f} MiB"
            f"   ({parts})"
        )
    log(f"  {'floor':14} {summary['floor_ms']:7.0f} ms")
    log(
        f"  step / best peer {summary['step_over_best_peer']:.2f}, "
        f"/ floor {summary['step_over_floor']:.2f}; memory / leanest peer "
        f"{summary['memory_over_leanest_peer']:.2f}; outside contractions and "
        f"attention / peer {summary['row_wise_and_optimizer_over_best_peer']:.2f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    harness.add_options(parser)
    harness.add_floor_options(parser)
    parser.add_argument("--threads", type=int, default=2)
    options = harness.parse(parser, explore=1, **harness.SMALL)
    options.build = options.build.resolve()
    subprocess.run(["ninja", "-C", options.build, "cleave-floor"], check=True,
                   stdout=subprocess.DEVNULL)
    folder = harness.make_folder()
    named = {model for model, _ in CASES}
    others = [(model, 0.0) for model in options.case or [] if model not in named]
    for model, dropout in CASES + others:
        if not options.case or model in options.case:
            show(run_case(model, dropout, options, folder))


if __name__ == "__main__":
    main()
