# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models drawn at random, each of one op, with what PyTorch makes of them."""

from op_cases import contractions, layers, movements, one_operand, several_operands  # noqa: F401
from op_cases.registry import CASES, draw_model

__all__ = ["CASES", "draw_model"]
