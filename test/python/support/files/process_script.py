# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A training script of one step object, run by one process or by one for each rank.

    process_script.py FORM FOLDER [WHAT]

WHAT goes wrong, in rank 1 unless it says otherwise; "train" if nothing does.
"""

import hashlib
import json
import os
import resource
import signal
import sqlite3
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import cleave
from cleave.compiler.entrance import grouped


# Quick to import: each process does so.


class Layer(nn.Module):
    """A transformer layer between a table and a head."""

    def __init__(self, vocab=96, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.table = nn.Embedding(vocab, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 2 * width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        x = self.table(ids)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.norm(x)
        return self.head(x + self.down(F.silu(self.gate(y)) * self.up(y)))


def net(seed):
    torch.manual_seed(seed)
    return Layer()


def token_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def tokens(batch=4, length=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 96, (batch, length), generator=generator)
    return ids, ids.clone()


FORMS = {
    "dp": {"mesh": {"dp": 2}},
    "dp-4": {"mesh": {"dp": 4}},
    "zero1": {"mesh": {"dp": 2}, "plan": "zero1"},
    "zero3": {"mesh": {"dp": 4}, "plan": "zero3"},
    "tp": {"mesh": {"tp": 2}, "plan": {"gate.weight": cleave.P("tp", None),
                                       "up.weight": cleave.P("tp", None),
                                       "down.weight": cleave.P(None, "tp")}},
    "pp": {"mesh": {"pp": 2}, "micro_batches": 4},
    "delayed": {"mesh": {"dp": 2}, "plan": "zero1", "micro_batches": 2,
                "update_delay": {"*": 1, "reduce": "next"}},
    "dp-pp": {"mesh": {"dp": 2, "pp": 2}, "plan": "zero1", "micro_batches": 2},
    "cuda": {"mesh": {"dp": 2}, "plan": "zero1", "target": "cuda"},
    "factors": {"mesh": {"dp": 2}, "compress": "powersgd,rank=2,min_rate=1"},
    "factors-4": {"mesh": {"dp": 4}, "compress": "powersgd,rank=2,min_rate=1"},
}


def build(form, seed=0, **changes):
    options = {"optimizer": cleave.AdamW(lr=1e-2, max_grad_norm=1.0), **FORMS[form], **changes}
    if options.get("target") != "cuda":
        options = {"threads": 1, **options}
    return cleave.compile(net(seed), tokens(), token_loss, **grouped(**options))


def say(facts):
    """Prints a line at once: lines of several processes may mix otherwise."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def train(form, folder, step):
    """Steps of two shapes, an evaluation, a checkpoint, and steps from there."""
    losses = [step(*tokens(seed=seed)) for seed in range(3)]
    results = [*map(float, losses), losses[-1].grad_norm,
               float(step.evaluate(*tokens(seed=9))),
               float(step(*tokens(batch=8, seed=4)))]
    step.save(os.path.join(folder, "checkpoint"))
    logits = step.logits(tokens()[0])
    state, training = step.state_dict(), step.training_state()
    results.append(float(step(*tokens(seed=5))))
    # Back to the checkpoint, by each of the ways.
    step.load(os.path.join(folder, "checkpoint"))
    results.append(float(step(*tokens(seed=5))))
    step.load_state_dict(state)
    step.load_training_state(training)
    results.append(float(step(*tokens(seed=5))))
    step.save_artifact(os.path.join(folder, "step.so"))
    path = os.path.join(folder, "export.safetensors")
    report = cleave.export(step, "int8", path, [tokens(seed=6)])
    # Also a rank that did not write finds the file.
    assert cleave.read_export(path).keys() == state.keys()
    results += [report.loss, report.exported_loss, report.logits_max_error]
    say({"rank": step.rank, "losses": results})
    if step.rank == 0:
        torch.save({"losses": results, "logits": logits, "state": step.state_dict(),
                    "training": training}, os.path.join(folder, "results.pt"))
    else:
        step.state_dict()


def short(step):
    """Two steps and what they leave."""
    losses = [float(step(*tokens(seed=seed))) for seed in range(2)]
    return {"losses": losses, "state": step.state_dict()}


def digests(step):
    """Of the bits of each parameter and right factor. A process reads what all ranks have whole
    from its own memory."""
    values = {**step.state_dict(), **{
        f"{name}.right_factor": slots["right_factor"]
        for name, slots in step.training_state()["optimizer"].items() if "right_factor" in slots}}
    return {name: hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()
            for name, value in values.items()}


