// What most tests read of what uses nothing of MLIR.
#include "Plain.h"
#include "gtest/gtest.h"
