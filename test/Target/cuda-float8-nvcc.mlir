// The conversions are those of the processor, and rows are stored as words.
// REQUIRES: nvcc
// RUN: cleave-translate --exec-to-cuda %S/cuda-float8.mlir -o %t.cu
// RUN: %nvcc -arch=sm_90 -fmad=false -Werror all-warnings -cubin -Xptxas -v %t.cu -o %t.cubin 2>&1 | FileCheck %s --check-prefix=SPILLS
// RUN: %nvcc -arch=sm_90 -fmad=false -ptx %t.cu -o %t.ptx
// RUN: FileCheck %s --check-prefix=PTX < %t.ptx

// SPILLS-COUNT-3: 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
// SPILLS-NOT: {{[1-9][0-9]*}} bytes spill

// PTX-LABEL: .entry cleave_kernel_narrow(
// PTX: ld.global.v4
// PTX-DAG: cvt.rn.satfinite.e4m3x2.f32
// PTX-DAG: cvt.rn.satfinite.e5m2x2.f32
// PTX: st.global.u32
// PTX-LABEL: .entry cleave_kernel_widen(
// PTX: cvt.rn.f16x2.e4m3x2
