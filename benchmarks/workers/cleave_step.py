"""The worker of Cleave: runs a compiled artifact in a process without PyTorch."""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

import numpy as np

import protocol
from cleave import _runtime


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact")
    parser.add_argument("--weights", help="a safetensors file")
    parser.add_argument("--ids", required=True, help=".npy of a batch of token ids")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    session = _runtime.open(options.artifact, options.threads, True)
    facts = {t["name"]: t for t in session.tensors()}
    if options.weights:
        session.load_weights(options.weights)
    ids = np.load(options.ids)
    for name, tensor in facts.items():
        if tensor["role"] == "input":
            error = session.write(name, ids.astype(np.int64).ravel().view(np.uint8))
            if error:
                raise SystemExit(error)
    session.write("lr", np.array([1e-4], np.float32).view(np.uint8))
    done = 0

    def step():
        nonlocal done
        done += 1
        error = session.run("train", 0, done)
        if error:
            raise SystemExit(error)
        return float(session.read("loss").view(np.float32)[0])

    def profile():
        step()
        times = session.timings()
        kinds = {
            "contractions": times["contraction"],
            "attention": times["attention"],
            "row_wise": times["row-wise"],
            "optimizer": times["optimizer"],
            "communication": times["communication"],
        }
        kinds["idle"] = times["total"] - sum(kinds.values())
        return kinds

    def memory():
        # Ranks are threads of this process and share its memory equally.
        own = protocol.own_memory()
        ranks = session.ranks()
        return {**own, "vm_hwm_mib_per_rank": own["vm_hwm_mib"] / ranks}

    protocol.serve(step, profile, session.memory(), memory)


if __name__ == "__main__":
    main()
