# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Models whose ranks send each other rows, as many as values say, and what they should compute."""

import numpy as np

from native_values import model

#: Of each kind of elements of rows.
BYTES = {"f32": 4, "bf16": 2, "i64": 8, "i8": 1}
PATTERNS = ["uneven", "none", "to one", "own"]


def counts_of(pattern, ranks, rows, rng):
    """The rows that rank i has for rank j."""
    counts = np.zeros((ranks, ranks), np.int64)
    for i in range(ranks):
        for _ in range(rows):
            to = {"uneven": rng.integers(ranks + 1), "none": ranks, "to one": ranks - 1, "own": i}[pattern]
            if to < ranks:
                counts[i, to] += 1
    return counts


def offsets_of(counts):
    """Where each rank sends from, and where it receives, one list after the other."""
    lists = [np.concatenate([[0], np.cumsum(row)]) for row in counts]
    return np.concatenate(lists).astype(np.int64)


def exchanged(rows, counts, room):
    """By definition, row by row."""
    ranks = len(counts)
    held = len(rows) // ranks
    result = np.zeros((ranks * room, rows.shape[1]), rows.dtype)
    to = [rank * room for rank in range(ranks)]
    for i in range(ranks):
        at = i * held
        for j in range(ranks):
            for _ in range(counts[i, j]):
                result[to[j]] = rows[at]
                at, to[j] = at + 1, to[j] + 1
    return result


def rows_model(ranks, held, room, kind, width=3):
    """The loss weighs what was received, and what came back. Its gradients are those rows."""
    big, small = ranks * room, ranks * held
    lists = f"tensor<{ranks * (ranks + 1)}xi64>"

    def cast(value, name, size, to, of):
        """The value as another type; itself where nothing changes."""
        if to == of:
            return value, ""
        return name, f"{name} = graph.cast {value} : (tensor<{size}x{width}x{of}>) -> tensor<{size}x{width}x{to}>\n"

    given, first = cast("%x", "%xk", small, kind, "f32")
    there, second = cast("%y", "%yf", big, "f32", kind)
    back, third = cast("%z", "%zf", small, "f32", kind)
    weighed = "".join(
        f"%m{p} = graph.mul {value}, %{p} : (tensor<{size}x{width}xf32>, tensor<{size}x{width}xf32>) -> "
        f"tensor<{size}x{width}xf32>\n"
        f"%l{p} = graph.reduce sum %m{p} {{dims = array<i64: 0, 1>}} : (tensor<{size}x{width}xf32>) -> tensor<f32>\n"
        for value, p, size in ((there, "p", big), (back, "q", small)))
    body = (
        f"{first}"
        f'%y = spmd.all_to_all_rows {given} from %s to %r over @mesh {{"ep"}} : '
        f"tensor<{small}x{width}x{kind}>, {lists} -> tensor<{big}x{width}x{kind}>\n"
        f'%z = spmd.all_to_all_rows %y from %r to %s over @mesh {{"ep"}} : '
        f"tensor<{big}x{width}x{kind}>, {lists} -> tensor<{small}x{width}x{kind}>\n"
        f"{second}{third}{weighed}"
        "%l = graph.add %lp, %lq : (tensor<f32>, tensor<f32>) -> tensor<f32>")
    text = model([("x", "input", f"{small}x{width}xf32"), ("s", "input", lists[7:-1]),
                  ("r", "input", lists[7:-1]), ("p", "parameter", f"{big}x{width}xf32"),
                  ("q", "parameter", f"{small}x{width}xf32")], body)
    for name, dims in (("x", 2), ("s", 1), ("r", 1), ("p", 2), ("q", 2)):
        axes = ", ".join(['{"ep"}'] + ["{}"] * (dims - 1))
        text = text.replace(f'{{graph.name = "{name}",',
                            f'{{spmd.sharding = #spmd.sharding<@mesh, [{axes}]>, graph.name = "{name}",')
    return f'spmd.mesh @mesh <["ep" = {ranks}]>\n' + text


def inputs_of(ranks, held, room, counts, rng):
    whole = rng.integers(-99, 99, (ranks * held, 3)).astype(np.float32)
    return {"x": whole, "s": offsets_of(counts), "r": offsets_of(counts.T),
            "p": rng.integers(-3, 3, (ranks * room, 3)).astype(np.float32),
            "q": rng.integers(-3, 3, (ranks * held, 3)).astype(np.float32)}


def check_steps(outcome, inputs, counts, steps, size=4):
    """Losses, parameters after a rate of 1, and what the first rank has sent in a step."""
    held, room = len(inputs["q"]) // len(counts), len(inputs["p"]) // len(counts)
    received = exchanged(inputs["x"], counts, room)
    returned = exchanged(received, counts.T, held)
    losses, found, sent, message = outcome
    assert message == ""
    np.testing.assert_array_equal(found["p"], inputs["p"] - steps * received)
    np.testing.assert_array_equal(found["q"], inputs["q"] - steps * returned)
    assert losses == [
        ((inputs["p"] - n * received) * received).sum() + ((inputs["q"] - n * returned) * returned).sum()
        for n in range(steps)]
    [told] = [one for one in sent if one["kind"] == "all-to-all-rows"]
    # There and back, in one or two parts of the step.
    assert told["axes"] == "ep" and told["count"] in (2, 4)
    elements = 3 * (sum(counts[0, 1:]) + sum(counts[1:, 0])) * told["count"] // 2
    assert (told["elements"], told["bytes"]) == (elements, elements * size)
