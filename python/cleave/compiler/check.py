# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Compares a compiled program with eager PyTorch: the loss, the gradient of every
parameter, and what is written to buffers.

The program that is compared is that of the model on one device. Random numbers are the same
in both: dropout keeps all elements, and others follow from their places (`counted`).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import logging
import math
import os
import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, TypeVar

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..messages import some_names
from ..runtime.program import Program
from ..runtime.results import StepError
from ..runtime.state import logical_shape, split_slots
from ..trace import TraceError, UnsupportedError, trace
from ..trace.export import eager_step
from ..trace.widen import is_narrow
from ..training import optim
from .counted import counted_numbers
from .shortened import with_few_layers, with_few_positions

if TYPE_CHECKING:
    from .. import _cleave
    from ..trace.model import TracedModel
    from .batch import Arrange, Tensors

T = TypeVar("T")
LossFn = Callable[..., Any]

log = logging.getLogger("cleave")

#: The limits of "auto": elements of parameters, and these times the elements of the
#: largest input, which is about the multiplications of a forward. Of a batch above
#: `ENOUGH` it takes the first samples.
PARAMETERS = 1 << 26
WORK = 1 << 33
ENOUGH = 1 << 31
#: Of a model of more parameters, a copy with few layers is compared, of up to this number of
#: elements, or of a quarter of the model's.
SHORTENED = 1 << 28
#: The number of elements of parameters up to which gradients are also computed in f64,
#: if those in f32 are not conclusive.
DOUBLE = 1 << 24

#: The largest difference due to rounding, relative to a gradient's largest element.
RELATIVE = 1e-3
#: The rounding of f32, relative to the largest gradient of all: a gradient that is zero
#: except for rounding may have this size.
NOISE = 64 * torch.finfo(torch.float32).eps
#: What an element of a buffer may be off by in any case.
SMALL = 1e-5


class Skipped(Exception):
    """No comparison is possible; the text gives the reason."""


@dataclasses.dataclass
class Gradients:
    """A loss, the gradients by parameter (None for a parameter without one), and the new
    values of buffers."""

    loss: float
    by_name: Mapping[str, torch.Tensor | None]
    written: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)

    def largest(self) -> float:
        return max((m for g in self.by_name.values()
                    if g is not None and math.isfinite(m := _most(g))), default=0.0)


def mode(check: str) -> str:
    """`check` as passed to `cleave.compile`; CLEAVE_CHECK sets the meaning of
    "auto"."""
    known = ("auto", "on", "off")
    if check not in known:
        raise ValueError(f"check is {check!r}; it must be 'auto', 'on' or 'off'")
    if check != "auto":
        return check
    check = os.environ.get("CLEAVE_CHECK", "auto")
    if check not in known:
        raise ValueError(f"CLEAVE_CHECK is '{check}'; it must be auto, on or off")
    return check


def compare(model: torch.nn.Module, arrange: Arrange, inputs: Tensors, loss_fn: LossFn | None,
            traced: TracedModel, options: Mapping[str, Any], forced: bool,
            lender: _cleave.Compiled | None = None) -> str | None:
    """Compares the program of `traced` with eager PyTorch on `inputs`, or on their
    first samples if there are too many. Of a large model, a copy with few layers is compared.

    `options` are the compiler's options that apply to one device. Kernels that the program
    `lender` has too are not compiled again. Returns a text that describes the difference, or None. Raises Skipped if no comparison is possible, or
    if it would take too long and is not `forced`.
    """
    if any(t.is_meta for t in (*inputs, *model.parameters(), *model.buffers())):
        raise Skipped("the model or its inputs are on the meta device and have no values")
    if not forced:
        if _elements(model) > PARAMETERS:
            return _compare_shortened(model, arrange, inputs, loss_fn, options, lender)
        inputs, shortened = _shortened(model, inputs)
        if shortened:
            traced = _retraced(model, arrange, inputs, loss_fn)
    return _compare(model, arrange, inputs, loss_fn, traced, options, lender)


def _retraced(model: torch.nn.Module, arrange: Arrange, inputs: Tensors,
              loss_fn: LossFn | None) -> TracedModel:
    """The trace of fewer samples or layers, or positions. Raises Skipped if there is none."""
    try:
        with warnings.catch_warnings():
            # They have been given for the whole batch.
            warnings.simplefilter("ignore")
            return trace(model, arrange(inputs), loss_fn=loss_fn, logits=False)
    except (TraceError, UnsupportedError) as error:
        raise Skipped(f"it is too large to be compared, and the model does not take its first "
                      f"samples, positions or layers alone ({error})") from None


