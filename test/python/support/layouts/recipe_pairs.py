# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The table of recipes and of their pairs: on which mesh, or why not.

Two recipes that split the same things over the same axis contradict each other;
on an axis of its own each is legal beside every other. docs/Parallelism.md has
the table in prose, and `test_recipe_pairs.py` runs it.
"""

import dataclasses
import itertools
import math

#: Recipe: its own axes, and what it splits while computing ("" where it only
#: rests): over its last axis, where it has several.
RECIPES = {
    "dp": ("dp", "samples"),
    "zero1": ("dp", ""),
    "zero2": ("dp", ""),
    "zero3": ("dp", ""),
    "megatron": ("tp", "features"),
    "megatron-sp": ("tp", "features"),
    "ulysses": ("cp", "sequence"),
    "context": ("cp", "sequence"),
    "ring": ("cp", "sequence"),
    "two-ring": ("cp", "sequence"),
    "expert": ("ep", "samples"),
    "summa2d": ("row,col", "features"),
    "summa25d": ("depth,row,col", "features"),
}

#: Recipes that split heads.
HEADS = ("megatron", "megatron-sp", "ulysses", "summa2d", "summa25d")

#: Pairs that contradict each other on any axes, and why.
NEVER = {
    ("context", "ring"): "never gathers them",
    ("context", "two-ring"): "makes whole rows of scores",
    ("ring", "two-ring"): "makes whole rows of scores",
}
NEVER |= {pair: "both split the features" for pair in
          itertools.combinations(("megatron", "megatron-sp", "summa2d", "summa25d"), 2)
          if pair != ("megatron", "megatron-sp")}

#: A second axis for a recipe whose own is taken.
SECOND = {"dp": "fsdp", "tp": "tq", "cp": "cq", "row,col": "rows,cols",
          "depth,row,col": "deep,rows,cols"}


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two recipes (or one, twice named) on a small mesh and a larger one."""

    names: tuple[str, str]
    plan: str
    small: str
    large: str
    #: The axes that split heads.
    splits_heads: tuple[str, ...]

    def heads(self, mesh):
        """Into how many parts heads are split."""
        sizes = dict(entry.split("=") for entry in mesh.split(","))
        return math.prod(int(sizes[axis]) for axis in self.splits_heads)


def pair_of(names, plan, axes):
    """The pair `names` by `plan`, of recipes bound to `axes` each."""
    heads = tuple({own.split(",")[-1]: None for n, own in zip(names, axes) if n in HEADS})
    small = {axis: 2 for own in axes for axis in own.split(",")}
    return Pair(names, plan, mesh_of(small), mesh_of(larger(small, heads)), heads)


def plan_of(name, axis):
    """`name` on `axis`; what rests over an axis has samples split over it, too,
    unless it is one that is split anyway."""
    own, splits = RECIPES[name]
    call = name if axis == own else f"{name}({axis})"
    if not splits and axis != "dp":
        return f"dp({axis}),{call}"
    return call


def legal_pairs():
    """Every unordered pair of recipes, each on an axis of its own where they
    would split the same over one."""
    for first, second in itertools.combinations(RECIPES, 2):
        if (first, second) in NEVER:
            continue
        axes = [RECIPES[first][0], RECIPES[second][0]]
        if contradiction(first, second):
            axes[1] = SECOND[axes[1]]
        plan = ",".join(plan_of(n, a) for n, a in zip((first, second), axes))
        yield pair_of((first, second), plan, axes)


def mesh_of(sizes):
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def larger(small, heads):
    """Four positions where two were: of what splits samples or the sequence first,
    then of `heads`; at most sixteen in all, and eight parts of heads. Rows and columns
    of weights are as many. What has sixteen already stays."""
    large = dict(small)
    order = [a for a in large if a not in heads] + [a for a in large if a in heads]
    for axis in order:
        group = [a for a in large if {a, axis} == {"row", "col"}] + [axis]
        tried = {**large, **dict.fromkeys(group, 4)}
        if math.prod(tried.values()) <= 16 and math.prod(tried[a] for a in heads) <= 8:
            large = tried
    return large


def shared_pairs():
    """What rests over the axis that another recipe computes with: what that
    leaves whole rests in parts."""
    for name, (_, splits) in RECIPES.items():
        for other, (axis, what) in RECIPES.items():
            if not splits and what and axis != "dp":
                rest = axis.split(",")[0]
                yield pair_of((name, other), f"{other},{name}({rest})", [rest, axis])


def folded_pairs():
    """Experts over the ranks that another recipe splits features or the sequence over, and
    over those and the ranks of the samples."""
    for name, (axis, what) in RECIPES.items():
        if what not in ("features", "sequence") or "," in axis:
            continue
        pair = pair_of((name, "expert"), f"{name},expert({axis})", [axis, axis])
        yield pair
        both = pair_of(pair.names, f"{pair.plan},expert(dp)", [axis, "dp"])
        # Four experts are not divisible by more ranks.
        yield dataclasses.replace(both, large=both.small)


def folds(first, second):
    """Whether two recipes split the same axis: experts lie in parts over any."""
    a, b = RECIPES[first], RECIPES[second]
    return "expert" in (first, second) and "," not in a[0] + b[0] and bool(
        {a[1], b[1]} & {"features", "sequence"})


def contradiction(first, second):
    """Why two recipes cannot have one axis; "" where they can, or do not ask
    for one."""
    if RECIPES[first][0] != RECIPES[second][0]:
        return ""
    what = RECIPES[first][1], RECIPES[second][1]
    if what == ("", ""):
        return "both split the same things"
    if all(what):
        return "both split the same things" if what[0] == what[1] else "an axis has one of them"
    return ""


def refused_pairs():
    """Pairs on one axis, with what is said of them: the recipes' own axis, or
    that of the first."""
    for (first, second), reason in NEVER.items():
        axis = RECIPES[first][0]
        yield first, f"{second}({SECOND[RECIPES[second][0]]})", axis, reason
    for first, second in itertools.combinations(RECIPES, 2):
        a, b = RECIPES[first], RECIPES[second]
        if a[0] == b[0] and contradiction(first, second):
            yield first, second, a[0], contradiction(first, second)
        elif (a[1] and b[1] and a[1] != b[1] and "," not in a[0] + b[0]
              and not folds(first, second)):
            yield first, second, a[0], "an axis has one of them"
