"""Step time of GPT-2 124M by where its updates run: apart, in backward, or in the
next step.

Each is a process of its own with an artifact of its own; steps are interleaved, and
medians are reported, as a JSON line on standard output: of the clock, and of the
processor's time, which other processes disturb less. All compute the same losses, bit by
bit, or the benchmark fails.
"""

import argparse
import json
import os
import statistics
import sys

import contest
from contest import Contestant

FUSIONS = ["none", "backward", "forward"]


def processor_ms(contestant):
    """What its process has had of the processors so far."""
    with open(f"/proc/{contestant.process.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    contest.add_options(parser)
    parser.add_argument("--threads", type=int, default=2)
    options = contest.parse(parser, **contest.SMALL)
    options.build = options.build.resolve()
    folder = contest.make_folder()
    (model,) = options.case or ["gpt2-124m"]
    base = contest.trace_case(model, 0.0, folder)
    contestants, gradients = [], {}
    for fusion in FUSIONS:
        artifact, report = f"{base}-{fusion}.so", f"{base}-{fusion}.json"
        contest.compile_case(base, options.build, options.threads, artifact,
                             ["--check-finite", "off", "--optimizer-fusion", fusion, "--report", report])
        with open(report) as file:
            gradients[fusion] = json.load(file)["memory"]["train gradients"]
        contestants.append(Contestant(
            fusion, contest.cleave_command(base, artifact, options.threads), options.threads))
    processor = {fusion: [] for fusion in FUSIONS}
    for round_ in range(options.warmup + options.steps):
        # Each is first as often as the others.
        for i in range(len(contestants)):
            contestant = contestants[(round_ + i) % len(contestants)]
            before = processor_ms(contestant)
            contestant.step(round_ >= options.warmup)
            if round_ >= options.warmup:
                processor[contestant.name].append(processor_ms(contestant) - before)
        if len({contestant.losses[-1] for contestant in contestants}) != 1:
            raise SystemExit("error: losses differ: "
                             f"{[contestant.losses[-1] for contestant in contestants]}")
    apart = contestants[0].median()
    summary = {"case": model, "threads": options.threads, "rounds": options.steps,
               "fusions": {}}
    for contestant in contestants:
        # Of rounds, since the machine's clock moves between them.
        ratios = [own / other for own, other in zip(contestant.times, contestants[0].times)]
        summary["fusions"][contestant.name] = {
            "median_ms": contestant.median(),
            "min_ms": min(contestant.times),
            "over_none": contestant.median() / apart,
            "median_of_ratios": statistics.median(ratios),
            "processor_ms": statistics.median(processor[contestant.name]),
            "processor_over_none": statistics.median(processor[contestant.name])
            / statistics.median(processor["none"]),
            "breakdown_ms": contestant.ask("profile"),
            "gradient_mib": gradients[contestant.name] / 2**20,
            "arena_mib": contestant.facts["arena"] / 2**20,
        }
    for contestant in contestants:
        contestant.quit()
    print(json.dumps(summary), flush=True)
    for name, own in summary["fusions"].items():
        print(f"{name:9} {own['median_ms']:7.0f} ms, over none {own['over_none']:.3f} (of rounds "
              f"{own['median_of_ratios']:.3f}, of the processor "
              f"{own['processor_over_none']:.3f}), gradients {own['gradient_mib']:.0f} MiB, arena "
              f"{own['arena_mib']:.0f} MiB ({contest.describe(own['breakdown_ms'])})",
              file=sys.stderr)


if __name__ == "__main__":
    main()
