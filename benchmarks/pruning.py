"""Trains a small GPT with pruned and quantized weights beside the dense run, on the text of this
project, and exports each.

For each run the benchmark prints a JSON line: the loss on text that is not trained on, of the
step and of its export, their ratios to the dense run's, the bytes of the export and those of the
weights in f32, and the time of a step. All runs begin with the same weights, random ones or those
of a dense run (`--dense-first`), and see the same data.
"""

import argparse
import json
import statistics
import time

import torch

import cleave
import harness
import small_gpt
from cleave.models import gpt
from devices import log

#: Pruning, quantization and the kind of the export.
RUNS = [(None, None, "bf16"), (None, None, "int8"), (None, "int8", "int8"), ("0.5", None, "sparse"),
        ("0.5,cubic,steps=500", None, "sparse"), ("2:4", None, "sparse"),
        ("2:4,steps=500", None, "sparse"), ("0.9,cubic,steps=500", None, "sparse"),
        ("0.5,cubic,steps=500", "int8", "int8")]


def train(options, batches, prune=None, quantize=None, start=None):
    """The step that is trained from the weights `start`, and the median time of a step in ms."""
    torch.manual_seed(0)
    model = gpt(hidden=options.hidden, heads=4, layers=options.layers, seq=options.seq, vocab=128)
    if start is not None:
        model.load_state_dict(start)
    ids = batches.draw(0)
    optimizer = cleave.AdamW(lr=cleave.cosine(options.lr, warmup=min(50, options.steps // 10),
                                              steps=options.steps), weight_decay=0.1)
    step = cleave.compile(model, (ids, ids), optimizer=optimizer,
                          lossy=cleave.Lossy(prune=prune, quantize=quantize), check="off",
                          target=cleave.Target(threads=options.threads))
    times = []
    for number in range(options.steps):
        ids = batches.draw(number + 1 + (0 if start is None else 10 ** 6))
        begin = time.perf_counter()
        step(ids, ids)
        times.append(time.perf_counter() - begin)
    return step, statistics.median(times) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    small_gpt.add_sizes(parser)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--dense-first", action="store_true",
                        help="train a dense model for as many steps, from which all runs begin")
    parser.add_argument("--eval-batches", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=len(RUNS), help="the first ones")
    parser.add_argument("--prune", action="append",
                        help="measure this beside the dense run only")
    options = harness.parse(parser, **small_gpt.SMALL, steps=10, eval_batches=2, runs=4)

    batches, path = small_gpt.Batches(options), harness.make_folder() / "pruning.safetensors"
    data = [(ids, ids) for ids in (batches.draw(seed, part=1)
                                   for seed in range(options.eval_batches))]
    dense, steps, start = None, {}, None
    if options.dense_first:
        log(f"dense: {options.steps} steps")
        start = train(options, batches)[0].state_dict()
    runs = RUNS[:options.runs]
    if options.prune:
        runs = [RUNS[0], *((prune, None, "sparse") for prune in options.prune)]
    for prune, quantize, kind in runs:
        if (prune, quantize) not in steps:
            log(f"{prune or 'dense'}, {quantize or 'f32'}: {options.steps} steps")
            steps[prune, quantize] = train(options, batches, prune, quantize, start)
        step, ms = steps[prune, quantize]
        report = cleave.export(step, kind, path, data)
        dense = dense or report.loss
        print(json.dumps({
            "prune": prune, "quantize": quantize, "export": kind, "loss": round(report.loss, 4),
            "loss_ratio": round(report.loss / dense, 4),
            "exported_ratio": round(report.exported_loss / dense, 5),
            "logits_max_error": round(report.logits_max_error, 5),
            "logits_mean_error": round(report.logits_mean_error, 5),
            "bytes": report.bytes, "f32_bytes": report.dense_bytes, "ms": round(ms, 2),
        }), flush=True)


if __name__ == "__main__":
    main()
