// Kernels whose CUDA text is executed by CudaTest.cpp; each in a shape that
// divides into pieces and one that does not.

exec.kernel @map_whole map [6, 128] (%x: tensor<6x128xf32>, %b: tensor<128xf32>) -> (%y: tensor<6x128xf32>, %m: tensor<6x128xi1>)
    attributes {vector = 4 : i64, threads = 64 : i64, alignment = array<i64: 16, 16, 16, 16>} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 128 + c)> : tensor<6x128xf32> -> f32
    %1 = exec.load %b at affine_map<(r, c) -> (c)> : tensor<128xf32> -> f32
    %2 = arith.addf %0, %1 : f32
    %3 = math.tanh %2 : f32
    %4 = arith.cmpf ult, %3, %1 : f32
    exec.store %3, %y at affine_map<(r, c) -> (r * 128 + c)> : f32, tensor<6x128xf32>
    exec.store %4, %m at affine_map<(r, c) -> (r * 128 + c)> : i1, tensor<6x128xi1>
    exec.yield
  }
}

exec.kernel @map_odd map [5, 37] (%x: tensor<37x5xf32>) -> (%y: tensor<5x37xf32>)
    attributes {vector = 4 : i64, threads = 64 : i64, alignment = array<i64: 16, 16>} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (c * 5 + r)> : tensor<37x5xf32> -> f32
    %1 = arith.maximumf %0, %0 : f32
    exec.store %1, %y at affine_map<(r, c) -> (r * 37 + c)> : f32, tensor<5x37xf32>
    exec.yield
  }
}

exec.kernel @map_short map [3, 64] (%x: tensor<164xf32>) -> (%y: tensor<164xf32>)
    attributes {valid = 164 : i64, vector = 4 : i64, threads = 32 : i64, alignment = array<i64: 16, 16>} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 64 + c)> : tensor<164xf32> -> f32
    %1 = math.exp %0 : f32
    exec.store %1, %y at affine_map<(r, c) -> (r * 64 + c)> : f32, tensor<164xf32>
    exec.yield
  }
}

exec.kernel @rows map [45, 1] (%x: tensor<45xf32>) -> (%y: tensor<45xf32>)
    attributes {threads = 32 : i64} {
  %0 = exec.load %x at affine_map<(r, c) -> (r)> : tensor<45xf32> -> f32
  %1 = math.absf %0 : f32
  %2 = math.rsqrt %1 : f32
  exec.store %2, %y at affine_map<(r, c) -> (r)> : f32, tensor<45xf32>
}

exec.kernel @softmax row [4, 328] (%x: tensor<4x328xf32>) -> (%y: tensor<4x328xf32>, %n: tensor<4xf32>)
    attributes {vector = 4 : i64, threads = 64 : i64, alignment = array<i64: 16, 16, 4>} {
  %max, %count = exec.pass -> f32, i64 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 328 + c)> : tensor<4x328xf32> -> f32
    %1 = exec.reduce max %0 : f32
    %i = exec.index affine_map<(r, c) -> (r + c * 2)>
    %2 = exec.reduce sum %i : i64
    exec.yield %1, %2 : f32, i64
  }
  %e = exec.keep : tensor<328xf32>
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 328 + c)> : tensor<4x328xf32> -> f32
    %1 = arith.subf %0, %max : f32
    %2 = math.exp %1 : f32
    exec.store %2, %e at affine_map<(r, c) -> (c)> : f32, tensor<328xf32>
    %3 = exec.reduce sum %2 : f32
    exec.yield %3 : f32
  }
  %f = arith.sitofp %count : i64 to f32
  %g = arith.addf %f, %sum : f32
  exec.store %g, %n at affine_map<(r, c) -> (r)> : f32, tensor<4xf32>
  exec.pass {
    %0 = exec.load %e at affine_map<(r, c) -> (c)> : tensor<328xf32> -> f32
    %1 = arith.divf %0, %sum : f32
    exec.store %1, %y at affine_map<(r, c) -> (r * 328 + c)> : f32, tensor<4x328xf32>
    exec.yield
  }
}

