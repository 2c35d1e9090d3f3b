// RUN: cleave-opt %s --exec-plan-memory=threads=0 --verify-diagnostics

// expected-error @below {{threads must be positive, not 0}}
module {
}
