# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""From a model to a compiled step.

    api                           `cleave.compile`
    groups, fields, entrance      the groups of its options, written from the compiler's table;
                                  which option is in which, and the names that options had before
    settings, options, shardings  its arguments, checked; options as the compiler takes them, and
                                  its verdict; shardings that a person asks for (`cleave.P`)
    build, compare                from the model to a program for one shape of batch; when it is
                                  compared with eager PyTorch, and what is said of that
    trainable, check, verdicts, counted, shortened
                                  what can be trained; comparison with eager PyTorch, on the same
                                  random numbers, of a large model on a copy with few layers,
                                  and what it found, in a folder
    trace_inputs, hashed_objects, hashed_code, hashed_packages
                                  all that a trace may read, as a hash: the modes of the process,
                                  the model's objects, their code, what is set in packages
    kept_traces                   traces of earlier starts
    batch, buckets, background    the tensors of a step; programs for a few lengths, compiled in
                                  another thread
"""
