# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Weights in a smaller form, in files of safetensors that PyTorch reads.

`docs/lossy/Pruning.md` has the format: what each weight is stored as is said in the metadata, and
`read_export` decodes it with PyTorch alone. `python -m cleave.export` is the command.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import TYPE_CHECKING, Iterable, Mapping, Protocol, Sequence, TypedDict, TypeVar

import torch

from ..runtime.processes import lead
from ..runtime.state import path_of
from ..runtime.tensor_file import read_tensors

if TYPE_CHECKING:
    from .. import _cleave
    from ..runtime.step import Step

Tensors = Mapping[str, torch.Tensor]
B = TypeVar("B", contravariant=True)

KINDS = ("int8", "sparse", "bf16")
#: The entries of the metadata: how tensors are stored, and names of one tensor.
_FORMS, _ALIASES = "cleave.forms", "cleave.aliases"


class Form(TypedDict, total=False):
    """How a tensor is stored that is not dense."""

    form: str
    inputs: list[int]
    shape: list[int]


@dataclasses.dataclass
class ExportReport:
    """The costs of an export."""

    kind: str
    path: str
    #: Bytes of the tensors in the file, and of the same ones in the step's own types.
    bytes: int
    dense_bytes: int
    #: The form of each weight that is not dense, by name: "int8", "2:4", "mask".
    forms: dict[str, str]
    #: The share of zeros of each weight of a contraction.
    sparsity: dict[str, float]
    #: The largest difference of an element to the step's, by name.
    errors: dict[str, float]
    #: With data: the losses of the step and of the exported weights, and the largest and
    #: the mean difference of logits, if the model has them.
    loss: float | None = None
    exported_loss: float | None = None
    logits_max_error: float | None = None
    logits_mean_error: float | None = None

    @property
    def loss_rise(self) -> float | None:
        """By how much the loss has risen, as a share of it."""
        if self.loss is None or self.exported_loss is None:
            return None
        return self.exported_loss / self.loss - 1

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.kind}, {self.bytes:,} bytes, {self.dense_bytes:,} before "
                 f"({self.dense_bytes / max(self.bytes, 1):.2f}x); "
                 f"{len(self.forms)} weights are compressed",
                 f"largest error of an element: {max(self.errors.values(), default=0.0):.3g}"]
        if any(self.sparsity.values()):
            shares = self.sparsity.values()
            lines.append(f"sparsity of weights: {min(shares):.2%} to {max(shares):.2%}")
        if self.loss is not None:
            lines.append(f"loss: {self.exported_loss:.6g}, {self.loss:.6g} before "
                         f"({self.loss_rise:+.3%})")
        if self.logits_max_error is not None:
            lines.append(f"error of logits: {self.logits_max_error:.3g} at most, "
                         f"{self.logits_mean_error:.3g} in the mean")
        return "\n".join(lines)


def export(step: Step, kind: str, path: str | os.PathLike[str],
           data: Iterable[Sequence[torch.Tensor]] | None = None) -> ExportReport:
    """Writes the parameters and buffers of a compiled step as a file of safetensors, which is
    there in whole or not at all. If ranks are processes, all of them call it, and the first
    one writes; when it returns, the file is there.

    Args:
        step: what `cleave.compile` returned; its state is not changed.
        kind: "int8": weights of contractions as codes of 8 bits, with a scale for each
            output channel. "sparse": those with zeros as the elements that are not zero,
            and where they are. "bf16": all floats in 16 bits.
        path: of the file.
        data: batches, each a sequence of the step's inputs, on which losses and logits of
            the exported weights are compared with the step's.

    Raises:
        TypeError: `step` is not a compiled step.
        ValueError: there is no such kind, no batch in `data`, or a weight is not finite.
        OSError: the file cannot be written.
    """
    from ..runtime.step import Step

    if not isinstance(step, Step):
        raise TypeError(f"step is {type(step).__name__}, not what cleave.compile returned")
    return export_model(_OfStep(step), kind, path, data)


