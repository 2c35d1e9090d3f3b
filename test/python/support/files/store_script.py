# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Goes on from the latest model of a store, for tests that compare with one process.

    store_script.py WHERE STEPS     prints the losses, and a hash of the state after them
    store_script.py WHERE ranks     of several processes: each stores, and loads what was stored
"""

import hashlib
import sys

import cleave
from cleave.compiler.entrance import grouped
from process_script import net, say, token_loss, tokens


def compiled(seed=0, **settings):
    return cleave.compile(net(seed), tokens(), token_loss, seed=seed,
                          optimizer=cleave.AdamW(lr=1e-2, max_grad_norm=1.0), **grouped(**settings))


def losses(step, count):
    """Those of the next steps, each on a batch of its own."""
    return [float(step(*tokens(seed=step.step + 1))) for _ in range(count)]


def digest(step):
    """A hash of parameters and optimizer state."""
    found = hashlib.sha256()
    state = step.training_state()
    slots = [(f"{name} {slot}", value) for name, own in sorted(state["optimizer"].items())
             for slot, value in sorted(own.items())]
    for name, value in [*sorted(step.state_dict().items()), *slots]:
        found.update(name.encode() + value.contiguous().numpy().tobytes())
    return found.hexdigest()


def ranks(store):
    step = compiled(mesh={"dp": 2}, plan="zero1", threads=1)
    losses(step, 2)
    names = [store.save(step)]
    before = digest(step)
    losses(step, 1)
    names.append(store.save(step))
    record = store.load(names[0], step)
    say({"names": names, "step": record.step, "alike": digest(step) == before})


def main(where, steps):
    store = cleave.feed.Store(where)
    if steps == "ranks":
        return ranks(store)
    step = compiled(seed=9)
    store.load(store.latest(), step)
    print(step.step, step.data_position, *losses(step, int(steps)), digest(step))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
