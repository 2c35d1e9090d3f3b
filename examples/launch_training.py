# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Training as a graph of nodes (Launchpad, arXiv 2106.04516): feed -> trainer ranks -> evaluator -> store.

    python examples/launch_training.py --nodes processes --ranks 2

The feed reads rows of a database, and gives batches of them to the ranks of a step that Cleave compiles. Rank 0 sends the model
to the evaluator every few steps, which computes the loss on rows that are never trained on, and
puts model and loss into the store. The program ends when the trainer calls `stop()`. The same graph
runs as threads, as processes that listen on the loopback address, or as actors of Ray.
"""

import argparse
import json
import pathlib

from launch import Program
from launch_nodes import QUERY, Evaluator, Feed, Store, Trainer, batches, write_rows
from picture import chart


def program(options):
    """The graph. Where the ranks are threads of one node, it alone asks for batches."""
    graph, rows = Program(), options.work / "rows.db"
    askers = options.ranks if options.nodes == "processes" else 1
    store = graph.add("store", Store, options.work / "store")
    feed = graph.add("feed", Feed, batches, (rows, options.batch, False), askers)
    evaluator = graph.add("evaluator", Evaluator, batches, (rows, options.held_out, True), store, QUERY)
    graph.add_ranks(options.ranks, "trainer", Trainer, feed, evaluator, graph.launcher, options)
    return graph


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", choices=["threads", "processes", "ray"], default="processes")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the training step")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between evaluations")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rows", type=int, default=4096, help="rows of an epoch")
    parser.add_argument("--held-out", type=int, default=512, help="rows that are never trained on")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("out/launch"))
    parser.add_argument("--smoke", action="store_true", help="only try it, small and short")
    if parser.parse_known_args(arguments)[0].smoke:
        parser.set_defaults(steps=8, every=4, batch=16, rows=100)
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    write_rows(options.work / "rows.db", options.rows, options.held_out)
    program(options).launch(options.nodes).wait(timeout=600)
    entries = json.loads((options.work / "store" / "entries.json").read_text())
    print(f"{'step':>6} {'loss':>10} {'held out':>10}  model")
    for entry in entries:
        print(f"{entry['step']:6} {entry['loss']:10.4f} {entry['held_out_loss']:10.4f}  {entry['hash'][:12]}")
    chart(options.work / "launch.svg", f"A launch graph: {options.ranks} trainer ranks, {options.nodes}",
          "step", "loss", {"training batch": [(e["step"], e["loss"]) for e in entries],
                           "held out, by the evaluator": [(e["step"], e["held_out_loss"]) for e in entries]})
    return entries


if __name__ == "__main__":
    main()
