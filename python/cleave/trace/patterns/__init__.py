# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Patterns that recognise activations which a model composes of smaller operators, and simplify
moves of elements.

    activation.py   gelu and silu           movement.py  gathers, reshapes, contractions
    convolution.py  causal convolutions

Attention with its masks, norms and rotary embeddings are recognised by the compiler
(Graph/Transforms/Raise), for every front end. A pattern matches the mathematics of a subgraph; it does not depend on names of models or
classes.
"""

from .activation import activation
from .convolution import leading_windows
from .movement import (contraction_to_linear, gather_of_known, reduce_of_reshape,
                       rows_of_reshape, slice_of_linear)

#: The patterns, in the order in which they are tried at each op.
PATTERNS = [gather_of_known, contraction_to_linear, slice_of_linear, leading_windows,
            rows_of_reshape, reduce_of_reshape, activation]
