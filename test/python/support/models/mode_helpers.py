# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A function of another file that reads the mode of a module unseen."""


def scale(m):
    return 2 if vars(m)["training"] else 1
