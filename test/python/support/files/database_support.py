# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Databases for tests: SQLite files, a PostgreSQL server of a test's own, and `mongomock` in the
place of MongoDB."""

import getpass
import glob
import importlib
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time

import pytest

from cleave.feed import Mongo, Postgres, SQLite

KINDS = ("sqlite", "postgres", "mongo")


def needs(module):
    """Imports a driver, or skips the test."""
    try:
        return importlib.import_module(module)
    except ImportError:
        pytest.skip(f"the package {module} is not installed")


def _programs():
    """The folder of the server's programs; tests are skipped without."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
    path = found[-1] if found else shutil.which("postgres")
    if not path:
        pytest.skip("there is no PostgreSQL server (Debian's package postgresql)")
    return os.path.dirname(path)


class Server:
    """A PostgreSQL server that listens at a socket in a folder of its own."""

    def __init__(self, folder):
        programs = _programs()
        self.folder = folder
        # It does not run as root.
        self._as = {}
        if os.getuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.user = pwd.getpwuid(self._as["user"]).pw_name if self._as else getpass.getuser()
        data = os.path.join(folder, "data")
        subprocess.run([f"{programs}/initdb", "-D", data, "-A", "trust", "--no-sync",
                        "-U", self.user], check=True, capture_output=True, cwd=folder, **self._as)
        self._log = open(os.path.join(folder, "log"), "wb")
        # It ends with this process, however this one ends.
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "INT", f"{programs}/postgres", "-D", data, "-k", folder,
             "-c", "listen_addresses=", "-c", "fsync=off"],
            stdout=self._log, stderr=self._log, cwd=folder, **self._as)
        self.address = f"postgresql://{self.user}@/postgres?host={folder}"
        self._wait()

    def _wait(self):
        for _ in range(200):
            try:
                self.connect().close()
                return
            except importlib.import_module("psycopg").OperationalError:
                assert self._process.poll() is None, open(self._log.name).read()
                time.sleep(0.05)
        raise AssertionError(open(self._log.name).read())

    def connect(self):
        return needs("psycopg").connect(self.address, autocommit=True)

    def stop(self):
        self._process.send_signal(signal.SIGINT)  # It waits for no client.
        self._process.wait(60)
        self._log.close()


@pytest.fixture(scope="module")
def server():
    needs("psycopg")
    folder = tempfile.mkdtemp(prefix="cleave-pg-", dir="/tmp")
    try:
        started = Server(folder)
        yield started
        started.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Databases:
    """Tables of integers `id` and `x` in each kind of database."""

    def __init__(self, folder, request):
        self._folder, self._request = folder, request
        self._mongo = None

    def sqlite(self, name="rows"):
        return self._folder / f"{name}.db"

    def mongo(self):
        if self._mongo is None:
            needs("pymongo")
            self._mongo = needs("mongomock").MongoClient()["test"]
        return self._mongo

    def server(self):
        return self._request.getfixturevalue("server")

    def fill(self, kind, rows, name="rows"):
        """Writes rows (id, x), an older table of this name is replaced."""
        rows = list(rows)
        if kind == "mongo":
            self.mongo()[name].drop()
            if rows:
                self.mongo()[name].insert_many([{"_id": i, "x": x} for i, x in rows])
            return
        connection = sqlite3.connect(self.sqlite(name)) if kind == "sqlite" else (
            self.server().connect())
        mark = "?" if kind == "sqlite" else "%s"
        with connection:
            cursor = connection.cursor()
            cursor.execute(f"DROP TABLE IF EXISTS {name}")
            cursor.execute(f"CREATE TABLE {name} (id BIGINT, x BIGINT)")
            cursor.executemany(f"INSERT INTO {name} VALUES ({mark}, {mark})", rows)
            cursor.execute(f"CREATE INDEX {name}_id ON {name} (id)")
        connection.close()

    def source(self, kind, query=None, name="rows", **more):
        """The rows of a table, with their key named `id`, or another query to it."""
        if kind == "mongo":
            own = [{"$project": {"_id": 0, "id": "$_id", "x": 1}}] if query is None else query
            return Mongo(self.mongo()[name], own, **{"key": "id", **more})
        query = f"SELECT id, x FROM {name}" if query is None else query
        if kind == "sqlite":
            return SQLite(self.sqlite(name), query, **more)
        return Postgres(self.server().address, query, **more)


@pytest.fixture
def databases(tmp_path, request):
    return Databases(tmp_path, request)
