// What nearly all sources of the graph dialect read.
#include "Mlir.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
