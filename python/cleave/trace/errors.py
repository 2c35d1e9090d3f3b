# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The exceptions of tracing. `convert.py` collects the operators of an `UnsupportedError`, and
`locations.py` finds their lines."""

from __future__ import annotations


class TraceError(Exception):
    """Raised for a model that cannot be traced as it is called; the text says what to do."""


class UnsupportedError(Exception):
    """Raised for a model with operators that cannot be converted.

    `operators` lists (target, reason, location, count), one entry for each combination
    of the first three.
    """

    def __init__(self, operators: list[tuple[str, str, str, int]]):
        self.operators = operators
        total = sum(count for *_, count in operators)
        lines = [f"the model uses {total} operator{'s' if total != 1 else ''} that cannot "
                 "be converted:"]
        for target, reason, location, count in operators:
            times = f" ({count} times)" if count > 1 else ""
            lines.append(f"  {location}: {target}{times}: {reason}")
        lines.append("Rewrite these lines with supported operators (see "
                     "cleave.trace.supported_operators()).")
        super().__init__("\n".join(lines))

    def __reduce__(self):
        return type(self), (self.operators,)


class StateError(TraceError):
    """Raised for a model whose forward reads state that an earlier forward computed."""


class EagerError(Exception):
    """Raised for eager code that a compiled step does not support; the text says what to do."""


class ForwardStateError(EagerError):
    """Raised for a forward that reads state which an earlier forward computed."""


#: The end of a sentence about a tensor that a forward writes.
OUTSIDE = ("is written to in the forward, and is not a buffer of the model; a compiled step keeps "
           "no other state. Register it as a buffer (register_buffer); a loss function that keeps "
           "tensors can be a part of the model, whose forward then returns the loss")
