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
