"""Trains a small GPT with compressed gradients beside the dense run, on the text of this project.

For each compressor the benchmark prints a JSON line: the loss at the end (the mean of the last
steps) and its ratio to the dense run's, the bytes that a rank sends in a step, the memory of a
rank, and the time of a step at full speed. All runs begin with the same weights and see the same
data.

With `--rate`, ranks are processes in a network of their own whose loopback is slowed to that rate
(`tc`, which needs root), and a second table has the time of a step there, and the time until the
loss (a mean over as many steps) is first that of the dense run's end, times 1 + `--margin`.

With `--stages`, ranks are stages of a pipeline instead, which send each other a share of the elements
of each row (`--compress-stages`); `--stages 0.0333 --stages 0.1` measures two shares.
"""

import json

import small_gpt
from devices import log

COMPRESSORS = ["powersgd,rank=4", "topk,density=0.05", "topk,density=0.01",
               "threshold,keep=0.01,every=100", "int8", "1bit"]


def flags(options, compress):
    """Those of cleave-compile."""
    if not options.stages:
        return ["--mesh", f"dp={options.ranks}", *(["--compress", compress] if compress else [])]
    return ["--mesh", f"pp={options.ranks}", "--micro-batches", options.micro_batches,
            *(["--compress-stages", compress] if compress else [])]


def main():
    parser = small_gpt.make_parser(__doc__)
    parser.add_argument("--margin", type=float, default=0.01)
    parser.add_argument("--compress", action="append", help="measure this compressor only")
    parser.add_argument("--stages", action="append", metavar="SHARE",
                        help="ranks are stages, which send this share of elements")
    parser.add_argument("--micro-batches", type=int, default=4, help="with --stages")
    options = small_gpt.parse(parser, compress=["powersgd,rank=1,min_rate=1"])
    model = small_gpt.write_inputs(options, "stages" if options.stages else "compression")
    dense = None
    for compress in [None, *(options.stages or options.compress or COMPRESSORS)]:
        run = small_gpt.Run(options, model, compress or "dense", flags(options, compress))
        log(f"{run.name}: {options.steps} steps")
        lines = run.train()
        curve = small_gpt.smooth(lines, options.window)
        dense = dense or curve
        facts = {
            "compress": run.name, "loss": round(curve[-1], 4),
            "loss_ratio": round(curve[-1] / dense[-1], 4),
            "sent_bytes": sum(entry["bytes"] for entry in lines[-1]["communication"]),
            "arena_bytes": run.arena,
            "ms": small_gpt.median_ms(lines),
        }
        if options.rate:
            target = dense[-1] * (1 + options.margin)
            reached = next((i + 1 for i, loss in enumerate(curve)
                            if i + 1 >= options.window and loss <= target), None)
            facts["slow_ms"] = round(run.throttled(), 2)
            facts["seconds_to_loss"] = reached and round(reached * facts["slow_ms"] / 1e3, 1)
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
