# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""From a torch module to the model phase of Cleave."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import torch
from torch.export.graph_signature import InputKind, OutputKind

from ..forks import TRACING, refuse_interrupted
from ..messages import warn
from ..state import not_dense
from . import ir
from .accepted import refuse_name, refuse_tensors, same_names
from .convert import Conversion
from .convert_batch_norm import Groups
from .eager import EagerError, refuse_hooks, refuse_shared_memory
from .evaluate import Evaluator
from .experts import stacks
from .fold import known_constant
from .export import Call, Exported, StateError, TraceError, export, plan_call
from .locations import location_of
from .matching import apply_patterns
from .patterns import PATTERNS
from .printer import Printer

#: Elements above which a tensor that the code creates becomes a buffer.
LARGE_CONSTANT = 1024


@dataclasses.dataclass
class Tensor:
    """A named tensor of the model that a program keeps between steps."""

    #: Name in the framework's state_dict (or of the attribute, if not there).
    name: str
    #: "parameter" or "buffer".
    role: str
    #: Further names of the same tensor.
    aliases: tuple[str, ...]
    #: True for a parameter that is not trained.
    frozen: bool
    #: Whether the state_dict holds it.
    persistent: bool
    #: The framework's own tensor (perhaps on the meta device): shape in
    #: elements, dtype and values.
    tensor: torch.Tensor
    #: Names of the framework's tensors that this one is a stack of, along
    #: dimension 0; `name` is then no name of the framework.
    parts: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype


@dataclasses.dataclass
class TracedModel:
    """A model as Cleave's model phase sees it."""

    #: MLIR text of the module: `@loss`, and `@logits` where there are logits.
    mlir: str
    #: Parameters in the framework's order, then buffers that an entry uses.
    tensors: list[Tensor]
    #: Names of the inputs of a step, in the order of its arguments.
    input_names: list[str]
    #: Shape (elements) and element type of each input.
    input_types: dict[str, tuple[tuple[int, ...], torch.dtype]]
    #: Entries of the module, such as ("loss", "logits").
    entries: tuple[str, ...]
    #: The same module as `mlir`, in which the locations of arguments are their names
    #: and not their places in the text: for a compiler that reads no file.
    named_mlir: str
    #: Makes the same with `@loss` alone, in which nothing is random: dropout keeps all,
    #: and numbers that are uniform are 0.5. Its `mlir` is that of `named_mlir`.
    steady: Callable[[], TracedModel] | None = None
    #: Names of the buffers that a step writes.
    written: tuple[str, ...] = ()
    #: Lines at which the loss depends on statistics of several samples: those of batch
    #: normalisation. "" where a line is not known.
    batch_statistics: tuple[str, ...] = ()

    @property
    def parameters(self) -> list[Tensor]:
        return [t for t in self.tensors if t.role == "parameter"]

    @property
    def buffers(self) -> list[Tensor]:
        return [t for t in self.tensors if t.role == "buffer"]


def trace(module: torch.nn.Module, example_inputs: Any,
          loss_fn: Callable[..., torch.Tensor] | None = None, *,
          logits: bool = True, groups: Groups = Groups()) -> TracedModel:
    """Traces a module and its loss into Cleave's graph dialect.

    `example_inputs` holds one example of each tensor that a training step
    takes; values do not matter, shapes and types are fixed by it. As a tuple:
    the tensors go to `module` by position; with `loss_fn`, the last of them
    (as many as `loss_fn` needs after the output) go to it as targets, or give
    `((model inputs...), (targets...))`; without, the last tensor goes to an
    argument named `labels` where forward has one that position does not reach.
    As a dict: by name, and what forward does not take goes to `loss_fn`.

    Without `loss_fn` the module must return its scalar loss: alone, in a tuple
    with logits, or as `loss` in a dict or an object. `loss_fn(output,
    *targets)` returns a scalar.

    The module may be on the meta device: no weight is read or allocated. It is
    traced in training mode for `@loss` and in evaluation mode for `@logits`,
    and left in the mode it was in. Parts of a module in training mode that are in
    evaluation mode remain so for `@loss`; of a module that is in evaluation mode
    itself none do, and it is warned of if its loss draws dropout.

    Parameters with `requires_grad=False`, and those the loss does not depend
    on, are frozen. Buffers are constants of the model; attention masks found
    in them are recognised by value. A buffer that the loss writes to is state:
    `@loss` returns its new value, and where there are some, `@evaluate` is the loss in
    evaluation mode. Without `logits` there is no such entry.

    Batch normalisation has the statistics of a whole batch, or of each of `groups`.

    Raises `UnsupportedError` with every operator that has no conversion and
    its line, `TraceError` where the model cannot be followed or called.
    """
    refuse_interrupted()
    with TRACING:
        return _trace(module, example_inputs, loss_fn, logits, groups)


