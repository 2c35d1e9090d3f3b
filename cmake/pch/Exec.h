// What nearly all sources of the exec dialect, of conversions to it and of
// targets read.
#include "Spmd.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
