//===- Check.cu - Checks --------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

// One thread, after the checks before it: the first failed one stays, but one
// that ends the run comes before those that skip the step.
extern "C" __global__ void __launch_bounds__(1)
    cleave_check(const unsigned char *flag, int index, int skips,
                 CheckStatus *status) {
  int failed = skips ? 1 : 2;
  if (*flag || status->failed >= failed)
    return;
  status->failed = failed;
  status->index = index;
}
