"""Step time and memory of a training step, beside PyTorch's and the floor.

Every contestant is a process of its own; steps are interleaved, one contestant
after the other in each round, and medians are reported. The floor is the sum of
the step's contractions and of attention's, each at the fastest of what the
library offers. Results are printed as JSON lines.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent

CASES = [
    ("gpt2-124m", 0.0),
    ("gpt2-124m", 0.1),
    ("llama-768", 0.0),
]


class Contestant:
    """One process that runs steps when told to."""

    def __init__(self, name, command, threads):
        env = dict(os.environ, OMP_NUM_THREADS=str(threads))
        env["PYTHONPATH"] = f"{ROOT / 'python'}:{env.get('PYTHONPATH', '')}"
        self.name = name
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )
        self.times, self.losses = [], []
        self.facts = self.read()

    def read(self):
        """The next JSON line that it says."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(
            f"error: contestant '{self.name}' ended with status "
            f"{self.process.wait()}"
        )

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.read()

    def quit(self):
        """Ends it; returns its peak memory in MiB, if it says."""
        self.process.stdin.write("quit\n")
        self.process.stdin.flush()
        answer = {}
        for line in self.process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
        self.process.wait()
        return answer.get("vm_hwm_mib")


def prepare(model, dropout, options, folder):
    """Traces and compiles one case in a process that then ends."""
    base = folder / f"{model}-{dropout}"
    subprocess.run(
        [sys.executable, HERE / "contestants" / "prepare.py", "--model", model]
        + ["--dropout", str(dropout), "--out", str(base)],
        check=True,
        env=dict(os.environ, PYTHONPATH=str(ROOT / "python")),
        stderr=subprocess.DEVNULL,
    )
    subprocess.run(
        [options.build / "bin" / "cleave-compile", f"{base}.mlir"]
        + ["--weight-decay", "0.1", "--threads", str(options.threads)]
        + ["-o", f"{base}.so"],
        check=True,
    )
    return base


def run_case(model, dropout, options, folder):
    base = prepare(model, dropout, options, folder)
    threads = options.threads
    scripts = HERE / "contestants"
    torch_step = [sys.executable, scripts / "torch_step.py", "--model", model]
    torch_step += ["--dropout", dropout, "--threads", threads]
    cleave_step = [sys.executable, scripts / "cleave_step.py", f"{base}.so"]
    cleave_step += ["--weights", f"{base}.safetensors", "--ids", f"{base}.npy"]
    cleave_step += ["--threads", threads]
    contestants = [
        Contestant("cleave", cleave_step, threads),
        Contestant("torch eager", torch_step, threads),
        Contestant("torch.compile", torch_step + ["--compile"], threads),
        Contestant(
            "floor", [options.build / "bin" / "cleave-floor", f"{base}.so", threads], threads
        ),
    ]
    for round_ in range(options.warmup + options.steps):
        for contestant in contestants[:3]:
            answer = contestant.ask("step")
            if round_ >= options.warmup:
                contestant.times.append(answer["ms"])
                contestant.losses.append(answer["loss"])
        # One measurement of the floor tries every way of every shape: it takes
        # as long as many steps, and three of them give a median.
        if (round_ - options.warmup) % max(1, options.steps // 3) == 0:
            floor = contestants[3].ask("step")
    results = {}
    for contestant in contestants[:3]:
        breakdown = contestant.ask("profile")
        results[contestant.name] = {
            "median_ms": statistics.median(contestant.times),
            "min_ms": min(contestant.times),
            "breakdown_ms": breakdown,
            "last_loss": contestant.losses[-1],
            "vm_hwm_mib": contestant.quit(),
        }
    contestants[3].quit()
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
        "arena_mib": contestants[0].facts["arena"] / 2**20,
        "floor_ms": floor["ms"],
        "floor": floor,
        "step_over_best_peer": ms / best["median_ms"],
        "step_over_floor": ms / floor["ms"],
        "best_peer_over_floor": best["median_ms"] / floor["ms"],
        "memory_over_leanest_peer": ours["vm_hwm_mib"] / leanest,
        "row_wise_and_optimizer_over_best_peer": other(ours) / other(best),
        "results": results,
    }
    print(json.dumps(summary), flush=True)
    return summary


def show(summary):
    """A few lines for people, on standard error."""
    say = lambda text: print(text, file=sys.stderr, flush=True)
    say(f"{summary['case']}, dropout {summary['dropout']}:")
    for name, r in summary["results"].items():
        parts = ", ".join(f"{k} {v:.0f}" for k, v in r["breakdown_ms"].items())
        say(
            f"  {name:14} {r['median_ms']:7.0f} ms   {r['vm_hwm_mib']:6.0f} MiB"
            f"   ({parts})"
        )
    say(f"  {'floor':14} {summary['floor_ms']:7.0f} ms")
    say(
        f"  step / best peer {summary['step_over_best_peer']:.2f}, "
        f"/ floor {summary['step_over_floor']:.2f}; memory / leanest peer "
        f"{summary['memory_over_leanest_peer']:.2f}; outside contractions and "
        f"attention / peer {summary['row_wise_and_optimizer_over_best_peer']:.2f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--case", action="append", help="run this model only")
    options = parser.parse_args()
    options.build = options.build.resolve()
    subprocess.run(["ninja", "-C", options.build, "cleave-floor"], check=True,
                   stdout=subprocess.DEVNULL)
    folder = ROOT / "out" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    for model, dropout in CASES:
        if not options.case or model in options.case:
            show(run_case(model, dropout, options, folder))


if __name__ == "__main__":
    main()
