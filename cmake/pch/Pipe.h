// What nearly all sources of the pipe dialect read.
#include "Spmd.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
