# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Training data from a database, and trained models into one.

    SQLite, Postgres, Mongo   the rows of a query, in the order of a unique column
    Feed                      batches of these rows, for a step; its position is a number
    Store, Record             checkpoints in a database, and what is known of each
    FeedError                 what went wrong, and where

The files:

    source, sqlite, postgres, mongo   where rows come from; another one is a subclass of `Source`
    reader, collate                   `Feed`; from samples to the tensors of a batch
    store, tables                     `Store`; its tables in each kind of database

Nothing here imports PyTorch before the first batch, or a driver before its first use.
"""

from .mongo import Mongo
from .postgres import Postgres
from .reader import Feed
from .source import FeedError, Source
from .sqlite import SQLite
from .store import Record, Store

__all__ = ["Feed", "FeedError", "Mongo", "Postgres", "Record", "SQLite", "Source", "Store"]