def _trace(module: torch.nn.Module, example_inputs: Any, loss_fn: Callable[..., Any] | None,
           logits: bool, groups: Groups) -> TracedModel:
    """`trace`, while no other thread traces."""
    call = plan_call(module, example_inputs, loss_fn)
    try:
        refuse_tensors(module)
        for name in call.inputs:
            refuse_name("input", name)
        refuse_hooks(module)
        refuse_shared_memory(module)
    except EagerError as error:
        raise TraceError(str(error)) from None
    tensors = _Tensors(module)
    loss = export(module, call, loss_fn, ("loss",), True, groups)
    tensors.mark_written(loss.program)
    functions = [_entry("loss", tensors, loss, call, groups)]
    if tensors.written:
        evaluation = export(module, call, loss_fn, ("loss",), False)
        functions.append(_entry("evaluate", tensors, evaluation, call))
    try:
        predicted = export(module, call, loss_fn, ("logits",), False) if logits else None
    except StateError:
        raise
    except TraceError:
        predicted = None
    if predicted is not None and predicted.outputs:
        functions.append(_entry("logits", tensors, predicted, call))
    if not module.training and any(a.role == "rng" for a in functions[0].arguments):
        warn("the model is in eval() mode, and is trained with its dropout all the same, as in "
             "train() mode; call model.train() to say so, or set the probability of its "
             "dropout to 0")
    for function in functions:
        if wrong := same_names((a.role, a.name) for a in function.arguments):
            raise TraceError(wrong)
    unused = functions[0].unused_parameters() | tensors.unreached(loss.reached)
    for function in functions:
        _freeze(function, unused)
        for a in function.arguments:
            if 0 in a.value.type.shape and a.role in ("parameter", "buffer"):
                raise TraceError(f"{a.role} '{a.name}' of {list(a.value.type.shape)} has no elements, "
                                 "and a compiled step has no such tensors; remove it")

    printers = Printer(), Printer(named=True)
    for function in functions:
        for printer in printers:
            printer.add(function)
    for printer in printers:
        printer.unread = tensors.unread(functions)

    def kept(functions: list[ir.Function]) -> list[Tensor]:
        used = {a.name for f in functions for a in f.arguments if a.role == "buffer"}
        return [t for t in tensors.all() if t.role == "parameter" or t.name in used]

    def steady() -> TracedModel:
        function = functions[0]
        if any(a.role == "rng" for a in function.arguments):
            function = _entry("loss", tensors, loss, call, groups, random=False)
            _freeze(function, unused)
        printer = Printer(named=True)
        printer.add(function)
        text = printer.text()
        return dataclasses.replace(traced, mlir=text, named_mlir=text, entries=("loss",),
                                   tensors=kept([function]))

    for tensor in tensors.all():
        tensor.frozen |= tensor.name in unused
    traced = TracedModel(
        mlir=printers[0].text(), named_mlir=printers[1].text(), tensors=kept(functions),
        input_names=list(call.inputs),
        input_types={n: (tuple(t.shape), t.dtype) for n, t in call.inputs.items()},
        entries=tuple(f.name for f in functions), steady=steady,
        written=tuple(sorted(tensors.written)),
        batch_statistics=tuple(functions[0].batch_statistics))
    return traced


def _freeze(function: ir.Function, names: set[str]) -> None:
    for argument in function.arguments:
        argument.frozen |= argument.name in names


