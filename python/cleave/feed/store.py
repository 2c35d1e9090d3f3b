# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Trained models in a database."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import shutil
import tempfile
import weakref
from typing import Any

from .source import FeedError
from .tables import open_tables

#: The files of a checkpoint, in the order in which they are hashed.
_FILES = ("model.safetensors", "optimizer.safetensors", "training.json")
#: Bytes of a part of a file, of which one is in memory.
_PART = 4 << 20


@dataclasses.dataclass(frozen=True)
class Record:
    """The facts that a store has of a model.

    Attributes:
        hash: SHA-256 of the files of its checkpoint, one after another: parameters, optimizer
            state, training.json.
        parent: the hash of the model that it was trained from; None for the first.
        query: that of the rows that it was trained on; None if not given.
        step: completed steps.
        created: when it was stored, in UTC (ISO 8601).
        size: bytes of the files.
    """

    hash: str
    parent: str | None
    query: str | None
    step: int
    created: str
    size: int


class Store:
    """Checkpoints in a database, found by what is known of them. Another process goes on from one,
    or infers by it. A model is there in whole or not at all.

    Args:
        where: the path of an SQLite file, which is made; the address of a PostgreSQL server, as
            `Postgres` takes it; or a `pymongo` database. Tables are made at the first use: `cleave_models`, and
            `cleave_model_parts` with the files in parts of 4 MiB.

    Raises:
        FeedError: the database cannot be opened; also of all methods.
    """

    def __init__(self, where: Any):
        self._tables = open_tables(where)
        self._tables.create()
        self._parents = weakref.WeakKeyDictionary()  # Of steps.

    def save(self, model, *, query: str | None = None, parent: str | None = None) -> str:
        """Stores a model.

        Args:
            model: a compiled `Step`, or the folder of a checkpoint that `Step.save` or
                `cleave-run` has written. If ranks are processes, all call it, and the first one
                stores.
            query: `Feed.source.query`, or any text, by which models are found.
            parent: the hash of the model that it was trained from. By default that which this
                store last saved of the same step or loaded into it.

        Returns:
            Its hash. Storing the same again changes nothing.

        Raises:
            FileNotFoundError: there is no checkpoint in the folder.
            StepError: its values are not finite.
        """
        _check_text(query=query, parent=parent)
        if isinstance(model, (str, os.PathLike)):
            return self._add(os.fspath(model), query, parent)
        # PyTorch is loaded where a model is.
        import cleave
        from ..runtime.processes import lead

        if not isinstance(model, cleave.Step):
            raise TypeError(f"model is {type(model).__name__}, not a compiled step or the folder of "
                            "a checkpoint")
        processes = model._processes
        parent = self._parents.get(model) if parent is None else parent
        with _removed() as folders:
            place = os.path.join(
                lead(processes, "make a folder", lambda: _temporary(folders)), "step")
            model.save(place)
            name = lead(processes, "store a model", lambda: self._add(place, query, parent))
        self._parents[model] = name
        return name

    def load(self, name: str | Record, into) -> Record:
        """Reads a stored model into a `torch.nn.Module`, which gets parameters and buffers, or a
        compiled `Step`, which goes on from there, as `cleave.load` does.

        Args:
            name: a record, its hash, or the beginning of it that no other has.

        Raises:
            FeedError: there is no such model, or its files are damaged.
            KeyError, TypeError, ValueError: it does not fit; nothing is changed.
        """
        import cleave
        from ..runtime.processes import together

        processes = into._processes if isinstance(into, cleave.Step) else None
        record = together(processes, "find a model", lambda: self._found(name))
        # A module needs no optimizer state.
        files = (_FILES if isinstance(into, cleave.Step) else
                 ("model.safetensors", "training.json"))
        with _removed() as folders:
            folder = together(processes, "read a model",
                              lambda: self._unpack(record, files, folders))
            cleave.load(folder, into)
        if isinstance(into, cleave.Step):
            self._parents[into] = record.hash
        return record

    def fetch(self, name: str | Record, folder: str | os.PathLike) -> Record:
        """Writes a stored model as a checkpoint, for `cleave-run --resume`. The folder must be
        empty or new; where an error is raised, it has no checkpoint."""
        from ..trace.weights import sync_folder

        record, folder = self._found(name), os.fspath(folder)
        fresh = not os.path.exists(folder)
        os.makedirs(folder, exist_ok=True)
        if os.listdir(folder):
            raise FileExistsError(f"{folder}: is not empty; nothing of it is replaced")
        try:
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as place:
                self._write(record, place, _FILES)
                # The last one makes it a checkpoint.
                for file in _FILES:
                    os.replace(os.path.join(place, file), os.path.join(folder, file))
                    sync_folder(folder)
        except BaseException:
            if fresh:
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            raise
        return record

    def find(self, *, query: str | None = None, parent: str | None = None,
             step: int | None = None) -> list[Record]:
        """All models, or those of a query, a parent or a step; oldest first."""
        _check_text(query=query, parent=parent)
        if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
            raise TypeError(f"step is {step!r}; it must be an integer")
        wanted = {"query": query, "parent": parent, "step": step}
        return [record for record in map(_record, self._tables.all())
                if all(value is None or getattr(record, name) == value
                       for name, value in wanted.items())]

    def latest(self, **wanted) -> Record:
        """The model of `find` that was stored last. Raises FeedError if there is none."""
        found = self.find(**wanted)
        if not found:
            what = " and ".join(f"{name} {value!r}" for name, value in wanted.items())
            raise FeedError(f"{self._tables.name}: no model{what and ' with '}{what}")
        return found[-1]

    def remove(self, name: str | Record) -> None:
        """Removes a model; what was trained from it stays."""
        self._tables.remove(self._found(name).hash)

    # ------------------------------------------------------------------ files

    def _add(self, folder, query, parent):
        missing = [file for file in _FILES if not os.path.isfile(os.path.join(folder, file))]
        if missing:
            raise FileNotFoundError(f"{folder}: no checkpoint here ({missing[0]} is missing)")
        whole, files = hashlib.sha256(), {}
        for file in _FILES:
            own, size = hashlib.sha256(), 0
            for data in _read_parts(os.path.join(folder, file)):
                whole.update(data)
                own.update(data)
                size += len(data)
            files[file] = {"bytes": size, "sha256": own.hexdigest()}
        with open(os.path.join(folder, "training.json"), encoding="utf-8") as text:
            step = json.load(text)["step"]
        created = datetime.datetime.now(datetime.timezone.utc).isoformat()
        facts = {"hash": whole.hexdigest(), "parent": parent, "query": query, "step": step,
                 "created": created, "files": json.dumps(files)}
        self._tables.add(facts, ((file, number, data) for file in _FILES for number, data in
                                 enumerate(_read_parts(os.path.join(folder, file)))))
        return facts["hash"]

    def _found(self, name):
        name = name.hash if isinstance(name, Record) else name
        found = [facts for facts in self._tables.all() if name and facts["hash"].startswith(name)]
        if len(found) != 1:
            raise FeedError(f"{self._tables.name}: {len(found) or 'no'} models whose hash begins "
                            f"with {name!r}")
        return _record(found[0])

    def _unpack(self, record, files, folders):
        folder = _temporary(folders)
        self._write(record, folder, files)
        return folder

    def _write(self, record, folder, files):
        """Writes files of a model. All of them are read, and compared with its hashes."""
        from ..trace.weights import sync_file

        facts = next((f for f in self._tables.all() if f["hash"] == record.hash), None)
        if facts is None:
            raise FeedError(f"{self._tables.name}: the model {record.hash[:12]} was removed")
        known, whole = json.loads(facts["files"]), hashlib.sha256()
        for file in _FILES:
            own = hashlib.sha256()
            with open(os.path.join(folder, file) if file in files else os.devnull, "wb") as out:
                for data in self._tables.parts(record.hash, file):
                    own.update(data)
                    whole.update(data)
                    out.write(data)
                if file in files:
                    sync_file(out)
            if own.hexdigest() != known[file]["sha256"]:
                raise FeedError(f"{self._tables.name}: {file} of the model {record.hash[:12]} is "
                                "damaged: its hash is another one")
        if whole.hexdigest() != record.hash:
            raise FeedError(f"{self._tables.name}: the record of the model {record.hash[:12]} is "
                            "damaged: the hash of its files is another one")


def _check_text(**given):
    """Raises TypeError for what is neither text nor left out."""
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}; it must be text")


@contextlib.contextmanager
def _removed():
    """A list of folders that are removed at the end."""
    folders = []
    try:
        yield folders
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _temporary(folders):
    folders.append(tempfile.mkdtemp(prefix="cleave-"))
    return folders[-1]


def _record(facts):
    size = sum(file["bytes"] for file in json.loads(facts["files"]).values())
    return Record(facts["hash"], facts["parent"], facts["query"], facts["step"], facts["created"],
                  size)


def _read_parts(path):
    with open(path, "rb") as file:
        while data := file.read(_PART):
            yield data
