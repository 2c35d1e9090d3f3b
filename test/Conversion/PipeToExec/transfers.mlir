// RUN: cleave-opt %s | cleave-opt | FileCheck %s

// CHECK-LABEL: func.func @both
func.func @both(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  // CHECK: exec.send %{{.*}} {to = 1 : i64, token = 0 : i64} : tensor<2x8xf32>
  exec.send %x {to = 1 : i64, token = 0 : i64} : tensor<2x8xf32>
  // CHECK: exec.receive {from = 1 : i64, token = 1 : i64} : tensor<2x8xf32>
  %y = exec.receive {from = 1 : i64, token = 1 : i64} : tensor<2x8xf32>
  // CHECK: exec.await %{{.*}}, %{{.*}} [0, 1] : tensor<2x8xf32>, tensor<2x8xf32>
  exec.await %x, %y [0, 1] : tensor<2x8xf32>, tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}
