# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Trains GPT-2 from the same weights on the same tokens by Cleave and by PyTorch, in bf16, and
compares both with PyTorch in f32."""

import json
import math
import pathlib
import random
import struct
import tempfile

from session import ratio

#: Cleave's rms difference of the loss from f32 may be so many times PyTorch's.
LOSS_BOUND = 1.5


def write_chain(path, count, vocab, seed=0):
    """`count` tokens of a random chain: each has eight that may follow it, some more often than
    others, so that there is something to learn and no period."""
    draw = random.Random(seed)
    known = min(2000, vocab)
    follow = [draw.sample(range(known), 8) for _ in range(known)]
    token, tokens = 0, []
    for _ in range(count):
        token = follow[token][min(int(draw.expovariate(0.7)), 7)]
        tokens.append(token)
    path.write_bytes(struct.pack(f"<{count}H", *tokens))


def distance(losses, exact):
    """The root mean square and the largest difference of the losses of all steps."""
    apart = [abs(a - b) for a, b in zip(losses, exact)]
    return math.sqrt(sum(d * d for d in apart) / len(apart)), max(apart)


def loss(run, cases):
    # Weights are large, and not kept with the results.
    with tempfile.TemporaryDirectory() as folder:
        compare_losses(run, cases, pathlib.Path(folder) / "weights.safetensors")


def compare_losses(run, cases, weights):
    case, steps = cases[0], run.options.steps
    warmup = min(10, steps // 3)
    tokens = run.folder / "chain.bin"
    # All tokens are in each step, whatever their order.
    write_chain(tokens, case["batch"] * case["seq"], case["vocab"])
    run.note("weights ...")
    made, why = run.torch("weights", "weights", json.dumps(case), "--weights", weights)
    if made is None:
        run.fail(loss=None, failed=why)
        return
    mode = run.options.modes.split(",")[0] or "compile"

    def torch(name, precision, residual, mode):
        # Code that cannot be compiled, as where there is no compiler of C, runs eagerly.
        for how in dict.fromkeys([mode, "eager"]):
            found, why = run.torch(
                f"loss-{name}-{how}".replace(" ", "-"), "loss", json.dumps(case), f"--mode={how}",
                f"--precision={precision}", f"--residual={residual}", f"--steps={steps}",
                f"--warmup={warmup}", "--rate=3e-4", "--weights", weights, "--tokens", tokens)
            if found:
                return found["losses"], ""
            run.say(loss=name, mode=how, why=why)
        return None, why

    def cleave(own):
        lines, why = run.train(
            f"loss-cleave-{own['residual']}", own["artifact"], steps,
            "--weights", weights, "--data", tokens, "--lr=3e-4", f"--warmup={warmup}",
            "--lr-schedule=constant")
        return ([line["loss"] for line in lines], "") if lines else (None, why)

    def cleave_name(own):
        return f"cleave bf16, residual {own['residual']}"

    # Cleave's default, and what autocast does, come first.
    cases = sorted(cases, key=lambda own: own["residual"] != "16bit")
    work = [("torch f32", lambda: torch("torch f32", "f32", "f32", "eager")),
            (cleave_name(cases[0]), lambda: cleave(cases[0])),
            ("torch bf16, residual f32", lambda: torch("torch bf16 f32", "bf16", "f32", mode)),
            ("torch bf16, residual 16bit", lambda: torch("torch bf16 16bit", "bf16", "16bit",
                                                         mode))]
    work += [(cleave_name(own), lambda own=own: cleave(own)) for own in cases[1:]]
    found = {}
    for name, function in work:
        if not run.enough(name):
            continue
        losses, why = function()
        if losses is None or len(losses) != steps:
            run.fail(loss=name, failed=why or f"{len(losses or [])} losses")
            continue
        found[name] = losses
    exact = found.get("torch f32")
    rows = []
    shown = sorted({1, min(10, steps), min(50, steps), steps})
    for name, losses in found.items():
        rms, most = distance(losses, exact) if exact else (None, None)
        at = [losses[step - 1] for step in shown]
        run.say(loss=name, steps=shown, losses=at, rms=rms, largest=most)
        rows.append([name, *[f"{value:.4f}" for value in at], rms, most])
    # Of each type of the residual stream.
    for own in cases:
        ours = found.get(cleave_name(own))
        theirs = found.get(f"torch bf16, residual {own['residual']}")
        if not (exact and ours and theirs):
            run.fail(residual=own["residual"], passed=False,
                     why="not all that is compared has run")
            continue
        a, b = (distance(losses, exact)[0] for losses in (ours, theirs))
        passed = a <= LOSS_BOUND * b
        (run.say if passed else run.fail)(residual=own["residual"], passed=passed, cleave_rms=a,
                                          torch_rms=b, ratio=ratio(a, b), bound=LOSS_BOUND)
    run.table("losses; rms and largest difference from f32",
              ["", *[f"step {step}" for step in shown], "rms", "largest"], rows)
