//===- Check.cu - Checks --------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

// One thread, after the checks before it: the first failed one stays, but for
// those of a larger severity.
extern "C" __global__ void __launch_bounds__(1)
    cleave_check(const unsigned char *flag, int index, int severity,
                 const long long *values, int count, CheckStatus *status) {
  if (*flag || status->failed >= severity)
    return;
  status->failed = severity;
  status->index = index;
  for (int i = 0; i < count; ++i)
    status->values[i] = values[i];
}
