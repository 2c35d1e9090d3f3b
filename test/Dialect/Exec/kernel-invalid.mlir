// RUN: cleave-opt %s --split-input-file --verify-diagnostics

// expected-error @+1 {{expected map, row, column or gather, found 'diagonal'}}
exec.kernel @k diagonal [4, 8] (%x: tensor<4x8xf32>) -> () {
}

// -----

// expected-error @+1 {{needs at least one row and one column}}
exec.kernel @k map [0, 8] (%x: tensor<4x8xf32>) -> () {
}

// -----

// expected-error @+1 {{arguments must have layout offset 0}}
exec.kernel @k map [4, 8] (%x: tensor<4x8xf32, #exec.layout<[8, 1], offset = 8>>) -> () {
}

// -----

// expected-error @+1 {{valid elements must end in the last row}}
exec.kernel @k map [4, 8] (%x: tensor<20xf32>) -> () attributes {valid = 20 : i64} {
}

// -----

// expected-error @+1 {{has more groups than rows}}
exec.kernel @groups column [2, 4] (%x: tensor<2x4xf32>) -> (%y: tensor<4xf32>)
    attributes {groups = 3 : i64} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 4 + c)> : tensor<2x4xf32> -> f32
    exec.accumulate sum %0, %y at affine_map<(r, c) -> (c)> : f32, tensor<4xf32>
    exec.yield
  }
}

// -----

// expected-error @+1 {{of skeleton map has reductions}}
exec.kernel @k map [4, 8] (%x: tensor<4x8xf32>) -> (%y: tensor<4xf32>) {
  %0 = exec.pass -> f32 {
    %1 = exec.load %x at affine_map<(r, c) -> (r * 8 + c)> : tensor<4x8xf32> -> f32
    %2 = exec.reduce sum %1 : f32
    exec.yield %2 : f32
  }
  exec.store %0, %y at affine_map<(r, c) -> (r)> : f32, tensor<4xf32>
}

// -----

// expected-error @+1 {{accumulates over rows if and only if its skeleton is column}}
exec.kernel @k map [4, 8] (%x: tensor<4x8xf32>) -> (%y: tensor<8xf32>) {
  exec.pass {
    %1 = exec.load %x at affine_map<(r, c) -> (r * 8 + c)> : tensor<4x8xf32> -> f32
    exec.accumulate sum %1, %y at affine_map<(r, c) -> (c)> : f32, tensor<8xf32>
    exec.yield
  }
}

// -----

exec.kernel @k column [4, 8] (%x: tensor<4x8xf32>) -> (%y: tensor<8xf32>) {
  exec.pass {
    %1 = exec.load %x at affine_map<(r, c) -> (r * 8 + c)> : tensor<4x8xf32> -> f32
    // expected-error @+1 {{map must not depend on the row}}
    exec.accumulate sum %1, %y at affine_map<(r, c) -> (r + c)> : f32, tensor<8xf32>
    exec.yield
  }
}

// -----

exec.kernel @k row [4, 8] (%x: tensor<4x8xf32>) -> (%y: tensor<4x8xf32>) {
  %0 = exec.pass -> f32 {
    %1 = exec.load %x at affine_map<(r, c) -> (r * 8 + c)> : tensor<4x8xf32> -> f32
    %2 = exec.reduce sum %1 : f32
    // expected-error @+1 {{uses a reduction within its own pass}}
    %3 = arith.mulf %1, %2 : f32
    exec.store %3, %y at affine_map<(r, c) -> (r * 8 + c)> : f32, tensor<4x8xf32>
    exec.yield %2 : f32
  }
}

// -----

exec.kernel @k map [4, 8] (%x: tensor<4x8xf32>) -> (%y: tensor<4x8xf32>) {
  exec.pass {
    %1 = exec.load %x at affine_map<(r, c) -> (r * 8 + c)> : tensor<4x8xf32> -> f32
    // expected-error @+1 {{writes an input}}
    exec.store %1, %x at affine_map<(r, c) -> (r * 8 + c)> : f32, tensor<4x8xf32>
    exec.yield
  }
}

// -----

exec.kernel @k map [4, 8] (%x: tensor<4x8xf32>) -> () {
  exec.pass {
    // expected-error @+1 {{map must have one symbol for each index}}
    %1 = exec.load %x at affine_map<(r, c)[i] -> (i * 8 + c)> : tensor<4x8xf32> -> f32
    exec.yield
  }
}

// -----

exec.kernel @k map [4, 8] (%x: tensor<4x8xf32>) -> () {
  exec.pass {
    // expected-error @+1 {{cannot be part of a kernel}}
    %c = graph.constant dense<1.0> : tensor<f32>
    exec.yield
  }
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{unknown kernel 'missing'}}
  %y = exec.launch @missing(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

exec.kernel @k map [1, 4] (%x: tensor<4xf32>) -> (%y: tensor<4xf32>) {
}
func.func @f(%x: tensor<5xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{operand of type 'tensor<5xf32>' for an argument of 'tensor<4xf32>'}}
  %y = exec.launch @k(%x) : (tensor<5xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

exec.kernel @k map [1, 4] (%x: tensor<4xf32>) -> (%y: tensor<4xf32>) {
}
func.func @f(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // expected-error @+1 {{kernel takes 1 inputs and gives 1 outputs in each of 2 uses}}
  %y:2 = exec.launch @k(%x) {uses = 2 : i64} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %y#0, %y#1 : tensor<4xf32>, tensor<4xf32>
}

// -----

exec.kernel @k map [1, 4] (%x: tensor<4xf32>) -> (%y: tensor<4xf32>) {
}
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{attribute 'uses' failed to satisfy constraint}}
  %y = exec.launch @k(%x) {uses = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
