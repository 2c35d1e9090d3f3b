"""Trains a small GPT in bf16 on shards, with activations reduced in f32 and in 16 bits, on the text
of this project.

For each type of `--activation-reduction` and each seed the benchmark prints a JSON line: the mean
loss of the last steps, that on text that is not trained on, and the bytes that a rank sends in a
step. Runs of a seed begin with the same weights and see the same data; f32 without shards is
trained beside them. The last line has, for each type, the mean of its losses less those of f32
sums, and the spread of seeds.
"""

import argparse
import json
import statistics

import torch

import cleave
import harness
import small_gpt
from cleave.models import gpt
from devices import log

#: Precision, and the type of sums; the first one is the reference.
RUNS = [("bf16", "f32"), ("bf16", "products"), ("bf16", "16bit"), ("f32", None)]


def train(options, batches, precision, reduction, seed):
    """What one run leaves: its losses, and bytes sent."""
    torch.manual_seed(seed)
    model = gpt(hidden=options.hidden, heads=options.heads, layers=options.layers, seq=options.seq, vocab=128)
    optimizer = cleave.AdamW(lr=cleave.cosine(options.lr, warmup=min(100, options.steps // 10),
                                              steps=options.steps), weight_decay=0.1, max_grad_norm=1.0)
    settings = {} if reduction is None else {
        "mesh": {"tp": options.ranks}, "plan": options.plan,
        "precision": cleave.Precision(precision, activation_reduction=reduction)}
    first = batches.draw(10 ** 6 * seed)
    step = cleave.compile(model, (first, first), optimizer=optimizer, check="off", **settings)
    losses = []
    for number in range(options.steps):
        ids = batches.draw(10 ** 6 * seed + number)
        losses.append(float(step(ids, ids)))
    held = [batches.draw(number, part=1) for number in range(options.eval_batches)]
    sent = step.report()["communication"]["train"]["bytes"] if reduction else 0
    return {"loss": statistics.fmean(losses[-options.window:]),
            "held_out": statistics.fmean(float(step.evaluate(ids, ids)) for ids in held), "bytes_sent": sent}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    small_gpt.add_sizes(parser)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--plan", default="megatron-sp")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--window", type=int, default=200, help="steps that a loss is a mean of")
    parser.add_argument("--eval-batches", type=int, default=64)
    options = harness.parse(parser, **{**small_gpt.SMALL, "hidden": 32}, steps=10, eval_batches=2, seeds=1, window=5)

    batches, results = small_gpt.Batches(options), {}
    for seed in range(options.seeds):
        for precision, reduction in RUNS:
            log(f"seed {seed}, {precision}, sums {reduction or 'of one device'}: {options.steps} steps")
            own = results[seed, reduction] = train(options, batches, precision, reduction, seed)
            print(json.dumps({"seed": seed, "precision": precision, "activation_reduction": reduction, **own}), flush=True)
    last = {}
    for _, reduction in RUNS[1:]:
        for kind in ("loss", "held_out"):
            off = [results[seed, reduction][kind] - results[seed, "f32"][kind] for seed in range(options.seeds)]
            last[f"{reduction or 'one device in f32'}: {kind}"] = {
                "mean": statistics.fmean(off), "least": min(off), "most": max(off)}
    print(json.dumps({"less_f32_sums": last}), flush=True)


if __name__ == "__main__":
    main()
