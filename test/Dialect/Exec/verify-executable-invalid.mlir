// RUN: cleave-opt %s --exec-verify-executable --split-input-file --verify-diagnostics

// expected-error@below {{has no planned memory: 'exec.arena_bytes' or 'exec.threads' is missing}}
module {
  exec.program @evaluate(%w: tensor<4xf32> {exec.offset = 0 : i64, graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 64 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {exec.offset = 256 : i64, graph.name = "loss"}) {
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64, offsets = array<i64: 0, 64, 256>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 1 : i64}) -> tensor<f32> attributes {exec.memory = [{bytes = 16 : i64, kind = "argument"}, {bytes = 16 : i64, kind = "argument"}, {bytes = 4 : i64, kind = "result"}]} {
    %0 = exec.launch @mul_reduce(%a, %b) {exec.buffers = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}

// -----

// expected-error@below {{has an arena of 512 bytes, and its largest program one of 320}}
module attributes {exec.arena_bytes = 512 : i64, exec.threads = 1 : i64} {
  exec.program @evaluate(%w: tensor<4xf32> {exec.offset = 0 : i64, graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 64 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {exec.offset = 256 : i64, graph.name = "loss"}) attributes {exec.arena_bytes = 320 : i64} {
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64, offsets = array<i64: 0, 64, 256>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 1 : i64}) -> tensor<f32> attributes {exec.memory = [{bytes = 16 : i64, kind = "argument"}, {bytes = 16 : i64, kind = "argument"}, {bytes = 4 : i64, kind = "result"}]} {
    %0 = exec.launch @mul_reduce(%a, %b) {exec.buffers = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}

// -----

module attributes {exec.arena_bytes = 512 : i64, exec.threads = 1 : i64} {
  // expected-error@below {{parameter "w" has no offset}}
  exec.program @evaluate(%w: tensor<4xf32> {graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 64 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {exec.offset = 256 : i64, graph.name = "loss"}) {
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64, offsets = array<i64: 0, 64, 256>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 1 : i64}) -> tensor<f32> attributes {exec.memory = [{bytes = 16 : i64, kind = "argument"}, {bytes = 16 : i64, kind = "argument"}, {bytes = 4 : i64, kind = "result"}]} {
    %0 = exec.launch @mul_reduce(%a, %b) {exec.buffers = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}

// -----

module attributes {exec.arena_bytes = 512 : i64, exec.threads = 1 : i64} {
  // expected-error@below {{input "x" is at byte 500 and has 16 bytes, outside of the arena of 512}}
  exec.program @evaluate(%w: tensor<4xf32> {exec.offset = 0 : i64, graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 500 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {exec.offset = 256 : i64, graph.name = "loss"}) {
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64, offsets = array<i64: 0, 64, 256>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 1 : i64}) -> tensor<f32> attributes {exec.memory = [{bytes = 16 : i64, kind = "argument"}, {bytes = 16 : i64, kind = "argument"}, {bytes = 4 : i64, kind = "result"}]} {
    %0 = exec.launch @mul_reduce(%a, %b) {exec.buffers = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}

// -----

module attributes {exec.arena_bytes = 512 : i64, exec.threads = 1 : i64} {
  // expected-error@below {{input "x" is at byte 64 and has 16 bytes, outside of the second tier of 0}}
  exec.program @evaluate(%w: tensor<4xf32> {exec.offset = 0 : i64, graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 64 : i64, exec.tier, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {exec.offset = 256 : i64, graph.name = "loss"}) {
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64, offsets = array<i64: 0, 64, 256>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 1 : i64}) -> tensor<f32> attributes {exec.memory = [{bytes = 16 : i64, kind = "argument"}, {bytes = 16 : i64, kind = "argument"}, {bytes = 4 : i64, kind = "result"}]} {
    %0 = exec.launch @mul_reduce(%a, %b) {exec.buffers = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}

// -----

module attributes {exec.arena_bytes = 512 : i64, exec.threads = 1 : i64} {
  exec.program @evaluate(%w: tensor<4xf32> {exec.offset = 0 : i64, graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 64 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {graph.name = "loss"}) {
    // expected-error@below {{result "loss" has no offset}}
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64, offsets = array<i64: 0, 64, 256>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 1 : i64}) -> tensor<f32> attributes {exec.memory = [{bytes = 16 : i64, kind = "argument"}, {bytes = 16 : i64, kind = "argument"}, {bytes = 4 : i64, kind = "result"}]} {
    %0 = exec.launch @mul_reduce(%a, %b) {exec.buffers = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}

// -----

module attributes {exec.arena_bytes = 512 : i64, exec.threads = 1 : i64} {
  exec.program @evaluate(%w: tensor<4xf32> {exec.offset = 0 : i64, graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 64 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {exec.offset = 256 : i64, graph.name = "loss"}) {
    // expected-error@below {{'exec.run' op needs an offset for each buffer of '@evaluate.F'}}
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 1 : i64}) -> tensor<f32> attributes {exec.memory = [{bytes = 16 : i64, kind = "argument"}, {bytes = 16 : i64, kind = "argument"}, {bytes = 4 : i64, kind = "result"}]} {
    %0 = exec.launch @mul_reduce(%a, %b) {exec.buffers = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}

// -----

module attributes {exec.arena_bytes = 512 : i64, exec.threads = 1 : i64} {
  exec.program @evaluate(%w: tensor<4xf32> {exec.offset = 0 : i64, graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 64 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {exec.offset = 256 : i64, graph.name = "loss"}) {
    // expected-error@below {{'exec.run' op needs an offset for each buffer of '@evaluate.F'}}
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64, offsets = array<i64: 0, 64>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 1 : i64}) -> tensor<f32> attributes {exec.memory = [{bytes = 16 : i64, kind = "argument"}, {bytes = 16 : i64, kind = "argument"}, {bytes = 4 : i64, kind = "result"}]} {
    %0 = exec.launch @mul_reduce(%a, %b) {exec.buffers = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}

// -----

module attributes {exec.arena_bytes = 512 : i64, exec.threads = 1 : i64} {
  exec.program @evaluate(%w: tensor<4xf32> {exec.offset = 0 : i64, graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 64 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {exec.offset = 256 : i64, graph.name = "loss"}) {
    // expected-error@below {{'exec.run' op buffer 2 is at byte 510 and has 4 bytes, outside of the arena of 512}}
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64, offsets = array<i64: 0, 64, 510>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 1 : i64}) -> tensor<f32> attributes {exec.memory = [{bytes = 16 : i64, kind = "argument"}, {bytes = 16 : i64, kind = "argument"}, {bytes = 4 : i64, kind = "result"}]} {
    %0 = exec.launch @mul_reduce(%a, %b) {exec.buffers = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}

// -----

module attributes {exec.arena_bytes = 512 : i64, exec.threads = 1 : i64} {
  exec.program @evaluate(%w: tensor<4xf32> {exec.offset = 0 : i64, graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 64 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {exec.offset = 256 : i64, graph.name = "loss"}) {
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64, offsets = array<i64: 0, 64, 256>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  // expected-error@below {{'func.func' op has no buffers ('exec.memory')}}
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 1 : i64}) -> tensor<f32> {
    %0 = exec.launch @mul_reduce(%a, %b) {exec.buffers = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}

// -----

module attributes {exec.arena_bytes = 512 : i64, exec.threads = 1 : i64} {
  exec.program @evaluate(%w: tensor<4xf32> {exec.offset = 0 : i64, graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 64 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {exec.offset = 256 : i64, graph.name = "loss"}) {
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64, offsets = array<i64: 0, 64, 256>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  // expected-error@below {{argument 1 has no buffer}}
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 3 : i64}) -> tensor<f32> attributes {exec.memory = [{bytes = 16 : i64, kind = "argument"}, {bytes = 16 : i64, kind = "argument"}, {bytes = 4 : i64, kind = "result"}]} {
    %0 = exec.launch @mul_reduce(%a, %b) {exec.buffers = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}

// -----

module attributes {exec.arena_bytes = 512 : i64, exec.threads = 1 : i64} {
  exec.program @evaluate(%w: tensor<4xf32> {exec.offset = 0 : i64, graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 64 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {exec.offset = 256 : i64, graph.name = "loss"}) {
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64, offsets = array<i64: 0, 64, 256>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 1 : i64}) -> tensor<f32> attributes {exec.memory = [{bytes = 16 : i64, kind = "argument"}, {bytes = 16 : i64, kind = "argument"}, {bytes = 4 : i64, kind = "result"}]} {
    // expected-error@below {{'exec.launch' op has no buffer for each of its results}}
    %0 = exec.launch @mul_reduce(%a, %b) {exec.buffers = array<i64: 4>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}

// -----

module attributes {exec.arena_bytes = 512 : i64, exec.threads = 1 : i64} {
  exec.program @evaluate(%w: tensor<4xf32> {exec.offset = 0 : i64, graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 64 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {exec.offset = 256 : i64, graph.name = "loss"}) {
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64, offsets = array<i64: 0, 64, 256>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 1 : i64}) -> tensor<f32> attributes {exec.memory = [{bytes = 16 : i64, kind = "argument"}, {bytes = 16 : i64, kind = "argument"}, {bytes = 4 : i64, kind = "result"}]} {
    // expected-error@below {{'exec.launch' op has no buffer for its scratch memory}}
    %0 = exec.launch @mul_reduce(%a, %b) {exec.scratch = 5 : i64, exec.buffers = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}

// -----

module attributes {exec.arena_bytes = 512 : i64, exec.threads = 1 : i64} {
  exec.program @evaluate(%w: tensor<4xf32> {exec.offset = 0 : i64, graph.name = "w", graph.role = "parameter"}, %x: tensor<4xf32> {exec.offset = 64 : i64, graph.name = "x", graph.role = "input"}) -> (tensor<f32> {exec.offset = 256 : i64, graph.name = "loss"}) {
    %0 = exec.run @evaluate.F(%w, %x) {micro_batch = 0 : i64, offsets = array<i64: 0, 64, 256>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    exec.return %0 : tensor<f32>
  }
  func.func private @evaluate.F(%a: tensor<4xf32> {exec.buffer = 0 : i64}, %b: tensor<4xf32> {exec.buffer = 1 : i64}) -> tensor<f32> attributes {exec.memory = [{bytes = 16 : i64, kind = "argument"}, {bytes = 16 : i64, kind = "argument"}, {bytes = 4 : i64, kind = "result"}]} {
    // expected-error@below {{'graph.mul' op is not a command}}
    %1 = graph.mul %a, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %0 = exec.launch @mul_reduce(%a, %b) {exec.buffers = array<i64: 2>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  exec.kernel @mul_reduce column [1, 4] (%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (%arg2: tensor<f32>) attributes {alignment = array<i64: 16, 16, 16>, threads = 32 : i64, vector = 4 : i64} {
    %0 = exec.pass -> f32 {
      %1 = exec.load %arg0 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %2 = exec.load %arg1 at affine_map<(d0, d1) -> (d1)> : tensor<4xf32> -> f32
      %3 = arith.mulf %1, %2 : f32
      %4 = exec.reduce sum %3 : f32
      exec.yield %4 : f32
    }
    exec.accumulate sum %0, %arg2 at affine_map<(d0, d1) -> (0)> : f32, tensor<f32>
  }
}
