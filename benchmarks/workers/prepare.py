"""Writes one case for workers without PyTorch: the traced model, its weights, a batch of token
ids and the number of heads."""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

import numpy as np
from safetensors.torch import save_file

import models
from cleave.trace import trace


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--out", required=True, help="path without extension")
    options = parser.parse_args()
    model, ids = models.build(options.model, options.dropout)
    traced = trace(model, dict(input_ids=ids, labels=ids))
    with open(options.out + ".mlir", "w") as file:
        file.write(traced.mlir)
    with open(options.out + ".json", "w") as file:
        json.dump({"heads": model.config.num_attention_heads}, file)
    np.save(options.out + ".npy", ids.numpy())
    save_file(
        {
            entry.name: entry.tensor.detach().contiguous()
            for entry in (*traced.parameters, *traced.buffers)
        },
        options.out + ".safetensors",
    )


if __name__ == "__main__":
    main()
