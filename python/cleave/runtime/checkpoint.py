# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Checkpoints of a step: the folders that `cleave-run` writes and resumes too."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Mapping, TypeVar

import torch

from ..messages import some_names, warn
from .forks import alone
from .held import Held
from .processes import lead, together
from .results import StepError
from .state import flag, path_of, problem
from .tensor_file import read_tensors

#: The file of a checkpoint beside tensors; a folder without it is not a checkpoint.
_FACTS = "training.json"

M = TypeVar("M", bound="torch.nn.Module | Checkpoints")


class Checkpoints(Held):
    """The part of a `Step` that writes and reads files."""

    @alone
    def save(self, folder: str | os.PathLike[str], *, check_finite: bool = True,
             kept: Mapping[str, Any] | None = None) -> None:
        """Writes a checkpoint: parameters, buffers, optimizer state, step, seed and
        data position. `load`, `cleave.load` and `cleave-run --resume` read it. The folder
        is there in whole or not at all, also after a power cut. Of an older checkpoint of
        this name its own files are replaced, and of a link to one the link. If ranks are
        processes, all of them call it, and the first one writes.

        Args:
            folder: of the checkpoint, which is made.
            check_finite: refuse parameters and state that are not finite.
            kept: numbers, texts, lists and dicts that the caller keeps in the checkpoint, and
                that `load` returns.

        Raises:
            FileExistsError: the folder is there, and holds something else.
            OSError: the checkpoint cannot be written.
            StepError: what would be saved is not finite.
            TypeError, ValueError: `kept` is not of these, or has a number that is not finite.
        """
        text = "" if kept is None else json.dumps(dict(kept), allow_nan=False)
        folder, check_finite = path_of("folder", folder), flag("check_finite", check_finite)
        lead(self._processes, "save a checkpoint", lambda: _check_place(folder))
        if check_finite and (wrong := self._live.session.check_finite()):
            raise StepError(f"{folder}: the checkpoint is not written: {wrong}")
        if error := self._live.session.save_checkpoint(folder, not check_finite, text):
            raise OSError(error)

    @alone
    def load(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Goes on from a checkpoint that `save` or `cleave-run` has written of the same
        model and optimizer, on any mesh. On an error nothing is changed, but where a file changes
        while it is read: then the step makes no more calls. The state of a
        technique that the checkpoint's run did without (`compress`, fp8) begins as zero,
        with a warning.

        Returns:
            The data that the caller of `save` kept in the checkpoint; empty without.

        Raises:
            FileNotFoundError: there is no checkpoint.
            ValueError: it is damaged, or is not of this model and optimizer; all that
                does not fit is listed.
        """
        found = together(self._processes, "load a checkpoint",
                         lambda: _found(path_of("folder", folder)))
        error, absent, text = self._live.session.load_checkpoint(found)
        if error:
            raise ValueError(error)
        for technique in absent:
            warn(f"{found}: has no state of {technique}, which begins as zero")
        kept: dict[str, Any] = json.loads(text) if text else {}
        return kept

    @alone
    def load_weights(self, path: str | os.PathLike[str]) -> None:
        """Replaces parameters and buffers by those of files; step and optimizer state
        stay. Values of another type are converted, as `load_state_dict` does. Experts
        that are stacked have their names in the stack; only `load_state_dict` takes them
        one by one. On an error nothing is changed.

        Args:
            path: a safetensors file with the names of the model's `state_dict`; an
                index that names several (`model.safetensors.index.json`); or a folder
                that holds either, as `save_pretrained` writes it.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: a file is damaged or does not fit the model; all that is
                missing, unknown or different is listed.
        """
        path = path_of("path", path)
        together(self._processes, "load weights", lambda: _check_file(path))
        from .. import _cleave

        try:
            self._live.session.load_weights(path)
        except _cleave.CompileError as error:
            raise ValueError(str(error)) from None

    def save_artifact(self, path: str | os.PathLike[str]) -> None:
        """Writes the compiled step as a shared object, for `cleave-run`; it holds the
        program of the shapes of the last call, and no weights. If ranks are processes, all
        of them call it, and the first one writes.

        Raises:
            OSError: it cannot be written.
        """

        path = path_of("path", path)
        lead(self._processes, "save the artifact", lambda: self._write_artifact(path))

    def _write_artifact(self, path: str) -> None:
        from ..trace.weights import check_writable

        check_writable(path)
        try:
            self._live.compiled.save(path)
        except RuntimeError as error:
            if "PLEASE submit a bug report" in str(error):
                # The linker maps the file, and is ended where it cannot grow.
                raise OSError(f"cannot write '{path}': the linker was ended, as where no space is "
                              "left, or a file may not be so large") from None
            raise OSError(str(error)) from None


def load(folder: str | os.PathLike[str], model: M) -> M:
    """Reads a checkpoint into a model.

    Args:
        folder: that `Step.save` or `cleave-run` has written.
        model: a `torch.nn.Module`, which gets parameters and buffers; or a compiled
            `Step`, which goes on from there (`Step.load`).

    Returns:
        `model`, changed in place. On an error it is as before. Tensors that the
        compiled step does not read are not in a checkpoint: they stay, with a warning.

    Raises:
        FileNotFoundError: there is no checkpoint.
        KeyError: the checkpoint has parameters that the model does not have.
        TypeError: `model` is something else.
        ValueError: the file is damaged, shapes differ, or values do not fit the types
            of the model's; all are listed.
    """
    if isinstance(model, Checkpoints):
        model.load(folder)
        return model
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {type(model).__name__}, not a torch.nn.Module or a Step")
    folder = _found(path_of("folder", folder))
    path = _whole(folder, "model.safetensors")
    values, added = _read(path)
    values = _by_names_of(model, values)
    own = {**dict(model.named_parameters(remove_duplicate=False)),
           **dict(model.named_buffers(remove_duplicate=False))}
    unknown = [name for name in values if name not in own and name not in added]
    if unknown:
        raise KeyError(f"{path}: the model has no {some_names(unknown)}")
    wrong = [f"{name}: {list(value.shape)} in the file, {list(own[name].shape)} in the model"
             for name, value in values.items() if name in own and value.shape != own[name].shape]
    wrong += [f"{name}: {error}" for name, value in values.items()
              if name in own and value.shape == own[name].shape
              and (error := problem(value, own[name].dtype, value.shape))]
    if wrong:
        raise ValueError(f"{path} does not fit the model: {'; '.join(wrong)}")
    given = {id(own[name]) for name in values if name in own}
    missing = [name for name in model.state_dict() if name in own and id(own[name]) not in given]
    if missing:
        warn(f"{folder} does not have {some_names(missing)}, which the step does not read; "
             "the model keeps its own")
    with torch.no_grad():
        for name, value in values.items():
            if name in own:
                own[name].copy_(value)
    return model


def _check_place(folder: str) -> None:
    if os.path.exists(folder) and not _is_checkpoint(folder) and (
            not os.path.isdir(folder) or os.listdir(folder)):
        raise FileExistsError(
            f"{folder}: is there and is no checkpoint; nothing of it is replaced")


def _check_file(path: str) -> None:
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path}: there is no such file")


def _is_checkpoint(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, _FACTS))


def _found(folder: str) -> str:
    """The folder of a checkpoint: itself, or the latest of those named `step-N` in it."""
    if _is_checkpoint(folder):
        return folder
    steps = []
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            start, _, number = name.partition("-")
            if start == "step" and number.isdecimal() and _is_checkpoint(
                    os.path.join(folder, name)):
                steps.append((int(number), name))
    if not steps:
        raise FileNotFoundError(f"{folder}: no checkpoint here ({_FACTS}, or folders named "
                                "step-N that hold one)")
    return os.path.join(folder, max(steps)[1])


def _whole(folder: str, name: str) -> str:
    """The path of a file of a checkpoint, which has the hash that it was saved with."""
    from .. import _cleave

    try:
        return _cleave.checkpoint_file(folder, name)
    except _cleave.CompileError as error:
        raise ValueError(str(error)) from None


def _read(path: str) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The tensors of a file under all of their names, and the names of those that the
    compiler may have added to the model."""
    try:
        values, metadata = read_tensors(path)
        tied = json.loads(metadata.get("tied", "{}"))
        added = json.loads(metadata.get("added", "[]"))
        for name, aliases in tied.items():
            values.update({alias: values[name] for alias in aliases})
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return values, added


def _by_names_of(model: torch.nn.Module,
                 values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`values` with what the compiler has stacked of several parameters (experts) taken apart
    again: the name of a stack has `*` where those of its parts differ."""
    values = dict(values)
    names = [name for name, _ in model.named_parameters()]
    for name in [n for n in values if "*" in n and n not in names]:
        pattern = re.compile(re.escape(name).replace(r"\*", "[^.]+"))
        parts = [n for n in names if pattern.fullmatch(n)]
        if len(values[name]) == len(parts) and not any(part in values for part in parts):
            values.update(zip(parts, values.pop(name)))
    return values
