# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Checks of a module's hooks, shared memory and buffers."""

from __future__ import annotations

import contextlib
from typing import Iterator

import torch

from .errors import EagerError


def refuse_hooks(module: torch.nn.Module) -> None:
    """Raises EagerError for hooks of modules or parameters that backward would run."""
    places = torch.nn.modules.module
    if places._global_backward_hooks or places._global_backward_pre_hooks:
        raise EagerError("global backward hooks of modules are registered, and a compiled step "
                         "does not run them; remove them")
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            what = f"module '{name}'" if name else "the model"
            raise EagerError(f"{what} has backward hooks, which a compiled step does not run; "
                             "remove them (the handle's remove())")
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and (parameter._backward_hooks
                                        or parameter._post_accumulate_grad_hooks):
            raise EagerError(f"parameter '{name}' has hooks on its gradient, which a compiled "
                             "step does not run; remove them (the handle's remove())")


#: Names that modules and settings give the experts that there are, and those that a token chooses.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_CHOICES = ("top_k", "num_experts_per_tok", "moe_topk")


def refuse_choices(module: torch.nn.Module) -> None:
    """Raises EagerError if a part of the module has fewer experts than a token chooses."""
    def number(owner: object, names: tuple[str, ...]) -> int | None:
        found = (getattr(owner, name, None) for name in names)
        return next((n for n in found if type(n) is int), None)

    for name, part in module.named_modules():
        experts, choices = number(part, _EXPERTS), number(part, _CHOICES)
        if experts is not None and choices is not None and not 0 < choices <= experts:
            raise EagerError(f"module '{name}' has {experts} experts, of which a token chooses "
                             f"{choices}; it must choose at least one, and not more than there are: "
                             "change the number of experts or of choices")


def refuse_shared_memory(module: torch.nn.Module) -> None:
    """Raises EagerError if the storage of a trained parameter overlaps that of another tensor of
    the model, which is not the same object: an update would change both."""
    named = {id(t): (n, t) for n, t in
             (*module.named_buffers(), *module.named_parameters())}
    spans = []
    for name, tensor in named.values():
        if tensor.is_meta or not tensor.numel() or tensor.layout is not torch.strided:
            continue
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
        begin = tensor.data_ptr()
        trained = isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad
        spans.append((begin, begin + (last + 1) * tensor.element_size(), name, trained))
    spans.sort()
    for i, (_, end, name, trained) in enumerate(spans):
        for begin, _, other, trained_too in spans[i + 1:]:
            if begin >= end:
                break
            if trained or trained_too:
                raise EagerError(
                    f"'{name}' and '{other}' share memory and are two tensors: an update of one "
                    "would change the other. Make them one parameter (model.b.weight = "
                    "model.a.weight), or clone one")


@contextlib.contextmanager
def assigned_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Context manager that, on exit, writes a tensor that the code has assigned to the name of a
    buffer to the buffer. Raises EagerError if its shape or type differs."""
    before = [(name, part, key, buffer) for name, part in module.named_modules()
              for key, buffer in part._buffers.items()]
    yield
    for name, part, key, buffer in before:
        value = part._buffers.get(key)
        if value is buffer:
            continue
        place = f"{name}.{key}".lstrip(".")
        if buffer is None or value is None:
            change = "created" if buffer is None else "removed"
            raise EagerError(f"buffer '{place}' is {change} in the forward; register it "
                             "beforehand, with its shape")
        if value.shape != buffer.shape or value.dtype != buffer.dtype:
            raise EagerError(
                f"buffer '{place}' is replaced by one of another shape or type "
                f"({list(value.shape)}, {value.dtype} for {list(buffer.shape)}, {buffer.dtype}); "
                "the shape and type of a buffer are fixed")
        with torch.no_grad():
            buffer.copy_(value)
        part._buffers[key] = buffer
