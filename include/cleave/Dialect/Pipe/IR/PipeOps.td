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
    | `D` | of several micro-batches or stages: updates that the step before has left |
    | `P` | prologue: sums over micro-batches that depend on inputs alone and that forward or backward needs whole |
    | `G` | where that is asked for: what devices exchange of parameters, the same for all micro-batches, once before forward |
    | `F` | forward: what depends on no seed |
    | `B` | backward: what depends on a seed and on no finished gradient |
    | `I`, `W` | in the place of `B`: what earlier stages wait for, and what gradients of parameters alone do |
    | `R` | behind the last backward: what devices exchange of sums over micro-batches that become gradients |
    | `N` | of several stages: the scalars of finished gradients that the updates of all stages read |
    | `U` | update: what depends on a finished gradient, or on sums over all micro-batches; with `--pipe-update-each`, for each micro-batch |
    | `V`, `A` | behind `U`, with `--pipe-post-validate`: what shows whether the update was right, and the update again, which runs where it was not |

    In a pipeline, each stage has parts of its own, and computes what it needs of
    the model. Values that one stage gives to another are sent between devices.

    An *action* is one run of a part; the schedule is the order of all actions,
    as text: `P0 P1 F0 B0 F1 B1 U`. Values between parts are ordinary SSA values;
    how one of many micro-batches becomes one value of the program is said by
    the kind of the result.
  }];
  let dependentDialects = ["::mlir::func::FuncDialect"];
}

class Pipe_Op<string mnemonic, list<Trait> traits = []>
    : Op<Pipe_Dialect, mnemonic, traits>;

def Pipe_ProgramOp : Pipe_Op<"program", [
    FunctionOpInterface, IsolatedFromAbove, OpAsmOpInterface,
    SingleBlock]> {
  let summary = "An entry as parts and their schedule";
  let description = [{
    Arguments and results are whole tensors, with the attributes of the entry.
    Without `schedule`, no order has been chosen yet. It has a list for each
    position of the pipeline; `stage_map` (`modular`, `v`) says which stages a
    position has. With `tree_sums`, sums over
    micro-batches are made in a binary tree: as they come in the schedule, neighbours
    first, then neighbouring pairs, and so on.
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
    `stage` is 0 where it is not written.
    Without `once` the part runs for each micro-batch. `split[i] >= 0` gives it,
    for operand i, the micro-batch's slice of a whole tensor along that
    dimension; -1 gives it the value itself: for a `saved` one, that of the same
    micro-batch. The kind of each result says what the program's value is:

    | kind | the program's value |
    |---|---|
    | `saved` | one value for each micro-batch; read by parts of the same one |
    | `accumulate` | the sum over micro-batches, in increasing order or, with `tree_sums`, in pairs |
    | `concat:<dim>` | the micro-batches' values side by side along `dim` |
    | `value` | the value: of a `once` part, or the same for each micro-batch |
    | `version:<argument>` | that of the run that comes last |

    With `unless`, the first of the operands that it numbers is a flag: where that
    holds, the part does not run, and its results are the operands behind it, one
    for each.

    An argument that a result is a `version` of has versions. The first part of a
    micro-batch that reads it fixes which one all parts of that micro-batch read,
    the newest there is then; the part that updates it reads the newest.
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
    /// The argument of a `version:<argument>` result, else nothing.
    ::std::optional<int64_t> getVersioned(unsigned index);
    /// The dimension of a `concat:<dim>` result, else nothing.
    ::std::optional<int64_t> getConcatDim(unsigned index);
    bool isSaved(unsigned index) { return getKind(index) == "saved"; }
    bool isAccumulated(unsigned index) { return getKind(index) == "accumulate"; }
    /// Whether it may run or not.
    bool isConditional() { return getUnless().has_value(); }
    /// Of one that may not run: the operand that says so, and that which result
    /// `index` is then.
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
