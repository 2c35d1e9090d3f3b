"""Trains a small GPT with delayed updates beside the run without delay, on the text of this project.

For each delay the benchmark prints a JSON line: the loss at the end (the mean of the last steps)
and its ratio to the undelayed run's, the memory of a rank, and the time of a step. All runs begin
with the same weights, see the same data, and have the same learning rates.

With `--rate`, ranks are processes in a network of their own whose loopback is slowed to that rate
(`tc`, which needs root), and the time of a step there is printed too, with ranks that add up a
delayed gradient in its own step and in the next one (`reduce=next`), and beside it the larger one
of the time of a step at full speed and of the time that the bytes of all ranks take on the network,
and the CPU time that a step takes in a rank, its threads of communication included.
"""

import json

import small_gpt
from devices import log


def bits_per_second(rate):
    """Of a rate as `tc` reads it: "500mbit"."""
    for suffix, factor in (("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)):
        if rate.lower().endswith(suffix):
            return float(rate[:-len(suffix)]) * factor
    raise SystemExit(f"--rate {rate}: a number and kbit, mbit or gbit, such as 1gbit")


def main():
    parser = small_gpt.make_parser(__doc__)
    parser.add_argument("--delay", type=int, action="append", help="measure this delay only")
    options = small_gpt.parse(parser, delay=[1])
    model = small_gpt.write_inputs(options, "update-delay")
    undelayed = None
    for delay in [0, *(options.delay or [1, 2, 4])]:
        run = small_gpt.Run(options, model, str(delay),
                            ["--mesh", f"dp={options.ranks}", "--update-delay", delay])
        log(f"delay {delay}: {options.steps} steps")
        lines = run.train()
        loss = small_gpt.smooth(lines, options.window)[-1]
        undelayed = undelayed or loss
        facts = {"delay": delay, "loss": round(loss, 4), "loss_ratio": round(loss / undelayed, 4),
                 "arena_bytes": run.arena, "ms": small_gpt.median_ms(lines)}
        if options.rate:
            sent = options.ranks * sum(entry["bytes"] for entry in lines[-1]["communication"])
            facts["full_ms"] = round(run.throttled(rate=None), 2)
            facts["network_ms"] = round(sent * 8e3 / bits_per_second(options.rate), 2)
            facts["slow_ms"] = round(run.throttled(), 2)
            if delay:
                following = small_gpt.Run(options, model, f"{delay}-next",
                                          ["--mesh", f"dp={options.ranks}",
                                           "--update-delay", f"{delay},reduce=next"])
                facts["next_ms"] = round(following.throttled(), 2)
                facts["next_ratio"] = round(
                    facts["next_ms"] / max(facts["full_ms"], facts["network_ms"]), 3)
                facts["next_cpu_ms"] = round(following.throttled_cpu(), 2)
                facts["next_arena_bytes"] = following.arena
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
