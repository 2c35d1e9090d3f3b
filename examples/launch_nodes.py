# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The nodes of launch_training.py: feed, trainer, evaluator and store."""

import contextlib
import hashlib
import json
import pathlib
import sqlite3
import threading

import numpy as np
import safetensors.torch
import torch

import cleave
import cleave.feed

FEATURES, CLASSES = 8, 3


#: Rows of the training data, or those that are held out.
QUERY = "SELECT id, x, y FROM rows WHERE held_out = ?"
BUILDING = threading.Lock()


def write_rows(path, trained, held_out):
    """Makes an SQLite database of samples: `x`, FEATURES float32 as bytes, and `y`, a class."""
    direction = np.random.default_rng(1).normal(size=(FEATURES, CLASSES))
    x = np.random.default_rng(2).normal(size=(trained + held_out, FEATURES)).astype(np.float32)
    y = np.argmax(np.tanh(x) @ direction + (x @ direction) ** 2, 1)
    path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, held_out INTEGER, x BLOB, y INTEGER)")
        database.executemany("INSERT INTO rows (held_out, x, y) VALUES (?, ?, ?)",
                             [(i >= trained, x[i].tobytes(), int(y[i])) for i in range(len(x))])
        database.commit()


def sample(row):
    return {"x": np.frombuffer(row["x"], np.float32), "y": row["y"]}


def batches(path, batch, held_out):
    """Batches of the rows of QUERY, without an end: what the feed iterates over."""
    rows = cleave.feed.SQLite(path, QUERY, parameters=[held_out])
    return cleave.feed.Feed(rows, batch=batch, transform=sample)


class Feed:
    """Gives each batch to every rank; holds those that a rank may still ask for.

    Args:
        source: a function of `args` that returns what iterates over batches.
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
    """A folder of models: `<hash>.safetensors`, and in entries.json what is known of each.
    (`cleave.feed.Store` keeps whole checkpoints in a database.)

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
    # Nodes that are threads share the random numbers of their process.
    with BUILDING:
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
        step = cleave.compile(build(), example_inputs=batch,
                              loss_fn=torch.nn.functional.cross_entropy,
                              optimizer=cleave.AdamW(lr=1e-2), mesh={"dp": options.ranks},
                              target=cleave.Target(threads=1 if options.nodes == "processes" else options.ranks))
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
        return batch["x"], batch["y"]


class Evaluator:
    """Computes the loss of models on rows of its own, and stores both."""

    def __init__(self, source, args, store, query):
        self.batch = next(iter(source(*args)))
        self.store, self.query = store, query
        self.model, self.lock = build(), threading.Lock()

    def evaluate(self, blob, step, trained):
        with self.lock, torch.no_grad():
            self.model.load_state_dict(safetensors.torch.load(blob))
            loss = float(torch.nn.functional.cross_entropy(self.model(self.batch["x"]), self.batch["y"]))
            return self.store.put(blob, {"query": self.query, "step": step, "loss": trained,
                                         "held_out_loss": loss})
