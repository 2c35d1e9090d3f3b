# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The nodes of launch_training.py: feed, trainer, evaluator and store."""

import hashlib
import json
import pathlib
import threading

import numpy as np
import safetensors.torch
import torch

import cleave

FEATURES, CLASSES = 8, 3


def rows(number, seed):
    """Rows of a database, in batches, without an end: what the feed iterates over.

    Yields dicts of arrays: `x` [number, FEATURES] float32, `y` [number] int64, the class.
    """
    direction = np.random.default_rng(1).normal(size=(FEATURES, CLASSES))
    generator = np.random.default_rng(seed)
    while True:
        x = generator.normal(size=(number, FEATURES)).astype(np.float32)
        yield {"x": x, "y": np.argmax(np.tanh(x) @ direction + (x @ direction) ** 2, 1)}


class Feed:
    """Gives each batch to every rank; holds those that a rank may still ask for.

    Args:
        source: a function of `args` that returns an iterator of batches.
        ranks: how many askers each batch has.
    """

    def __init__(self, source, args, ranks):
        self.batches, self.ranks = iter(source(*args)), ranks
        self.held, self.asked, self.read = {}, {}, 0
        self.lock = threading.Lock()

    def batch(self, number):
        """Batch `number`, counted from 0; each rank asks for each once, in order."""
        with self.lock:
            while self.read <= number:
                self.held[self.read] = next(self.batches)
                self.read += 1
            batch = self.held[number]
            self.asked[number] = self.asked.get(number, 0) + 1
            if self.asked[number] == self.ranks:
                del self.held[number], self.asked[number]
            return batch


class Store:
    """A folder of models: `<hash>.safetensors`, and beside each what is known of it.

    The facts are `hash`, `parent` (the hash of the model put before), `query` (which rows it was
    trained on), `step`, and what the caller adds.
    """

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.entries = []

    def put(self, blob, facts):
        digest = hashlib.sha256(blob).hexdigest()
        parent = self.entries[-1]["hash"] if self.entries else None
        entry = {"hash": digest, "parent": parent, **facts}
        (self.folder / f"{digest}.safetensors").write_bytes(blob)
        self.entries.append(entry)
        (self.folder / "entries.json").write_text(json.dumps(self.entries, indent=1))
        return digest


def build():
    """The model, with the same weights wherever it is built."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.Tanh(),
                               torch.nn.Linear(32, CLASSES))


class Trainer:
    """One rank of a step, or all of them as threads where no ranks were started as processes."""

    def __init__(self, feed, evaluator, launcher, options):
        self.feed, self.evaluator, self.launcher, self.options = feed, evaluator, launcher, options

    def run(self):
        options, sent = self.options, []
        batch = self.tensors(0)
        step = cleave.compile(
            build(), example_inputs=batch, loss_fn=torch.nn.functional.cross_entropy,
            optimizer=cleave.AdamW(lr=1e-2), mesh={"dp": options.ranks},
            threads=1 if options.nodes == "processes" else options.ranks)
        for number in range(options.steps):
            loss = step(*batch)
            if (number + 1) % options.every == 0 or number + 1 == options.steps:
                state = step.state_dict()
                if step.rank in (0, None):
                    # A future: the next step does not wait for the evaluation.
                    sent.append(self.evaluator.later(
                        "evaluate", safetensors.torch.save(state), number + 1, float(loss)))
            if number + 1 < options.steps:
                batch = self.tensors(number + 1)
        if step.rank in (0, None):
            for future in sent:
                future.result()
            self.launcher.stop()

    def tensors(self, number):
        batch = self.feed.batch(number)
        return torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])


class Evaluator:
    """Computes the loss of models on rows of its own, and stores both."""

    def __init__(self, source, args, store, query):
        batch = next(iter(source(*args)))
        self.x, self.y = torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])
        self.store, self.query = store, query
        self.model, self.lock = build(), threading.Lock()

    def evaluate(self, blob, step, trained):
        with self.lock, torch.no_grad():
            self.model.load_state_dict(safetensors.torch.load(blob))
            loss = float(torch.nn.functional.cross_entropy(self.model(self.x), self.y))
            return self.store.put(blob, {"query": self.query, "step": step, "loss": trained,
                                         "held_out_loss": loss})
