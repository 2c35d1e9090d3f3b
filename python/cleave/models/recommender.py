# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A recommendation model: tables of many categories beside small matmuls."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class RecommenderSize:
    """The sizes of a `dlrm`."""

    #: Tables of embeddings, and the rows of each.
    tables: int = 8
    rows: int = 1000
    #: Width of an embedding, and of what the bottom layers return.
    width: int = 16
    #: Indices of a table that a sample has; their rows are summed.
    bag: int = 4
    #: Dense features of a sample.
    dense: int = 13
    #: Hidden widths of the layers below the interactions, and above them.
    bottom: Sequence[int] = (64, 32)
    top: Sequence[int] = (64, 32)

    def __post_init__(self) -> None:
        widths = {f"{name}[{i}]": value for name in ("bottom", "top")
                  for i, value in enumerate(getattr(self, name))}
        own = {name: getattr(self, name) for name in ("tables", "rows", "width", "bag", "dense")}
        for name, value in {**own, **widths}.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")


class Recommender(nn.Module):
    """DLRM (Naumov et al., arXiv 1906.00091): bags of embeddings and dense features meet in
    products of pairs.

    The tables are one parameter `[tables, rows, width]`: with the recipe `expert` each rank has
    whole tables, and sends the samples' vectors by an all-to-all; the layers are replicated.
    """

    def __init__(self, size: RecommenderSize):
        super().__init__()
        self.size = size
        # As of the paper's code: uniform, narrower the more rows a table has.
        bound = size.rows ** -0.5
        self.embeddings = nn.Parameter(
            torch.empty(size.tables, size.rows, size.width).uniform_(-bound, bound))
        vectors = size.tables + 1
        self.bottom = layers([size.dense, *size.bottom, size.width])
        self.top = layers([size.width + vectors * (vectors - 1) // 2, *size.top, 1])
        pairs = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", pairs[0] * vectors + pairs[1], persistent=False)

    def bags(self, indices: torch.Tensor) -> torch.Tensor:
        """The sums of the rows that `indices` [b, t, l] choose in table t: [b, t, e]."""
        samples, tables, bag = indices.shape
        by_table = indices.transpose(0, 1).reshape(tables, samples * bag, 1)
        rows = self.embeddings.gather(1, by_table.expand(-1, -1, self.size.width))
        return rows.view(tables, samples, bag, -1).sum(2).transpose(0, 1)

    def forward(self, dense: torch.Tensor, indices: torch.Tensor, labels: torch.Tensor):
        """For dense features [b, d], indices [b, t, l] and labels [b] of 0 or 1: the mean
        cross entropy, and the logits [b]."""
        below = F.relu(self.bottom(dense))
        vectors = torch.cat([below[:, None], self.bags(indices)], 1)
        products = vectors @ vectors.transpose(1, 2)
        # Each pair of different vectors once: the lower triangle.
        pairs = products.flatten(1)[:, self.pairs]
        logits = self.top(torch.cat([below, pairs], 1))[:, 0]
        return F.binary_cross_entropy_with_logits(logits, labels), logits


def layers(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers from each width to the next, with relu between them."""
    found: list[nn.Module] = []
    for before, after in zip(widths, widths[1:]):
        found += [nn.ReLU()] * bool(found) + [nn.Linear(before, after)]
    return nn.Sequential(*found)
