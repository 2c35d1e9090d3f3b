//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_PIPE_IR_PIPEOPS_TD
#define CLEAVE_DIALECT_PIPE_IR_PIPEOPS_TD

include "mlir/IR/OpBase.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/RegionKindInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/FunctionInterfaces.td"
include "mlir/Interfaces/ControlFlowInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Pipe_Dialect : Dialect {
  let name = "pipe";
  let cppNamespace = "::cleave::pipe";
  let summary = "When it runs: parts, micro-batches and the schedule";
  let description = [{
    A `pipe.program` is an entry cut into *parts*, each outlined once as a
    private function on the tensors of one micro-batch:

    | part | what it computes |
    |---|---|
    | `D` | deferred updates of the step before, if there are several micro-batches or stages |
    | `P` | prologue: sums over micro-batches that depend on inputs alone and that forward or backward reads |
    | `G` | gathers of parameters once before forward, for all micro-batches (`--pipe-split-stages=gather=once`) |
    | `F` | forward: ops that depend on no seed |
    | `B` | backward: ops that depend on a seed and on no finished gradient |
    | `I`, `W` | the two halves of a split backward: ops that earlier stages wait for, and ops that only gradients of parameters depend on |
    | `R` | reductions of accumulated gradients over devices, after the last backward |
    | `N` | the scalars of finished gradients that the updates of all stages read, if there are several stages |
    | `U` | update: ops that depend on a finished gradient, or on sums over all micro-batches; with `--pipe-update-each`, for each micro-batch |
    | `V`, `A` | with `--pipe-post-validate`, after `U`: the validation of the update, and the repeated update, which runs if the first one was wrong |

    In a pipeline, each stage has its own parts. Values that a part of another
    stage reads are sent between pipeline positions.

    An *action* is one run of a part; the schedule is the order of all actions,
    as text: `P0 P1 F0 B0 F1 B1 U`. Values between parts are SSA values. The kind
    of a result says how the values of all micro-batches become one value of the
    program.
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect",
                           "::cleave::spmd::SpmdDialect",
                           "::mlir::func::FuncDialect"];
  let hasOperationAttrVerify = 1;
  let hasRegionArgAttrVerify = 1;
  let hasRegionResultAttrVerify = 1;
}

class Pipe_Op<string mnemonic, list<Trait> traits = []>
    : Op<Pipe_Dialect, mnemonic, traits>;

