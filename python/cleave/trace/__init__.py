# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""From PyTorch models to Cleave's graph dialect.

`trace` is the function to call, `python -m cleave.trace` the command. A model is exported by
torch.export with its loss, converted operator by operator, and simplified by patterns. Files
import files of their own row and of rows above:

    ir, builder, printer      the graph dialect as Python objects, and its text
    errors, locations         exceptions and their texts; the lines of the model that they name
    memory, forward_state, module_checks
                              the storage of tensors; Python state, hooks and buffers of modules
    replacements, ctc_loss    torch functions that read values, in operators
    patches, regions, custom_functions, autograd
                              autograd's semantics of eager code in a trace, and its regions of
                              autocast and checkpoint
    registry, evaluate        the table of converters; the values of ops known when tracing
    matching, masks, attention
                              patterns over values; attention masks; the op attention
    widen                     programs in f32 of models of 16 bits
    converters/               converters of the framework's operators, a file for each subject
    fold, convert             constant folding; the conversion of one exported graph,
                              which refuses operators that have no converter
    accepted, call_plan, experts, decompose, export
                              tensors and names that a step can have, inputs and loss, static
                              shapes of experts, torch.export
    patterns/                 norms, activations, attention composed of smaller ops
    repeat, model_tensors, policy, entry
                              copies of layers; parameters and buffers; the precision of single ops;
                              a function of the module
    model, weights, __main__  `trace`, files, the command
"""

from .converters.batch_norm import Groups
from .errors import TraceError, UnsupportedError
from .model import TracedModel, trace
from .model_tensors import Tensor
from .policy import PrecisionPolicy

__all__ = ["Groups", "PrecisionPolicy", "Tensor", "TraceError", "TracedModel", "UnsupportedError",
           "supported_operators", "trace"]


def supported_operators() -> list[str]:
    """Names of the framework's operators that have a conversion, sorted."""
    from . import registry
    registry.converter_for(None)
    return sorted(str(target) for target in registry.CONVERTERS)