class _Tensors:
    """Parameters and buffers by identity, so that tied ones are one."""

    def __init__(self, module: torch.nn.Module):
        self.by_name: dict[str, Tensor] = {}
        #: The stack that a parameter is a part of, and its place there.
        self.part_of: dict[str, tuple[Tensor, int]] = {}
        #: Names of the buffers that a step writes.
        self.written: set[str] = set()
        self._order: list[Tensor] = []
        self._constants = 0
        by_identity: dict[int, Tensor] = {}
        state = set(module.state_dict(keep_vars=True))
        groups = (("parameter", module.named_parameters(remove_duplicate=False)),
                  ("buffer", module.named_buffers(remove_duplicate=False)))
        for role, named in groups:
            for name, tensor in named:
                entry = by_identity.get(id(tensor))
                if entry is None:
                    frozen = role == "parameter" and not tensor.requires_grad
                    entry = Tensor(name, role, (), frozen, name in state, tensor.detach())
                    by_identity[id(tensor)] = entry
                    self._order.append(entry)
                else:
                    entry.aliases += (name,)
                self.by_name[name] = entry

        self._stack(stacks(module))

    def _stack(self, groups: dict[str, list[str]]) -> None:
        """Makes one of parameters that experts have one of each, where nothing
        but the expert tells them apart."""
        for name, parts in groups.items():
            entries = [self.by_name[p] for p in parts]
            first = entries[0]
            if len({id(e) for e in entries}) < len(entries) or any(
                    e.aliases or (e.shape, e.dtype, e.frozen)
                    != (first.shape, first.dtype, first.frozen) for e in entries):
                continue
            whole = dataclasses.replace(first, name=name, parts=tuple(parts),
                                        tensor=torch.stack([e.tensor for e in entries]))
            self._order[self._order.index(first)] = whole
            self._order = [e for e in self._order if all(e is not other for other in entries)]
            for i, part in enumerate(parts):
                self.part_of[part] = (whole, i)

    def all(self) -> list[Tensor]:
        return self._order

    def mark_written(self, program: torch.export.ExportedProgram) -> None:
        """Remembers the buffers that a step writes: their values are not known."""
        self.written = {self.by_name[_plain(n)].name
                        for n in program.graph_signature.buffers_to_mutate.values()}

    def unreached(self, reached: set[str]) -> set[str]:
        """Names of the parameters that have no part among `reached`."""
        return {e.name for e in self._order if e.role == "parameter"
                and reached.isdisjoint((e.name, *e.aliases, *e.parts))}

    def unread(self, functions: list[ir.Function]) -> list[str]:
        """Names of the module's buffers that none of the functions has."""
        read = {a.name for f in functions for a in f.arguments}
        return [name for entry in self._order if entry.role == "buffer" and entry.name not in read
                for name in (entry.name, *entry.aliases)]

    def add_constant(self, tensor: torch.Tensor) -> Tensor:
        """A large tensor that the model's code creates, as a buffer."""
        for entry in self._order:
            if entry.name.startswith("constant.") and entry.tensor is tensor:
                return entry
        entry = Tensor(f"constant.{self._constants}", "buffer", (), False, False, tensor)
        self._constants += 1
        self._order.append(entry)
        return entry


def _entry(name: str, tensors: _Tensors, exported: Exported, call: Call,
           groups: Groups = Groups(), random: bool = True) -> ir.Function:
    """One function of the module from one exported program."""
    program = exported.program
    _check_mutation(program, call)
    builder = ir.Builder()
    known: dict[int, torch.Tensor] = {}
    #: Inputs and the generator by their role too, since a tensor may have their names.
    arguments: dict[str | tuple[str, str], ir.Argument] = {}
    for tensor in tensors.all():
        if tensor.role == "parameter":
            value = ir.Value(_type_of(tensor.role, tensor.name, tensor.tensor),
                             trained=not tensor.frozen)
            arguments[tensor.name] = ir.Argument(value, tensor.name, "parameter",
                                                 tensor.aliases, tensor.frozen)
    evaluator = Evaluator(known)
    rng = ir.Value(ir.TensorType((2,), "i64"))
    batch = _batch_size(call)
    conversion = Conversion(builder, evaluator, rng, random, groups, batch)
    inputs = iter(call.inputs.items())
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        node = nodes.get(spec.arg.name)
        if spec.kind is InputKind.USER_INPUT:
            input_name, example = next(inputs)
            value = ir.Value(_type_of("input", input_name, example))
            sample = 0 if example.dim() and example.shape[0] == batch else None
            argument = ir.Argument(value, input_name, "input", batch_dim=sample)
            arguments["input", input_name] = argument
        elif spec.kind is InputKind.PARAMETER and _plain(spec.target) in tensors.part_of:
            whole, i = tensors.part_of[_plain(spec.target)]
            part = builder.narrow(arguments[whole.name].value, 0, i, 1)
            conversion.bind(node, builder.reshape(part, whole.shape[1:]))
            continue
        elif spec.kind is InputKind.PARAMETER:
            argument = arguments[tensors.by_name[_plain(spec.target)].name]
        elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            value = _known_tensor(builder, tensors, arguments, evaluator, program, spec, node)
            conversion.bind(node, value)
            continue
        else:
            if node is not None:
                conversion.bind(node, None)
            continue
        conversion.bind(node, argument.value)
    values = conversion.run(program.graph)
    arguments["rng", ""] = ir.Argument(rng, "rng", "rng")
    results, written = [], []
    names = iter(exported.outputs)
    for spec, value in zip(program.graph_signature.output_specs, values):
        if spec.kind is OutputKind.USER_OUTPUT:
            sample = 0 if value.type.rank and value.shape[0] == batch else None
            results.append(ir.Result(value, next(names), sample))
        elif spec.kind is OutputKind.BUFFER_MUTATION and name == "loss":
            written.append(ir.Result(value, tensors.by_name[_plain(spec.target)].name,
                                     updates=True))
    results += written
    if name in ("loss", "evaluate") and (results[0].value.type.rank or not results[0].value.type.is_float):
        raise TraceError(f"the loss is {results[0].value.type}, not a scalar; reduce it, for "
                         "example by .mean()")
    places = dict.fromkeys("" if p is None else f"{p[0]}:{p[1]}"
                           for p in conversion.batch_statistics)
    function = ir.Function(name, list(arguments.values()), builder.ops, results, list(places))
    function.prune()
    apply_patterns(function, evaluator, PATTERNS)
    return function


