# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Rows of a PostgreSQL database."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from .source import SQL, FeedError, driver


class Postgres(SQL):
    """The rows of a query to a PostgreSQL server, which is only read. Needs the driver
    `psycopg` (`pip install 'cleave[postgres]'`).

    Args:
        server: what libpq connects to: "postgresql://user@host/database" or
            "host=... dbname=...". A password belongs into the environment (PGPASSWORD) or
            ~/.pgpass.
        query: a SELECT, without an order of its own.
        key: the column of its result by which rows are ordered: unique, not null.
        parameters: values for `%s` in the query, or by name for `%(name)s`; with them, a `%` of
            its own is written `%%`.
    """

    _mark, _named = "%s", "%({})s"

    def __init__(self, server: str, query: str, *, key: str = "id",
                 parameters: Sequence[Any] | Mapping[str, Any] = ()):
        super().__init__(database_name(server), query, key, parameters)
        self._server = server
        if not parameters:
            self._text = self._text.replace("%", "%%")

    def _connect(self):
        connection = connect(self._server)
        connection.row_factory = driver("psycopg.rows", "postgres").dict_row
        connection.read_only = True
        return connection

    def _fetched(self, connection, text, given):
        psycopg = driver("psycopg", "postgres")
        try:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute(text, given)
                _check_columns([column.name for column in cursor.description])
                return cursor.fetchall()
        except (psycopg.Error, UnicodeError) as error:
            if connection.closed:
                self._connection = None  # The next page connects again.
            raise FeedError(one_line(error)) from error


def _check_columns(names):
    """A row is a dict of its columns, and has one of each name."""
    for name in names:
        if names.count(name) > 1:
            raise FeedError(f"the query has two columns named '{name}'; AS renames one")


def connect(server: str):
    """A connection. Raises FeedError if there is none."""
    psycopg = driver("psycopg", "postgres")
    try:
        return psycopg.connect(server, autocommit=True, connect_timeout=30)
    except psycopg.Error as error:
        raise FeedError(f"{database_name(server)}: cannot connect: {one_line(error)}"
                        ) from error


def database_name(server: str) -> str:
    """The host and the name of a database, for messages. Raises ValueError, whose text has
    nothing of `server`, which may have a password."""
    psycopg = driver("psycopg", "postgres")
    wrong = ("server is not what libpq connects to: postgresql://user@host/database, where other "
             "characters than letters and digits are written as %XX, or host=... dbname=..., where "
             "values with spaces are in single quotes. It is not printed, as it may have a password")
    try:
        facts = psycopg.conninfo.conninfo_to_dict(server)
    except (psycopg.Error, UnicodeError):
        raise ValueError(wrong) from None
    parts = [str(facts.get("host", "localhost")), str(facts.get("dbname", ""))]
    # Parts of a password with an @ or / of its own are taken for the host, the database or the
    # port, of which the library's own messages have the text.
    ports = str(facts.get("port", "")).replace(",", "")
    if any("@" in part for part in parts) or (ports and not ports.isdecimal()) or (
            facts.get("password") and any(str(facts["password"]) in part for part in parts)):
        raise ValueError(wrong)
    return f"postgresql {parts[0]}/{parts[1]}".rstrip("/")


def one_line(error: Exception) -> str:
    """The message of the server, in one line."""
    return " ".join(str(error).split())
