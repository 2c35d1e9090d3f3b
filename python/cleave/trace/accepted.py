# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Checks that a compiled step supports the tensors and names of a model."""

from __future__ import annotations

import re
from typing import Iterable

import torch

from ..messages import some_names
from ..runtime.state import not_dense
from .errors import EagerError

#: The names that a compiled step reserves for its own values.
_OWN = re.compile(r"loss|loss_weight|logits|grad_norm|lr|step|rng|auxiliary_loss\.\d+|"
                  r"expert_counts\..*|metric/.*")


def refuse_tensors(module: torch.nn.Module) -> None:
    """Raises EagerError if a parameter or buffer is not a dense tensor, or if its name is not a
    valid string."""
    for role, named in (("parameter", module.named_parameters(remove_duplicate=False)),
                        ("buffer", module.named_buffers(remove_duplicate=False))):
        for name, tensor in named:
            if kind := not_dense(tensor):
                raise EagerError(f"{role} {quoted(name)} {kind}")
            refuse_name(role, name)


def refuse_name(role: str, name: str) -> None:
    """Raises EagerError if a name is not a valid string."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise EagerError(f"the name of {role} {quoted(name)} is not valid Unicode, which names in "
                         "files and programs must be; rename it") from None


def same_names(arguments: Iterable[tuple[str, str]]) -> str:
    """Returns an error message if a tensor of a function, given as (role, name), has the name of
    another one or of a value of the step itself; else an empty string."""
    roles: dict[str, str] = {}
    for role, name in arguments:
        if role != "rng" and _OWN.fullmatch(name):
            return (f"{role} {quoted(name)} has the name of a value that a compiled step has "
                    "itself; rename it")
        if (other := roles.setdefault(name, role)) != role:
            return (f"{role} {quoted(name)} has the name of a {other} of the model, and a compiled "
                    "step identifies both by name; rename one of them")
    return ""


def devices(module: torch.nn.Module, error: Exception) -> str:
    """Returns which tensors of the model are on which device if an error of torch is about devices;
    else an empty string."""
    places: dict[str, list[str]] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        places.setdefault(str(tensor.device), []).append(quoted(name))
    if "same device" not in str(error) or len(places) < 2:
        return ""
    return "; of the model, " + "; ".join(
        f"{some_names(names)} {'is' if len(names) == 1 else 'are'} on {place}"
        for place, names in places.items())


def quoted(name: str) -> str:
    """Returns the name in quotes, with unprintable characters escaped."""
    return "'" + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name) + "'"
