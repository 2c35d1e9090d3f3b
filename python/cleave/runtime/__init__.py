# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A compiled step: its programs, their state and their processes.

    step, held, program, results, call_inputs
                                  a compiled step, what its parts read of it, its program for one
                                  shape, what it returns, the tensors of a call
    native                        the types of what the native modules give
    state, masters, checkpoint, tensor_file
                                  tensors and states that are loaded; those of 16-bit modules;
                                  folders that are saved; files of tensors
    processes, forks              ranks that are processes; threads, locks and forked processes
"""