// A row that is too long to stay anywhere.
exec.kernel @softmax_long row [3, 701] (%x: tensor<3x701xf32>) -> (%y: tensor<3x701xf32>, %n: tensor<3xf32>)
    attributes {threads = 32 : i64} {
  %max = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 701 + c)> : tensor<3x701xf32> -> f32
    %1 = exec.reduce max %0 : f32
    exec.yield %1 : f32
  }
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 701 + c)> : tensor<3x701xf32> -> f32
    %1 = arith.subf %0, %max : f32
    %2 = math.exp %1 : f32
    %3 = exec.reduce sum %2 : f32
    exec.yield %3 : f32
  }
  %log = math.log %sum : f32
  %all = arith.addf %max, %log : f32
  exec.store %all, %n at affine_map<(r, c) -> (r)> : f32, tensor<3xf32>
  %again = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 701 + c)> : tensor<3x701xf32> -> f32
    %1 = arith.subf %0, %all : f32
    %2 = math.exp %1 : f32
    %3 = exec.reduce sum %2 : f32
    exec.yield %3 : f32
  }
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 701 + c)> : tensor<3x701xf32> -> f32
    %1 = arith.subf %0, %all : f32
    %2 = math.exp %1 : f32
    %3 = arith.divf %2, %again : f32
    exec.store %3, %y at affine_map<(r, c) -> (r * 701 + c)> : f32, tensor<3x701xf32>
    exec.yield
  }
}

exec.kernel @kept_in_shared row [2, 5001] (%x: tensor<2x5001xf32>) -> (%y: tensor<2x5001xf32>)
    attributes {threads = 64 : i64} {
  %e = exec.keep : tensor<5001xf32>
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 5001 + c)> : tensor<2x5001xf32> -> f32
    exec.store %0, %e at affine_map<(r, c) -> (c)> : f32, tensor<5001xf32>
    %1 = exec.reduce min %0 : f32
    exec.yield %1 : f32
  }
  exec.pass {
    %0 = exec.load %e at affine_map<(r, c) -> (c)> : tensor<5001xf32> -> f32
    %1 = arith.subf %0, %sum : f32
    exec.store %1, %y at affine_map<(r, c) -> (r * 5001 + c)> : f32, tensor<2x5001xf32>
    exec.yield
  }
}

exec.kernel @column column [19, 72] (%x: tensor<19x72xf32>, %g: tensor<72xf32>) -> (%y: tensor<72xf32>, %z: tensor<f32>, %m: tensor<72xf32>, %o: tensor<19xf32>)
    attributes {groups = 5 : i64, vector = 4 : i64, threads = 32 : i64, alignment = array<i64: 16, 16, 16, 4, 16, 4>} {
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 72 + c)> : tensor<19x72xf32> -> f32
    %1 = exec.load %g at affine_map<(r, c) -> (c)> : tensor<72xf32> -> f32
    %2 = arith.mulf %0, %1 : f32
    exec.accumulate sum %2, %y at affine_map<(r, c) -> (c)> : f32, tensor<72xf32>
    exec.accumulate max %2, %m at affine_map<(r, c) -> (71 - c)> : f32, tensor<72xf32>
    %3 = exec.reduce sum %2 : f32
    exec.yield %3 : f32
  }
  exec.accumulate sum %sum, %z at affine_map<(r, c) -> (0)> : f32, tensor<f32>
  exec.store %sum, %o at affine_map<(r, c) -> (r)> : f32, tensor<19xf32>
}

exec.kernel @column_in_memory column [9, 3001] (%x: tensor<9x3001xf32>) -> (%y: tensor<3001xf32>)
    attributes {groups = 3 : i64, threads = 32 : i64} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 3001 + c)> : tensor<9x3001xf32> -> f32
    exec.accumulate sum %0, %y at affine_map<(r, c) -> (c)> : f32, tensor<3001xf32>
    exec.yield
  }
}