class Model(Protocol[B]):
    """The exported tensors. Ranks that are processes make the same calls."""

    @property
    def processes(self) -> _cleave.Processes | None:
        """Those that are its ranks; None for threads of this one."""

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers; names of one tensor share it."""

    def load(self, state: Tensors) -> None:
        """Replaces them."""

    def weights(self) -> dict[str, list[int]]:
        """Weights of contractions, each with the dimensions that are summed over."""

    def evaluate(self, batch: B) -> tuple[float, float]:
        """The loss of a batch, and its weight in the mean."""

    def logits(self, batch: B) -> torch.Tensor | None:
        """Those of a batch, if it has any."""


def export_model(model: Model[B], kind: str, path: str | os.PathLike[str],
                 data: Iterable[B] | None = None) -> ExportReport:
    """`export`, of what holds parameters in another way than a `Step`."""
    from ..trace.weights import check_writable, write_tensors

    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; there are {', '.join(KINDS)}")
    file = path_of("path", path)
    # Before the evaluation, which may take long.
    lead(model.processes, f"export as {kind}", lambda: check_writable(file))
    weights = model.weights()
    state = model.state()
    tensors: dict[str, torch.Tensor] = {}
    forms: dict[str, Form] = {}
    aliases: dict[str, str] = {}
    kept: dict[int, str] = {}
    for name, value in state.items():
        if (first := kept.setdefault(value.data_ptr(), name)) != name and value.numel():
            aliases[name] = first
            continue
        if name in weights and not torch.isfinite(value).all():
            raise ValueError(f"'{name}' has elements that are not finite: they have no form in an "
                             "export")
        parts, form = _encode(kind, value.detach().contiguous(), weights.get(name))
        tensors.update({name + suffix: part for suffix, part in parts.items()})
        if form:
            forms[name] = form
    metadata = {"format": "pt", _FORMS: json.dumps(forms), _ALIASES: json.dumps(aliases)}
    exported = _decode(tensors, forms, aliases)
    own = [name for name in state if name not in aliases]
    report = ExportReport(
        kind, file, sum(t.nbytes for t in tensors.values()), sum(state[n].nbytes for n in own),
        {name: form["form"] for name, form in forms.items()},
        {name: 1 - torch.count_nonzero(exported[name]).item() / exported[name].numel()
         for name in weights if name in exported},
        {name: (exported[name].double() - state[name].double()).abs().max().item()
         for name in own if state[name].is_floating_point() and state[name].numel()})
    if data is not None:
        _compare(model, state, exported, data, report)
    lead(model.processes, "write the export",
         lambda: write_tensors(file, tensors, metadata))
    return report


class _OfStep:
    """A compiled step."""

    def __init__(self, step: Step) -> None:
        self.step, self.processes = step, step._processes

    def state(self) -> dict[str, torch.Tensor]:
        return self.step.state_dict(masters=True)

    def load(self, state: Tensors) -> None:
        self.step.load_state_dict(state)

    def weights(self) -> dict[str, list[int]]:
        return _weights(self.step)

    def evaluate(self, batch: Sequence[torch.Tensor]) -> tuple[float, float]:
        loss = self.step.evaluate(*batch)
        return float(loss), 1.0 if loss.weight is None else loss.weight

    def logits(self, batch: Sequence[torch.Tensor]) -> torch.Tensor | None:
        if "logits" not in self.step._live.session.entries():
            return None
        return self.step.logits(*batch)


def read_export(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The dense tensors of a file that `export` has written, under the names of the module's
    `state_dict`; what is stored in 8 bits is float32."""
    try:
        tensors, metadata = read_tensors(path_of("path", path))
        if _FORMS in metadata:
            return _decode(tensors, json.loads(metadata[_FORMS]), json.loads(metadata[_ALIASES]))
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    raise ValueError(f"{path}: is not written by cleave.export")


def _weights(step: Step) -> dict[str, list[int]]:
    """Weights of contractions, by names of the `state_dict`, each with the dimensions that
    are summed over."""
    from .. import _cleave

    traced = step._live.traced
    known = _cleave.contraction_weights(traced.named_mlir)
    found = {}
    for entry in traced.parameters:
        if (inputs := known.get(entry.name)) is None:
            continue
        found[entry.name] = inputs
        # Parts of a stack do not have its first dimension.
        for part in entry.parts if 0 not in inputs else ():
            found[part] = [dim - 1 for dim in inputs]
    return found


def _encode(kind: str, value: torch.Tensor,
            inputs: list[int] | None) -> tuple[dict[str, torch.Tensor], Form | None]:
    """The stored tensors of one, by the suffix of its name, and its metadata."""
    if kind == "bf16":
        narrow = value.to(torch.bfloat16) if value.is_floating_point() else value
        return {"": narrow.clone()}, None
    if inputs is not None and kind == "int8":
        codes, scale = quantize(value, inputs)
        return {"": codes, ".scale": scale}, {"form": "int8", "inputs": inputs}
    if inputs is not None and kind == "sparse":
        outputs = [dim for dim in range(value.ndim) if dim not in inputs]
        rows = value.permute(*outputs, *inputs).reshape(
            math.prod(value.shape[dim] for dim in outputs), -1)
        shape = list(value.shape)
        share = torch.count_nonzero(value).item() / max(value.numel(), 1)
        # Of fewer elements the other form is smaller.
        if (share > 7 / 16 and rows.shape[1] % 4 == 0
                and bool(((rows.reshape(-1, 4) != 0).sum(1) <= 2).all())):
            values, places = _pack_groups(rows)
            return {".values": values, ".places": places}, {
                "form": "2:4", "inputs": inputs, "shape": shape}
        flat = value.reshape(-1)
        if share < 31 / 32:
            return ({".values": flat[flat != 0], ".mask": _pack_bits(flat != 0)},
                    {"form": "mask", "inputs": inputs, "shape": shape})
    return {"": value.clone()}, None


