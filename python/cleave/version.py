# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The version of Cleave: CMake and the package's build read it here."""

__version__ = "0.2.0"