// Teams of three warps, some without a row at last; as many rows for each team;
// one group, without partial sums in memory.
exec.kernel @teams column [19, 264] (%x: tensor<19x264xf32>, %g: tensor<264xf32>) -> (%y: tensor<264xf32>, %z: tensor<f32>, %m: tensor<264xf32>, %o: tensor<19xf32>, %q: tensor<19x264xf32>)
    attributes {groups = 5 : i64, teams = 3 : i64, vector = 4 : i64, threads = 96 : i64, alignment = array<i64: 16, 16, 16, 4, 16, 4, 16>} {
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 264 + c)> : tensor<19x264xf32> -> f32
    %1 = exec.load %g at affine_map<(r, c) -> (c)> : tensor<264xf32> -> f32
    %2 = arith.mulf %0, %1 : f32
    exec.accumulate sum %2, %y at affine_map<(r, c) -> (c)> : f32, tensor<264xf32>
    exec.accumulate max %2, %m at affine_map<(r, c) -> (263 - c)> : f32, tensor<264xf32>
    %3 = exec.reduce sum %2 : f32
    exec.yield %3 : f32
  }
  exec.accumulate sum %sum, %z at affine_map<(r, c) -> (0)> : f32, tensor<f32>
  exec.store %sum, %o at affine_map<(r, c) -> (r)> : f32, tensor<19xf32>
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 264 + c)> : tensor<19x264xf32> -> f32
    %1 = arith.addf %0, %sum : f32
    exec.store %1, %q at affine_map<(r, c) -> (r * 264 + c)> : f32, tensor<19x264xf32>
    exec.yield
  }
}

exec.kernel @full_teams column [16, 264] (%x: tensor<16x264xf32>, %g: tensor<264xf32>) -> (%y: tensor<264xf32>, %z: tensor<f32>, %m: tensor<264xf32>, %o: tensor<16xf32>, %q: tensor<16x264xf32>)
    attributes {groups = 4 : i64, teams = 2 : i64, vector = 4 : i64, threads = 96 : i64, alignment = array<i64: 16, 16, 16, 4, 16, 4, 16>} {
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 264 + c)> : tensor<16x264xf32> -> f32
    %1 = exec.load %g at affine_map<(r, c) -> (c)> : tensor<264xf32> -> f32
    %2 = arith.mulf %0, %1 : f32
    exec.accumulate sum %2, %y at affine_map<(r, c) -> (c)> : f32, tensor<264xf32>
    exec.accumulate max %2, %m at affine_map<(r, c) -> (263 - c)> : f32, tensor<264xf32>
    %3 = exec.reduce sum %2 : f32
    exec.yield %3 : f32
  }
  exec.accumulate sum %sum, %z at affine_map<(r, c) -> (0)> : f32, tensor<f32>
  exec.store %sum, %o at affine_map<(r, c) -> (r)> : f32, tensor<16xf32>
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 264 + c)> : tensor<16x264xf32> -> f32
    %1 = arith.addf %0, %sum : f32
    exec.store %1, %q at affine_map<(r, c) -> (r * 264 + c)> : f32, tensor<16x264xf32>
    exec.yield
  }
}

exec.kernel @one_group column [7, 264] (%x: tensor<7x264xf32>, %g: tensor<264xf32>) -> (%y: tensor<264xf32>, %z: tensor<f32>, %m: tensor<264xf32>, %o: tensor<7xf32>, %q: tensor<7x264xf32>)
    attributes {teams = 2 : i64, vector = 4 : i64, threads = 96 : i64, alignment = array<i64: 16, 16, 16, 4, 16, 4, 16>} {
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 264 + c)> : tensor<7x264xf32> -> f32
    %1 = exec.load %g at affine_map<(r, c) -> (c)> : tensor<264xf32> -> f32
    %2 = arith.mulf %0, %1 : f32
    exec.accumulate sum %2, %y at affine_map<(r, c) -> (c)> : f32, tensor<264xf32>
    exec.accumulate max %2, %m at affine_map<(r, c) -> (263 - c)> : f32, tensor<264xf32>
    %3 = exec.reduce sum %2 : f32
    exec.yield %3 : f32
  }
  exec.accumulate sum %sum, %z at affine_map<(r, c) -> (0)> : f32, tensor<f32>
  exec.store %sum, %o at affine_map<(r, c) -> (r)> : f32, tensor<7xf32>
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 264 + c)> : tensor<7x264xf32> -> f32
    %1 = arith.addf %0, %sum : f32
    exec.store %1, %q at affine_map<(r, c) -> (r * 264 + c)> : f32, tensor<7x264xf32>
    exec.yield
  }
}

