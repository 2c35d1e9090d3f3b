"""Measures the step time of GPT-2 124M by `--optimizer-fusion`: updates after backward, in
backward, or in the next step.

Each variant is a process with its own artifact; steps are interleaved. A JSON line on standard
output has the medians of wall time and of CPU time, which other processes disturb less.
The benchmark fails unless all variants compute bitwise equal losses.
"""

import argparse
import json
import os
import statistics
import sys

import harness
from harness import Worker

FUSIONS = ["none", "backward", "forward"]


def processor_ms(worker):
    """Returns the CPU time that the worker's process has used so far, in milliseconds."""
    with open(f"/proc/{worker.process.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    harness.add_options(parser)
    parser.add_argument("--threads", type=int, default=2)
    options = harness.parse(parser, **harness.SMALL)
    options.build = options.build.resolve()
    folder = harness.make_folder()
    (model,) = options.case or ["gpt2-124m"]
    base = harness.trace_case(model, 0.0, folder)
    workers, gradients = [], {}
    for fusion in FUSIONS:
        artifact, report = f"{base}-{fusion}.so", f"{base}-{fusion}.json"
        harness.compile_case(base, options.build, options.threads, artifact,
                             ["--check-finite", "off", "--optimizer-fusion", fusion,
                              "--report", report])
        with open(report) as file:
            gradients[fusion] = json.load(file)["memory"]["train gradients"]
        workers.append(Worker(
            fusion, harness.cleave_command(base, artifact, options.threads), options.threads))
    processor = {fusion: [] for fusion in FUSIONS}
    for round_ in range(options.warmup + options.steps):
        # Each worker runs first equally often.
        for i in range(len(workers)):
            worker = workers[(round_ + i) % len(workers)]
            before = processor_ms(worker)
            worker.step(round_ >= options.warmup)
            if round_ >= options.warmup:
                processor[worker.name].append(processor_ms(worker) - before)
        if len({worker.losses[-1] for worker in workers}) != 1:
            raise SystemExit("error: losses differ: "
                             f"{[worker.losses[-1] for worker in workers]}")
    apart = workers[0].median()
    summary = {"case": model, "threads": options.threads, "rounds": options.steps,
               "fusions": {}}
    for worker in workers:
        # Ratios within rounds, because the clock frequency changes between rounds.
        ratios = [own / other for own, other in zip(worker.times, workers[0].times)]
        summary["fusions"][worker.name] = {
            "median_ms": worker.median(),
            "min_ms": min(worker.times),
            "over_none": worker.median() / apart,
            "median_of_ratios": statistics.median(ratios),
            "processor_ms": statistics.median(processor[worker.name]),
            "processor_over_none": statistics.median(processor[worker.name])
            / statistics.median(processor["none"]),
            "breakdown_ms": worker.request("profile"),
            "gradient_mib": gradients[worker.name] / 2**20,
            "arena_mib": worker.facts["arena"] / 2**20,
        }
    for worker in workers:
        worker.quit()
    print(json.dumps(summary), flush=True)
    for name, own in summary["fusions"].items():
        print(f"{name:9} {own['median_ms']:7.0f} ms, over none {own['over_none']:.3f} (of rounds "
              f"{own['median_of_ratios']:.3f}, of the processor "
              f"{own['processor_over_none']:.3f}), gradients {own['gradient_mib']:.0f} MiB, arena "
              f"{own['arena_mib']:.0f} MiB ({harness.describe(own['breakdown_ms'])})",
              file=sys.stderr)


if __name__ == "__main__":
    main()
