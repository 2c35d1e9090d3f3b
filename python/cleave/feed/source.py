# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Where rows come from."""

from __future__ import annotations

import importlib
import os
from typing import Any, Iterable, Mapping


class FeedError(RuntimeError):
    """A database cannot be read or written, or gave something else than it should."""


def driver(module: str, extra: str):
    """An imported driver. Raises FeedError, with what installs it, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise FeedError(f"the package '{module}' is not installed: pip install 'cleave[{extra}]'"
                        ) from None


class Source:
    """The rows of a query, in the order of a column whose values differ.

    A subclass gives `page` and `count`. Rows are read in pages, each by a query of its own that
    begins behind the last row of the one before it: no transaction lasts as long as an epoch, and
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
    statement (`_rows`), and says how parameters are marked: `_mark`, and `_named` by name."""

    def __init__(self, name, query, key, parameters):
        if not isinstance(query, str) or not query.strip().rstrip(";"):
            raise ValueError(f"query is {query!r}; it must be a SELECT")
        self.name = name
        self.key = key
        self._text = query.strip().rstrip(";")
        self._parameters = parameters
        self.query = f"{self._text} with {parameters!r}" if parameters else self._text
        self._connection = None
        self._process = os.getpid()

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

    def _connected(self):
        """The connection of this process, opened at its first use."""
        if self._connection is None or self._process != os.getpid():
            self._process = os.getpid()
            self._connection = self._connect()
        return self._connection

    def __getstate__(self):
        return {**self.__dict__, "_connection": None}
