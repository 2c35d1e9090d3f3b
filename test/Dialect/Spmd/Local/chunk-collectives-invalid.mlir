// RUN: not cleave-opt %s 2>&1 | FileCheck %s
// RUN: echo 'module {}' | not cleave-opt --spmd-chunk-collectives="chunks=0" 2>&1 | FileCheck %s --check-prefix=COUNT
// RUN: echo 'module {}' | not cleave-opt --spmd-chunk-collectives="min-bytes=-1" 2>&1 | FileCheck %s --check-prefix=BYTES

// COUNT: collectives are cut into at least 1 chunk, of at least 0 bytes: not 0 of 1048577
// BYTES: collectives are cut into at least 1 chunk, of at least 0 bytes: not 2 of -1

spmd.mesh @mesh <["tp" = 2]>
// CHECK: attribute 'spmd.chunk': must hold the numbers of a collective and of a chunk
func.func @chunk(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = spmd.all_reduce sum %x over @mesh {"tp"} {spmd.chunk = array<i64: 0>} : tensor<4xf32>
  return %0 : tensor<4xf32>
}
