"""Measures the accuracy of the predicted time of recomputation, given rates measured once.

Steps of the model measure the rates of this machine (`cleave-compile --measure-machine`). The model
is then compiled with several recomputation policies, and within memory limits between the largest
and the smallest of them (`--recompute=auto`). The benchmark prints a JSON line for each program:
the memory that a device needs, the predicted and measured time of a step, and the predicted and
measured time that the policy adds to a step without recomputation. The difference of these two, in
percent of the measured one, is given if the measured one exceeds a twentieth of a step. Runs are
interleaved, and the fastest step of each program counts.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import harness
from devices import log

POLICIES = ["none", "free", "full", "1 full; none", "2 full; none"]


def run(*command):
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


class Program:
    """The model compiled with one policy."""

    def __init__(self, options, folder, name, flags):
        self.options, self.name = options, name
        self.artifact = folder / f"recompute-{len(list(folder.glob('recompute-*.so')))}.so"
        report = folder / "recompute-report.json"
        run(options.build / "bin" / "cleave-compile", folder / "recompute.mlir",
            "--fused-attention", options.fused_attention, "--precision", options.precision,
            "--threads", options.threads, "--machine", folder / "recompute-machine.txt",
            "-o", self.artifact, "--report", report, *flags)
        facts = json.loads(report.read_text())
        self.predicted_ms = 1e3 * facts["schedule"]["makespan"]
        self.bytes = facts["plan"]["arena_bytes"] + sum(facts["plan"]["outside"].values())
        self.policy = (facts["recompute"] or {}).get("policy", name)
        self.measured_ms = float("inf")

    def train(self, folder):
        metrics = folder / "recompute-log.json"
        run(self.options.build / "bin" / "cleave-run", self.artifact, "--random-init", "--data",
            folder / "recompute.bin", "--token-dtype", "u32", "--steps", self.options.steps + 1,
            "--threads", self.options.threads, "--log", metrics)
        steps = [json.loads(line)["ms"] for line in metrics.read_text().splitlines()]
        self.measured_ms = min(self.measured_ms, *steps[1:])


def describe(program, none):
    """Returns the JSON line of a program."""
    predicted = program.predicted_ms - none.predicted_ms
    measured = program.measured_ms - none.measured_ms
    return {
        "program": program.name,
        "policy": program.policy,
        "needed_mib": round(program.bytes / 2**20, 1),
        "predicted_ms": round(program.predicted_ms, 2),
        "measured_ms": round(program.measured_ms, 2),
        "added_predicted_ms": round(predicted, 2),
        "added_measured_ms": round(measured, 2),
        # Given only if the added time exceeds the variation between steps.
        "difference_percent": round(100 * (predicted - measured) / measured, 1)
        if measured > 0.05 * none.measured_ms else None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=harness.ROOT / "build")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="of a run; one more warms up")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--fused-attention", default="on")
    parser.add_argument("--budgets", type=int, default=3, help="memory limits")
    options = harness.parse(parser, layers=2, hidden=32, heads=4, seq=16, vocab=64, batch=2,
                            steps=1, rounds=1, budgets=1)
    options.build = options.build.resolve()
    folder = harness.make_folder()
    for old in folder.glob("recompute-*.so"):
        old.unlink()
    sizes = ["--layers", options.layers, "--hidden", options.hidden, "--heads", options.heads,
             "--seq", options.seq, "--vocab", options.vocab, "--batch", options.batch]
    subprocess.run([sys.executable, "-m", "cleave.models", "gpt", *map(str, sizes), "-o",
                    folder / "recompute.mlir"], check=True, env=harness.environment(),
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    count = 4 * options.batch * (options.seq + 1)
    ids = ((i * 2654435761 >> 7) % options.vocab for i in range(count))
    (folder / "recompute.bin").write_bytes(b"".join(token.to_bytes(4, "little") for token in ids))
    run(options.build / "bin" / "cleave-compile", folder / "recompute.mlir", "--threads",
        options.threads, "--measure-machine", folder / "recompute-machine.txt")
    log((folder / "recompute-machine.txt").read_text().strip())

    programs = [Program(options, folder, policy, ["--recompute", policy]) for policy in POLICIES]
    none, least = programs[0].bytes, min(program.bytes for program in programs)
    for i in range(options.budgets):
        limit = (least + (none - least) * (i + 1) / (options.budgets + 1)) / 2**20
        programs.append(Program(options, folder, f"auto within {limit:.1f} MiB",
                                ["--memory-limit", limit]))
    for _ in range(options.rounds):
        for program in programs:
            program.train(folder)
    for program in programs:
        print(json.dumps(describe(program, programs[0])), flush=True)


if __name__ == "__main__":
    main()