def failures(step, folder):
    """What the first rank cannot do alone, or the second one, between steps: each is told, and
    goes on. The errors, by what was tried."""
    found = {}

    def attempt(what, call):
        try:
            call()
            found[what] = None
        except Exception as error:
            found[what] = [type(error).__name__, str(error)]
        step(*tokens(seed=step.step))

    def full(call):
        """With no room for files, in the middle of one, for the first rank."""
        if step.rank > 0:
            return call()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))
        try:
            call()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def fails(*_):
        raise sqlite3.OperationalError("the disk is full")

    own = os.path.join(folder, f"of-rank-{step.rank}")
    os.makedirs(own, exist_ok=True)
    good, bad = os.path.join(folder, "checkpoint"), os.path.join(own, "model.safetensors")
    open(bad, "wb").close()
    store = cleave.feed.Store(os.path.join(folder, "models.db"))
    attempt("save", lambda: step.save("/proc/nothing/here"))
    attempt("save to a full disk", lambda: full(lambda: step.save(os.path.join(folder, "full"))))
    attempt("save over something", lambda: step.save(own))
    attempt("good save", lambda: step.save(good))
    attempt("artifact", lambda: step.save_artifact("/proc/nothing/here"))
    if step.rank == 0:
        store._tables.add = fails
    attempt("store", lambda: store.save(step))
    attempt("load", lambda: step.load(good if step.rank == 0 else "none"))
    attempt("weights", lambda: step.load_weights(good if step.rank == 0 else "none"))
    attempt("bad weights", lambda: step.load_weights(
        os.path.join(good, "model.safetensors") if step.rank == 0 else bad))
    attempt("fetch", lambda: store.load("ab", step))
    return found


def endless(step, folder, what):
    """The second rank loops between two steps, in its own code or in a call of the system."""
    step(*tokens())
    try:
        while step.rank == 1:
            time.sleep(1000 if what == "asleep" else 0)
        step(*tokens())
    finally:
        with open(os.path.join(folder, f"finally-{step.rank}"), "w") as file:
            file.write("left")


def interrupted(step, whole):
    """Goes on until a signal; says after which step."""
    def stop(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    print("ready", os.getpid(), flush=True)
    try:
        while True:
            step(*tokens(seed=step.step))
            if not whole:
                time.sleep(0.001 * (step.rank + 1))
    except KeyboardInterrupt:
        state = step.state_dict()
        say({"rank": step.rank, "step": step.step,
                          "sum": float(sum(v.double().sum() for v in state.values()))})


def main(form, folder, what="train"):
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", 0)))
    if what == "parameters":
        build(form, seed=rank)
    if what == "arguments":
        build(form, bucket_bytes=1000 + rank)
    if what == "early" and rank == 1:
        raise ValueError("no data here")
    step = build(form, **({"patience": 2} if what in ("endless", "asleep") else {}))
    if what == "train":
        train(form, folder, step)
    elif what == "short":
        found = short(step)
        say({"rank": step.rank, "losses": found["losses"]})
        if step.rank == 0:
            torch.save(found, os.path.join(folder, "results.pt"))
    elif what == "digests":
        for seed in range(3):
            step(*tokens(seed=seed))
        say({"rank": step.rank, "digests": digests(step)})
    elif what == "batches":
        step(*tokens(seed=rank))
    elif what == "calls":
        step.evaluate(*tokens()) if rank == 1 else step(*tokens())
    elif what == "one":
        if rank == 0:
            step.state_dict()
    elif what == "exception":
        for number in range(3):
            if rank == 1 and number == 2:
                raise ValueError("a bad sample")
            step(*tokens(seed=number))
        step(*tokens())
    elif what == "refused":
        bad = tokens()
        bad[0][0, 0] = 1000
        try:
            step(*bad)
        except cleave.StepError as error:
            say({"rank": rank, "error": str(error)})
        say({"rank": rank, "losses": [float(step(*tokens()))]})
    elif what in ("endless", "asleep"):
        endless(step, folder, what)
    elif what == "failures":
        errors = failures(step, folder)
        say({"rank": rank, "errors": errors, "digests": digests(step),
             "files": sorted(os.listdir(folder))})
    elif what == "unwritable":
        step.save("/proc/nothing/here")
    elif what == "unwritable-export":
        try:
            cleave.export(step, "int8", "/proc/nothing/here")
        except OSError as error:
            say({"rank": rank, "error": str(error)})
    elif what == "kinds":
        cleave.export(step, "int8" if rank else "bf16", os.path.join(folder, "file"))
    elif what in ("signal", "signal-between"):
        interrupted(step, what == "signal")


if __name__ == "__main__":
    main(*sys.argv[1:])
