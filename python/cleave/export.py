# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The command `python -m cleave.export`, and the former name of `cleave.exporting`."""

import sys
import warnings

from cleave import exporting

if __name__ == "__main__":
    from cleave.exporting.__main__ import main
    sys.exit(main())
warnings.warn("the module cleave.export is cleave.exporting now; the former name goes with the "
              "next version", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = exporting