def Pipe_ProgramOp : Pipe_Op<"program", [
    FunctionOpInterface, IsolatedFromAbove, OpAsmOpInterface,
    SingleBlock]> {
  let summary = "An entry as parts and their schedule";
  let description = [{
    Arguments and results are tensors of all micro-batches, with the attributes of
    the entry. `schedule` has a list of actions for each pipeline position; if it
    is missing, no order has been chosen yet. `stage_map` (`modular`, `v`) is the
    assignment of stages to positions. With `tree_sums`, sums over micro-batches
    are computed in a binary tree, in the order of the schedule: neighbours first,
    then neighbouring pairs, and so on.
    ```mlir
    pipe.program @train(%w: tensor<4xf32> {graph.name = "w"}, %x: tensor<8x4xf32>)
        -> (tensor<f32>, tensor<4xf32>)
        attributes {micro_batches = 2 : i64, schedule = "F0 B0 F1 B1 U"} {
      %s, %loss = pipe.invoke @train.F(%w, %x)
          {part = "F", split = array<i64: -1, 0>, results = ["saved", "accumulate"]}
          : (tensor<4xf32>, tensor<8x4xf32>) -> (tensor<4x4xf32>, tensor<f32>)
      %g = pipe.invoke @train.B(%s) {part = "B", split = array<i64: -1>, results = ["accumulate"]}
          : (tensor<4x4xf32>) -> tensor<4xf32>
      %w2 = pipe.invoke @train.U(%w, %g)
          {part = "U", once, split = array<i64: -1, -1>, results = ["value"]}
          : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      pipe.return %loss, %w2 : tensor<f32>, tensor<4xf32>
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name,
                       TypeAttrOf<FunctionType>:$function_type,
                       OptionalAttr<StrAttr>:$sym_visibility,
                       OptionalAttr<DictArrayAttr>:$arg_attrs,
                       OptionalAttr<DictArrayAttr>:$res_attrs,
                       I64Attr:$micro_batches,
                       OptionalAttr<StrAttr>:$schedule,
                       OptionalAttr<StrAttr>:$stage_map,
                       UnitAttr:$tree_sums);
  let regions = (region SizedRegion<1>:$body);
  let skipDefaultBuilders = 1;
  let builders = [OpBuilder<(ins "::llvm::StringRef":$name,
                                 "::mlir::FunctionType":$type,
                                 "int64_t":$microBatches)>];
  let extraClassDeclaration = [{
    /// The argument types of this function, for FunctionOpInterface.
    ::llvm::ArrayRef<::mlir::Type> getArgumentTypes() {
      return getFunctionType().getInputs();
    }
    ::llvm::ArrayRef<::mlir::Type> getResultTypes() {
      return getFunctionType().getResults();
    }
    ::mlir::Region *getCallableRegion() { return &getBody(); }
  }];
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

def Pipe_InvokeOp : Pipe_Op<"invoke", [
    DeclareOpInterfaceMethods<SymbolUserOpInterface>,
    HasParent<"ProgramOp">]> {
  let summary = "A part of a stage, for each micro-batch or once";
  let description = [{
    `stage` is 0 by default. Without `once`, the part runs for each micro-batch.
    `split[i] >= 0` passes as operand i the micro-batch's slice along that
    dimension; -1 passes the value itself, or, if its kind is `saved`, the value
    of the same micro-batch. The kind of each result defines the program's value:

    | kind | the program's value |
    |---|---|
    | `saved` | one value for each micro-batch, read by parts of the same micro-batch |
    | `accumulate` | the sum over micro-batches, in increasing order or, with `tree_sums`, in pairs |
    | `accumulate:max`, `accumulate:min` | the maximum or minimum over micro-batches; NaN wins |
    | `concat:<dim>` | the concatenation of the micro-batches' values along `dim` |
    | `value` | the value: of a `once` part, or the same for each micro-batch |
    | `version:<argument>` | the new value of an argument, of the last run |

    `unless` lists operand numbers. The first one is a flag: if it is true, the
    part does not run, and its results are the other operands listed, one for each
    result.

    An argument with a `version` result has versions. All parts of a micro-batch
    read the same version: the newest one when the first of them runs. The part
    that updates the argument reads the newest version.
  }];
  let arguments = (ins FlatSymbolRefAttr:$callee,
                       Variadic<AnyRankedTensor>:$inputs, StrAttr:$part,
                       UnitAttr:$once, DenseI64ArrayAttr:$split,
                       StrArrayAttr:$result_kinds, I64Attr:$stage,
                       OptionalAttr<DenseI64ArrayAttr>:$unless);
  let builders = [OpBuilder<(ins
      "::mlir::TypeRange":$types, "::llvm::StringRef":$callee,
      "::mlir::ValueRange":$inputs, "::llvm::StringRef":$part, "bool":$once,
      "::llvm::ArrayRef<int64_t>":$split, "::mlir::ArrayAttr":$kinds,
      "int64_t":$stage), [{
    build($_builder, $_state, types, callee, inputs, part, once, split, kinds,
          stage, ::mlir::DenseI64ArrayAttr());
  }]>];
  let results = (outs Variadic<AnyRankedTensor>:$outputs);
  let assemblyFormat = [{
    $callee `(` $inputs `)` custom<InvokeConfig>($part, $once, $split,
      $result_kinds, $stage, $unless) attr-dict `:` functional-type($inputs, $outputs)
  }];
  let extraClassDeclaration = [{
    /// The function that holds the part's ops.
    ::mlir::func::FuncOp getPartFunction();
    /// The kind of result `index`.
    ::llvm::StringRef getKind(unsigned index) {
      return ::llvm::cast<::mlir::StringAttr>(getResultKinds()[index]).getValue();
    }
    /// The argument of a `version:<argument>` result; otherwise nothing.
    ::std::optional<int64_t> getVersioned(unsigned index);
    /// The dimension of a `concat:<dim>` result; otherwise nothing.
    ::std::optional<int64_t> getConcatDim(unsigned index);
    bool isSaved(unsigned index) { return getKind(index) == "saved"; }
    /// How micro-batches are combined in an `accumulate` result; otherwise nothing.
    ::std::optional<::cleave::graph::ReductionKind> getAccumulation(unsigned index);
    bool isAccumulated(unsigned index) {
      return getAccumulation(index).has_value();
    }
    /// Whether a flag decides if the part runs.
    bool isConditional() { return getUnless().has_value(); }
    /// For a conditional part: the operand that is the flag, and the operand that
    /// is result `index` if the part does not run.
    unsigned getFlagOperand() { return (*getUnless())[0]; }
    unsigned getPassedOperand(unsigned index) {
      return (*getUnless())[index + 1];
    }
  }];
  let hasVerifier = 1;
}

def Pipe_ReturnOp : Pipe_Op<"return", [
    Pure, HasParent<"ProgramOp">, ReturnLike, Terminator]> {
  let summary = "The results of a program";
  let arguments = (ins Variadic<AnyRankedTensor>:$values);
  let assemblyFormat = "attr-dict ($values^ `:` type($values))?";
  let hasVerifier = 1;
}

#endif // CLEAVE_DIALECT_PIPE_IR_PIPEOPS_TD
