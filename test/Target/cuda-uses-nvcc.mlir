// The text compiles for sm_90, without spills, with accesses of 16 bytes of
// global memory: addresses are read from the parameters, not from a copy.
// REQUIRES: nvcc
// RUN: cleave-translate --exec-to-cuda %S/cuda-uses.mlir -o %t.cu
// RUN: %nvcc -arch=sm_90 -fmad=false -Werror all-warnings -cubin -Xptxas -v %t.cu -o %t.cubin 2>&1 | FileCheck %s --check-prefix=SPILLS
// RUN: %nvcc -arch=sm_90 -fmad=false -ptx %t.cu -o %t.ptx
// RUN: FileCheck %s --check-prefix=PTX < %t.ptx

// SPILLS-COUNT-4: 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
// SPILLS-NOT: {{[1-9][0-9]*}} bytes spill

// PTX-LABEL: .entry cleave_kernel3_add(
// PTX-NOT: .local
// PTX: ld.global.v4
// PTX: st.global.v4
