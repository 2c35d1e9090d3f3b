//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_PROGRAMOPS_TD
#define CLEAVE_DIALECT_EXEC_IR_PROGRAMOPS_TD

include "cleave/Dialect/Exec/IR/ExecDialect.td"
include "mlir/Interfaces/FunctionInterfaces.td"
include "mlir/Interfaces/ControlFlowInterfaces.td"

def Exec_ProgramOp : Exec_Op<"program", [
    FunctionOpInterface, IsolatedFromAbove, SingleBlock]> {
  let summary = "The list of actions of an entry";
  let description = [{
    One `exec.run` for each action, in the order of the schedule. Values are
    memory: a run reads a micro-batch's slice as a view of the whole value, and
    slices that micro-batches write are joined. In a pipeline, there is one
    program for each `position`, of the same `entry`.

    The part of a regular schedule that repeats for most micro-batches is
    written out a few times, with `repeats` for the rest. Values are then those
    of a step with fewer micro-batches; an action after a repetition belongs to
    a micro-batch greater by its `later`.
    ```mlir
    exec.program @train(%w: tensor<4xf32> {graph.name = "w"}, %x: tensor<8x4xf32>)
        -> (tensor<f32>, tensor<4xf32> {graph.updates = "w"}) {
      %x0 = exec.view %x : tensor<8x4xf32> -> tensor<4x4xf32>
      %s0, %l0 = exec.run @train.F(%w, %x0) {micro_batch = 0 : i64}
          : (tensor<4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<f32>)
      ...
      exec.return %l1, %w2 : tensor<f32>, tensor<4xf32>
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name,
                       TypeAttrOf<FunctionType>:$function_type,
                       OptionalAttr<StrAttr>:$sym_visibility,
                       OptionalAttr<DictArrayAttr>:$arg_attrs,
                       OptionalAttr<DictArrayAttr>:$res_attrs,
                       OptionalAttr<I64Attr>:$position,
                       OptionalAttr<StrAttr>:$entry,
                       OptionalAttr<Exec_RepeatArrayAttr>:$repeats);
  let regions = (region SizedRegion<1>:$body);
  let extraClassDeclaration = [{
    /// The name of the entry whose program for one position this is.
    ::llvm::StringRef getEntryName() {
      return getEntry().value_or(getName());
    }
    /// The pipeline position that runs it.
    int64_t getPipelinePosition() { return getPosition().value_or(0); }
    /// The number of actions of each run, in order: the run itself and its
    /// repetitions.
    ::llvm::SmallVector<int64_t> countActions();
    /// Calls `visit` with each action and its micro-batch, in order.
    void forEachAction(
        ::llvm::function_ref<void(::cleave::exec::RunOp, int64_t)> visit);
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

def Exec_RunOp : Exec_Op<"run", [
    DeclareOpInterfaceMethods<SymbolUserOpInterface>, HasParent<"ProgramOp">]> {
  let summary = "One action: a part on one micro-batch";
  let description = [{
    Operand and result types are the part's own, except that each may have
    another offset: that of its micro-batch in the whole value. `offsets`, set
    by memory planning, are the arena offsets of the part's buffers, in bytes.
  }];
  let arguments = (ins FlatSymbolRefAttr:$callee,
                       Variadic<AnyRankedTensor>:$inputs, I64Attr:$micro_batch,
                       OptionalAttr<I64Attr>:$later,
                       OptionalAttr<DenseI64ArrayAttr>:$offsets);
  let results = (outs Variadic<AnyRankedTensor>:$outputs);
  let assemblyFormat = [{
    $callee `(` $inputs `)` attr-dict `:` functional-type($inputs, $outputs)
  }];
}

def Exec_ReturnOp : Exec_Op<"return", [
    Pure, HasParent<"ProgramOp">, ReturnLike, Terminator]> {
  let summary = "The results of an entry";
  let arguments = (ins Variadic<AnyRankedTensor>:$values);
  let assemblyFormat = "attr-dict ($values^ `:` type($values))?";
  let hasVerifier = 1;
}

#endif // CLEAVE_DIALECT_EXEC_IR_PROGRAMOPS_TD
