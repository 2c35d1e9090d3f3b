# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Whether long proofs run in full."""

import os

#: The full set of slow proofs, not the sample: CLEAVE_TEST_ALL is set, and neither
#: empty nor 0.
ALL = os.environ.get("CLEAVE_TEST_ALL", "") not in ("", "0")
