# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Losses that balance experts, over the tokens of parts of a batch.

A model of the transformers library computes its loss by a function of its file,
`load_balancing_loss_func`, over the router logits of all tokens and layers. While a model is
traced for parts of the batch, a function that computes the loss of each part stands in its place.
`cleave.moe.balance_loss` reads the number of parts itself.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from typing import Any, Callable, Iterator

import torch
import torch.nn.functional as F

from .. import moe
from .errors import EagerError

_NAME = "load_balancing_loss_func"

#: Why a model does not train with an option that says over which tokens its loss is taken.
NONE = ("balance_loss says over which tokens a loss that balances experts is taken, and the model "
        "computes none that is known: call cleave.moe.balance_loss, or give a model of transformers "
        "output_router_logits=True; or leave balance_loss out")


def _files(module: torch.nn.Module) -> dict[int, types.ModuleType]:
    """Returns the files of code of `module` that have a loss of this name, by their ids."""
    return {id(found): found for m in module.modules()
            if _NAME in vars(found := sys.modules[type(m).__module__])}


def parts_note(module: torch.nn.Module, in_grains: bool) -> str:
    """Returns the end of an error message about samples that are coupled; empty if the model's code
    has no loss that balances experts. `in_grains`: micro-batches are grains of the batch."""
    each = "each sample" if in_grains else "each micro-batch"
    value = "sequence" if in_grains else "micro-batch"
    return (f"; a loss that balances experts is taken over {each} by "
            f'numerics=cleave.Numerics(balance_loss="{value}")' if _files(module) else "")


@contextlib.contextmanager
def balanced(module: torch.nn.Module, parts: int) -> Iterator[list[int]]:
    """Context manager in which losses that balance experts are the mean of those of `parts` equal
    parts of the batch; 0 leaves them as the model defines them. At the end it raises EagerError if
    the model has computed none."""
    if not parts:
        yield []
        return
    files = _files(module)
    own = {key: vars(file)[_NAME] for key, file in files.items()}
    with moe.balanced_over(parts) as count:
        for key, file in files.items():
            setattr(file, _NAME, _over_parts(own[key], parts, count))
        try:
            yield count
        finally:
            for key, file in files.items():
                setattr(file, _NAME, own[key])


def _over_parts(own: Callable[..., Any], parts: int, count: list[int]) -> Callable[..., Any]:
    """Returns a function in the place of `own`. It raises EagerError if `own` is not the loss over
    all layers that most models have."""
    known = list(inspect.signature(own).parameters) == [
        "gate_logits", "num_experts", "top_k", "attention_mask"] and _agrees(own)

    def function(*args: Any, **kwargs: Any) -> Any:
        if not known:
            raise EagerError(f"{own.__module__}.{_NAME} is not the loss of the share and the mean "
                             "probability of each expert over all layers, and is computed as the "
                             "model defines it alone: leave balance_loss out")
        given = inspect.signature(own).bind(*args, **kwargs)
        given.apply_defaults()
        if not isinstance(given.arguments["gate_logits"], tuple):
            return own(*args, **kwargs)
        count.append(parts)
        return over_parts(parts, *given.args)

    return function


def over_parts(parts: int, logits: tuple[torch.Tensor, ...], experts: int, choices: int,
               mask: torch.Tensor | None) -> torch.Tensor:
    """The mean over `parts` equal parts of the batch of `e * sum(f * p)`, where f is an expert's
    choices by a part's tokens of all layers over the number of these tokens, and p its mean
    probability. Tokens that are 0 in `mask` do not count; a part without tokens has a loss of 0."""
    used = mean = rows = 0
    weight = None if mask is None else _split(mask.reshape(-1).float(), parts)
    for layer in logits:
        probabilities = layer.softmax(-1)
        chosen = F.one_hot(probabilities.topk(choices, dim=-1)[1], experts).sum(-2).float()
        chosen, probabilities = _split(chosen, parts), _split(probabilities.float(), parts)
        if weight is None:
            rows = rows + chosen.shape[1]
        else:
            chosen, probabilities = (x * weight[..., None] for x in (chosen, probabilities))
            rows = rows + weight.sum(1, keepdim=True)
        used, mean = used + chosen.sum(1), mean + probabilities.sum(1)
    if weight is not None:
        rows = rows.clamp(min=1)
    return experts * ((used / rows) * (mean / rows)).sum(-1).mean()


def _split(tokens: torch.Tensor, parts: int) -> torch.Tensor:
    """Tokens [n, ...] as [parts, n / parts, ...]."""
    if tokens.shape[0] % parts:
        raise EagerError(f"a loss that balances experts is taken over {parts} parts of the batch, "
                         f"and its {tokens.shape[0]} tokens are not divisible by them")
    return tokens.reshape(parts, -1, *tokens.shape[1:])


def _agrees(own: Callable[..., Any]) -> bool:
    """Returns whether a function computes what `over_parts` does for one part, for random logits."""
    generator = torch.Generator().manual_seed(0)
    logits = tuple(torch.randn(6, 5, generator=generator) for _ in range(2))
    mask = torch.tensor([[1, 1, 0], [1, 0, 1]])
    with torch.no_grad():
        for given in (None, mask):
            try:
                found = own(logits, 5, 2, given)
            except Exception:
                return False
            if not torch.allclose(torch.as_tensor(found), over_parts(1, logits, 5, 2, given)):
                return False
    return True
