# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Trainings with offloaded state."""

import torch

import cleave
from cleave.compiler.entrance import grouped
from training_support import gpt2, named_tokens, token_batches

STEPS = 4
CONFIG = dict(n_layer=4, n_embd=64, tie_word_embeddings=False)

#: Meshes and schedules.
PLACES = {
    "one": {},
    "parts": dict(micro_batches=4),
    "zero1": dict(mesh={"dp": 2}, plan=["zero1"]),
    "zero3": dict(mesh={"dp": 2}, plan=["zero3"], micro_batches=2),
    "tp": dict(mesh={"tp": 2}, plan=["megatron-sp"]),
    "1f1b": dict(mesh={"pp": 2, "dp": 2}, plan=["zero1"], micro_batches=4),
    "zb-v": dict(mesh={"pp": 2}, schedule="zb-v", micro_batches=4),
    "interleaved": dict(mesh={"pp": 2}, schedule="interleaved", virtual_stages=2, micro_batches=4),
    "pipedream": dict(mesh={"pp": 2}, schedule="pipedream", micro_batches=4, check_finite=False),
    "many": dict(micro_batches=32, batch=32),
    "grains": dict(deterministic=4),
}
FUSIONS = {
    "none": {},
    "backward": dict(optimizer_fusion="backward", check_finite=False),
    "forward": dict(optimizer_fusion="forward"),
    "clip": dict(clip=0.5),
    "validated": dict(post_validation=True, clip=0.5),
}
OPTIMIZERS = {
    "adamw": cleave.AdamW, "sgd": lambda **more: cleave.SGD(momentum=0.9, **more),
    "lion": cleave.Lion, "lamb": cleave.LAMB, "adafactor": cleave.Adafactor, "adagrad": cleave.Adagrad,
    "adamw8bit": cleave.AdamW8bit, "plain": cleave.SGD,
}


def compiled(offload, place="one", fusion="none", optimizer="adamw", precision="f32", **more):
    torch.manual_seed(0)
    settings = {"check": "off", **PLACES[place], **FUSIONS[fusion], **more}
    rule = OPTIMIZERS[optimizer](lr=1e-2, max_grad_norm=settings.pop("clip", None))
    return cleave.compile(gpt2(**CONFIG), named_tokens(batch=settings.pop("batch", 8), length=16),
                          optimizer=rule, seed=5,
                          **grouped(precision=precision, offload=offload, **settings))


def batches(place="one"):
    return token_batches(STEPS, batch=PLACES[place].get("batch", 8), length=16, ignored=3)
