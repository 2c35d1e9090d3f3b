# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Converts an exported program to a function of the module."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch.export.graph_signature import InputKind, OutputKind

from ..runtime.state import not_dense
from .builder import Builder
from .call_plan import Call
from .closed_forms import closed_form
from .convert import Conversion
from .converters.batch_norm import Groups
from .errors import TraceError
from .evaluate import Evaluator
from .export import Exported
from .fold import known_constant
from .ir import (DTYPES, Argument, Check, Function, GraphError, Origin, Result, TensorType, Value,
                 type_of)
from .locations import location_of
from .matching import apply_patterns
from .model_tensors import ModelTensors, module_name
from .patterns import PATTERNS
from .policy import PrecisionPolicy
from .randomness import Randomness
from .widen import is_narrow, widened

#: The result of each entry.
_RESULTS = {"loss": "loss", "evaluate": "loss", "logits": "logits"}

#: The name of the outputs that are conditions of checks.
_CONDITION = "condition"

#: The number of elements above which a tensor that the code creates becomes a buffer.
LARGE_CONSTANT = 1024

#: The number of elements up to which the module holds those of a boolean buffer.
LARGEST_BITS = 1 << 22


def convert_entry(name: str, tensors: ModelTensors, exported: Exported, call: Call,
                  groups: Groups = Groups(), random: Randomness = Randomness.DRAWN,
                  wide: bool = False,
                  policy: PrecisionPolicy = PrecisionPolicy(),
                  also: Sequence[str] = ()) -> Function:
    """Converts one exported program to the function `name` of the module, whose results are its
    own and the outputs named in `also`; `wide` tells whether `widen` has changed the program. Raises UnsupportedError or TraceError."""
    program = exported.program
    _check_mutation(program, call)
    builder = Builder()
    known: dict[int, torch.Tensor] = {}
    #: Inputs and the generator are also keyed by their role, since a tensor may have the same name.
    arguments: dict[str | tuple[str, str], Argument] = {}
    for tensor in tensors.all():
        if tensor.role == "parameter":
            # A frozen parameter keeps its type, and is cast where it is read.
            type = _type_of(tensor.role, tensor.name, tensor.tensor)
            if wide and not tensor.frozen and is_narrow(tensor.tensor):
                type = type.with_dtype("f32")
            value = Value(type, trained=not tensor.frozen)
            arguments[tensor.name] = Argument(value, tensor.name, "parameter",
                                              tensor.aliases, tensor.frozen,
                                              stacked=bool(tensor.parts))
    evaluator = Evaluator(known)
    rng = Value(TensorType((2,), "i64"))
    batch = _batch_size(call)
    conversion = Conversion(builder, evaluator, rng, random, groups, batch)
    inputs = iter(call.inputs.items())
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        node = nodes.get(spec.arg.name)
        if spec.kind is InputKind.USER_INPUT:
            input_name, example = next(inputs)
            value = Value(_type_of("input", input_name, widened(example) if wide else example))
            sample = 0 if example.dim() and example.shape[0] == batch else None
            argument = Argument(value, input_name, "input", batch_dim=sample)
            arguments["input", input_name] = argument
        elif spec.kind is InputKind.PARAMETER and module_name(spec.target) in tensors.part_of:
            whole, i = tensors.part_of[module_name(spec.target)]
            part = builder.narrow(arguments[whole.name].value, 0, i, 1)
            part = builder.reshape(part, whole.shape[1:])
            conversion.bind(node, builder.cast(part, type_of(node.meta["val"]).dtype))
            continue
        elif spec.kind is InputKind.PARAMETER:
            argument = arguments[tensors.by_name[module_name(spec.target)].name]
        elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            value = _known_tensor(builder, tensors, arguments, evaluator, program, spec, node,
                                  wide)
            conversion.bind(node, value)
            continue
        else:
            if node is not None:
                conversion.bind(node, None)
            continue
        value = argument.value
        if spec.kind is InputKind.PARAMETER:
            value = builder.cast(value, type_of(node.meta["val"]).dtype)
        conversion.bind(node, value)
    names = iter([*exported.outputs, *[_CONDITION] * exported.conditions])
    specs = program.graph_signature.output_specs
    outputs = [next(names) if spec.kind is OutputKind.USER_OUTPUT else "" for spec in specs]
    wanted = [output in (_RESULTS[name], *also, _CONDITION) if spec.kind is OutputKind.USER_OUTPUT
              else spec.kind is OutputKind.BUFFER_MUTATION and name == "loss"
              for spec, output in zip(specs, outputs)]
    values = conversion.run(program.graph, wanted)
    arguments["rng", ""] = Argument(rng, "rng", "rng")
    results, written, conditions = [], [], []
    for spec, output, value in (
            (s, o, v) for s, o, v, w in zip(specs, outputs, values, wanted) if w):
        if output == _CONDITION:
            conditions.append(value)
        elif spec.kind is OutputKind.USER_OUTPUT:
            sample = 0 if value.type.rank and value.shape[0] == batch else None
            results.append(Result(value, output, sample))
        else:
            written.append(Result(value, tensors.by_name[module_name(spec.target)].name,
                                  updates=True))
    results += written
    type = results[0].value.type
    if name in ("loss", "evaluate") and (type.rank or not type.is_float):
        raise TraceError(f"the loss is {type}, not a scalar; reduce it, for example by .mean()")
    places = dict.fromkeys("" if p is None else f"{p[0]}:{p[1]}"
                           for p in conversion.batch_statistics)
    checks = _checks(conversion, exported, conditions)
    function = Function(name, list(arguments.values()), builder.ops, results, list(places), checks)
    if name == "logits":
        function.drop_other_checks()
    function.prune()
    apply_patterns(function, evaluator, PATTERNS)
    policy.apply(function)
    return function


