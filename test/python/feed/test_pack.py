# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Packs of documents, against a plain second implementation and transformers' collator."""

import numpy as np
import pytest
import torch

import cleave
from training_support import ALL

transformers = pytest.importorskip("transformers")

METHODS = ["best-fit", "first-fit", "in-order"]


def draw(rng, longest=40, most=60):
    """Documents of lists, arrays and tensors."""
    kinds = [list, np.asarray, lambda x: torch.tensor(x, dtype=torch.int64),
             lambda x: np.asarray(x, "uint16")]
    return [kinds[rng.integers(len(kinds))](rng.integers(1, 1000, rng.integers(0, longest)).tolist())
            for _ in range(rng.integers(0, most))]


def plainly(sizes, length, method):
    """Rows of the indices of `sizes`."""
    order = range(len(sizes))
    if method == "best-fit":
        order = sorted(order, key=lambda i: (-sizes[i], i))
    rows, room = [], []
    for i in order:
        fits = [r for r in range(len(rows)) if room[r] >= sizes[i]]
        if method == "in-order":
            fits = [r for r in fits if r == len(rows) - 1]
        if method == "best-fit":
            fits.sort(key=lambda r: (room[r], r))
        if not fits:
            rows.append([])
            room.append(length)
            fits = [len(rows) - 1]
        rows[fits[0]].append(i)
        room[fits[0]] -= sizes[i]
    return rows


@pytest.mark.parametrize("method", METHODS)
def test_rows_are_those_of_the_definition(method):
    for seed in range(200 if ALL else 25):
        rng = np.random.default_rng([seed, METHODS.index(method)])
        documents = draw(rng)
        length = int(rng.integers(1, 50))
        packs = cleave.pack(documents, length, method=method, padding=7)
        pieces = [(i, a, min(a + length, len(d))) for i, d in enumerate(documents)
                  for a in range(0, len(d), length)]
        rows = plainly([b - a for _, a, b in pieces], length, method)
        assert [[(p.document, p.start, p.stop) for p in row] for row in packs.pieces] == \
            [[pieces[i] for i in row] for row in rows]
        assert packs.input_ids.shape == (len(rows), length) and len(packs) == len(rows)
        for name in ("input_ids", "labels", "position_ids", "segment_ids"):
            assert getattr(packs, name).dtype == np.int64
        tokens = sum(len(d) for d in documents)
        if rows:
            assert packs.efficiency == tokens / (len(rows) * length)
        for row, own in enumerate(rows):
            ids, labels, positions, segments = [], [], [], []
            for number, i in enumerate(own):
                document, a, b = pieces[i]
                values = [int(x) for x in documents[document][a:b]]
                ids += values
                labels += [-100, *values[1:]]
                positions += range(len(values))
                segments += [number] * len(values)
            left = length - len(ids)
            assert packs.input_ids[row].tolist() == ids + [7] * left
            assert packs.labels[row].tolist() == labels + [-100] * left
            assert packs.position_ids[row].tolist() == positions + list(range(left))
            assert packs.segment_ids[row].tolist() == segments + [len(own)] * left


@pytest.mark.parametrize("method", METHODS)
def test_rows_are_those_of_the_collator(method):
    """Documents with labels of their own, as transformers joins those of a row."""
    collate = transformers.DataCollatorWithFlattening(return_seq_idx=True)
    rng = np.random.default_rng(5)
    documents = [rng.integers(1, 99, rng.integers(1, 30)).tolist() for _ in range(40)]
    targets = [[-100 if rng.random() < 0.2 else t for t in d] for d in documents]
    packs = cleave.pack(documents, 32, method=method, labels=targets, long="refuse")
    for row, pieces in enumerate(packs.pieces):
        own = collate([dict(input_ids=documents[p.document], labels=targets[p.document])
                       for p in pieces])
        used = own["input_ids"].shape[1]
        for name in ("input_ids", "labels", "position_ids"):
            assert getattr(packs, name)[row, :used].tolist() == own[name][0].tolist()
        assert packs.segment_ids[row, :used].tolist() == own["seq_idx"][0].tolist()


def test_best_fit_needs_few_rows():
    """At most 11/9 of the least number of rows and 1; often fewer than in order."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        documents = [[1] * int(n) for n in rng.integers(1, 100, 300)]
        rows = {method: len(cleave.pack(documents, 100, method=method)) for method in METHODS}
        least = -(-sum(map(len, documents)) // 100)
        assert least <= rows["best-fit"] <= 11 / 9 * least + 1
        assert rows["best-fit"] <= rows["first-fit"] <= rows["in-order"]


def test_many_documents_are_quick():
    rng = np.random.default_rng(1)
    documents = [np.ones(n, "uint16") for n in rng.integers(1, 500, 20000)]
    for method in METHODS:
        assert cleave.pack(documents, 2048, method=method).efficiency > 0.8


def test_batches():
    packs = cleave.pack([[1, 2, 3], [4, 5], [6, 7, 8, 9]], 4)
    assert [row[0].document for row in packs.pieces] == [2, 0, 1]
    sizes = [len(batch["input_ids"]) for batch in packs.batches(2, drop_last=False)]
    assert sizes == [2, 1] and len(list(packs.batches(2))) == 1
    batch = packs.batch([2, 1], segments=True)
    assert batch["input_ids"].tolist() == [[4, 5, 0, 0], [1, 2, 3, 0]]
    assert batch["segment_ids"].tolist() == [[0, 0, 1, 1], [0, 0, 0, 1]]
    assert set(next(packs.batches(1))) == {"input_ids", "labels", "position_ids"}
    empty = cleave.pack([[], []], 8)
    assert len(empty) == 0 and empty.efficiency == 1 and empty.input_ids.shape == (0, 8)


@pytest.mark.parametrize("arguments, message", [
    (dict(documents=[[1] * 9], length=8, long="refuse"),
     "document 0 has 9 tokens, more than the 8 of a row; long='split' cuts it"),
    (dict(documents=[[1]], length=0), "at least one position, not 0"),
    (dict(documents=[[1]], length=8, method="worst-fit"),
     "method='worst-fit' is none of 'best-fit', 'first-fit', 'in-order'"),
    (dict(documents=[[1]], length=8, long="drop"), "long='drop' is none of 'split', 'refuse'"),
    (dict(documents=[[1], [0.5]], length=8), "document 1 is not a sequence of integers"),
    (dict(documents=[[[1]]], length=8), r"of type int64 and shape \[1, 1\]"),
    (dict(documents=[[1]], length=8, labels=[]), "labels of 0 documents, but 1 documents"),
    (dict(documents=[[1], [2, 3]], length=8, labels=[[1], [2]]),
     "document 1 has 2 tokens, but 1 labels")], ids=str)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        cleave.pack(**arguments)
