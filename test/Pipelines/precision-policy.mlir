// The precision that a person chooses for single ops, in a file or a text.

// By the name of an op.
// RUN: cleave-compile %s --precision bf16 --precision-policy 'relu=f32' --emit=step | FileCheck %s --check-prefixes=CHECK,EXP
// By a parameter, the module it is in, and the place in the source.
// RUN: cleave-compile %s --precision bf16 --precision-policy 'head.weight=f32' --emit=step | FileCheck %s --check-prefixes=CHECK,HEAD
// RUN: cleave-compile %s --precision bf16 --precision-policy 'h*d=f32' --emit=step | FileCheck %s --check-prefixes=CHECK,HEAD
// RUN: cleave-compile %s --precision bf16 --precision-policy 'net/model.py:7=f32' --emit=step | FileCheck %s --check-prefixes=CHECK,HEAD
// Of several the last one counts.
// RUN: cleave-compile %s --precision bf16 --precision-policy 'linear=f32,blocks.*=16bit' --emit=step | FileCheck %s --check-prefixes=CHECK,HEAD
// RUN: printf '# all but the first\nlinear = f32 # two\n\nblocks.0 = 16bit\n' > %t.policy
// RUN: cleave-compile %s --precision bf16 --precision-policy %t.policy --emit=step | FileCheck %s --check-prefixes=CHECK,HEAD

// CHECK-LABEL: func.func @train(
// CHECK-NOT: graph.precision
// EXP: graph.linear {{.*}} {result_element = f32} : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xf32>
// EXP: graph.relu %{{.*}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
// EXP: graph.linear {{.*}} {result_element = f32} : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xf32>
// HEAD: graph.linear {{.*}} {result_element = f32} : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xf32>
// HEAD: graph.relu %{{.*}} : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
// HEAD: graph.linear %{{.*}}, %{{[a-z0-9]+}} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>

// Mistakes say where they are.
// RUN: not cleave-compile %s --precision-policy 'relu=f32' --emit=step 2>&1 | FileCheck %s --check-prefix=WIDE
// WIDE: --precision-policy needs --precision bf16 or fp16
// RUN: not cleave-compile %s --precision bf16 --precision-policy 'relu=f32,relu=f8' --emit=step 2>&1 | FileCheck %s --check-prefix=TYPE
// TYPE: --precision-policy: entry 2: unknown precision 'f8' of 'relu'; there are f32 and 16bit
// RUN: not cleave-compile %s --precision bf16 --precision-policy 'relu=f32,relu' --emit=step 2>&1 | FileCheck %s --check-prefix=FORM
// FORM: --precision-policy: entry 2: expected pattern=f32 or pattern=16bit, not 'relu'
// RUN: not cleave-compile %s --precision bf16 --precision-policy 'a[=f32' --emit=step 2>&1 | FileCheck %s --check-prefix=GLOB
// GLOB: --precision-policy: entry 1: 'a[': invalid glob pattern
// RUN: not cleave-compile %s --precision bf16 --precision-policy no/file --emit=step 2>&1 | FileCheck %s --check-prefix=FILE
// FILE: --precision-policy: 'no/file' is neither entries, as softmax=f32, nor a file with them
// RUN: printf 'linear=f32\n# a comment\ntail=16bit\n' > %t.unknown
// RUN: not cleave-compile %s --precision bf16 --precision-policy %t.unknown --emit=step 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// UNKNOWN: .unknown:3: 'tail' matches no op, no parameter that an op reads

func.func @loss(%w: tensor<8x8xf32> {graph.name = "blocks.0.weight", graph.role = "parameter"},
                %u: tensor<8x8xf32> {graph.name = "head.weight", graph.role = "parameter"},
                %x: tensor<4x8xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}) {
  %0 = graph.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32> loc("a/net/model.py":6:1)
  %1 = graph.relu %0 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = graph.linear %1, %u : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32> loc("a/net/model.py":7:1)
  %3 = graph.reduce sum %2 {dims = array<i64: 0, 1>} : (tensor<4x8xf32>) -> tensor<f32>
  return %3 : tensor<f32>
}