def _checks(conversion: Conversion, exported: Exported, conditions: list[Any]) -> list[Check]:
    """Converts the checks of a program. Raises TraceError for one that fails in any case."""
    b, checks = conversion.b, []
    for check in exported.checks:
        place = None if check.place is None else (*check.place, 1)
        b.location, b.origin = place, Origin()
        wrong = b.scalar(True, "i1")
        for i, value in check.conditions:
            condition = conversion.operand(conditions[i], "i1")
            wrong = b.binary("and", condition if value else b.unary("not", condition), wrong)
        allowed = b.unary("not", wrong)
        known = conversion.known(allowed)
        if known is None:
            checks.append(Check(allowed, check.message, place))
        elif not known:
            raise TraceError(check.message)
    return checks


def _known_tensor(builder, tensors: ModelTensors, arguments, evaluator, program, spec,
                  node, wide: bool) -> Any:
    """Returns the value of a buffer or of a tensor that the model's code creates: a constant if
    it is small, ops if they compute it, else an argument."""
    typed = widened if wide else lambda tensor: tensor
    entry = tensors.by_name.get(module_name(spec.target))
    if entry is None:
        constant = program.constants[spec.target]
        if kind := not_dense(constant):
            place = next((_origin(user) for user in node.users), "")
            raise TraceError(f"{place}a tensor is used that {kind}")
        if constant.dtype not in DTYPES and constant.device.type != "meta":
            return known_constant(builder, typed(constant.cpu()))
        if constant.numel() <= LARGE_CONSTANT and constant.device.type != "meta":
            return builder.constant(typed(constant.detach().cpu()))
        entry = tensors.add_constant(constant.detach())
    if entry.name not in arguments:
        has_values = entry.tensor.device.type != "meta" and entry.name not in tensors.written
        tensor = typed(entry.tensor)
        value = Value(_type_of(entry.role, entry.name, tensor), constant=has_values)
        if has_values:
            form = closed_form(builder, tensor.detach().cpu(), tensor.numel() > LARGE_CONSTANT)
            if form is not None:
                return form
            evaluator.remember(value, tensor.cpu())
        few = LARGEST_BITS if has_values and tensor.dtype == torch.bool else LARGE_CONSTANT
        small = entry.tensor.device.type != "meta" and entry.tensor.numel() <= few
        arguments[entry.name] = Argument(
            value, entry.name, entry.role, entry.aliases, persistent=entry.persistent,
            content=tensor.cpu() if small else None)
    return arguments[entry.name].value


def _type_of(role: str, name: str, tensor: torch.Tensor) -> TensorType:
    """Returns the type of a tensor. Raises a TraceError that names the tensor if it has none."""
    try:
        return type_of(tensor)
    except GraphError as error:
        raise TraceError(f"{role} '{name}': {error}") from None


def _batch_size(call: Call) -> int:
    """Returns the size of dimension 0 of the first input with dimensions; -1 if there is none."""
    for tensor in call.inputs.values():
        if tensor.dim():
            return tensor.shape[0]
    return -1


def _check_mutation(program: torch.export.ExportedProgram, call: Call) -> None:
    """Raises TraceError if the program writes to parameters or inputs."""
    signature = program.graph_signature
    kinds = (
        (signature.parameters_to_mutate, "the model writes to its parameters while it runs ({}); a "
         "compiled step changes them by its optimizer alone"),
        (signature.user_inputs_to_mutate, "the model writes to its inputs while it runs ({}); a "
         "step only reads them: clone what is changed"))
    for written, message in kinds:
        if written:
            place = next((p for n in program.graph.nodes if n.name in written
                          if (p := _origin(n))), "")
            inputs = dict(zip(signature.user_inputs, call.inputs))
            names = sorted({inputs.get(n, module_name(n)) for n in written.values()})
            raise TraceError(place + message.format(", ".join(names)))


def _origin(node: torch.fx.Node) -> str:
    """Returns the line of a node, or of the nearest node that it depends on, as `file:line: `;
    empty if none is known."""
    seen, pending = set(), [node]
    while pending:
        node = pending.pop(0)
        if place := location_of(node):
            return f"{place[0]}:{place[1]}: "
        pending += [n for n in node.all_input_nodes if n not in seen]
        seen.update(pending)
    return ""
