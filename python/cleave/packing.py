# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Documents of different lengths, packed in rows of one length (docs/data/Packing.md)."""

from __future__ import annotations

import bisect
import dataclasses
import typing
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

if typing.TYPE_CHECKING:
    import torch

#: A label that has no loss, as in PyTorch.
IGNORED = -100

METHODS = ("best-fit", "first-fit", "in-order")


@dataclasses.dataclass(frozen=True)
class Piece:
    """Tokens [start, stop) of a document, in a pack from `offset` on."""

    document: int
    start: int
    stop: int
    offset: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class Packs:
    """Rows of packed documents, int64, [packs, length].

    The first label of each document is -100, so that no token is predicted from the
    document before it; labels of padding are too. Positions restart at each document,
    and segments are numbered from 0 in each row. Padding is a document of its own.
    """

    input_ids: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    segment_ids: np.ndarray
    #: The documents of each row, in order.
    pieces: tuple[tuple[Piece, ...], ...]

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def efficiency(self) -> float:
        """The share of positions that hold tokens of documents; 1 of no rows."""
        held = sum(piece.size for row in self.pieces for piece in row)
        return held / self.input_ids.size if self.input_ids.size else 1.0

    def batch(self, rows: slice | Sequence[int], segments: bool = False) -> dict[str, torch.Tensor]:
        """Some rows, as arguments of a model of transformers; with `segments`, the
        numbers of the documents too."""
        import torch
        names = ["input_ids", "labels", "position_ids", *(["segment_ids"] if segments else [])]
        return {name: torch.from_numpy(getattr(self, name)[rows].copy()) for name in names}

    def batches(self, size: int, drop_last: bool = True) -> Iterator[dict[str, torch.Tensor]]:
        """All rows in order, `size` in each batch; without `drop_last` the last batch
        may have fewer."""
        if size < 1:
            raise ValueError(f"a batch has at least one row, not {size}")
        end = len(self) // size * size if drop_last else len(self)
        for first in range(0, end, size):
            yield self.batch(slice(first, min(first + size, end)))


def pack(documents: Iterable[typing.Any], length: int, *, method: str = "best-fit",
         long: str = "split", labels: Iterable[typing.Any] | None = None,
         padding: int = 0) -> Packs:
    """Packs documents, which are sequences of token ids, in rows of `length`.

    `method`: `best-fit` takes the longest documents first and puts each in the fullest
    row that has room; `first-fit` puts each, in order, in the first row that has room;
    `in-order` begins a row when the next document has no room in the last one. `long`:
    documents longer than a row are cut into pieces (`split`), which are documents of
    their own, or refused (`refuse`). `labels` has as many for each document as tokens
    (default: the tokens). `padding` is the token of what is left of a row. Documents
    without tokens are left out.
    """
    if length < 1:
        raise ValueError(f"a row has at least one position, not {length}")
    for word, value, known in (("method", method, METHODS), ("long", long, ("split", "refuse"))):
        if value not in known:
            raise ValueError(f"{word}={value!r} is none of {', '.join(map(repr, known))}")
    tokens = [_numbers(document, f"document {i}") for i, document in enumerate(documents)]
    targets = tokens
    if labels is not None:
        targets = [_numbers(one, f"the labels of document {i}") for i, one in enumerate(labels)]
        if len(targets) != len(tokens):
            raise ValueError(f"there are labels of {len(targets)} documents, but "
                             f"{len(tokens)} documents")
        for i, (own, target) in enumerate(zip(tokens, targets)):
            if len(own) != len(target):
                raise ValueError(f"document {i} has {len(own)} tokens, but {len(target)} labels")
    sizes = []
    for i, own in enumerate(tokens):
        if len(own) > length and long == "refuse":
            raise ValueError(f"document {i} has {len(own)} tokens, more than the {length} of a "
                             f"row; long='split' cuts it")
        sizes += [(i, start, min(start + length, len(own)))
                  for start in range(0, len(own), length)]
    place = {"best-fit": _best_fit, "first-fit": _first_fit, "in-order": _in_order}[method]
    return _fill(place(sizes, length), tokens, targets, length, padding)


def _numbers(values: typing.Any, name: str) -> np.ndarray:
    array = np.asarray(values.numpy() if hasattr(values, "numpy") else values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name} is not a sequence of integers, but of type {array.dtype} and "
                         f"shape {list(array.shape)}")
    return array.astype(np.int64)


#: A document and a range of its tokens.
_Part = tuple[int, int, int]


def _size(part: _Part) -> int:
    return part[2] - part[1]


def _best_fit(parts: list[_Part], length: int) -> list[list[_Part]]:
    rows: list[list[_Part]] = []
    # Rows by the room that they have left, which is searched for the least that suffices.
    room: list[tuple[int, int]] = []
    for part in sorted(parts, key=lambda part: -_size(part)):
        at = bisect.bisect_left(room, (_size(part), 0))
        if at < len(room):
            left, row = room.pop(at)
        else:
            left, row = length, len(rows)
            rows.append([])
        rows[row].append(part)
        if left > _size(part):
            bisect.insort(room, (left - _size(part), row))
    return rows


def _first_fit(parts: list[_Part], length: int) -> list[list[_Part]]:
    rows: list[list[_Part]] = []
    # A binary tree over rows: each node has the most room of a row below it. Rows that do not
    # exist yet are empty.
    leaves = 1
    while leaves < len(parts):
        leaves *= 2
    room = [length] * (2 * leaves)
    for part in parts:
        node = 1
        while node < leaves:
            node = 2 * node + (room[2 * node] < _size(part))
        if node - leaves == len(rows):
            rows.append([])
        rows[node - leaves].append(part)
        room[node] -= _size(part)
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return rows


def _in_order(parts: list[_Part], length: int) -> list[list[_Part]]:
    rows: list[list[_Part]] = []
    left = 0
    for part in parts:
        if _size(part) > left:
            rows.append([])
            left = length
        rows[-1].append(part)
        left -= _size(part)
    return rows


def _fill(rows: list[list[_Part]], tokens: list[np.ndarray], targets: list[np.ndarray], length: int,
          padding: int) -> Packs:
    shape = len(rows), length
    input_ids, labels = np.full(shape, padding, np.int64), np.full(shape, IGNORED, np.int64)
    position_ids, segment_ids = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    pieces = []
    for row, parts in enumerate(rows):
        offset = 0
        own = []
        for number, (document, start, stop) in enumerate(parts):
            end = offset + stop - start
            input_ids[row, offset:end] = tokens[document][start:stop]
            labels[row, offset + 1:end] = targets[document][start + 1:stop]
            position_ids[row, offset:end] = np.arange(stop - start)
            segment_ids[row, offset:end] = number
            own.append(Piece(document, start, stop, offset))
            offset = end
        position_ids[row, offset:] = np.arange(length - offset)
        segment_ids[row, offset:] = len(parts)
        pieces.append(tuple(own))
    return Packs(input_ids, labels, position_ids, segment_ids, tuple(pieces))
