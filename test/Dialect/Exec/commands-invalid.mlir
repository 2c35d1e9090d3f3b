// RUN: cleave-opt %s --split-input-file --verify-diagnostics

func.func @view(%x: tensor<4xf32>) -> tensor<8xf32> {
  // expected-error @below {{reaches beyond the operand: 32 bytes of 16}}
  %0 = exec.view %x : tensor<4xf32> -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @overlap(%a: tensor<4x2xf32>, %b: tensor<4x2xf32, #exec.layout<[4, 1], offset = 1>>) -> tensor<4x4xf32> {
  %0 = exec.copy %a : tensor<4x2xf32> -> tensor<4x2xf32, #exec.layout<[4, 1]>>
  %1 = exec.copy %a : tensor<4x2xf32> -> tensor<4x2xf32, #exec.layout<[4, 1], offset = 1>>
  // expected-error @below {{overlaps another operand}}
  %2 = exec.join %0, %1 : (tensor<4x2xf32, #exec.layout<[4, 1]>>, tensor<4x2xf32, #exec.layout<[4, 1], offset = 1>>) -> tensor<4x4xf32>
  return %2 : tensor<4x4xf32>
}

// -----

func.func @hole(%a: tensor<4x2xf32>) -> tensor<4x4xf32> {
  %0 = exec.copy %a : tensor<4x2xf32> -> tensor<4x2xf32, #exec.layout<[4, 1]>>
  // expected-error @below {{operands hold 8 elements of 16}}
  %1 = exec.join %0 : (tensor<4x2xf32, #exec.layout<[4, 1]>>) -> tensor<4x4xf32>
  return %1 : tensor<4x4xf32>
}

// -----

func.func @strides(%a: tensor<4x8xf32, #exec.layout<[16, 2]>>, %b: tensor<8x2xf32>) -> tensor<4x2xf32> {
  // expected-error @below {{cannot read operand 0 (argument 0) in its layout}}
  %0 = exec.contract %a, %b : (tensor<4x8xf32, #exec.layout<[16, 2]>>, tensor<8x2xf32>) -> tensor<4x2xf32>
  return %0 : tensor<4x2xf32>
}

// -----

func.func @shapes(%a: tensor<4x8xf32>, %b: tensor<4x2xf32>) -> tensor<4x2xf32> {
  // expected-error @below {{do not give}}
  %0 = exec.contract %a, %b : (tensor<4x8xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  return %0 : tensor<4x2xf32>
}

// -----

func.func @mixed_factors(%a: tensor<4x8xf16>, %b: tensor<8x8xbf16>) -> tensor<4x8xf32> {
  // expected-error @below {{needs operands that are both f32, both bf16 or both f16}}
  %0 = exec.contract %a, %b : (tensor<4x8xf16>, tensor<8x8xbf16>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// -----

func.func @bias_type(%a: tensor<4x8xbf16>, %b: tensor<8x8xbf16>, %v: tensor<8xf32>) -> tensor<4x8xbf16> {
  // expected-error @below {{is not a vector of a row}}
  %0 = exec.contract %a, %b bias %v : (tensor<4x8xbf16>, tensor<8x8xbf16>, tensor<8xf32>) -> tensor<4x8xbf16>
  return %0 : tensor<4x8xbf16>
}

// -----

func.func @wide_gelu(%a: tensor<4x8xbf16>, %b: tensor<8x8xbf16>) -> tensor<4x8xf32> {
  // expected-error @below {{of a 16-bit product that is not accumulated}}
  %0 = exec.contract %a, %b {gelu} : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// -----

func.func @before_of_what(%a: tensor<4x8xbf16>, %b: tensor<8x8xbf16>) -> tensor<4x8xbf16> {
  // expected-error @below {{has gelu, perhaps with a second result}}
  %0, %1 = exec.contract %a, %b : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> (tensor<4x8xbf16>, tensor<4x8xbf16>)
  return %0 : tensor<4x8xbf16>
}

// -----

func.func @rows_beside(%a: tensor<4x8xbf16>, %b: tensor<8x6xbf16>, %x: tensor<4x6xbf16>) -> tensor<4x6xbf16> {
  // expected-error @below {{cannot read operand 2 (argument 2) in its layout}}
  %0 = exec.contract %a, %b gelu_grad %x : (tensor<4x8xbf16>, tensor<8x6xbf16>, tensor<4x6xbf16>) -> tensor<4x6xbf16>
  return %0 : tensor<4x6xbf16>
}

// -----

func.func @place(%a: tensor<4x8xf32>, %b: tensor<8x2xf32>, %c: tensor<4x2xf32, #exec.layout<[4, 1]>>) -> tensor<4x2xf32> {
  // expected-error @below {{cannot take the memory of an operand}}
  %0 = exec.contract %a, %b accumulate %c : (tensor<4x8xf32>, tensor<8x2xf32>, tensor<4x2xf32, #exec.layout<[4, 1]>>) -> tensor<4x2xf32>
  return %0 : tensor<4x2xf32>
}

// -----

func.func @ids(%r: tensor<4x8xf32>, %i: tensor<3xi64>) -> tensor<9x8xf32> {
  // expected-error @below {{needs f32 rows [i, c], integer ids [i]}}
  %0 = exec.scatter_add %r, %i : (tensor<4x8xf32>, tensor<3xi64>) -> tensor<9x8xf32>
  return %0 : tensor<9x8xf32>
}

// -----

func.func @flag(%f: tensor<2xi1>) {
  // expected-error @below {{needs one i1}}
  exec.check %f, "no" : tensor<2xi1>
  return
}

// -----

func.func @values(%f: tensor<i1>, %v: tensor<5xi64>) {
  // expected-error @below {{needs one to four i64 values, not 'tensor<5xi64>'}}
  exec.check %f, "no" with %v : tensor<5xi64> : tensor<i1>
  return
}

// -----

func.func @origin(%q: tensor<1x2x4x8xf32>, %rng: tensor<2xi64>, %o: tensor<3xi64>) -> tensor<1x2x4x8xf32> {
  // expected-error @below {{origin must be 'tensor<4xi64>', not 'tensor<3xi64>'}}
  %0, %lse = exec.attention %q, %q, %q rng %rng origin %o {scale = 1.0 : f64, dropout = 0.5 : f64, global_shape = array<i64: 2, 2, 4, 4>} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<2xi64>, tensor<3xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %0 : tensor<1x2x4x8xf32>
}

// -----

func.func @rng(%q: tensor<1x2x4x8xf32>, %rng: tensor<2xi32>) -> tensor<1x2x4x8xf32> {
  // expected-error @below {{rng must be 'tensor<2xi64>', not 'tensor<2xi32>'}}
  %0, %lse = exec.attention %q, %q, %q rng %rng {scale = 1.0 : f64, dropout = 0.5 : f64} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<2xi32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %0 : tensor<1x2x4x8xf32>
}

// -----

func.func @global(%q: tensor<1x2x4x8xf32>, %o: tensor<4xi64>) -> tensor<1x2x4x8xf32> {
  // expected-error @below {{global_shape needs four values}}
  %0, %lse = exec.attention %q, %q, %q origin %o {scale = 1.0 : f64, global_shape = array<i64: 2, 2, 4>} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %0 : tensor<1x2x4x8xf32>
}

// -----

// expected-error @below {{repeats #exec.repeat<first = 0, length = 2, times = 3, more = 1, step = 1>, but has 1 actions}}
exec.program @long() attributes {repeats = [#exec.repeat<first = 0, length = 2, times = 3, more = 1, step = 1>]} {
  exec.run @f() {micro_batch = 0 : i64} : () -> ()
  exec.return
}
func.func private @f() {
  return
}

// -----

// expected-error @below {{which overlaps another one or is invalid}}
exec.program @none() attributes {repeats = [#exec.repeat<first = 0, length = 1, times = 1, more = 1, step = 1>]} {
  exec.return
}

// -----

func.func @attention_types(%q: tensor<1x2x4x8xbf16>, %k: tensor<1x2x4x8xf16>) -> (tensor<1x2x4x8xbf16>, tensor<1x2x4xf32>) {
  // expected-error @below {{query, key and value are not of one type}}
  %0, %lse = exec.attention %q, %k, %k {scale = 1.0 : f64} : (tensor<1x2x4x8xbf16>, tensor<1x2x4x8xf16>, tensor<1x2x4x8xf16>) -> (tensor<1x2x4x8xbf16>, tensor<1x2x4xf32>)
  return %0, %lse : tensor<1x2x4x8xbf16>, tensor<1x2x4xf32>
}

// -----

func.func @attention_f64(%q: tensor<1x2x4x8xf64>) -> (tensor<1x2x4x8xf64>, tensor<1x2x4xf32>) {
  // expected-error @below {{is of f32, bf16 or f16, not 'f64'}}
  %0, %lse = exec.attention %q, %q, %q {scale = 1.0 : f64} : (tensor<1x2x4x8xf64>, tensor<1x2x4x8xf64>, tensor<1x2x4x8xf64>) -> (tensor<1x2x4x8xf64>, tensor<1x2x4xf32>)
  return %0, %lse : tensor<1x2x4x8xf64>, tensor<1x2x4xf32>
}

// -----

func.func @attention_result(%q: tensor<1x2x4x8xbf16>) -> (tensor<1x2x4x8xf16>, tensor<1x2x4xf32>) {
  // expected-error @below {{results do not have}}
  %0, %lse = exec.attention %q, %q, %q {scale = 1.0 : f64} : (tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>, tensor<1x2x4x8xbf16>) -> (tensor<1x2x4x8xf16>, tensor<1x2x4xf32>)
  return %0, %lse : tensor<1x2x4x8xf16>, tensor<1x2x4xf32>
}

// -----

func.func @columns(%p: tensor<1x4x5xf32>) -> tensor<1x4x5xf32> {
  // expected-error @below {{needs f32 matrices [b, n, r], r <= n}}
  %0 = exec.orthonormalize %p : tensor<1x4x5xf32> -> tensor<1x4x5xf32>
  return %0 : tensor<1x4x5xf32>
}

// -----

func.func @columns_layout(%p: tensor<1x4x2xf32, #exec.layout<[8, 1, 4]>>) -> tensor<1x4x2xf32> {
  // expected-error @below {{needs a dense operand and a dense result}}
  %0 = exec.orthonormalize %p : tensor<1x4x2xf32, #exec.layout<[8, 1, 4]>> -> tensor<1x4x2xf32>
  return %0 : tensor<1x4x2xf32>
}

// -----

func.func @largest(%x: tensor<4x8xf32>) {
  // expected-error @below {{needs f32 rows [b, n], f32 values and i64 indices [b, k], 1 <= k <= n}}
  %0, %1 = exec.top_k %x : tensor<4x8xf32> -> tensor<4x9xf32>, tensor<4x9xi64>
  return
}

// -----

func.func @largest_layout(%x: tensor<4x8xf32, #exec.layout<[1, 4]>>) {
  // expected-error @below {{needs a dense operand and dense results}}
  %0, %1 = exec.top_k %x : tensor<4x8xf32, #exec.layout<[1, 4]>> -> tensor<4x3xf32>, tensor<4x3xi64>
  return
}

// -----

func.func @order(%g: tensor<6xi64>) {
  // expected-error @below {{needs groups [n], an i64 origin [1] and i64 results [n], [n] and [1, size + 1]}}
  %0, %1, %2 = exec.sort_rows %g : (tensor<6xi64>) -> (tensor<6xi64>, tensor<6xi32>, tensor<1x5xi64>)
  return
}

// -----

func.func @grouped_types(%x: tensor<6x8xf16>, %w: tensor<4x8x5xf16>, %o: tensor<1x5xi64>) {
  // expected-error @below {{needs operands that are both f32, both bf16 or both f64, and a result that is f32, of f64 f64}}
  %0 = exec.grouped_contract %x, %w, %o : (tensor<6x8xf16>, tensor<4x8x5xf16>, tensor<1x5xi64>) -> tensor<6x5xf32>
  return
}

// -----

func.func @grouped_shapes(%x: tensor<6x8xf32>, %w: tensor<4x8x5xf32>, %o: tensor<1x4xi64>) {
  // expected-error @below {{do not give 'tensor<6x5xf32>'}}
  %0 = exec.grouped_contract %x, %w, %o : (tensor<6x8xf32>, tensor<4x8x5xf32>, tensor<1x4xi64>) -> tensor<6x5xf32>
  return
}

// -----

func.func @grouped_layout(%x: tensor<6x8xf32, #exec.layout<[1, 6]>>, %g: tensor<6x5xf32>, %o: tensor<1x5xi64>) {
  // expected-error @below {{cannot read operand 0}}
  %0 = exec.grouped_contract_weight_grad %x, %g, %o : (tensor<6x8xf32, #exec.layout<[1, 6]>>, tensor<6x5xf32>, tensor<1x5xi64>) -> tensor<4x8x5xf32>
  return
}
