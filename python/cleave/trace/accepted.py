# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Which tensors and names of a model a compiled step can have."""

from __future__ import annotations

import re
from typing import Iterable

import torch

from ..messages import some_names
from ..state import not_dense
from .errors import EagerError

#: Values of a step itself, by which it knows them beside those of the model.
_OWN = re.compile(r"loss|loss_weight|logits|grad_norm|lr|step|rng|auxiliary_loss\.\d+")


def refuse_tensors(module: torch.nn.Module) -> None:
    """Raises EagerError where a parameter or buffer is not a dense tensor, or where its name
    is no text."""
    for role, named in (("parameter", module.named_parameters(remove_duplicate=False)),
                        ("buffer", module.named_buffers(remove_duplicate=False))):
        for name, tensor in named:
            if kind := not_dense(tensor):
                raise EagerError(f"{role} {quoted(name)} {kind}")
            refuse_name(role, name)


def refuse_name(role: str, name: str) -> None:
    """Raises EagerError where a name is no text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise EagerError(f"the name of {role} {quoted(name)} is not valid Unicode, as names in "
                         "files and programs are; rename it") from None


def same_names(arguments: Iterable[tuple[str, str]]) -> str:
    """Which of the tensors that a function has, (role, name) each, have the name of another
    one, or of a value of the step itself; empty if none has."""
    roles: dict[str, str] = {}
    for role, name in arguments:
        if role != "rng" and _OWN.fullmatch(name):
            return (f"{role} {quoted(name)} has the name of a value that a compiled step has "
                    "itself; rename it")
        if (other := roles.setdefault(name, role)) != role:
            return (f"{role} {quoted(name)} has the name of a {other} of the model, and a compiled "
                    "step knows both by name; rename one of them")
    return ""


def unwritable_names(module: torch.nn.Module, error: Exception) -> str:
    """What to say of an error of torch if it comes from the name of a buffer that the model
    writes, which torch.export makes part of its code; else empty."""
    odd = [quoted(n) for n, _ in module.named_buffers() if set(n) & set("\0\"\\\n\r")]
    if not odd or not (isinstance(error, SyntaxError) or "null bytes" in str(error)):
        return ""
    return ("torch.export does not take such names of buffers that the model writes: rename "
            + some_names(odd))


def devices(module: torch.nn.Module, error: Exception) -> str:
    """What of the model is on which device, after an error of torch about devices."""
    places: dict[str, list[str]] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        places.setdefault(str(tensor.device), []).append(quoted(name))
    if "same device" not in str(error) or len(places) < 2:
        return ""
    return "; of the model, " + "; ".join(
        f"{some_names(names)} {'is' if len(names) == 1 else 'are'} on {place}"
        for place, names in places.items())


def quoted(name: str) -> str:
    """The name in quotes; what cannot be printed is escaped."""
    return "'" + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name) + "'"
