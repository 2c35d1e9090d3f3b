# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""From a model to a compiled step.

    api                           `cleave.compile`
    options, shardings            options of a pipeline and of others, as the compiler takes them;
                                  shardings that a person asks for (`cleave.P`)
    trainable, check, verdicts, counted, shortened
                                  what can be trained; comparison with eager PyTorch, on the same
                                  random numbers, of a large model on a copy with few layers,
                                  and what it found, in a folder
    batch, buckets, background    the tensors of a step; programs for a few lengths, compiled in
                                  another thread
"""
