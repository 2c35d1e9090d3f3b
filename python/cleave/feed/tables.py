# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The tables of a store in SQLite, PostgreSQL and MongoDB.

    cleave_models       one row a model: hash, parent, query, step, created, files (JSON)
    cleave_model_parts  the bytes of its files, in parts: hash, file, part, data

Each class writes a model in whole or not at all, and has the same methods.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from typing import Iterable, Iterator

from .postgres import connect, database_name, one_line
from .source import FeedError, driver

#: The facts of a model, in the order of the columns.
COLUMNS = ("hash", "parent", "query", "step", "created", "files")


def open_tables(where):
    """The tables in what a user names."""
    if isinstance(where, str) and re.match(r"postgres(ql)?://|(.*\s)?(dbname|host|service)\s*=", where):
        return PostgresTables(where)
    if isinstance(where, (str, os.PathLike)):
        if os.fspath(where) in ("", ":memory:"):
            raise ValueError(f"where is {os.fspath(where)!r}: SQLite would keep no file, and lose "
                             "what is stored; name a file")
        return SQLiteTables(os.fspath(where))
    if hasattr(where, "list_collection_names"):
        return MongoTables(where)
    raise TypeError(f"where is {type(where).__name__}, not the path of an SQLite file, a "
                    "postgresql:// address or a pymongo database")


class SQLTables:
    """A subclass gives `_run(work)`, which calls `work(cursor)` in a transaction."""

    _mark, _bytes = "?", "BLOB"

    def create(self):
        self._run(self._make)

    def _make(self, cursor):
        for text in (
            "CREATE TABLE IF NOT EXISTS cleave_models (hash TEXT PRIMARY KEY, parent TEXT, "
            "query TEXT, step BIGINT NOT NULL, created TEXT NOT NULL, files TEXT NOT NULL)",
            "CREATE TABLE IF NOT EXISTS cleave_model_parts (hash TEXT, file TEXT, part INTEGER, "
            f"data {self._bytes} NOT NULL, PRIMARY KEY (hash, file, part))",
        ):
            cursor.execute(text)

    def add(self, facts: dict, parts: Iterable[tuple[str, int, bytes]]) -> None:
        """Stores a model, unless it is there."""
        marks = ", ".join([self._mark] * len(COLUMNS))

        def work(cursor):
            cursor.execute(f"INSERT INTO cleave_models ({', '.join(COLUMNS)}) VALUES ({marks}) "
                           "ON CONFLICT DO NOTHING", [facts[name] for name in COLUMNS])
            if not cursor.rowcount:
                return
            for file, number, data in parts:
                cursor.execute("INSERT INTO cleave_model_parts (hash, file, part, data) VALUES "
                               f"({', '.join([self._mark] * 4)})",
                               (facts["hash"], file, number, data))
        self._run(work)

    def all(self) -> list[dict]:
        """The facts of each model, oldest first."""
        def work(cursor):
            cursor.execute(f"SELECT {', '.join(COLUMNS)} FROM cleave_models ORDER BY created, step")
            return [dict(zip(COLUMNS, row)) for row in cursor.fetchall()]
        return self._run(work)

    def parts(self, name: str, file: str) -> Iterator[bytes]:
        """The bytes of a file, part by part."""
        number = 0
        while True:
            def work(cursor):
                cursor.execute("SELECT data FROM cleave_model_parts WHERE hash = "
                               f"{self._mark} AND file = {self._mark} AND part = {self._mark}",
                               (name, file, number))
                return cursor.fetchone()
            row = self._run(work)
            if row is None:
                return
            yield bytes(row[0])
            number += 1

    def remove(self, name: str) -> None:
        def work(cursor):
            for table in ("cleave_models", "cleave_model_parts"):
                cursor.execute(f"DELETE FROM {table} WHERE hash = {self._mark}", (name,))
        self._run(work)


class SQLiteTables(SQLTables):
    def __init__(self, path: str):
        self.name = path

    def _run(self, work):
        try:
            connection = sqlite3.connect(self.name, timeout=60)
            try:
                with connection:
                    return work(connection.cursor())
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise FeedError(f"{self.name}: {error}") from error


class PostgresTables(SQLTables):
    _mark, _bytes = "%s", "BYTEA"

    def __init__(self, server: str):
        self.name = database_name(server)
        self._server = server
        self._connection, self._process, self._turn = None, os.getpid(), threading.Lock()

    def _make(self, cursor):
        # Of two that make a table at once the server refuses one, also with IF NOT EXISTS. Who
        # may only read finds both.
        cursor.execute("SELECT to_regclass('cleave_models') IS NOT NULL AND "
                       "to_regclass('cleave_model_parts') IS NOT NULL")
        if not cursor.fetchone()[0]:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('cleave_models'))")
            super()._make(cursor)

    def _run(self, work):
        psycopg = driver("psycopg", "postgres")
        if self._process != os.getpid():
            # A connection is used by the process that opened it, not by one that it has forked.
            self._connection, self._process, self._turn = None, os.getpid(), threading.Lock()
        # Threads take turns: a transaction within another one is a part of it.
        with self._turn:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._server)
            try:
                with self._connection.transaction(), self._connection.cursor() as cursor:
                    return work(cursor)
            except psycopg.Error as error:
                raise FeedError(f"{self.name}: {one_line(error)}") from error


class MongoTables:
    """Parts are written first, and the model last, which makes them visible."""

    def __init__(self, database):
        driver("pymongo", "mongo")
        self.name = f"mongodb {database.name}"
        self._models = database["cleave_models"]
        self._parts = database["cleave_model_parts"]

    def _run(self, work):
        from pymongo.errors import PyMongoError

        try:
            return work()
        except PyMongoError as error:
            raise FeedError(f"{self.name}: {error}") from error

    def create(self):
        self._run(lambda: self._parts.create_index(
            [("hash", 1), ("file", 1), ("part", 1)], unique=True))

    def add(self, facts, parts):
        def work():
            if self._models.find_one({"_id": facts["hash"]}):
                return
            for file, number, data in parts:
                place = {"hash": facts["hash"], "file": file, "part": number}
                self._put(self._parts, place, {"data": data})
            self._put(self._models, {"_id": facts["hash"]}, facts)
        self._run(work)

    @staticmethod
    def _put(collection, place, more):
        from pymongo.errors import DuplicateKeyError

        try:
            collection.replace_one(place, {**place, **more}, upsert=True)
        except DuplicateKeyError:
            # Another process has made it in between.
            collection.replace_one(place, {**place, **more})

    def all(self):
        order = [("created", 1), ("step", 1)]
        return self._run(lambda: [{name: found[name] for name in COLUMNS}
                                  for found in self._models.find().sort(order)])

    def parts(self, name, file):
        number = 0
        while True:
            place = {"hash": name, "file": file, "part": number}
            found = self._run(lambda: self._parts.find_one(place))
            if found is None:
                return
            yield bytes(found["data"])
            number += 1

    def remove(self, name):
        self._run(lambda: self._models.delete_one({"_id": name}))
        self._run(lambda: self._parts.delete_many({"hash": name}))
