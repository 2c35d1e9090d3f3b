# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Batches of the rows of a database."""

from __future__ import annotations

import random
from typing import Any, Callable, Iterator

from .collate import collate, on_row
from .source import FeedError, Source

#: A position holds the rows used in its low bits, and above them a check of the rows of an epoch:
#: a number of them modulo a prime, plus one; 0 where it does not matter, or is not known.
_ROW_BITS, _CHECKS = 44, (1 << 19) - 1


class Feed:
    """Batches of the rows of a source, which are cleaned and transformed while they are read.

    Iterating goes on from `position` and moves it: a feed whose position is set to that of
    another one gives what that one would have given next, also in another process. Rows are in
    the order of the source's key, or shuffled in blocks; a batch may span two epochs. Each row is
    in one batch of each epoch, on one rank. At most a page and a block of rows are in memory,
    beside a batch.

    Args:
        source: `SQLite`, `Postgres`, `Mongo`, or another `Source`. Its rows stay the same while a
            run lasts, which the end of each epoch checks; a condition in the query (`id <= ...`)
            leaves out what is added meanwhile.
        batch: samples of a batch, of all ranks together.
        clean: gets a row, a dict of its columns, and returns one, or None to leave it out.
        transform: gets a cleaned row and returns a sample: a number, an array or a tensor, or a
            dict or tuple of these; by default the dict of all columns but the key. Batches are
            samples that are stacked, as tensors: `step(*batch)` of tuples, `step(**batch)` of
            dicts.
        shuffle: rows of a block that is permuted, anew in each epoch; 0 for none.
        seed: of these permutations.
        epochs: how often all rows are read; None for no end.
        drop_last: leave out an incomplete batch at the end of the last epoch, which is shorter.
        rank, ranks: the part of each batch that this feed gives: that of one rank of a mesh axis,
            the `rank`-th of `ranks` parts. Rows of other parts are cleaned, and not transformed.
            For processes that compute by themselves; a compiled step takes the whole batch in
            each of its processes, and shards it in the same way.
        page: rows of one query.

    Raises:
        FeedError: while iterating. The database cannot be read, the query fails, at its beginning
            or half-way, a key is null or is there twice, rows were added or removed, `clean` or
            `transform` raises, or samples cannot be stacked. The position is that after the
            last batch.
    """

    def __init__(self, source: Source, *, batch: int,
                 clean: Callable[[dict], dict | None] | None = None,
                 transform: Callable[[dict], Any] | None = None, shuffle: int = 0, seed: int = 0,
                 epochs: int | None = None, drop_last: bool = False, rank: int = 0,
                 ranks: int = 1, page: int = 1000):
        if not isinstance(source, Source):
            raise TypeError(f"source is {type(source).__name__}, not a cleave.feed.Source")
        for name, value, low in (("batch", batch, 1), ("shuffle", shuffle, 0), ("seed", seed, 0),
                                 ("epochs", 1 if epochs is None else epochs, 1),
                                 ("ranks", ranks, 1), ("rank", rank, 0), ("page", page, 1)):
            _check(name, value, low)
        for name, value in (("clean", clean), ("transform", transform)):
            if value is not None and not callable(value):
                raise TypeError(f"{name} is {type(value).__name__}, not a function")
        if not isinstance(drop_last, bool):
            raise TypeError(f"drop_last is {drop_last!r}; it must be True or False")
        if batch % ranks:
            raise ValueError(f"batch is {batch}, which is not divisible by {ranks} ranks")
        if rank >= ranks:
            raise ValueError(f"rank is {rank}; of {ranks} ranks the last one is {ranks - 1}")
        self.source = source
        self.batch = batch
        self._clean, self._transform = clean, transform
        self._shuffle, self._seed, self._epochs = shuffle, seed, epochs
        self._drop_last, self._page = drop_last, page
        self._rank, self._ranks = rank, ranks
        self._count = None  # Rows of an epoch, when known.
        self._used, self._check = 0, 0  # The two parts of the position.

    @property
    def position(self) -> int:
        """Where the feed is, as one number that fits `Step.data_position`. Within the first epoch
        it is `used`. In later epochs and in the last block that is shuffled, the following rows
        depend on the number of rows of an epoch: there it also holds a check of this number, and
        a feed that has more or fewer rows refuses it. A plain number of rows is taken without
        this check."""
        check = self._check
        if not check and self._count is not None:
            settled = self._count - self._count % (self._shuffle or 1)
            check = _check_of(self._count) if self._used > settled else 0
        return check << _ROW_BITS | self._used

    @position.setter
    def position(self, value: int) -> None:
        _check("position", value, 0)
        if value >> _ROW_BITS > _CHECKS:
            raise ValueError(f"position is {value}, which is none that a feed has had")
        self._check, self._used = divmod(value, 1 << _ROW_BITS)

    @property
    def used(self) -> int:
        """The number of rows that were used since the start, over all epochs and ranks, with those
        that were left out."""
        return self._used

    def __iter__(self) -> Iterator[Any]:
        """Batches from `position` on."""
        chosen: list[dict] = []
        end = self._used
        for row, end in self._rows():
            if row is None:
                continue
            chosen.append(row)
            if len(chosen) == self.batch:
                yield self._batch_of(chosen, end)
                chosen = []
        if chosen and not self._drop_last:
            last = self._batch_of(chosen, end)
            if last is not None:  # There may be fewer samples than ranks.
                yield last
        self._used = end

    def samples(self) -> Iterator[Any]:
        """The samples from `position` on, one by one, of all ranks."""
        for row, end in self._rows():
            if row is not None:
                sample = self._sample(row)
                self._used = end
                yield sample
            else:
                self._used = end

    def _batch_of(self, rows, end):
        part = -(-len(rows) // self._ranks)
        own = rows[self._rank * part : (self._rank + 1) * part]
        batch = None
        if own:
            batch = collate([self._sample(row) for row in own], [self._place(row) for row in own])
        self._used = end
        return batch

    def _place(self, row):
        return f"{self.source.name}: row {self.source.key}={row.get(self.source.key)!r}"

    def _sample(self, row):
        if self._transform is not None:
            return on_row(self._transform, row, "transform", self._place(row))
        return {name: value for name, value in row.items() if name != self.source.key}

    # ------------------------------------------------------------------- rows

    def _rows(self):
        """Cleaned rows from the position on, None for those that are left out, each with the
        position after it."""
        epoch, at = (divmod(self._used, self._known_count()) if self._used or self._check
                     else (0, 0))
        if self._check and self._check != _check_of(self._count):
            raise FeedError(
                f"{self.source.name}: the query has {self._count} rows, and had more or fewer when "
                f"this position was taken: row {self._used} since the start would be another one. A "
                "condition in the query (id <= ...) leaves out what was added; setting the "
                f"position to a number of rows ({self._used} were used) counts by the rows of now")
        self._check = 0
        if self._epochs is not None and (epoch, min(at, 1)) > (self._epochs, 0):
            raise FeedError(f"{self.source.name}: position {self._used} is behind the "
                            f"{self._epochs} epochs of {self._count} rows")
        while self._epochs is None or epoch < self._epochs:
            kept, first = 0, at
            for row in self._epoch(epoch, at):
                at += 1
                row = self._cleaned(row)
                kept += row is not None
                yield row, epoch * (self._count or 0) + at
            self._check_count(at)
            if not kept and not first:
                raise FeedError(f"{self.source.name}: clean left out every row of an epoch")
            epoch, at = epoch + 1, 0

    def _cleaned(self, row):
        if self._clean is None:
            return row
        place = self._place(row)
        cleaned = on_row(self._clean, row, "clean", place)
        if cleaned is not None and not isinstance(cleaned, dict):
            raise FeedError(f"{place}: clean returned {type(cleaned).__name__}, not a dict or None")
        return cleaned

    def _epoch(self, epoch, at):
        """The rows of an epoch from the one at place `at` on, in the order of the epoch."""
        if not self._shuffle:
            yield from self._ordered(epoch, at)
            return
        number, skip = divmod(at, self._shuffle)
        block: list[dict] = []
        for row in self._ordered(epoch, number * self._shuffle):
            block.append(row)
            if len(block) == self._shuffle:
                yield from self._permuted(block, epoch, number)[skip:]
                block, number, skip = [], number + 1, 0
        if block:  # Permuted by all of its rows: a position in it holds their number.
            self._check_count(number * self._shuffle + len(block))
        yield from self._permuted(block, epoch, number)[skip:]

    def _permuted(self, block, epoch, number):
        random.Random(f"{self._seed} {epoch} {number}").shuffle(block)
        return block

    def _ordered(self, epoch, at):
        """The rows of an epoch in the order of the key, in pages."""
        after, skip, key = None, at, self.source.key
        while True:
            try:
                rows = self.source.page(after, skip, self._page)
            except FeedError as error:
                raise FeedError(f"{self.source.name}: the query failed after {at} rows of epoch "
                                f"{epoch}: {error}") from error
            for row in rows:
                row = dict(row)
                value = row.get(key)
                if value is None:
                    what = "is null" if key in row else f"is not there ({', '.join(row)} are)"
                    raise FeedError(f"{self.source.name}: the key '{key}' {what} in row {at} of "
                                    f"epoch {epoch}")
                if value == after:
                    raise FeedError(f"{self.source.name}: the key '{key}' has the value {value!r} "
                                    "twice; rows are ordered by a column whose values differ")
                after, at = value, at + 1
                yield row
            if len(rows) < self._page:
                return
            skip = 0

    def _known_count(self):
        if self._count is None:
            self._check_count(self._counted())
        return self._count

    def _counted(self):
        try:
            return self.source.count()
        except FeedError as error:
            raise FeedError(f"{self.source.name}: the query failed: {error}") from error

    def _check_count(self, rows):
        """At the end of an epoch of so many rows."""
        if not rows:
            raise FeedError(f"{self.source.name}: the query has no rows")
        expected = self._counted() if self._count is None else self._count
        if rows != expected:
            raise FeedError(
                f"{self.source.name}: the query gave {rows} rows in an epoch, and has {expected}: "
                f"rows were added or removed, or the key '{self.source.key}' is null or there "
                "twice; a condition in the query (id <= ...) leaves out what is added meanwhile")
        self._count = rows


def _check_of(rows):
    return rows % _CHECKS + 1


def _check(name, value, low):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be an integer")
    if value < low:
        raise ValueError(f"{name} is {value}; it must be at least {low}")