exec.kernel @one_group_in_memory column [9, 3001] (%x: tensor<9x3001xf32>) -> (%y: tensor<3001xf32>, %m: tensor<3001xf32>)
    attributes {threads = 32 : i64} {
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 3001 + c)> : tensor<9x3001xf32> -> f32
    exec.accumulate sum %0, %y at affine_map<(r, c) -> (c)> : f32, tensor<3001xf32>
    exec.accumulate max %0, %m at affine_map<(r, c) -> (3000 - c)> : f32, tensor<3001xf32>
    %1 = exec.reduce sum %0 : f32
    exec.yield %1 : f32
  }
}

// Columns of several blocks, in teams.
exec.kernel @apart column [21, 200] (%x: tensor<21x200xf32>) -> (%y: tensor<200xf32>, %n: tensor<21x200xf32>)
    attributes {groups = 2 : i64, teams = 4 : i64, vector = 4 : i64, threads = 32 : i64, alignment = array<i64: 16, 16, 16>} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 200 + c)> : tensor<21x200xf32> -> f32
    %1 = arith.negf %0 : f32
    exec.accumulate sum %0, %y at affine_map<(r, c) -> (c)> : f32, tensor<200xf32>
    exec.store %1, %n at affine_map<(r, c) -> (r * 200 + c)> : f32, tensor<21x200xf32>
    exec.yield
  }
}

// Warps with two rows.
exec.kernel @two_rows_of_a_warp column [21, 192] (%x: tensor<21x192xf32>) -> (%y: tensor<192xf32>, %n: tensor<21x192xf32>)
    attributes {groups = 3 : i64, teams = 4 : i64, vector = 4 : i64, threads = 16 : i64, alignment = array<i64: 16, 16, 16>} {
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 192 + c)> : tensor<21x192xf32> -> f32
    %1 = arith.negf %0 : f32
    exec.accumulate sum %0, %y at affine_map<(r, c) -> (c)> : f32, tensor<192xf32>
    exec.store %1, %n at affine_map<(r, c) -> (r * 192 + c)> : f32, tensor<21x192xf32>
    exec.yield
  }
}

// Rows too long for registers stay in shared memory from the pass on that reads
// or writes them.
exec.kernel @long_softmax row [3, 3001] (%x: tensor<3x3001xf32>, %on: tensor<3x3001xi1>) -> (%y: tensor<3x3001xf32>, %z: tensor<3xf32>, %w: tensor<3x3001xf32>)
    attributes {threads = 32 : i64} {
  %max = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 3001 + c)> : tensor<3x3001xf32> -> f32
    %1 = exec.reduce max %0 : f32
    exec.yield %1 : f32
  }
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 3001 + c)> : tensor<3x3001xf32> -> f32
    %1 = arith.subf %0, %max : f32
    %2 = math.exp %1 : f32
    %3 = exec.reduce sum %2 : f32
    exec.yield %3 : f32
  }
  %count = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 3001 + c)> : tensor<3x3001xf32> -> f32
    %1 = arith.subf %0, %max : f32
    %2 = math.exp %1 : f32
    %3 = arith.divf %2, %sum : f32
    exec.store %3, %y at affine_map<(r, c) -> (r * 3001 + c)> : f32, tensor<3x3001xf32>
    %on0 = exec.load %on at affine_map<(r, c) -> (r * 3001 + c)> : tensor<3x3001xi1> -> i1
    %zero = arith.constant 0.0 : f32
    %4 = arith.select %on0, %3, %zero : f32
    %5 = exec.reduce sum %4 : f32
    exec.yield %5 : f32
  }
  exec.store %count, %z at affine_map<(r, c) -> (r)> : f32, tensor<3xf32>
  exec.pass {
    %0 = exec.load %y at affine_map<(r, c) -> (r * 3001 + c)> : tensor<3x3001xf32> -> f32
    %on0 = exec.load %on at affine_map<(r, c) -> (r * 3001 + c)> : tensor<3x3001xi1> -> i1
    %1 = arith.select %on0, %0, %count : f32
    exec.store %1, %w at affine_map<(r, c) -> (r * 3001 + c)> : f32, tensor<3x3001xf32>
    exec.yield
  }
}

