# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""From PyTorch models to Cleave's graph dialect.

`trace` is the entry; `python -m cleave.trace` the command.
"""

from .convert import UnsupportedError
from .convert_batch_norm import Groups
from .errors import TraceError
from .model import TracedModel, trace
from .model_tensors import Tensor

__all__ = ["Groups", "Tensor", "TraceError", "TracedModel", "UnsupportedError",
           "supported_operators", "trace"]


def supported_operators() -> list[str]:
    """Names of the framework's operators that have a conversion, sorted."""
    from . import registry
    registry.converter_for(None)
    return sorted(str(target) for target in registry.CONVERTERS)
