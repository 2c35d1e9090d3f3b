# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models drawn at random, each of one op, with what PyTorch makes of them."""

from op_cases import contractions, layers, movements, one_operand, several_operands  # noqa: F401
from op_cases.registry import CASES, draw_model

__all__ = ["CASES", "MADE_LATER", "draw_model"]

#: Ops that no model or step has: those that a pass makes after division, and of what.
#: The cases of the latter execute their code; test_sort_rows.py has each of them by itself.
MADE_LATER = {
    "graph.sort_rows": "graph.grouped_linear",
    "graph.grouped_contract": "graph.grouped_linear",
    "graph.grouped_contract_weight_grad": "graph.grouped_linear_weight_grad",
}