exec.kernel @long_softmax_by_four row [3, 3072] (%x: tensor<3x3072xf32>, %on: tensor<3x3072xi1>) -> (%y: tensor<3x3072xf32>, %z: tensor<3xf32>, %w: tensor<3x3072xf32>)
    attributes {threads = 32 : i64, vector = 4 : i64, alignment = array<i64: 16, 16, 16, 16, 16>} {
  %max = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 3072 + c)> : tensor<3x3072xf32> -> f32
    %1 = exec.reduce max %0 : f32
    exec.yield %1 : f32
  }
  %sum = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 3072 + c)> : tensor<3x3072xf32> -> f32
    %1 = arith.subf %0, %max : f32
    %2 = math.exp %1 : f32
    %3 = exec.reduce sum %2 : f32
    exec.yield %3 : f32
  }
  %count = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 3072 + c)> : tensor<3x3072xf32> -> f32
    %1 = arith.subf %0, %max : f32
    %2 = math.exp %1 : f32
    %3 = arith.divf %2, %sum : f32
    exec.store %3, %y at affine_map<(r, c) -> (r * 3072 + c)> : f32, tensor<3x3072xf32>
    %on0 = exec.load %on at affine_map<(r, c) -> (r * 3072 + c)> : tensor<3x3072xi1> -> i1
    %zero = arith.constant 0.0 : f32
    %4 = arith.select %on0, %3, %zero : f32
    %5 = exec.reduce sum %4 : f32
    exec.yield %5 : f32
  }
  exec.store %count, %z at affine_map<(r, c) -> (r)> : f32, tensor<3xf32>
  exec.pass {
    %0 = exec.load %y at affine_map<(r, c) -> (r * 3072 + c)> : tensor<3x3072xf32> -> f32
    %on0 = exec.load %on at affine_map<(r, c) -> (r * 3072 + c)> : tensor<3x3072xi1> -> i1
    %1 = arith.select %on0, %0, %count : f32
    exec.store %1, %w at affine_map<(r, c) -> (r * 3072 + c)> : f32, tensor<3x3072xf32>
    exec.yield
  }
}

exec.kernel @gather gather [6, 40] (%w: tensor<7x40xf32>, %ids: tensor<6xi64>, %each: tensor<6x40xi32>, %on: tensor<6x40xi1>) -> (%y: tensor<6x40xf32>, %z: tensor<6x40xf32>)
    attributes {vector = 4 : i64, threads = 32 : i64, alignment = array<i64: 16, 16, 16, 16, 16, 16>} {
  %id = exec.load %ids at affine_map<(r, c) -> (r)> : tensor<6xi64> -> i64
  exec.pass {
    %0 = exec.load %w[%id] at affine_map<(r, c)[i] -> (i * 40 + c)> : tensor<7x40xf32> -> f32
    exec.store %0, %y at affine_map<(r, c) -> (r * 40 + c)> : f32, tensor<6x40xf32>
    %1 = exec.load %each at affine_map<(r, c) -> (r * 40 + c)> : tensor<6x40xi32> -> i32
    %2 = exec.load %on at affine_map<(r, c) -> (r * 40 + c)> : tensor<6x40xi1> -> i1
    %3 = arith.extsi %1 : i32 to i64
    %4 = exec.load %w[%3] where %2 at affine_map<(r, c)[i] -> (i * 40)> : tensor<7x40xf32> -> f32
    exec.store %4, %z at affine_map<(r, c) -> (r * 40 + c)> : f32, tensor<6x40xf32>
    exec.yield
  }
}

