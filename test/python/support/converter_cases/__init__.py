# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Cases of every converter of the front end, at random points and at edges."""

from converter_cases import (complexes, contractions, elementwise, integers, losses,  # noqa: F401
                             movements, neural, reductions)
from converter_cases.registry import CASES  # noqa: F401
