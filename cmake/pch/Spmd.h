// What nearly all sources of the spmd dialect read.
#include "Graph.h"
#include "cleave/Dialect/Spmd/IR/SpmdOps.h"
