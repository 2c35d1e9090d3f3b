# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Where rows come from."""

from __future__ import annotations

import importlib
import os
import threading
from typing import Any, Iterable, Mapping, Sequence


class FeedError(RuntimeError):
    """A database cannot be read or written, or gave something else than it should."""


def driver(module: str, extra: str):
    """An imported driver. Raises FeedError, with what installs it, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise FeedError(f"the package '{module}' is not installed: pip install 'cleave[{extra}]'"
                        ) from None


def check_key(key: Any) -> str:
    """The name of a column. Raises TypeError or ValueError for anything else."""
    if not isinstance(key, str):
        raise TypeError(f"key is {key!r}; it must be the name of a column")
    if not key or "\0" in key:
        raise ValueError(f"key is {key!r}, which is not the name of a column")
    return key


class Source:
    """The rows of a query, in the order of a column whose values differ.

    A subclass gives `page` and `count`. Rows are read in pages, each by a query of its own that
    begins after the last row of the one before it: no transaction lasts as long as an epoch, and
    rows that others insert or remove meanwhile move no other row.

    Attributes:
        name: the database in messages, without a password.
        query: the query as text, as a store records it.
        key: the column (or field) of the order: unique, never null, and best one with an index.
    """

    name: str
    query: str
    key: str

    def page(self, after: Any, skip: int, limit: int) -> Iterable[Mapping[str, Any]]:
        """At most `limit` rows, ordered by `key`: those with `key > after` (all, if `after` is
        None) but for the first `skip`. Raises FeedError."""
        raise NotImplementedError

    def count(self) -> int:
        """The number of rows. Raises FeedError."""
        raise NotImplementedError


class SQL(Source):
    """A source whose query is a SELECT. A subclass opens a connection (`_connect`), runs a
    statement (`_fetched`), and says how parameters are marked: `_mark`, and `_named` by name."""

    def __init__(self, name, query, key, parameters):
        if not isinstance(query, str) or not query.strip().rstrip(";"):
            raise ValueError(f"query is {query!r}; it must be a SELECT")
        if isinstance(parameters, (str, bytes)) or not isinstance(parameters, (Sequence, Mapping)):
            raise TypeError(f"parameters is {type(parameters).__name__}, not a sequence of values, "
                            "or a dict of them by name")
        self.name = name
        self.key = check_key(key)
        self._text = query.strip().rstrip(";")
        self._parameters = parameters
        self.query = f"{self._text} with {parameters!r}" if parameters else self._text
        self._begin()

    def page(self, after, skip, limit):
        key = 'q."' + self.key.replace('"', '""') + '"'
        behind, given = "", self._parameters
        if after is not None:
            mark, given = self._with(after)
            behind = f" WHERE {key} > {mark}"
        return self._rows(f"SELECT * FROM ({self._text}\n) AS q{behind} "
                          f"ORDER BY {key} LIMIT {limit} OFFSET {skip}", given)

    def count(self):
        text = f"SELECT count(*) AS n FROM ({self._text}\n) AS q"
        return self._rows(text, self._parameters)[0]["n"]

    def _with(self, value):
        """The mark of one more parameter, and the parameters with its value."""
        if isinstance(self._parameters, Mapping):
            return self._named.format("cleave_after"), {**self._parameters, "cleave_after": value}
        return self._mark, (*self._parameters, value)

    def _begin(self):
        """A connection is used by one process, and by one thread at a time (`_turn`)."""
        self._connection, self._process, self._turn = None, os.getpid(), threading.Lock()

    def _rows(self, text, given):
        """The rows of a statement. Raises FeedError."""
        if self._process != os.getpid():
            self._begin()
        with self._turn:
            if self._connection is None:
                self._connection = self._connect()
            return self._fetched(self._connection, text, given)

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items()
                if name not in ("_connection", "_process", "_turn")}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._begin()
