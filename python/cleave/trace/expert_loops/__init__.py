# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Loops over experts in an exported program, made grouped linear layers.

A model that keeps its experts in a list computes them one after the other: each on the tokens that
chose it, whose number depends on values; or each on all tokens, with a weight of 0 for those that
did not; or each on its own part of a tensor. Instead of a matmul for each expert there is one for
each linear layer, of as many rows as tokens make choices, or of all parts at once.

- `calls`: finds the experts of a loop: modules in a list, or parameters that are indexed.
- `meaning`: decides what the code around them computes.
- `rows`: computes one expert on rows, or on parts, that have the parameters of their own experts.
- `skips`: proves that passes of a loop which are skipped would compute nothing.
- `gather`: rewrites the program.
"""

from .gather import gather_expert_loops
from .skips import Skips

__all__ = ["Skips", "gather_expert_loops"]
