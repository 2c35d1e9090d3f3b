# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Rows of a feed, and their order."""

import itertools

ROWS = [(3 * i + 1, i * i % 17) for i in range(50)]
IDS = [key for key, _ in ROWS]


def ids(feed, count=None):
    """The keys of the batches that a feed gives."""
    return [batch.tolist() for batch in itertools.islice(feed, count)]


def key(row):
    return row["id"]
