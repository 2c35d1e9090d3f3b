# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Traces in the cache of compiled programs: what was traced before is read at the next start.

An entry has the text of the module, and the names by which the tensors of a model are found in
another process. A trace that warned, or that has what an entry cannot have, is not kept.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, Callable, Sequence

import torch

from .. import _cleave, messages
from ..runtime.step import log
from .trace_inputs import trace_key
from .verdicts import file_fact

if TYPE_CHECKING:
    from ..trace.model import TracedModel

#: The form of an entry.
_FORM = 1
#: Fields of a traced model that are written as they are.
_PLAIN = ("named_mlir", "input_names", "entries", "written", "precisions", "batch_statistics",
          "unevaluated", "no_logits", "logits_inputs")


def kept_trace(model: torch.nn.Module, inputs: Any, loss_fn: Callable[..., Any] | None,
               others: Sequence[Any], trace: Callable[[], TracedModel]) -> TracedModel:
    """What `trace` returns, which follows from the arguments before it."""
    if os.environ.get("CLEAVE_CACHE") == "off":
        return trace()
    try:
        key = trace_key(model, inputs, loss_fn, *others)
    except Exception as reason:
        # `Unknown`, and what the model's objects raise where they are looked at.
        log.debug("the trace is not kept: it may depend on %s", reason)
        return trace()
    found = _cleave.load_finding(key)
    read = None if found is None else _read(found, model, trace)
    if read is not None and os.environ.get("CLEAVE_CACHE_VERIFY") != "1":
        read.files = f"{key[4]} {read.files}"
        return read
    before, warned = set(sys.modules), messages.warned
    traced = trace()
    if read is not None and (difference := different(read, traced)):
        raise RuntimeError(f"the trace in the cache is not that of the model: {difference} differs. "
                           "This is a defect of Cleave")
    # What is said is said at each start.
    if read is None and messages.warned == warned:
        _keep(key, traced, model, sorted(set(sys.modules) - before))
        if traced.files:
            traced.files = f"{key[4]} {traced.files}"
    return traced


def different(one: TracedModel, other: TracedModel) -> str:
    """The name of a field in which two traces of a model differ; "" if there is none."""
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if field.name == "tensors":
            same = len(a) == len(b) and all(map(_same_tensor, a, b))
        elif field.name == "files":
            continue
        elif field.name == "deterministic":
            same = (a is None) == (b is None)
        else:
            same = a == b
        if not same:
            return field.name
    return ""


def _same_tensor(a: Any, b: Any) -> bool:
    return (dataclasses.replace(a, tensor=None) == dataclasses.replace(b, tensor=None)
            and a.tensor.dtype == b.tensor.dtype and a.tensor.device == b.tensor.device
            and a.tensor.shape == b.tensor.shape
            and (a.tensor.is_meta or a.tensor.data_ptr() == b.tensor.data_ptr()
                 or torch.equal(a.tensor.view(torch.uint8) if a.tensor.dim() else a.tensor,
                                b.tensor.view(torch.uint8) if b.tensor.dim() else b.tensor)))


# Entries ------------------------------------------------------------------------------


def _keep(key: Sequence[str], traced: TracedModel, model: torch.nn.Module, loaded: list[str]) -> None:
    """Writes an entry if it is read as what was traced."""
    blobs: list[bytes] = []
    own = _own(model)
    tensors = []
    for entry in traced.tensors:
        facts = {f.name: getattr(entry, f.name) for f in dataclasses.fields(entry)
                 if f.name != "tensor"}
        if not entry.parts and entry.name not in own:
            # What the model's code creates.
            value = entry.tensor
            if value.is_meta or value.device.type != "cpu" or value.layout is not torch.strided:
                return
            facts["dtype"], facts["shape"] = str(value.dtype).removeprefix("torch."), list(value.shape)
            blobs.append(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
            facts["bytes"] = len(blobs[-1])
        tensors.append(facts)
    files = [[name, file] for name in loaded
             if isinstance(file := getattr(sys.modules.get(name), "__file__", None), str)]
    head = {"form": _FORM, "tensors": tensors,
            "files": [[name, file, file_fact(file)] for name, file in files],
            "inputs": [[n, list(shape), str(dtype).removeprefix("torch.")]
                       for n, (shape, dtype) in traced.input_types.items()],
            "mlir": traced.mlir, **{name: getattr(traced, name) for name in _PLAIN}}
    text = json.dumps(head).encode()
    content = b"%d\n" % len(text) + text + b"".join(blobs)
    read = _read(content, model, lambda: traced)
    if read is not None and not different(read, traced):
        _cleave.keep_finding(key, content)
        traced.files = read.files


def _read(content: bytes, model: torch.nn.Module,
          trace: Callable[[], TracedModel]) -> TracedModel | None:
    """The traced model of an entry; None if files that it loaded have changed."""
    from ..trace.model import TracedModel
    from ..trace.model_tensors import Tensor

    size, rest = content.split(b"\n", 1)
    head = json.loads(rest[:int(size)])
    if head["form"] != _FORM or any(file_fact(file) != fact for _, file, fact in head["files"]):
        return None
    own, at, tensors = _own(model), int(size), []
    for facts in head["tensors"]:
        names = facts["parts"] or [facts["name"]]
        if "bytes" in facts:
            data = bytearray(rest[at:at + facts.pop("bytes")])
            at += len(data)
            dtype = getattr(torch, facts.pop("dtype"))
            shape = facts.pop("shape")
            value = (torch.frombuffer(data, dtype=dtype) if data
                     else torch.empty(0, dtype=dtype)).reshape(shape)
        elif facts["parts"]:
            value = torch.stack([own[name] for name in names])
        else:
            value = own[names[0]]
        facts["aliases"], facts["parts"] = tuple(facts["aliases"]), tuple(facts["parts"])
        tensors.append(Tensor(tensor=value, **facts))
    fields: dict[str, Any] = {
        name: tuple(head[name]) if isinstance(head[name], list) and name != "input_names"
        else head[name] for name in _PLAIN}
    return TracedModel(
        mlir=head["mlir"], tensors=tensors,
        input_types={n: (tuple(shape), getattr(torch, dtype)) for n, shape, dtype in head["inputs"]},
        deterministic=lambda: _again(trace), files=json.dumps(head["files"]), **fields)


def _again(trace: Callable[[], TracedModel]) -> TracedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = trace()
    assert traced.deterministic is not None
    return traced.deterministic()


def _own(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a model by all their names."""
    return {name: tensor.detach() for named in (model.named_parameters(remove_duplicate=False),
                                                model.named_buffers(remove_duplicate=False))
            for name, tensor in named}
