// What most sources of the runtime read.
#include "Plain.h"
