# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Converts PyTorch models to Cleave's graph dialect.

The entry points are the function `trace` and the command `python -m cleave.trace`. torch.export
exports a model with its loss; the program is converted operator by operator and simplified by
patterns. A file imports only files of its own row and of the rows above:

    ir, builder, printer      the graph dialect as Python objects, and its text
    errors, locations         exceptions and their messages; the source lines that they name
    process_state, randomness what a forward changes in the process; what random operators compute
    memory, forward_state, module_checks
                              the storage of tensors; Python state, hooks and buffers of modules
    replacements, ctc_loss    torch functions that read values, rewritten as tensor code
    patches, garbage, places, asked_modes
                              replaced functions of torch; how often Python looks for garbage; the
                              lines of operators; reads of the mode
    python_random, generators, regions, casts, conditions, custom_functions, autograd
                              autograd semantics of eager code in a trace; its random numbers;
                              regions of autocast and checkpoint; the meaning of casts to f32;
                              conditions on values that become checks
    outputs, metrics          what a model returns: its loss, its logits, and the rest; the scalars of
                              these that a step returns
    registry, evaluate        the table of converters; the values of ops known at trace time
    closed_forms, matching    constants as ops that compute them; applying patterns
    widen                     f32 programs of 16-bit models
    converters/, float_regions
                              converters of PyTorch operators, one file for each subject; the
                              regions of f32 that casts mark
    fold, convert             constant folding; the conversion of one exported graph,
                              which refuses operators that have no converter
    accepted, alike, call_plan, experts, scans, balance, choices, aliases, settled, decompose,
    lazy_code, export
                              supported tensors and names; whether two programs compute the
                              same; inputs and loss; static shapes of experts; loops of the
                              library as recurrences; the tokens of losses of experts, counts
                              of their choices; what a program writes to; operators that stay
                              as they are; decompositions; graphs whose code nobody asks for;
                              torch.export
    patterns/                 activations composed of smaller ops
    repeat, model_tensors, policy, entry, modes
                              copies of layers; parameters and buffers; the precision of
                              individual ops; a function of the module; the one in eval() mode
    model, weights, __main__  `trace`; files; the command
"""

from .converters.batch_norm import Groups
from .errors import TraceError, UnsupportedError
from .model import TracedModel, trace
from .model_tensors import Tensor
from .policy import PrecisionPolicy

__all__ = ["Groups", "PrecisionPolicy", "Tensor", "TraceError", "TracedModel", "UnsupportedError",
           "supported_operators", "trace"]


def supported_operators() -> list[str]:
    """Returns the names of the PyTorch operators that have a converter, sorted."""
    from . import registry
    registry.converter_for(None)
    return sorted(str(target) for target in registry.CONVERTERS)