exec.kernel @dropout map [3, 192] (%rng: tensor<2xi64>) -> (%y: tensor<3x192xi32>, %z: tensor<3x192xi32>)
    attributes {vector = 4 : i64, threads = 64 : i64, alignment = array<i64: 16, 16, 16>} {
  %seed = exec.load %rng at affine_map<(r, c) -> (0)> : tensor<2xi64> -> i64
  %step = exec.load %rng at affine_map<(r, c) -> (1)> : tensor<2xi64> -> i64
  %base = arith.constant 17179869248 : i64
  exec.pass {
    %0 = exec.philox %seed, %step base %base at affine_map<(r, c) -> (r * 192 + c)> {id = 3 : i64, base_multiple = 64 : i64}
    %1 = exec.philox %seed, %step at affine_map<(r, c) -> (r * 192 + c + 1)> {id = 4 : i64}
    exec.store %0, %y at affine_map<(r, c) -> (r * 192 + c)> : i32, tensor<3x192xi32>
    exec.store %1, %z at affine_map<(r, c) -> (r * 192 + c)> : i32, tensor<3x192xi32>
    exec.yield
  }
}

exec.kernel @scan row [3, 50] (%x: tensor<3x50xi64>, %f: tensor<3x50xf32>) -> (%y: tensor<3x50xi64>, %g: tensor<3x50xf32>, %m: tensor<3xf32>)
    attributes {threads = 32 : i64} {
  %max = exec.pass -> f32 {
    %0 = exec.load %x at affine_map<(r, c) -> (r * 50 + c)> : tensor<3x50xi64> -> i64
    %1 = exec.scan %0 {reverse} : i64
    exec.store %1, %y at affine_map<(r, c) -> (r * 50 + c)> : i64, tensor<3x50xi64>
    %2 = exec.load %f at affine_map<(r, c) -> (r * 50 + c)> : tensor<3x50xf32> -> f32
    %3 = exec.scan %2 {reverse} : f32
    exec.store %3, %g at affine_map<(r, c) -> (r * 50 + c)> : f32, tensor<3x50xf32>
    %4 = exec.reduce max %2 : f32
    exec.yield %4 : f32
  }
  exec.store %max, %m at affine_map<(r, c) -> (r)> : f32, tensor<3xf32>
}

exec.kernel @integers map [4, 30] (%x: tensor<4x30xi64>, %d: tensor<4x30xi8>) -> (%q: tensor<4x30xi64>, %p: tensor<4x30xi8>, %o: tensor<4x30xi32>, %f: tensor<4x30xf64>)
    attributes {threads = 32 : i64} {
  %one = arith.constant 1 : i64
  exec.pass {
    %0 = exec.load %x at affine_map<(r, c) -> ((r floordiv 2) * 60 + (r mod 2) * 30 + c)> : tensor<4x30xi64> -> i64
    %1 = exec.load %d at affine_map<(r, c) -> (r * 30 + c)> : tensor<4x30xi8> -> i8
    %3 = arith.extsi %1 : i8 to i64
    %4 = arith.addi %3, %one : i64
    %5 = arith.divsi %0, %4 : i64
    %6 = exec.index affine_map<(r, c) -> (r * 3 - c)>
    %7 = arith.trunci %6 : i64 to i32
    %8 = arith.cmpi slt, %5, %4 : i64
    %9 = arith.extui %8 : i1 to i64
    %10 = arith.muli %9, %0 : i64
    %11 = arith.sitofp %10 : i64 to f64
    exec.store %10, %q at affine_map<(r, c) -> (r * 30 + c)> : i64, tensor<4x30xi64>
    exec.store %1, %p at affine_map<(r, c) -> (r * 30 + c)> : i8, tensor<4x30xi8>
    exec.store %7, %o at affine_map<(r, c) -> (r * 30 + c)> : i32, tensor<4x30xi32>
    exec.store %11, %f at affine_map<(r, c) -> (r * 30 + c)> : f64, tensor<4x30xf64>
    exec.yield
  }
}
