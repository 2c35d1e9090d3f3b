//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_GRAPHDIALECT_TD
#define CLEAVE_DIALECT_GRAPH_IR_GRAPHDIALECT_TD

include "mlir/IR/OpBase.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "cleave/Dialect/Graph/IR/GraphInterfaces.td"

def Graph_Dialect : Dialect {
  let name = "graph";
  let cppNamespace = "::cleave::graph";
  let summary = "What is computed: whole tensors, no device";
  let description = [{
    The program of one device, on whole tensors of static shape: the model, its
    gradients and the optimizer. A function is an *entry*; attributes say what
    its arguments are:

    | attribute | on | meaning |
    |---|---|---|
    | `graph.name` | argument, result | the name in the framework |
    | `graph.role` | argument | `parameter`, `buffer`, `input`, `state`, `gradient` (what an update of the next step reads), `scalar` or `rng` |
    | `graph.aliases` | parameter | further names of the same (tied) tensor |
    | `graph.initial` | parameter | the parameter whose value it begins with where it is given none |
    | `graph.frozen` | parameter | no gradient, no optimizer state |
    | `graph.additive` | parameter | the model adds it, as a bias; `--graph-differentiate` finds out |
    | `graph.transient` | buffer | the framework does not save it: files of weights may lack it |
    | `graph.value` | buffer | its (whole) value before any is given |
    | `graph.unread` | module | names of the model's buffers that no entry reads |
    | `graph.loss` | result | a loss: what is differentiated is the sum of these; result 0 where none is marked |
    | `graph.batch_dim` | input, result | the dimension that holds samples |
    | `graph.of`, `graph.slot` | state, gradient | the parameter it belongs to, and which state |
    | `graph.optional` | state | the technique that it belongs to: a checkpoint may lack all state of it, which is zero then |
    | `graph.summed` | state | only the sum over the first dimension counts: a checkpoint may have another size there |
    | `graph.elements` | state | its elements in order, of each slice of the first dimension with `graph.summed`, are so many and zeros behind them: a checkpoint may have another number of zeros |
    | `graph.parameter_dims` | state | for each of its dimensions the one of the parameter that it is, or -1; without it, it has the parameter's shape |
    | `graph.stacked` | parameter | dimension 0 counts parameters of the framework, which are updated each on its own |
    | `graph.framework_shape` | parameter, state | the framework's shape when it is stored factored |
    | `graph.weight_decay`, `graph.lr_scale` | parameter | its own weight decay; a factor on the learning rate |
    | `graph.optimizer` | parameter | a dictionary of its own settings of the optimizer, and of the rule's name (`rule`) where it is another |
    | `graph.updates` | result | the name of the argument whose value it replaces: of a buffer in the model, also of parameters and state in the step |
    | `graph.valid_shape` | argument, result, `graph.gradient` | the shape without padding: what callers give and get; its elements come first in each dimension, the others are zero in an argument |

    Result 0 of an entry that trains is the scalar loss.
  }];
  let dependentDialects = ["::mlir::func::FuncDialect"];
  let hasOperationAttrVerify = 1;
  let hasRegionArgAttrVerify = 1;
  let hasRegionResultAttrVerify = 1;
  let hasConstantMaterializer = 1;
}

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

class Graph_TensorOf<list<Type> types, string summary>
    : Type<And<[RankedTensorOf<types>.predicate,
                HasStaticShapePred]>, summary, "::mlir::RankedTensorType">;

def Graph_FloatTensor
    : Graph_TensorOf<[F64, F32, F16, BF16, F8E4M3FN, F8E5M2],
                     "float tensor of static shape">;
def Graph_IntTensor
    : Graph_TensorOf<[I64, I32, I8], "integer tensor of static shape">;
def Graph_BoolTensor : Graph_TensorOf<[I1], "i1 tensor of static shape">;
def Graph_Tensor
    : Graph_TensorOf<[F64, F32, F16, BF16, F8E4M3FN, F8E5M2, I64, I32, I8, I1],
                     "tensor of static shape">;

//===----------------------------------------------------------------------===//
// Bases of the ops
//===----------------------------------------------------------------------===//

/// Every op implements, through interfaces, what the phases ask of it.
class Graph_Op<string mnemonic, list<Trait> traits = []>
    : Op<Graph_Dialect, mnemonic, !listconcat(traits, [
        DeclareOpInterfaceMethods<Graph_DifferentiableOpInterface>,
        DeclareOpInterfaceMethods<Graph_ShardingRuleOpInterface>,
        DeclareOpInterfaceMethods<Graph_CostOpInterface>])>;

/// A pure function of its operands.
class Graph_PureOp<string mnemonic, list<Trait> traits = []>
    : Graph_Op<mnemonic, !listconcat([Pure], traits)>;

/// A pure function whose result types follow from operands and attributes.
class Graph_InferredOp<string mnemonic, list<Trait> traits = []>
    : Graph_PureOp<mnemonic, !listconcat(traits, [InferTypeOpAdaptor])>;

#endif // CLEAVE_DIALECT_GRAPH_IR_GRAPHDIALECT_TD
