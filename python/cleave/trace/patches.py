# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Replaces functions of torch in a trace, to refuse code that a compiled step does not support, or
to trace what eager code does."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any, Callable, Iterator

import torch

from .errors import EagerError
from .locations import LIBRARY
from .memory import version_of


#: Held while something that all threads have is changed for a trace: two that change it by turns
#: would leave it changed.
changing = threading.RLock()


@contextlib.contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Context manager that replaces each attribute (owner, name, value). One thread is in it at a
    time."""
    with changing:
        kept = [(owner, name, owner.__dict__[name]) for owner, name, _ in changes]
        for owner, name, value in changes:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in kept:
                setattr(owner, name, value)


# Autograd -----------------------------------------------------------------------------


def refuse_backward(*args, **kwargs):
    """The replacement of autograd's engine in a trace."""
    raise EagerError("a gradient is computed in the forward (autograd.grad, torch.func.grad or "
                     "backward()); a compiled step differentiates the loss once. Write the "
                     "derivative out")


def enter_saved_tensors_hooks(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the replacement of `saved_tensors_hooks.__enter__` in a trace."""
    def enter(self):
        if not type(self).__module__.startswith("torch.") or \
                type(self) is torch.autograd.graph.saved_tensors_hooks:
            raise EagerError("saved_tensors_hooks are not run by a compiled step, which saves "
                             "what it needs itself; remove them")
        return original(self)
    return enter


# Checkpoints --------------------------------------------------------------------------


@contextlib.contextmanager
def without_buffer_writes(module: torch.nn.Module) -> Iterator[None]:
    """Context manager for checkpointed code. Raises EagerError if the code writes to a buffer."""
    before = {n: (b, version_of(b)) for n, b in module.named_buffers()}
    yield
    for name, buffer in module.named_buffers():
        known, version = before.get(name, (None, 0))
        if known is not buffer or version != version_of(buffer):
            raise EagerError(f"buffer '{name}' is written to within torch.utils.checkpoint, which "
                             "eager PyTorch does twice per step; write to it outside, or call the "
                             "code without checkpoint: a compiled step chooses itself what it "
                             "recomputes")


def checkpoint_generator(original: Callable[..., Any], module: torch.nn.Module,
                         region: Callable[[], Any]) -> Callable[..., Any]:
    """Returns the replacement of the generator that checkpoint runs around its function, with
    use_reentrant=False; the function is called in the context `region()`."""
    def generate(*args, **kwargs):
        inner = original(*args, **kwargs)
        next(inner)
        try:
            with (without_buffer_writes(module),
                  region() if torch.is_grad_enabled() else contextlib.nullcontext()):
                yield
        except BaseException as error:
            inner.throw(error)
            raise
        yield from inner
    return generate


# Distributions ------------------------------------------------------------------------


def traceable_distributions() -> contextlib.AbstractContextManager[None]:
    """Context manager under which torch.distributions does not validate arguments by default, as
    under `python -O`: the checks read values, which a trace does not have; and under which Gamma
    does not write to a detached tensor."""
    return patched((torch.distributions.Distribution, "_validate_args", False),
                   (torch.distributions.Gamma, "rsample", _gamma_sample))


def _gamma_sample(self, sample_shape=torch.Size()):
    """The replacement of `Gamma.rsample`."""
    shape = self._extended_shape(sample_shape)
    value = torch._standard_gamma(self.concentration.expand(shape)) / self.rate.expand(shape)
    return value + (value.clamp(min=torch.finfo(value.dtype).tiny) - value).detach()


# Questions ----------------------------------------------------------------------------


def answering_is_compiling(answer: bool | None,
                           asked: list[bool]) -> contextlib.AbstractContextManager[None]:
    """Context manager under which torch.compiler.is_compiling, called by a model, returns `answer`,
    or what it returns otherwise if None; the calls are recorded in `asked`."""
    original = torch.compiler.is_compiling

    def is_compiling():
        if sys._getframe(1).f_code.co_filename.startswith(LIBRARY):
            return original()
        asked.append(True)
        return original() if answer is None else answer
    return patched((torch.compiler, "is_compiling", is_compiling))
