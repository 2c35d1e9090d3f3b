# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Options outside of their groups, and by the names that they had before: accepted with a warning."""

import re
import warnings

import pytest
import torch

import cleave
from cleave.compiler import api
from cleave.compiler.entrance import GROUPS, OWNERS, former_names, gather


class Given(Exception):
    """What `cleave.compile` has read."""


@pytest.fixture
def read(monkeypatch):
    """The settings that arguments give, and the warnings."""

    def give(model, examples, arrange, loss_fn, settings, metrics):
        raise Given(settings)

    monkeypatch.setattr(api, "Builder", give)

    def settings(**arguments):
        with warnings.catch_warnings(record=True) as said, pytest.raises(Given) as caught:
            warnings.simplefilter("always")
            cleave.compile(torch.nn.Linear(2, 2), (torch.ones(1, 2),), **arguments)
        return caught.value.args[0], [str(own.message) for own in said
                                      if own.category is DeprecationWarning]

    return settings


def test_a_former_name_is_the_group(read):
    old, said = read(precision="bf16", residual="f32", memory_limit="1GiB", threads=1)
    new, none = read(precision=cleave.Precision("bf16", residual="f32"), memory="1GiB",
                     target=cleave.Target("cpu", threads=1))
    assert old.options == new.options and not none
    assert said == [f"{name}= of cleave.compile is {now} now; the former spelling goes with the next version"
                    for name, now in (("residual", "precision=cleave.Precision(residual=...)"),
                                      ("memory_limit", "memory=cleave.Memory(memory_limit=...)"),
                                      ("threads", "target=cleave.Target(threads=...)"))]


def test_an_option_that_has_another_name(read):
    settings, said = read(mesh={"pp": 2}, chunks=2, schedule="interleaved")
    assert settings.options["virtual_stages"] == 2 and "chunks" not in settings.options
    assert "pipeline=cleave.Pipeline(virtual_stages=...)" in said[0]
    settings, said = read(mesh={"dp": 2}, recipe="zero1")
    assert settings.options["plan"] == "zero1" and "recipe= of cleave.compile is plan=... now" in said[0]
    assert former_names().items() >= {("recipe", "plan"), ("chunks", "virtual_stages")}


@pytest.mark.parametrize("name", [name for name in OWNERS if name not in GROUPS])
def test_every_option_is_taken_outside_of_its_group(name):
    with pytest.warns(DeprecationWarning, match=f"^{name}= of cleave.compile is "):
        found, _ = gather({}, {}, {name: 1})
    assert getattr(found[OWNERS[name]], name) == 1


@pytest.mark.parametrize("arguments, error, why", [
    (dict(precision=cleave.Precision("bf16", residual="16bit"), residual="f32"), ValueError,
     "residual='f32' and precision=cleave.Precision(residual='16bit') contradict each other"),
    (dict(mesh={"dp": 2}, plan="zero1", recipe="zero2"), ValueError,
     "recipe='zero2' and plan='zero1' contradict each other"),
    (dict(merge_product="on"), TypeError, "no argument 'merge_product'; did you mean 'merge_matmuls'? It is "
     "given as precision=cleave.Precision(merge_matmuls=...)"),
    (dict(precison="bf16"), TypeError, "no argument 'precison'; did you mean 'precision'?"),
    (dict(lossy="int8"), TypeError, "lossy is a str, not a cleave.Lossy: write lossy=cleave.Lossy(compress=...)"),
    (dict(precision=cleave.Memory("1GB")), TypeError, "precision is a Memory, not a cleave.Precision"),
    (dict(precision=cleave.Precision), TypeError, "precision is cleave.Precision, a class"),
], ids=str)
def test_what_contradicts_or_is_unknown(arguments, error, why):
    with warnings.catch_warnings(), pytest.raises(error, match=re.escape(why)):
        warnings.simplefilter("ignore")
        cleave.compile(torch.nn.Linear(2, 2), (torch.ones(1, 2),), **arguments)


def test_groups():
    own = cleave.Precision("bf16", residual="f32")
    assert repr(own) == "cleave.Precision(precision='bf16', residual='f32')"
    assert own == cleave.Precision("bf16", residual="f32") and hash(own)
    with pytest.raises(AttributeError):
        own.residual = "16bit"
    with pytest.raises(TypeError, match="cleave.Precision has no option 'residul'; did you mean 'residual'"):
        cleave.Precision(residul="f32")
    with pytest.raises(TypeError, match="positional"):
        cleave.Precision("bf16", "f32")
