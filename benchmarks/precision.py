"""Compares the time and memory of a training step in bf16 with f32 and with PyTorch's autocast.

Each worker is a separate process; steps are interleaved, one step of each worker in a round, and
medians are reported. The floor of a step is the sum of the times of its contractions and of
attention, each by the fastest variant of the library; the floor of bf16 has bf16 contractions, or
f32 ones where they are faster. Results are printed as JSON lines.
"""

import argparse
import json
import subprocess
import sys

import harness
from harness import Worker

CASES = ["gpt2-124m"]
PRECISIONS = ("f32", "bf16")


def run_case(model, options, folder):
    threads = options.threads
    base = harness.trace_case(model, 0.0, folder)
    torch_step = [sys.executable, harness.SCRIPTS / "torch_step.py", "--model", model]
    torch_step += ["--threads", threads, "--autocast"]
    workers, floors = [], []
    for precision in PRECISIONS:
        artifact = f"{base}-{precision}.so"
        harness.compile_case(base, options.build, threads, artifact, ["--precision", precision])
        command = harness.cleave_command(base, artifact, threads)
        workers.append(Worker(f"cleave {precision}", command, threads))
        floors.append(harness.Floor(f"floor {precision}", options.build, artifact, threads))
        floors[-1].explore(options.explore)
    workers.append(Worker("autocast eager", torch_step, threads))
    workers.append(Worker("autocast torch.compile", torch_step + ["--compile"], threads))
    for round_ in range(options.warmup + options.steps):
        for worker in workers + floors:
            worker.step(measured=round_ >= options.warmup)
    facts = {p: w.facts["arena"] / 2**20 for p, w in zip(PRECISIONS, workers)}
    floor = {p: f.median() for p, f in zip(PRECISIONS, floors)}
    results = {}
    for worker in workers:
        breakdown = worker.request("profile")
        results[worker.name] = {
            "median_ms": worker.median(),
            "min_ms": min(worker.times),
            "breakdown_ms": breakdown,
            "first_loss": worker.losses[0],
            "last_loss": worker.losses[-1],
            **worker.quit(),
        }
    for worker in floors:
        worker.quit()
    whole, narrow = (results[f"cleave {p}"] for p in PRECISIONS)
    peers = [r for name, r in results.items() if name.startswith("autocast")]
    # Work that bf16 does not speed up takes as long as in f32.
    rest = whole["median_ms"] - floor["f32"]["contractions"]
    summary = {
        "case": model,
        "threads": threads,
        "arena_mib": facts,
        "floor": floor,
        "rate_over_f32": whole["median_ms"] / narrow["median_ms"],
        "step_over_floor": narrow["median_ms"] / (floor["bf16"]["contractions"] + rest),
        "f32_step_over_floor": whole["median_ms"] / floor["f32"]["ms"],
        "memory_over_f32": narrow["vm_hwm_mib"] / whole["vm_hwm_mib"],
        "step_over_best_peer": narrow["median_ms"] / min(r["median_ms"] for r in peers),
        "memory_over_leanest_peer": narrow["vm_hwm_mib"] / min(r["vm_hwm_mib"] for r in peers),
        "results": results,
    }
    print(json.dumps(summary), flush=True)
    return summary


def show(summary):
    """Prints a summary to standard error."""
    log = lambda text: print(text, file=sys.stderr, flush=True)
    log(f"{summary['case']}:")
    for name, r in summary["results"].items():
        parts = harness.describe(r["breakdown_ms"])
        log(f"  {name:22} {r['median_ms']:7.0f} ms   {r['vm_hwm_mib']:6.0f} MiB   ({parts})")
    for precision, floor in summary["floor"].items():
        log(f"  floor {precision:16} {floor['ms']:7.0f} ms")
    log(
        f"  bf16: {summary['rate_over_f32']:.2f}x the rate of f32, step / floor "
        f"{summary['step_over_floor']:.2f}, memory / f32 {summary['memory_over_f32']:.2f}; step / "
        f"best autocast {summary['step_over_best_peer']:.2f}, memory / leanest "
        f"{summary['memory_over_leanest_peer']:.2f}; f32 step / floor "
        f"{summary['f32_step_over_floor']:.2f}"
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
    for model in options.case or CASES:
        show(run_case(model, options, folder))


if __name__ == "__main__":
    main()
