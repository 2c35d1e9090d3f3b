# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The exceptions of tracing, other than those of converters."""


class TraceError(Exception):
    """Raised for a model that cannot be traced as it is called; the text says what to do."""


class StateError(TraceError):
    """Raised for a model whose forward reads state that an earlier forward computed."""


class EagerError(Exception):
    """Raised for eager code that a compiled step does not support; the text says what to do."""


class ForwardStateError(EagerError):
    """Raised for a forward that reads state which an earlier forward computed."""


#: The end of a sentence about a tensor that a forward writes.
OUTSIDE = ("is written to in the forward, and is no buffer of the model: a compiled step keeps "
           "nothing else. Register it there (register_buffer); a loss function that keeps "
           "tensors can be a part of the model, whose forward then returns the loss")
