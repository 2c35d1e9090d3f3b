# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Records the regions of `torch.autocast` and `torch.utils.checkpoint` in a forward, and the casts
to f32.

While a model is exported, each operator is marked with the regions that it is called in, by
metadata that decompositions preserve and that `checkpoint_of`, `is_outside_autocast` and `cast_of`
read.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Iterator

import torch
from torch.fx.proxy import TracerBase

from .patches import patched

#: The field of a node's metadata that torch copies to the nodes of its decomposition.
_FIELD = "custom"
_CHECKPOINT, _DISABLED = "cleave.checkpoint", "cleave.autocast_disabled"
_CAST = "cleave.cast"


@dataclasses.dataclass
class Regions:
    """The regions that a forward has entered."""

    #: The 16-bit types of the enabled autocast regions.
    autocast: set[torch.dtype] = dataclasses.field(default_factory=set)
    #: The number of checkpoint regions so far, and how many of them are open.
    checkpoints: int = 0
    _open: int = 0
    #: Whether each open autocast region is enabled; None if torch has disabled it.
    _enabled: list[bool | None] = dataclasses.field(default_factory=list)
    #: The meaning of the cast that is being called (`cast_of`), or None.
    cast: str | None = None

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Context manager for checkpointed code. A nested region is part of the outer one."""
        self.checkpoints += not self._open
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    @contextlib.contextmanager
    def casting(self, meaning: str | None) -> Iterator[None]:
        """Context manager for a call that is a cast if `meaning` is not None."""
        before, self.cast = self.cast, meaning
        try:
            yield
        finally:
            self.cast = before

    def marks(self) -> dict[str, Any]:
        """Returns the metadata of an operator that is called at this point."""
        found: dict[str, Any] = {}
        if self._open:
            found[_CHECKPOINT] = self.checkpoints - 1
        if self._enabled and self._enabled[-1] is False:
            found[_DISABLED] = True
        if self.cast:
            found[_CAST] = self.cast
        return found


@contextlib.contextmanager
def recorded(regions: Regions) -> Iterator[None]:
    """Context manager that records the regions of a forward and marks operators with them."""
    autocast = torch.autocast
    enter, leave, make = (autocast.__dict__[n] for n in ("__enter__", "__exit__", "__init__"))
    create = TracerBase.__dict__["create_node"]

    def made(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        make(self, device_type, dtype, enabled, cache_enabled)
        # torch disables a region of a device that is not available.
        self.asked = enabled

    def entered(self):
        unknown = self.device != "cpu" and not self._enabled
        enabled = getattr(self, "asked", None if unknown else self._enabled)
        if enabled and self.fast_dtype in (torch.float16, torch.bfloat16):
            regions.autocast.add(self.fast_dtype)
        regions._enabled.append(enabled)
        return enter(self)

    def left(self, *error):
        if regions._enabled:
            regions._enabled.pop()
        return leave(self, *error)

    def created(self, *args, **kwargs):
        node = create(self, *args, **kwargs)
        if marks := regions.marks():
            node.meta[_FIELD] = {**node.meta.get(_FIELD, {}), **marks}
        return node

    with patched((autocast, "__init__", made), (autocast, "__enter__", entered),
                 (autocast, "__exit__", left), (TracerBase, "create_node", created)):
        yield


def checkpoint_of(node: torch.fx.Node) -> int | None:
    """Returns the number of the checkpoint region that a node is in, or None."""
    return (node.meta.get(_FIELD) or {}).get(_CHECKPOINT)


def is_outside_autocast(node: torch.fx.Node) -> bool:
    """Returns whether a node is in a region `torch.autocast(enabled=False)`."""
    return bool((node.meta.get(_FIELD) or {}).get(_DISABLED))


def cast_of(node: torch.fx.Node) -> str | None:
    """Returns what the call of a cast means, as `casts.meaning` gives it, or None."""
    return (node.meta.get(_FIELD) or {}).get(_CAST)
