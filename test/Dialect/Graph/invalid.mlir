// RUN: cleave-opt %s --split-input-file --verify-diagnostics

func.func @add(%a: tensor<4x8xf32>, %b: tensor<7xf32>) -> tensor<4x8xf32> {
  // expected-error@+2 {{operands of types tensor<4x8xf32> and tensor<7xf32> do not broadcast}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.add %a, %b : (tensor<4x8xf32>, tensor<7xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// -----

func.func @mixed(%a: tensor<4xf32>, %b: tensor<4xf64>) -> tensor<4xf32> {
  // expected-error@+2 {{operands have different element types, 'f32' and 'f64'; insert a graph.cast}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.mul %a, %b : (tensor<4xf32>, tensor<4xf64>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @result(%a: tensor<4xf32>) -> tensor<5xf32> {
  // expected-error@+2 {{failed to infer returned types}}
  // expected-error@+1 {{inferred type(s) 'tensor<4xf32>' are incompatible with return type(s) of operation 'tensor<5xf32>'}}
  %0 = graph.exp %a : (tensor<4xf32>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----

func.func @dynamic(%a: tensor<?xf32>) -> tensor<?xf32> {
  // expected-error@+1 {{operand #0 must be float tensor of static shape, but got 'tensor<?xf32>'}}
  %0 = graph.exp %a : (tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// -----

func.func @dropout(%a: tensor<4xf32>, %rng: tensor<2xi64>) -> tensor<4xf32> {
  // expected-error@+1 {{probability must be at least 0 and below 1}}
  %0 = graph.dropout %a, %rng {probability = 1.0 : f64, id = 0 : i64} : (tensor<4xf32>, tensor<2xi64>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @gather_place(%w: tensor<4x8xf32>, %i: tensor<3xi64>, %o: tensor<1xi64>) -> tensor<3x8xf32> {
  // expected-error@+1 {{origin needs a global_size}}
  %0 = graph.gather %w, %i origin %o {dim = 0 : i64} : (tensor<4x8xf32>, tensor<3xi64>, tensor<1xi64>) -> tensor<3x8xf32>
  return %0 : tensor<3x8xf32>
}

// -----

func.func @gather_origin(%w: tensor<4x8xf32>, %i: tensor<3xi64>, %o: tensor<2xi64>) -> tensor<3x8xf32> {
  // expected-error@+1 {{origin must hold one value}}
  %0 = graph.gather %w, %i origin %o {dim = 0 : i64, global_size = 8 : i64} : (tensor<4x8xf32>, tensor<3xi64>, tensor<2xi64>) -> tensor<3x8xf32>
  return %0 : tensor<3x8xf32>
}

// -----

func.func @scatter_place(%u: tensor<3x8xf32>, %i: tensor<3xi64>, %o: tensor<1xi64>) -> tensor<4x8xf32> {
  // expected-error@+1 {{global_size must not be negative}}
  %0 = graph.scatter_add %u, %i origin %o {dim = 0 : i64, size = 4 : i64, global_size = -1 : i64} : (tensor<3x8xf32>, tensor<3xi64>, tensor<1xi64>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// -----

func.func @gather_batch(%w: tensor<4x8xf32>, %i: tensor<4x3xi64>) -> tensor<4x3xf32> {
  // expected-error@+2 {{batch is 2; it must not exceed dim (1) nor the rank of the indices (2)}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.gather %w, %i {dim = 1 : i64, batch = 2 : i64} : (tensor<4x8xf32>, tensor<4x3xi64>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}

// -----

func.func @gather_batches(%w: tensor<4x8xf32>, %i: tensor<5x3xi64>) -> tensor<4x3xf32> {
  // expected-error@+2 {{the first 1 dimensions of 'tensor<5x3xi64>' must be those of 'tensor<4x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.gather %w, %i {dim = 1 : i64, batch = 1 : i64} : (tensor<4x8xf32>, tensor<5x3xi64>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}

// -----

func.func @scatter_batch(%u: tensor<4x3x8xf32>, %i: tensor<4x3xi64>) -> tensor<4x9x8xf32> {
  // expected-error@+2 {{batch is 1; it must not exceed dim (0) nor the rank of the indices (2)}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.scatter_add %u, %i {dim = 0 : i64, size = 9 : i64, batch = 1 : i64} : (tensor<4x3x8xf32>, tensor<4x3xi64>) -> tensor<4x9x8xf32>
  return %0 : tensor<4x9x8xf32>
}

// -----

func.func @scatter_indices(%u: tensor<4x3x8xf32>, %i: tensor<4x5xi64>) -> tensor<4x9x8xf32> {
  // expected-error@+2 {{indices 'tensor<4x5xi64>' do not match dimensions from 1 on of 'tensor<4x3x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.scatter_add %u, %i {dim = 1 : i64, size = 9 : i64, batch = 1 : i64} : (tensor<4x3x8xf32>, tensor<4x5xi64>) -> tensor<4x9x8xf32>
  return %0 : tensor<4x9x8xf32>
}

// -----

func.func @top_k_of_fewer(%x: tensor<4x8xf32>) -> tensor<4x9xf32> {
  // expected-error@+2 {{k is 9; the last dimension of 'tensor<4x8xf32>' allows 1 to 8}}
  // expected-error@+1 {{failed to infer returned types}}
  %0, %1 = graph.top_k %x {k = 9 : i64} : (tensor<4x8xf32>) -> (tensor<4x9xf32>, tensor<4x9xi64>)
  return %0 : tensor<4x9xf32>
}

// -----

func.func @top_k_scalar(%x: tensor<f32>) -> tensor<f32> {
  // expected-error@+2 {{the input is a scalar; it must have a dimension to choose from}}
  // expected-error@+1 {{failed to infer returned types}}
  %0, %1 = graph.top_k %x {k = 1 : i64} : (tensor<f32>) -> (tensor<f32>, tensor<i64>)
  return %0 : tensor<f32>
}

// -----

func.func @uniform_narrow(%r: tensor<2xi64>) -> tensor<4xbf16> {
  // expected-error@+1 {{result must be f32 or f64: a narrower type rounds to 1}}
  %0 = graph.uniform %r {id = 0 : i64} : (tensor<2xi64>) -> tensor<4xbf16>
  return %0 : tensor<4xbf16>
}

// -----

func.func @uniform_rng(%r: tensor<3xi64>) -> tensor<4xf32> {
  // expected-error@+1 {{rng must hold two values, seed and step}}
  %0 = graph.uniform %r {id = 0 : i64} : (tensor<3xi64>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @one_hot_size(%i: tensor<3xi64>) -> tensor<3x4xi1> {
  // expected-error@+2 {{size must not be negative}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.one_hot %i {size = -1 : i64} : (tensor<3xi64>) -> tensor<3x4xi1>
  return %0 : tensor<3x4xi1>
}

// -----

func.func @iota() -> tensor<4xi64> {
  // expected-error@+1 {{dim 1 is not a dimension of 'tensor<4xi64>'}}
  %0 = graph.iota {dim = 1 : i64} : tensor<4xi64>
  return %0 : tensor<4xi64>
}

// -----

func.func @cast(%a: tensor<4xf32>) -> tensor<5xi64> {
  // expected-error@+1 {{changes the shape from 'tensor<4xf32>' to 'tensor<5xi64>'}}
  %0 = graph.cast %a : (tensor<4xf32>) -> tensor<5xi64>
  return %0 : tensor<5xi64>
}

// -----

func.func @reduce(%a: tensor<4x8xf32>) -> tensor<4xf32> {
  // expected-error@+2 {{dim 1 is given twice}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.reduce sum %a {dims = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @reshape(%a: tensor<4x8xf32>) -> tensor<33xf32> {
  // expected-error@+1 {{cannot turn 'tensor<4x8xf32>' into 'tensor<33xf32>'}}
  %0 = graph.reshape %a : (tensor<4x8xf32>) -> tensor<33xf32>
  return %0 : tensor<33xf32>
}

// -----

func.func @transpose(%a: tensor<4x8xf32>) -> tensor<8x4xf32> {
  // expected-error@+2 {{[1, 1] is not a permutation of the dimensions of 'tensor<4x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.transpose %a {permutation = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @slice(%a: tensor<4x8xf32>) -> tensor<2x2xf32> {
  // expected-error@+2 {{slice of dimension 1 (offset 7, size 2, stride 1) leaves 'tensor<4x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.slice %a {offsets = array<i64: 0, 7>, sizes = array<i64: 2, 2>, strides = array<i64: 1, 1>} : (tensor<4x8xf32>) -> tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}

// -----

func.func @concat(%a: tensor<4x8xf32>, %b: tensor<5x8xf32>) -> tensor<4x16xf32> {
  // expected-error@+2 {{cannot concatenate 'tensor<4x8xf32>' and 'tensor<5x8xf32>' along dim 1}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.concat %a, %b {dim = 1 : i64} : (tensor<4x8xf32>, tensor<5x8xf32>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}

// -----

func.func @einsum(%a: tensor<4x8xf32>, %b: tensor<8x5xf32>) -> tensor<4x5xf32> {
  // expected-error@+2 {{dimension 'j' is 8 in 'tensor<4x8xf32>' and 5 in 'tensor<8x5xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.contract "ij,kj->ik" %a, %b : (tensor<4x8xf32>, tensor<8x5xf32>) -> tensor<4x5xf32>
  return %0 : tensor<4x5xf32>
}

// -----

func.func @equation(%a: tensor<4x8xf32>, %b: tensor<8x5xf32>) -> tensor<4x5xf32> {
  // expected-error@+2 {{equation "ij,jk->iz": 'z' of the output is in no operand}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.contract "ij,jk->iz" %a, %b : (tensor<4x8xf32>, tensor<8x5xf32>) -> tensor<4x5xf32>
  return %0 : tensor<4x5xf32>
}

// -----

func.func @linear(%x: tensor<4x8xf32>, %w: tensor<16x7xf32>) -> tensor<4x16xf32> {
  // expected-error@+2 {{need shapes [..., i] and [o, i]}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.linear %x, %w : (tensor<4x8xf32>, tensor<16x7xf32>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}

// -----

func.func @grouped_shapes(%x: tensor<4x8xf32>, %w: tensor<3x7x5xf32>, %i: tensor<4xi64>) -> tensor<4x5xf32> {
  // expected-error@+2 {{need a weight [e, k, m] with k = 8}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.grouped_linear %x, %w, %i : (tensor<4x8xf32>, tensor<3x7x5xf32>, tensor<4xi64>) -> tensor<4x5xf32>
  return %0 : tensor<4x5xf32>
}

// -----

func.func @grouped_transpose(%x: tensor<4x8xf32>, %w: tensor<3x8x5xf32>, %i: tensor<4xi64>) -> tensor<4x5xf32> {
  // expected-error@+2 {{need a weight [e, m, k] with k = 8}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.grouped_linear %x, %w, %i {transpose} : (tensor<4x8xf32>, tensor<3x8x5xf32>, tensor<4xi64>) -> tensor<4x5xf32>
  return %0 : tensor<4x5xf32>
}

// -----

func.func @grouped_groups(%x: tensor<4x8xf32>, %w: tensor<3x8x5xf32>, %i: tensor<5xi64>) -> tensor<4x5xf32> {
  // expected-error@+2 {{need shapes [i..., k] and [i...]}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.grouped_linear %x, %w, %i : (tensor<4x8xf32>, tensor<3x8x5xf32>, tensor<5xi64>) -> tensor<4x5xf32>
  return %0 : tensor<4x5xf32>
}

// -----

func.func @grouped_scalar(%x: tensor<8xf32>, %w: tensor<3x8x5xf32>, %i: tensor<i64>) -> tensor<5xf32> {
  // expected-error@+2 {{need shapes [i..., k] and [i...]}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.grouped_linear %x, %w, %i : (tensor<8xf32>, tensor<3x8x5xf32>, tensor<i64>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----

func.func @grouped_types(%x: tensor<4x8xbf16>, %w: tensor<3x8x5xf32>, %i: tensor<4xi64>) -> tensor<4x5xf32> {
  // expected-error@+2 {{have different element types}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.grouped_linear %x, %w, %i : (tensor<4x8xbf16>, tensor<3x8x5xf32>, tensor<4xi64>) -> tensor<4x5xf32>
  return %0 : tensor<4x5xf32>
}

// -----

func.func @grouped_place(%x: tensor<4x8xf32>, %w: tensor<3x8x5xf32>, %i: tensor<4xi64>, %o: tensor<1xi64>) -> tensor<4x5xf32> {
  // expected-error@+1 {{origin needs a global_size}}
  %0 = graph.grouped_linear %x, %w, %i origin %o : (tensor<4x8xf32>, tensor<3x8x5xf32>, tensor<4xi64>, tensor<1xi64>) -> tensor<4x5xf32>
  return %0 : tensor<4x5xf32>
}

// -----

func.func @grouped_size(%x: tensor<4x8xf32>, %g: tensor<4x5xf32>, %i: tensor<4xi64>) -> tensor<3x8x5xf32> {
  // expected-error@+2 {{size must not be negative}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.grouped_linear_weight_grad %x, %g, %i {size = -1 : i64} : (tensor<4x8xf32>, tensor<4x5xf32>, tensor<4xi64>) -> tensor<3x8x5xf32>
  return %0 : tensor<3x8x5xf32>
}

// -----

func.func @attention(%q: tensor<2x3x6x8xf32>, %k: tensor<2x2x6x8xf32>) -> tensor<2x3x6x8xf32> {
  // expected-error@+2 {{with a a multiple of g}}
  // expected-error@+1 {{failed to infer returned types}}
  %o, %lse = graph.attention %q, %k, %k {scale = 0.25 : f64} : (tensor<2x3x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>) -> (tensor<2x3x6x8xf32>, tensor<2x3x6xf32>)
  return %o : tensor<2x3x6x8xf32>
}

// -----

func.func @norm(%x: tensor<4x8xf32>, %w: tensor<4xf32>) -> tensor<4x8xf32> {
  // expected-error@+2 {{weight or bias 'tensor<4xf32>' does not match the last dimension of 'tensor<4x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %0, %r = graph.rms_norm %x weight %w {epsilon = 1.0e-6 : f64} : (tensor<4x8xf32>, tensor<4xf32>) -> (tensor<4x8xf32>, tensor<4xf32>)
  return %0 : tensor<4x8xf32>
}

// -----

func.func @targets(%x: tensor<4x8xf32>, %t: tensor<5xi64>) -> tensor<4xf32> {
  // expected-error@+2 {{targets 'tensor<5xi64>' must have one value for each row, [4]}}
  // expected-error@+1 {{failed to infer returned types}}
  %0, %l = graph.cross_entropy %x, %t : (tensor<4x8xf32>, tensor<5xi64>) -> (tensor<4xf32>, tensor<4xf32>)
  return %0 : tensor<4xf32>
}

// -----

// expected-error@+1 {{attribute 'graph.role' must be one of parameter, buffer, input, state, gradient, scalar, rng}}
func.func @role(%x: tensor<4xf32> {graph.role = "weight"}) {
  return
}

// -----

// expected-error@+1 {{attribute 'graph.batch_dim' must be a dimension of the tensor}}
func.func @batch(%x: tensor<4xf32> {graph.batch_dim = 1 : i64}) {
  return
}

// -----

// expected-error@+1 {{unknown attribute 'graph.nmae'}}
func.func @unknown(%x: tensor<4xf32> {graph.nmae = "x"}) {
  return
}

// -----

func.func @sgd(%p: tensor<4xf32>, %lr: tensor<f32>, %t: tensor<i64>) -> tensor<4xf32> {
  // expected-error@+2 {{momentum needs a buffer operand}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.sgd %p, %p lr %lr, %t {momentum = 0.9 : f64, dampening = 0.0 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<i64>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @vector(%p: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{failed to infer returned types}}
  // expected-error @below {{needs matrices, not 'tensor<8xf32>'}}
  %q = graph.orthonormalize %p : (tensor<8xf32>) -> tensor<8xf32>
  return %q : tensor<8xf32>
}

// -----

func.func @too_many_columns(%p: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {
  // expected-error @below {{failed to infer returned types}}
  // expected-error @below {{at most 3 columns of as many elements are orthonormal, but 'tensor<2x3x4xf32>' has 4}}
  %q = graph.orthonormalize %p : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  return %q : tensor<2x3x4xf32>
}

// -----

func.func @one_flag(%m: tensor<i1>) -> tensor<i8> {
  // expected-error @below {{failed to infer returned types}}
  // expected-error @below {{needs a last dimension}}
  %b = graph.pack_bits %m : (tensor<i1>) -> tensor<i8>
  return %b : tensor<i8>
}

// -----

func.func @other_bytes(%b: tensor<4x3xi8>) -> tensor<4x25xi1> {
  // expected-error @below {{cannot unpack 'tensor<4x3xi8>' to 'tensor<4x25xi1>'}}
  %m = graph.unpack_bits %b : (tensor<4x3xi8>) -> tensor<4x25xi1>
  return %m : tensor<4x25xi1>
}

// -----

// expected-error@+1 {{attribute 'graph.optional' must be a string}}
func.func @optional(%x: tensor<2xf32> {graph.role = "state", graph.optional}) {
  return
}

// -----

// expected-error@+1 {{attribute 'graph.summed' must be a unit, of a tensor with a dimension to sum over}}
func.func @summed(%x: tensor<f32> {graph.role = "state", graph.summed}) {
  return
}

// -----

// expected-error@+1 {{attribute 'graph.elements' must be a positive number, of a tensor}}
func.func @elements(%x: tensor<f32> {graph.role = "state", graph.elements = 0 : i64}) {
  return
}

// -----

func.func @sort_without_groups(%g: tensor<2x3xi64>) {
  // expected-error@+2 {{needs groups [n] and size >= 1, but has 'tensor<2x3xi64>' and 4}}
  // expected-error@+1 {{failed to infer returned types}}
  %0, %1, %2 = graph.sort_rows %g {size = 4 : i64} : (tensor<2x3xi64>) -> (tensor<6xi64>, tensor<6xi64>, tensor<1x5xi64>)
  return
}

// -----

func.func @grouped_weight(%x: tensor<6x8xf32>, %w: tensor<4x8x5xf32>, %o: tensor<1x5xi64>) {
  // expected-error@+2 {{rows 'tensor<6x8xf32>' and weight 'tensor<4x8x5xf32>' need shapes [r, k] and [e, m, k] with 4 groups e}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.grouped_contract %x, %w, %o {transpose} : (tensor<6x8xf32>, tensor<4x8x5xf32>, tensor<1x5xi64>) -> tensor<6x8xf32>
  return
}

// -----

func.func @grouped_gradient(%x: tensor<6x8xf32>, %g: tensor<5x3xf32>, %o: tensor<1x5xi64>) {
  // expected-error@+2 {{rows 'tensor<6x8xf32>' and gradients 'tensor<5x3xf32>' need shapes [r, k] and [r, m]}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.grouped_contract_weight_grad %x, %g, %o : (tensor<6x8xf32>, tensor<5x3xf32>, tensor<1x5xi64>) -> tensor<4x8x3xf32>
  return
}

// -----

func.func @grouped_offsets(%x: tensor<6x8xf32>, %w: tensor<4x8x5xf32>, %o: tensor<5xi64>) {
  // expected-error@+2 {{needs rows [r, k] and i64 offsets [p, e + 1], but has 'tensor<6x8xf32>' and 'tensor<5xi64>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %0 = graph.grouped_contract %x, %w, %o : (tensor<6x8xf32>, tensor<4x8x5xf32>, tensor<5xi64>) -> tensor<6x5xf32>
  return
}

// -----

func.func @recurrence_of_two_shapes(%a: tensor<1x8xf32>, %x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // expected-error@+2 {{factor 'tensor<1x8xf32>' differs from input 'tensor<4x8xf32>'}}
  // expected-error@+1 {{failed to infer returned types}}
  %h = graph.linear_scan %a, %x {dim = 1 : i64} : (tensor<1x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %h : tensor<4x8xf32>
}

// -----

func.func @recurrence_of_nothing(%a: tensor<4x0xf32>) -> tensor<4x0xf32> {
  // expected-error@+2 {{recurrence of no elements (dimension 1 is empty)}}
  // expected-error@+1 {{failed to infer returned types}}
  %h = graph.linear_scan %a, %a {dim = 1 : i64} : (tensor<4x0xf32>, tensor<4x0xf32>) -> tensor<4x0xf32>
  return %h : tensor<4x0xf32>
}

// -----

func.func @values_of_a_check(%flag: tensor<i1>, %v: tensor<2x1xi64>) {
  // expected-error @below {{values 'tensor<2x1xi64>' must be one to four 64-bit integers}}
  graph.check %flag, "{0}" with %v : tensor<2x1xi64> : tensor<i1>
  return
}