def quantize(weight: torch.Tensor, inputs: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of 8 bits and scales of output channels, which broadcast to the weight: `weight`
    is about `codes * scale`. Ties are rounded to even; a channel of zeros has scale 0."""
    wide = weight if weight.dtype == torch.float64 else weight.float()
    scale = wide.abs().amax(dim=tuple(inputs), keepdim=True) / 127
    divisor = torch.where(scale == 0, 1.0, scale)
    return (wide / divisor).round().clamp(-127, 127).to(torch.int8), scale


def _pack_bits(flags: torch.Tensor) -> torch.Tensor:
    """Eight flags in a byte, the first one in the lowest bit."""
    flags = torch.nn.functional.pad(flags.to(torch.uint8), (0, -flags.numel() % 8)).reshape(-1, 8)
    return (flags << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def _unpack_bits(packed: torch.Tensor, count: int) -> torch.Tensor:
    bits = packed.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.reshape(-1)[:count].bool()


def _pack_groups(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each four elements the two that may be nonzero, in order, and their places: two bits
    for each, two groups in a byte, the first one in the lower half."""
    groups = rows.reshape(-1, 4)
    # Nonzero elements first, and lower places before higher ones.
    order = torch.argsort((groups == 0).to(torch.uint8), dim=1, stable=True)[:, :2]
    places = order.sort(dim=1).values
    values = groups.gather(1, places).reshape(rows.shape[0], -1)
    codes = (places[:, 0] | places[:, 1] << 2).to(torch.uint8)
    codes = torch.nn.functional.pad(codes, (0, -codes.numel() % 2)).reshape(-1, 2)
    return values.contiguous(), codes[:, 0] | codes[:, 1] << 4


def _unpack_groups(values: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    pairs = values.reshape(-1, 2)
    codes = torch.stack([packed & 15, packed >> 4], dim=1).reshape(-1)[: len(pairs)].long()
    places = torch.stack([codes & 3, codes >> 2], dim=1)
    return torch.zeros(len(pairs), 4, dtype=values.dtype).scatter_(1, places, pairs)


def _decode(tensors: Tensors, forms: Mapping[str, Form],
            aliases: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """The dense tensors."""
    parts = {name + suffix for name in forms for suffix in (".scale", ".values", ".places", ".mask")}
    dense = {name: value for name, value in tensors.items() if name not in parts}
    for name, form in forms.items():
        if form["form"] == "int8":
            scale = tensors[name + ".scale"]
            dense[name] = tensors[name].to(scale.dtype) * scale
            continue
        values, shape = tensors[name + ".values"], form["shape"]
        if form["form"] == "mask":
            whole = torch.zeros(math.prod(shape), dtype=values.dtype)
            whole[_unpack_bits(tensors[name + ".mask"], whole.numel())] = values
            dense[name] = whole.reshape(shape)
        else:
            order = [dim for dim in range(len(shape)) if dim not in form["inputs"]]
            order += form["inputs"]
            rows = _unpack_groups(values, tensors[name + ".places"])
            permuted = rows.reshape([shape[dim] for dim in order])
            back = [order.index(dim) for dim in range(len(shape))]
            dense[name] = permuted.permute(back).contiguous()
    return dense | {name: dense[first] for name, first in aliases.items()}


def _compare(model: Model[B], state: Tensors, exported: Tensors, data: Iterable[B],
             report: ExportReport) -> None:
    """Evaluates the model with its own weights and with those that are exported."""
    batches = list(data)
    if not batches:
        raise ValueError("data has no batch")

    def evaluate() -> float:
        results = [model.evaluate(batch) for batch in batches]
        total = sum(weight for _, weight in results)
        # The mean over no elements is undefined.
        loss = sum(loss * weight for loss, weight in results if weight)
        return loss / total if total else math.nan

    def use(values: Tensors) -> None:
        model.load({name: values[name].to(value.dtype) for name, value in state.items()})

    report.loss = evaluate()
    largest, total, count = 0.0, 0.0, 0
    try:
        use(exported)
        report.exported_loss = evaluate()
        # Logits of one batch at a time: those of all may not fit memory.
        for batch in batches:
            if (after := model.logits(batch)) is None:
                break
            use(state)
            before = model.logits(batch)
            use(exported)
            if before is None:
                break
            error = (after.double() - before.double()).abs()
            largest = max(largest, error.max().item())
            total, count = total + error.sum().item(), count + error.numel()
    finally:
        use(state)
    if count:
        report.logits_max_error, report.logits_mean_error = largest, total / count