def _compare_shortened(model: torch.nn.Module, arrange: Arrange, inputs: Tensors,
                       loss_fn: LossFn | None, options: Mapping[str, Any],
                       lender: _cleave.Compiled | None) -> str | None:
    """Compares a copy of a large model with few layers, on two samples with few positions."""
    elements = _elements(model)
    try:
        model, loss_fn, said = with_few_layers(model, loss_fn)
    except Exception as error:
        raise Skipped(f"it is large ({elements:,} elements of parameters), and cannot be copied "
                      f"({type(error).__name__}: {error})") from None
    own = _elements(model)
    if own > max(PARAMETERS, SHORTENED, min(elements // 4, 4 * SHORTENED)):
        raise Skipped(f"it is large ({elements:,} elements of parameters"
                      + (f", {own:,} with {said})" if said else ")"))
    batch = inputs[0].shape[0] if inputs and inputs[0].ndim else 1
    inputs = tuple(t[:2] if t.ndim and t.shape[0] == batch else t for t in inputs)
    reason = Skipped("")
    for some in with_few_positions(inputs, ENOUGH // own):
        most = max((t.numel() for t in some), default=1)
        if own * most > 4 * WORK:
            raise Skipped(f"a sample is large ({most:,} elements for {own:,} elements of "
                          "parameters)")
        try:
            return _compare(model, arrange, some, loss_fn,
                            _retraced(model, arrange, some, loss_fn), options, lender)
        except Skipped as error:
            reason = error
    raise Skipped(f"it is large ({elements:,} elements of parameters), and of a copy with "
                  f"{said or 'two samples'}: {reason}")


def _elements(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _compare(model: torch.nn.Module, arrange: Arrange, inputs: Tensors, loss_fn: LossFn | None,
             traced: TracedModel, options: Mapping[str, Any],
             lender: _cleave.Compiled | None) -> str | None:
    """Compares the program with eager PyTorch; see `compare`."""
    wide = bool(traced.precisions)
    try:
        theirs = _eager(model, arrange(inputs), loss_fn, wide)
    except Exception as error:
        raise Skipped(f"eager PyTorch does not take the example inputs "
                      f"({type(error).__name__}: {error})") from None
    if not torch.isfinite(torch.tensor(theirs.loss)):
        raise Skipped(f"the loss of the example inputs is {theirs.loss}")
    if traced.deterministic is None:
        raise Skipped("its trace has no form without drawn numbers")
    try:
        ours = _compiled(traced.deterministic(), inputs, options, lender)
    except StepError as error:
        return f"the compiled step stops ({error}), where eager PyTorch has a loss of {theirs.loss:.6g}"
    doubtful = _differences(ours, theirs, RELATIVE, 0.0, None)
    lines = doubtful
    if doubtful:
        exact = None
        if sum(p.numel() for p in model.parameters()) <= DOUBLE:
            exact = _in_double(model, arrange(inputs), loss_fn, theirs, wide)
        lines = (_differences(ours, theirs, RELATIVE, NOISE, None) if exact is None
                 else _differences(ours, exact, RELATIVE, 0.0, theirs))
    if lines:
        # Kernels of attention differ in rows that attend to nothing: the plain form decides.
        with sdpa_kernel(SDPBackend.MATH):
            plain = _eager(model, arrange(inputs), loss_fn, wide)
        if not _differences(ours, plain, RELATIVE, NOISE, None):
            lines = []
    if undefined := [n for n, g in theirs.by_name.items() if g is not None and not g.isfinite().all()]:
        log.warning("remark: gradients of eager PyTorch are NaN or infinite for the example inputs, "
                    "and were not compared there: %s", some_names(undefined))
    return _told(lines)


def padding_changes(model: torch.nn.Module, arrange: Arrange, loss_fn: LossFn | None,
                    plain: Tensors, padded: Tensors) -> str | None:
    """What eager PyTorch computes otherwise of the inputs `padded` than of `plain`, or None.
    Raises Skipped if it does not take them, or has no finite loss."""
    words = ("padded", "not padded")

    def both(run: Callable[[Any], T]) -> tuple[T, T]:
        try:
            return run(arrange(padded)), run(arrange(plain))
        except Exception as error:
            raise Skipped(f"eager PyTorch does not take the example inputs "
                          f"({type(error).__name__}: {error})") from None

    ours, theirs = both(lambda example: _eager(model, example, loss_fn, True))
    if not math.isfinite(theirs.loss):
        raise Skipped(f"the loss of the example inputs is {theirs.loss}")
    lines = _differences(ours, theirs, RELATIVE, NOISE, None, words)
    if lines and sum(p.numel() for p in model.parameters()) <= DOUBLE:
        singles = iter((ours, theirs))
        exact = both(lambda example: _in_double(model, example, loss_fn, next(singles), True))
        if exact[0] is not None and exact[1] is not None:
            lines = _differences(exact[0], exact[1], RELATIVE, NOISE, None, words)
    return _told(lines)


def _shortened(model: torch.nn.Module, inputs: Tensors) -> tuple[Tensors, bool]:
    """As many of the first samples as can be compared in a short time, and whether
    these are fewer than all."""
    elements = _elements(model)
    batch = inputs[0].shape[0] if inputs and inputs[0].ndim else 1
    sample = max((t.numel() // (t.shape[0] or 1) if t.ndim else 1 for t in inputs), default=1)
    work = max(elements * sample, 1)
    samples = max(ENOUGH // work, 1)
    if samples >= batch:
        return inputs, False
    if work > WORK:
        raise Skipped(f"a sample is large ({sample:,} elements for {elements:,} elements of "
                      "parameters)")
    return tuple(t[:samples] if t.ndim and t.shape[0] == batch else t for t in inputs), True


# Eager PyTorch -------------------------------------------------------------------------


@contextlib.contextmanager
def _untouched(model: torch.nn.Module) -> Iterator[None]:
    """Restores attributes and buffers of the modules, and the state of torch's random
    numbers."""
    parts = [(m, dict(m.__dict__)) for m in model.modules()]
    buffers = [(m._buffers, dict(m._buffers)) for m in model.modules()]
    values = [(b, b.detach().clone()) for b in model.buffers()]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for own, kept in buffers:
            own.update(kept)
        for buffer, value in values:
            buffer.detach_()
            buffer.data.copy_(value)
        for part, attributes in parts:
            part.__dict__.clear()
            part.__dict__.update(attributes)


@contextlib.contextmanager
def _in_single(model: torch.nn.Module, loss_fn: Any) -> Iterator[None]:
    """The 16-bit parameters and buffers have f32 values, and what a model asks for in 16 bits is
    computed in f32."""
    owners = [m for m in (model, loss_fn) if isinstance(m, torch.nn.Module)]
    held = {id(t): (t, t.data) for m in owners for t in (*m.parameters(), *m.buffers())
            if is_narrow(t)}
    try:
        for tensor, value in held.values():
            tensor.data = value.float()
        with _OtherTypes({t: torch.float32 for t in (torch.float16, torch.bfloat16)}):
            yield
    finally:
        for tensor, value in held.values():
            tensor.data = value


def _eager(model: torch.nn.Module, example: Any, loss_fn: LossFn | None, wide: bool = False,
           double: bool = False) -> Gradients:
    """Autograd's gradients; neither the model nor any `.grad` is changed. With `wide`, 16-bit
    types are f32."""
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with _in_single(model, loss_fn) if wide and not double else contextlib.nullcontext(), \
            _untouched(model), eager_step(model, example, loss_fn, double) as run, \
            counted_numbers(), torch.enable_grad():
        loss = run()
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True) \
            if loss.requires_grad and trained else [None] * len(trained)
        written = {n: b.detach().to("cpu").clone() for n, b in model.named_buffers()}
    return Gradients(float(loss.detach()), {
        n: None if g is None else g.detach().to("cpu")
        for n, g in zip(trained, found)}, written)


class _OtherTypes(TorchDispatchMode):
    """Computes in other types than a model asks for; `types` has them by its types. Tensors of
    16 bits are converted where they are read."""

    def __init__(self, types: Mapping[torch.dtype, torch.dtype]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._types = types

    def __torch_dispatch__(self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        def other(leaf: Any) -> Any:
            if isinstance(leaf, torch.dtype):
                return self._types.get(leaf, leaf)
            narrow = is_narrow(leaf) and leaf.dtype in self._types
            return leaf.to(self._types[leaf.dtype]) if narrow else leaf
        args, kwargs = pytree.tree_map(other, (args, kwargs or {}))
        return function(*args, **kwargs)


def _in_double(model: torch.nn.Module, example: Any, loss_fn: LossFn | None, single: Gradients,
               wide: bool) -> Gradients | None:
    """The same in f64, by a copy of the model; None if the copy fails or is not the
    same model, because the loss reads the original."""
    default = torch.get_default_dtype()
    try:
        model, loss_fn = copy.deepcopy((model, loss_fn))
        torch.set_default_dtype(torch.float64)
        asked = (torch.float32, *((torch.float16, torch.bfloat16) if wide else ()))
        with _OtherTypes(dict.fromkeys(asked, torch.float64)):
            exact = _eager(model.double(), example, loss_fn, wide, double=True)
    except Exception:
        return None
    finally:
        torch.set_default_dtype(default)
    scale = single.largest()
    alike = abs(exact.loss - single.loss) <= 1e-2 * max(abs(exact.loss), 1e-3) and all(
        e is None if g is None else e is not None and bool(((g - e).abs() <= 1e-2 * scale).all())
        for g, e in ((g, exact.by_name[n]) for n, g in single.by_name.items()))
    return exact if alike else None


# The compiled program
# ------------------------------------------------------------------


def _compiled(traced: TracedModel, inputs: Tensors, options: Mapping[str, Any],
              lender: _cleave.Compiled | None) -> Gradients:
    """The loss and gradients of the compiled program: the first momentum is the
    gradient."""
    from .. import _cleave

    options = {
        "optimizer_fusion": "none", "micro_batches": 1, "mesh": "",
        "plan": "", "pipe_slices": "auto", "parameters": {}, "check_finite": False,
        "optimizer": optim.SGD(lr=1.0, momentum=0.5).options(), **options,
    }
    compiled = _cleave.compile(traced.named_mlir, json.dumps(options), lender)
    program = Program(traced, compiled, [])
    program.open()
    for entry in traced.tensors:
        if entry.name in program.tensors:
            program.set(entry.name, entry.tensor)
    for name, value in zip(traced.input_names, inputs):
        if name in program.tensors:
            program.set(name, value)
    program.set("lr", 0.0)
    error = program.session.run("train", 0, 1)
    if error:
        raise StepError(error)
    slots: dict[str, dict[str, torch.Tensor]] = {}
    for name, facts in program.tensors.items():
        if facts["role"] == "state":
            value = program.tensor(name).reshape(logical_shape(facts))
            slots.setdefault(facts["of"], {})[facts["slot"]] = value
    found = {n: next(iter(own.values())) for n, own in
             split_slots(traced.parameters, slots).items()}
    loss = float(program.tensor("loss"))
    written = {n: program.tensor(n).reshape(logical_shape(program.tensors[n])).clone()
               for n in traced.written if n in program.tensors}
    program.close()
    return Gradients(loss, found, written)


# The comparison
# -------------------------------------------------------------------------


def _differences(ours: Gradients, theirs: Gradients, relative: float, noise: float,
                 single: Gradients | None,
                 words: tuple[str, str] = ("compiled", "eager")) -> list[str]:
    """A line for the loss and for each parameter that differ by more than rounding.
    `single` is `theirs` computed in f32: its error shows how large the rounding is."""
    lines = []
    slack = 50 * abs(single.loss - theirs.loss) if single else 0.0
    if not abs(ours.loss - theirs.loss) <= max(relative * max(abs(theirs.loss), 1e-6), slack):
        lines.append(f"the loss is {ours.loss:.6g} {words[0]}, {theirs.loss:.6g} {words[1]}")
    floor = max(noise * theirs.largest(), 1e-30)
    for name, expected in theirs.by_name.items():
        found = ours.by_name.get(name)
        like = found if expected is None else expected
        if like is None:
            continue
        e = torch.zeros_like(like) if expected is None else expected
        f = torch.zeros_like(like) if found is None else found.reshape(like.shape)
        # Where eager code has no number, nothing can be compared.
        known = e.isfinite()
        if not bool(known.all()):
            e, f = e.where(known, 0), f.where(known, 0)
        most = _most(e)
        bound = max(relative * most, floor)
        rounded = None if single is None else single.by_name[name]
        if rounded is not None and bool(known.all()):
            bound = max(bound, 50 * _most(rounded - e))
            if most <= 1e-12 * theirs.largest():
                # Terms that cancel exactly in one order of a sum leave rounding in another.
                bound = max(bound, NOISE * theirs.largest())
        off = _most(e - f)
        if not off <= bound:
            i = int((e - f).abs().nan_to_num(nan=math.inf).argmax())
            lines.append(f"the gradient of {name} is off by {off:.3g} ({words[0]} "
                         f"{float(f.reshape(-1)[i]):.6g}, {words[1]} "
                         f"{float(e.reshape(-1)[i]):.6g}, "
                         f"at element {i} of {e.numel()})")
    for name, value in ours.written.items():
        f, e = value.double(), theirs.written[name].double()
        most = _most(e)
        if not math.isfinite(most):
            continue
        bound = max(relative * most, SMALL) if value.is_floating_point() else 0.0
        if single is not None and bound:
            bound = max(bound, 50 * _most(single.written[name].double() - e))
        off = _most(e - f)
        if not off <= bound:
            lines.append(f"buffer {name} is off by {off:.3g} after a step")
    return lines


def _most(x: torch.Tensor) -> float:
    """The largest magnitude among the elements; NaN if one is."""
    if not x.numel():
        return 0.0
    least, most = torch.aminmax(x)
    return float(torch.maximum(most, -least))


def _told(lines: list[str]) -> str | None:
    if not lines:
        return None
    shown = lines[:6]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more")
    return "; ".join(shown)
