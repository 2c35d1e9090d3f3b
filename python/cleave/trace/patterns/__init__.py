# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Structure that models spell out in small operators, made whole again.

Patterns go by the mathematics of a subgraph; no name of a model or of a class
appears in them.
"""

from .activation import activation
from .attention import spelled_attention
from .movement import (contraction_to_linear, gather_of_known, reduce_of_reshape,
                       rows_of_reshape, slice_of_linear)
from .norm import norm, norm_bias, norm_weight
from .position import rope

#: In order of trial at each op.
PATTERNS = [gather_of_known, contraction_to_linear, slice_of_linear, rows_of_reshape,
            reduce_of_reshape, norm, norm_weight, norm_bias, rope, activation,
            spelled_attention]
