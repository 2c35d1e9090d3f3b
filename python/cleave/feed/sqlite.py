# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Rows of an SQLite file."""

from __future__ import annotations

import os
import sqlite3
import urllib.parse
from typing import Any, Mapping, Sequence

from .source import SQL, FeedError


class SQLite(SQL):
    """The rows of a query to an SQLite file, which is only read.

    Args:
        path: the file.
        query: a SELECT, without an order of its own.
        key: the column of its result by which rows are ordered: unique, not null.
        parameters: values for `?` in the query, or by name for `:name`.
    """

    _mark, _named = "?", ":{}"

    def __init__(self, path: str | os.PathLike, query: str, *, key: str = "id",
                 parameters: Sequence[Any] | Mapping[str, Any] = ()):
        super().__init__(os.fspath(path), query, key, parameters)

    def _connect(self):
        if not os.path.isfile(self.name):
            raise FeedError(f"{self.name}: there is no such file")
        place = urllib.parse.quote(os.path.abspath(self.name))
        # Threads take turns: a feed is read by one at a time.
        connection = sqlite3.connect(f"file:{place}?mode=ro", uri=True, timeout=60,
                                     check_same_thread=False)
        connection.row_factory = sqlite3.Row
        return connection

    def _fetched(self, connection, text, given):
        try:
            return connection.execute(text, given).fetchall()
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
            # The last two: a parameter of more than 64 bits, a query that is not UTF-8.
            raise FeedError(str(error)) from error
