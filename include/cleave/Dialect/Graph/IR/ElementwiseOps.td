//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_ELEMENTWISEOPS_TD
#define CLEAVE_DIALECT_GRAPH_IR_ELEMENTWISEOPS_TD

include "cleave/Dialect/Graph/IR/GraphDialect.td"
include "cleave/Dialect/Graph/IR/GraphEnums.td"

/// A result element depends only on operand elements of the same index.
def Graph_Pointwise : NativeOpTrait<"PointwiseOp">;
def Graph_BackwardOnly : NativeOpTrait<"BackwardOnly">;

//===----------------------------------------------------------------------===//
// Constants
//===----------------------------------------------------------------------===//

def Graph_ConstantOp : Graph_PureOp<"constant", [
    ConstantLike, AllTypesMatch<["value", "output"]>, DeclareOpInterfaceMethods<Graph_PartitionableOpInterface>]> {
  let summary = "A tensor known at compile time";
  let description = [{
    Meant for small values and splats; the tensors of a model are arguments.
    ```mlir
    %c = graph.constant dense<1.0> : tensor<f32>
    ```
  }];
  let arguments = (ins ElementsAttr:$value);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat = "attr-dict $value";
  let hasFolder = 1;
}

def Graph_IotaOp : Graph_PureOp<"iota"> {
  let summary = "The index along one dimension";
  let description = [{
    `output[..., i, ...] = start + i` along `dim`.
  }];
  let arguments = (ins I64Attr:$dim, DefaultValuedAttr<I64Attr, "0">:$start);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat = "attr-dict `:` type($output)";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// One operand
//===----------------------------------------------------------------------===//

class Graph_UnaryOp<string mnemonic, Type type, string what>
    : Graph_InferredOp<mnemonic, [Graph_Pointwise]> {
  let summary = what;
  let arguments = (ins type:$input);
  let results = (outs type:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
}

def Graph_NegOp     : Graph_UnaryOp<"neg", Graph_Tensor, "-x"> {
  let hasCanonicalizer = 1;
}
def Graph_AbsOp     : Graph_UnaryOp<"abs", Graph_Tensor, "|x|">;
def Graph_ExpOp     : Graph_UnaryOp<"exp", Graph_FloatTensor, "e to the x">;
def Graph_Expm1Op   : Graph_UnaryOp<"expm1", Graph_FloatTensor, "e to the x, less 1; exact for small x">;
def Graph_LogOp     : Graph_UnaryOp<"log", Graph_FloatTensor, "Natural logarithm">;
def Graph_Log1pOp   : Graph_UnaryOp<"log1p", Graph_FloatTensor, "Natural logarithm of 1 + x; exact for small x">;
def Graph_SqrtOp    : Graph_UnaryOp<"sqrt", Graph_FloatTensor, "Square root">;
def Graph_RsqrtOp   : Graph_UnaryOp<"rsqrt", Graph_FloatTensor, "1 / sqrt(x)">;
def Graph_SinOp     : Graph_UnaryOp<"sin", Graph_FloatTensor, "Sine">;
def Graph_CosOp     : Graph_UnaryOp<"cos", Graph_FloatTensor, "Cosine">;
def Graph_TanhOp    : Graph_UnaryOp<"tanh", Graph_FloatTensor, "Hyperbolic tangent">;
def Graph_ErfOp     : Graph_UnaryOp<"erf", Graph_FloatTensor, "Error function">;
def Graph_SigmoidOp : Graph_UnaryOp<"sigmoid", Graph_FloatTensor, "1 / (1 + exp(-x))">;
def Graph_SiluOp    : Graph_UnaryOp<"silu", Graph_FloatTensor, "x * sigmoid(x)">;
def Graph_ReluOp    : Graph_UnaryOp<"relu", Graph_FloatTensor, "max(x, 0); its gradient at 0 is 0">;
def Graph_FloorOp   : Graph_UnaryOp<"floor", Graph_FloatTensor, "Largest integer not above x; its gradient is 0">;
def Graph_NotOp     : Graph_UnaryOp<"not", Graph_BoolTensor, "Logical not"> {
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Graph_StopGradientOp : Graph_UnaryOp<"stop_gradient", Graph_FloatTensor, "x, to which no gradient flows"> {
  let description = [{
    The identity. Differentiation treats its result as a constant, and replaces
    the op by its operand.
  }];
}

def Graph_GeluOp : Graph_InferredOp<"gelu", [Graph_Pointwise]> {
  let summary = "Gaussian error linear unit (arXiv 1606.08415)";
  let description = [{
    `x * Phi(x)`: exact with erf, or, with `tanh`, the approximation
    `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
  }];
  let arguments = (ins Graph_FloatTensor:$input, UnitAttr:$tanh);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
}

def Graph_GeluGradOp : Graph_InferredOp<"gelu_grad",
    [Graph_Pointwise, Graph_BackwardOnly, SameOperandsShape]> {
  let summary = "Gradient of gelu: gradient * gelu'(input)";
  let arguments = (ins Graph_FloatTensor:$gradient, Graph_FloatTensor:$input,
                       UnitAttr:$tanh);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $gradient `,` $input attr-dict `:` functional-type(operands, results)
  }];
}

def Graph_CastOp : Graph_PureOp<"cast", [Graph_Pointwise]> {
  let summary = "Conversion between element types";
  let description = [{
    Float to integer truncates towards zero; to i1 is `x != 0`; i1 to a number
    is 0 or 1; to a narrower float rounds to nearest even, once. What is too
    large becomes infinity; in f8E4M3FN, which has none, what is too large, also
    an infinity, becomes the largest value, 448, with its sign. NaN stays NaN.
    These are the conversions of PyTorch.
  }];
  let arguments = (ins Graph_Tensor:$input);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat =
      "$input attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

//===----------------------------------------------------------------------===//
// Two and three operands, broadcast by the rules of NumPy
//===----------------------------------------------------------------------===//

class Graph_BinaryOp<string mnemonic, Type type, string what,
                     list<Trait> traits = []>
    : Graph_InferredOp<mnemonic, !listconcat([Graph_Pointwise], traits)> {
  let summary = what;
  let arguments = (ins type:$lhs, type:$rhs);
  let results = (outs type:$output);
  let assemblyFormat =
      "$lhs `,` $rhs attr-dict `:` functional-type(operands, results)";
}

def Graph_AddOp : Graph_BinaryOp<"add", Graph_Tensor, "a + b", [Commutative]> {
  let hasCanonicalizer = 1;
}
def Graph_SubOp : Graph_BinaryOp<"sub", Graph_Tensor, "a - b"> {
  let hasCanonicalizer = 1;
}
def Graph_MulOp : Graph_BinaryOp<"mul", Graph_Tensor, "a * b", [Commutative]> {
  let hasCanonicalizer = 1;
}
def Graph_DivOp : Graph_BinaryOp<"div", Graph_Tensor,
    "a / b; integers truncate towards zero"> {
  let hasCanonicalizer = 1;
}
def Graph_RemOp : Graph_BinaryOp<"rem", Graph_Tensor,
    "a - trunc(a / b) * b, without rounding; its sign is that of a">;
def Graph_MaximumOp : Graph_BinaryOp<"maximum", Graph_Tensor,
    "max(a, b); NaN wins; the gradient is halved between equals", [Commutative]> {
  let hasCanonicalizer = 1;
}
def Graph_MinimumOp : Graph_BinaryOp<"minimum", Graph_Tensor,
    "min(a, b); NaN wins; the gradient is halved between equals", [Commutative]> {
  let hasCanonicalizer = 1;
}
def Graph_PowOp : Graph_BinaryOp<"pow", Graph_FloatTensor, "a to the b"> {
  let hasCanonicalizer = 1;
}
def Graph_AndOp : Graph_BinaryOp<"and", Graph_BoolTensor, "Logical and", [Commutative]>;
def Graph_OrOp  : Graph_BinaryOp<"or", Graph_BoolTensor, "Logical or", [Commutative]>;

def Graph_CompareOp : Graph_InferredOp<"compare", [Graph_Pointwise]> {
  let summary = "Element-wise comparison";
  let description = [{
    A comparison with NaN is false, except `ne`. Integers are signed.
    ```mlir
    %m = graph.compare lt %a, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    ```
  }];
  let arguments = (ins Graph_Predicate:$predicate, Graph_Tensor:$lhs,
                       Graph_Tensor:$rhs);
  let results = (outs Graph_BoolTensor:$output);
  let assemblyFormat = [{
    $predicate $lhs `,` $rhs attr-dict `:` functional-type(operands, results)
  }];
  let hasCanonicalizer = 1;
}

def Graph_SelectOp : Graph_InferredOp<"select", [Graph_Pointwise]> {
  let summary = "condition ? a : b, broadcast";
  let arguments = (ins Graph_BoolTensor:$condition, Graph_Tensor:$onTrue,
                       Graph_Tensor:$onFalse);
  let results = (outs Graph_Tensor:$output);
  let assemblyFormat = [{
    $condition `,` $onTrue `,` $onFalse attr-dict `:`
    functional-type(operands, results)
  }];
  let hasCanonicalizer = 1;
}

def Graph_DropoutOp : Graph_InferredOp<"dropout", [
    Graph_Pointwise, AttrSizedOperandSegments,
    DeclareOpInterfaceMethods<Graph_RandomOpInterface>,
    DeclareOpInterfaceMethods<Graph_PartitionableOpInterface>,
    DeclareOpInterfaceMethods<Graph_PlacedOpInterface>]> {
  let summary = "Inverted dropout by a counter-based generator";
  let description = [{
    Element `i` (row-major, in the *global* tensor) is kept iff its 32-bit
    Philox4x32-10 draw (Salmon et al., SC 2011) is at least `floor(probability *
    2^32)`; kept values are scaled by `1 / (1 - probability)`. The key is the
    seed `rng[0]`; the counter is formed from the element index, `id` and the
    step `rng[1]`, so that the mask is the same in every layout and when
    recomputed. The op is its own gradient.

    `origin`, when present, is the index of this tensor's first element in the
    global tensor of shape `global_shape`. With `starts`, dimension `starts_dim`
    consists of as many equal pieces as it has values, and each value is the
    index in the global dimension, relative to the origin, at which a piece
    begins. A padded tensor has the origin of the one without padding.
  }];
  let arguments = (ins Graph_FloatTensor:$input,
                       TensorRankOf<[I64], [1]>:$rng,
                       Optional<TensorRankOf<[I64], [1]>>:$origin,
                       Optional<TensorRankOf<[I64], [1]>>:$starts,
                       F64Attr:$probability, I64Attr:$id,
                       OptionalAttr<DenseI64ArrayAttr>:$global_shape,
                       OptionalAttr<I64Attr>:$starts_dim);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $input `,` $rng (`origin` $origin^)? (`starts` $starts^)? attr-dict `:`
    functional-type(operands, results)
  }];
  let hasVerifier = 1;
  let hasCanonicalizer = 1;
}

def Graph_UniformOp : Graph_PureOp<"uniform", [
    Graph_Pointwise,
    DeclareOpInterfaceMethods<Graph_RandomOpInterface>,
    DeclareOpInterfaceMethods<Graph_PartitionableOpInterface>]> {
  let summary = "Random numbers, uniform in [0, 1)";
  let description = [{
    Element `i` is the upper 24 bits of its draw divided by 2^24. The draw,
    `rng`, `id`, `origin` and `global_shape` are those of `graph.dropout`. In
    evaluation every element is the mean, 0.5.
    ```mlir
    %u = graph.uniform %rng {id = 3 : i64} : (tensor<2xi64>) -> tensor<4x8xf32>
    ```
  }];
  let arguments = (ins TensorRankOf<[I64], [1]>:$rng,
                       Optional<TensorRankOf<[I64], [1]>>:$origin,
                       I64Attr:$id,
                       OptionalAttr<DenseI64ArrayAttr>:$global_shape);
  let results = (outs Graph_FloatTensor:$output);
  let assemblyFormat = [{
    $rng (`origin` $origin^)? attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

#endif // CLEAVE_DIALECT_GRAPH_IR_ELEMENTWISEOPS_TD