def _known_tensor(builder, tensors: _Tensors, arguments, evaluator, program, spec, node) -> Any:
    """A buffer, or a tensor that the model's code creates."""
    entry = tensors.by_name.get(_plain(spec.target))
    if entry is None:
        constant = program.constants[spec.target]
        if kind := not_dense(constant):
            place = next((_origin(user) for user in node.users), "")
            raise TraceError(f"{place}a tensor is used that {kind}")
        if constant.dtype not in ir.DTYPES and constant.device.type != "meta":
            return known_constant(builder, constant.cpu())
        if constant.numel() <= LARGE_CONSTANT and constant.device.type != "meta":
            return builder.constant(constant.detach().cpu())
        entry = tensors.add_constant(constant.detach())
    if entry.name not in arguments:
        has_values = entry.tensor.device.type != "meta" and entry.name not in tensors.written
        value = ir.Value(_type_of(entry.role, entry.name, entry.tensor), constant=has_values)
        if has_values:
            evaluator.remember(value, entry.tensor.cpu())
        small = entry.tensor.device.type != "meta" and entry.tensor.numel() <= LARGE_CONSTANT
        arguments[entry.name] = ir.Argument(
            value, entry.name, entry.role, entry.aliases, persistent=entry.persistent,
            content=entry.tensor.cpu() if small else None)
    return arguments[entry.name].value


def _type_of(role: str, name: str, tensor: torch.Tensor) -> ir.TensorType:
    try:
        return ir.type_of(tensor)
    except ir.GraphError as error:
        raise TraceError(f"{role} '{name}': {error}") from None


def _plain(target: str) -> str:
    """A name in the module from its name in the wrapped step."""
    return target.removeprefix("module.")


def _batch_size(call: Call) -> int:
    for tensor in call.inputs.values():
        if tensor.dim():
            return tensor.shape[0]
    return -1


def _check_mutation(program: torch.export.ExportedProgram, call: Call) -> None:
    signature = program.graph_signature
    kinds = (
        (signature.parameters_to_mutate, "the model writes to its parameters while it runs ({}); a "
         "compiled step changes them by its optimizer alone"),
        (signature.user_inputs_to_mutate, "the model writes to its inputs while it runs ({}); a step "
         "only reads them: clone what is changed"))
    for written, message in kinds:
        if written:
            place = next((p for n in program.graph.nodes if n.name in written
                          if (p := _origin(n))), "")
            inputs = {f"values_{i}": n for i, n in enumerate(call.inputs)}
            names = sorted({inputs.get(n, _plain(n)) for n in written.values()})
            raise TraceError(place + message.format(", ".join(names)))


def _origin(node: torch.fx.Node) -> str:
    """The line of what a node writes, as `file:line: `: its own, or that of what it reads."""
    seen, pending = set(), [node]
    while pending:
        node = pending.pop(0)
        if place := location_of(node):
            return f"{place[0]}:{place[1]}: "
        pending += [n for n in node.all_input_nodes if n not in seen]
        seen.update(pending)
    return ""
