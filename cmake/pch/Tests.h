// What most tests of the compiler read.
#include "Exec.h"
#include "gtest/gtest.h"
