# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Whether a step can train a model: what its parameters and statistics need, and that it is still
the model that was compiled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from ..messages import some_names, warn
from ..runtime.state import wide_type

if TYPE_CHECKING:
    from ..trace.model import TracedModel


def check_types(model: torch.nn.Module) -> None:
    """Raises TypeError unless all trained parameters are float32 or have 16 bits. Frozen ones
    may have other types, if the model casts them before use."""
    other = {name: p.dtype for name, p in model.named_parameters()
             if p.requires_grad and wide_type(p.dtype) != torch.float32}
    if other:
        kinds = " and ".join(sorted({str(t).removeprefix("torch.") for t in other.values()}))
        raise TypeError(
            f"the model trains parameters of {kinds} ({some_names(other)}); a compiled step "
            "trains float32, and 16-bit types by masters in float32: call model.float(), or freeze "
            "them (requires_grad_(False)). "
            "cleave.trace takes other types for the interpreter"
        )


def asked_precision(traced: TracedModel) -> str:
    """The precision that a traced model asks for; "f32" if for none. Raises ValueError if it asks
    for two."""
    if len(traced.precisions) > 1:
        raise ValueError("the model has both bfloat16 and float16 (in parameters, or in regions of "
                         'torch.autocast); choose one: precision="bf16", or "f32" for neither')
    return next(iter(traced.precisions), "f32")


def check_trained(model: torch.nn.Module, traced: TracedModel) -> None:
    """Raises CompileError, with the reason, if the step would train nothing."""
    from .. import _cleave

    if any(not t.frozen for t in traced.parameters):
        return
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if trained:
        reason = (f"the loss has no gradient for any of its parameters ({some_names(trained)}): it "
                  "does not read them, or detaches what it computes of them")
    elif traced.parameters:
        reason = ("every parameter is frozen (requires_grad=False); call requires_grad_(True) on "
                  "those to train")
    else:
        reason = "it has no parameters"
    raise _cleave.CompileError(f"the model cannot be trained: {reason}")


def check_statistics(traced: TracedModel, statistics: str, parts: int,
                     deterministic: int | None) -> None:
    """Raises CompileError where batch normalisation does not go with how a batch is
    computed."""
    from .. import _cleave

    if traced.batch_statistics and (deterministic or (statistics == "batch" and parts > 1)):
        places = ", ".join(traced.batch_statistics[:4])
        if deterministic:
            raise _cleave.CompileError(
                f"{places}: batch normalisation depends on all samples, and a deterministic step "
                "computes grains of them, one after another; leave out deterministic"
            )
        raise _cleave.CompileError(
            f"{places}: batch normalisation needs the statistics of the whole batch, of which "
            f"{parts} micro-batches know a part each; batch_statistics=\"micro-batch\" normalises "
            "each by its own, as accumulating gradients in PyTorch does, or \"rank\" on each rank "
            "by itself; micro_batches=1 normalises the whole batch"
        )


def coupled_samples(message: str, parts: int, deterministic: int | None) -> str:
    """The compiler's `message`, which says that a part of the batch needs the samples of another
    one, in words of the model."""
    place = re.match(r".*?:\d+:\d+: ", message)
    how = (f"deterministic={deterministic} computes grains of the batch, each" if deterministic
           else f"{parts} micro-batches are computed one after another, each")
    then = ("leave out deterministic" if deterministic else
            "micro_batches=1 computes the whole batch at once")
    return (f"{place[0] if place else ''}the model couples samples of the batch: what is computed here "
            "for one of them reads others, as similarities of all pairs do, or a softmax, an order "
            f"or a statistic over the samples. {how} without the samples of the others: {then}. "
            "(An input with as many rows as the batch has samples counts as one of samples)")


class Known:
    """A model as it was traced, of which a batch of another shape makes a further trace."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = {name: (list(p.shape), p.requires_grad)
                            for name, p in model.named_parameters()}
        self._facts = _facts(model)

    def check(self, model: torch.nn.Module) -> None:
        """Raises ValueError if parameters are other ones, which a step cannot follow; warns of what
        else has changed."""
        now = {name: (list(p.shape), p.requires_grad) for name, p in model.named_parameters()}
        for name in [*self._parameters, *now]:
            was, own = self._parameters.get(name), now.get(name)
            if was != own:
                raise ValueError(
                    f"the model was changed since it was compiled: its parameter {name} is "
                    f"{_parameter(own)}, and was {_parameter(was)}. A batch of another shape traces "
                    "it again, and the programs of a step train the same parameters: change it "
                    "back, or compile it again and go on by state_dict and training_state")
        facts = _facts(model)
        if changed := [name for name in facts | self._facts
                       if facts.get(name) != self._facts.get(name)]:
            warn(f"the model was changed since it was compiled: {some_names(changed)}. A batch of "
                 "another shape traces it as it is now; programs that were compiled before stay as "
                 "they are")


def _parameter(facts: tuple[list[int], bool] | None) -> str:
    if facts is None:
        return "not there"
    shape, trained = facts
    return f"{'trained' if trained else 'frozen'} {shape}"


def _facts(model: torch.nn.Module) -> dict[str, Any]:
    """What a forward may read of a model beside tensors, by name: numbers and text in public
    attributes, classes and the number of hooks."""
    found: dict[str, Any] = {}
    for name, part in model.named_modules():
        place = f"{name}." if name else ""
        found[f"the class of {name or 'the model'}"] = type(part)
        found[f"the hooks of {name or 'the model'}"] = (len(part._forward_hooks),
                                                        len(part._forward_pre_hooks))
        for key, value in vars(part).items():
            if key[0] != "_" and key != "training" and (
                    value is None or type(value) in (bool, int, float, str)):
                found[place + key] = repr(value)
    return found


def other_types(model: torch.nn.Module) -> str:
    """A possible reason for an error about types."""
    other = [name for name, p in model.named_parameters()
             if p.dtype.is_floating_point and wide_type(p.dtype) != torch.float32]
    if not other:
        return ""
    kind = str(model.get_parameter(other[0]).dtype).removeprefix("torch.")
    return (f"; a step computes in float32: cast frozen parameters of {kind} "
            f"({some_names(other)}) where they are read, or call model.float()")
