//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_KERNELOPS_TD
#define CLEAVE_DIALECT_EXEC_IR_KERNELOPS_TD

include "cleave/Dialect/Exec/IR/ExecDialect.td"
include "cleave/Dialect/Exec/IR/ExecEnums.td"
include "cleave/Dialect/Exec/IR/ExecInterfaces.td"
include "cleave/Dialect/Graph/IR/Kinds.td"
include "mlir/IR/BuiltinAttributes.td"
include "mlir/IR/RegionKindInterface.td"

//===----------------------------------------------------------------------===//
// The kernel and its launch
//===----------------------------------------------------------------------===//

def Exec_KernelOp : Exec_Op<"kernel", [Symbol, SingleBlock, NoTerminator,
                                       IsolatedFromAbove]> {
  let summary = "Generated code over rows and columns";
  let description = [{
    The kernel form. The body runs once for each row of `[rows x cols]`; its top
    level is scalar code of that row, and each `exec.pass` in it iterates over
    the columns. The block's arguments are memory: inputs, then outputs.
    `skeleton` defines the form of the body: `map` has one pass and no
    reductions; `row` has row reductions; `column` accumulates over rows;
    `gather` reads rows chosen by an index.

    ```mlir
    exec.kernel @softmax row [2048, 768] (%x: tensor<2048x768xf32>)
        -> (%y: tensor<2048x768xf32>) attributes {threads = 192 : i64, vector = 4 : i64} {
      %max = exec.pass -> f32 {
        %0 = exec.load %x at affine_map<(r, c) -> (r * 768 + c)> : tensor<2048x768xf32>
        %1 = exec.reduce max %0 : f32
        exec.yield %1 : f32
      }
      ...
    }
    ```

    The pointer passed for an argument is the address of its first element:
    layouts of arguments have offset 0. `valid`, when present, is the number of
    elements of the space, in row-major order, that exist: the last row may be
    short. `alignment` gives the alignment of each pointer in bytes. Offsets
    computed by maps count elements.

    A kernel that accumulates over rows has `groups` of rows: group g begins at
    row `g * rows / groups`, rounded down. On a GPU a block has a group, and its
    `threads` a row; it has `teams` of as many threads, each with a row.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Exec_Skeleton:$skeleton,
                       I64Attr:$rows, I64Attr:$cols, I64Attr:$num_inputs,
                       DefaultValuedAttr<I64Attr, "1">:$vector,
                       DefaultValuedAttr<I64Attr, "256">:$threads,
                       DefaultValuedAttr<I64Attr, "1">:$groups,
                       DefaultValuedAttr<I64Attr, "1">:$teams,
                       OptionalAttr<I64Attr>:$valid,
                       OptionalAttr<DenseI64ArrayAttr>:$alignment);
  let regions = (region SizedRegion<1>:$body);
  let hasCustomAssemblyFormat = 1;
  let hasRegionVerifier = 1;
  let extraClassDeclaration = [{
    /// Arguments that are read, and those that are written.
    ::llvm::ArrayRef<::mlir::BlockArgument> getInputs();
    ::llvm::ArrayRef<::mlir::BlockArgument> getOutputs();

    /// Whether values are combined over rows.
    bool accumulates();
    /// Independent items of the first stage: rows, or groups of rows if the
    /// kernel accumulates over rows.
    int64_t getItems();
    /// Whether columns are independent of each other, and so may be divided
    /// between blocks of a GPU while they are summed over rows.
    bool hasApartColumns();
    /// The blocks that a GPU has for each group of rows: 1 unless columns are
    /// apart.
    int64_t getColumnTiles();
    /// The smallest number of items that is worth a thread.
    int64_t getGrain();

    /// The name of the function in object code, of the one for so many uses.
    /// Kernels are named after their ops, which may be names of the C library
    /// (`exp`) that kernels call; the prefix avoids conflicts with these and
    /// with other symbols of an artifact.
    std::string getFunctionName(int64_t uses = 1);

    /// True if partial results of several groups are combined by a second
    /// stage, the function `getFinishName()` over `getFinishItems()` items.
    /// Those of one group are the results.
    bool isTwoStage();
    std::string getFinishName(int64_t uses = 1);
    int64_t getFinishItems();
    /// Bytes of the partial results of one group.
    int64_t getGroupBytes();
    /// Bytes of scratch memory that the two stages share.
    int64_t getScratchBytes();
  }];
}

def Exec_LaunchOp : Exec_Op<"launch", [
    Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>,
    DeclareOpInterfaceMethods<Exec_CommandOpInterface,
      ["getShares", "getScratchBytes", "canWriteResult", "canReadOperand"]>]> {
  let summary = "Runs a kernel";
  let description = [{
    Operands are the kernel's inputs and results its outputs, with the same
    shapes and strides. A pair `[result, operand]` in `inplace` may share
    memory: each element of the operand is read before the same element of the
    result is written, and by no other element's code.
    ```mlir
    %y = exec.launch @gelu(%x) {inplace = [array<i64: 0, 0>]}
        : (tensor<4x8xf32>) -> tensor<4x8xf32>
    ```

    A launch on a GPU may have several `uses` of the kernel, at the same time:
    it has the operands of one after those of another, and the results likewise.
    The pairs of `inplace` are those of each use by itself.
    ```mlir
    %y:2 = exec.launch @gelu(%x0, %x1)
        {inplace = [array<i64: 0, 0>], uses = 2 : i64}
        : (tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>)
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$kernel,
                       Variadic<AnyRankedTensor>:$operands,
                       OptionalAttr<ArrayAttr>:$inplace,
                       DefaultValuedAttr<ConfinedAttr<I64Attr, [IntPositive]>,
                                         "1">:$uses);
  let results = (outs Variadic<AnyRankedTensor>:$outputs);
  let assemblyFormat = [{
    $kernel `(` $operands `)` attr-dict `:` functional-type(operands, results)
  }];
  let extraClassDeclaration = [{
    /// The pairs of `inplace`: (result, operand), of one use.
    ::llvm::SmallVector<std::pair<unsigned, unsigned>> getInplacePairs();
  }];
}

//===----------------------------------------------------------------------===//
// The body
//===----------------------------------------------------------------------===//

def Exec_Scalar : AnyTypeOf<[F64, F32, F16, BF16, F8E4M3FN, F8E5M2, I64, I32,
                             I8, I1],
                            "scalar of a kernel">;

def Exec_PassOp : Exec_Op<"pass", [SingleBlock]> {
  let summary = "A loop over the columns of a row";
  let description = [{
    The region runs for each column. Its results are reductions over the row.
  }];
  let results = (outs Variadic<Exec_Scalar>:$results);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "(`->` type($results)^)? $body attr-dict";
  let hasRegionVerifier = 1;
}

def Exec_YieldOp : Exec_Op<"yield", [Pure, Terminator, HasParent<"PassOp">]> {
  let summary = "Returns the results of a pass, each the value of an exec.reduce";
  let arguments = (ins Variadic<Exec_Scalar>:$values);
  let assemblyFormat = "attr-dict ($values^ `:` type($values))?";
}

def Exec_LoadOp : Exec_Op<"load", [AttrSizedOperandSegments]> {
  let summary = "Reads one element";
  let description = [{
    `map` gives the element's offset from the row `d0` and the column `d1`; its
    symbols are `indices`, for gathers. If the predicate `where` is false,
    nothing is read and the value is zero.
    ```mlir
    %0 = exec.load %w[%id] at affine_map<(d0, d1)[s0] -> (s0 * 768 + d1)> : tensor<512x768xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$memory, Variadic<I64>:$indices,
                       Optional<I1>:$where, AffineMapAttr:$map);
  let results = (outs Exec_Scalar:$value);
  let assemblyFormat = [{
    $memory (`[` $indices^ `]`)? (`where` $where^)? `at` $map attr-dict `:`
    type($memory) `->` type($value)
  }];
  let hasVerifier = 1;
}

def Exec_StoreOp : Exec_Op<"store"> {
  let summary = "Writes one element";
  let arguments = (ins Exec_Scalar:$value, AnyRankedTensor:$memory,
                       AffineMapAttr:$map);
  let assemblyFormat = [{
    $value `,` $memory `at` $map attr-dict `:` type($value) `,` type($memory)
  }];
  let hasVerifier = 1;
}

def Exec_AccumulateOp : Exec_Op<"accumulate"> {
  let summary = "Combines a value over all rows";
  let description = [{
    The element of the output at `map`, which depends on the column alone, is
    the combination of the values of all rows: in row order within a group, then
    in group order. On a GPU each team of a block combines its rows, and then
    these are combined, and neighbouring groups before others. Outside a pass
    the output has one element.
  }];
  let arguments = (ins ReductionKind:$kind, Exec_Scalar:$value,
                       AnyRankedTensor:$memory, AffineMapAttr:$map);
  let assemblyFormat = [{
    $kind $value `,` $memory `at` $map attr-dict `:` type($value) `,` type($memory)
  }];
  let hasVerifier = 1;
}

def Exec_ReduceOp : Exec_Op<"reduce", [Pure, SameOperandsAndResultType]> {
  let summary = "Combines a value over the columns of the row";
  let description = [{
    The result is a value of the row: within the pass only `exec.yield` may use
    it. The order of combination depends on the target and is fixed for a given
    kernel.
  }];
  let arguments = (ins ReductionKind:$kind, Exec_Scalar:$value);
  let results = (outs Exec_Scalar:$result);
  let assemblyFormat = "$kind $value attr-dict `:` type($value)";
}

def Exec_ScanOp : Exec_Op<"scan", [Pure, SameOperandsAndResultType]> {
  let summary = "Inclusive sum along the columns, from the last with `reverse`";
  let description = [{
    With a `factor`, the sum before is multiplied by it at each column;
    each of the two results is rounded.
  }];
  let arguments = (ins Exec_Scalar:$value, Optional<Exec_Scalar>:$factor,
                       UnitAttr:$reverse);
  let results = (outs Exec_Scalar:$result);
  let assemblyFormat =
      "$value (`factor` $factor^)? attr-dict `:` type($value)";
}

def Exec_KeepOp : Exec_Op<"keep"> {
  let summary = "A row of values that later passes read";
  let description = [{
    Private memory of one row: on a CPU a buffer on the stack, on a GPU shared
    memory. Each element is read only by the lane that wrote it.
  }];
  let results = (outs AnyRankedTensor:$row);
  let assemblyFormat = "attr-dict `:` type($row)";
}

def Exec_IndexOp : Exec_Op<"index", [Pure]> {
  let summary = "The value of a map of row and column";
  let arguments = (ins AffineMapAttr:$map);
  let results = (outs I64:$value);
  let assemblyFormat = "$map attr-dict";
}

def Exec_PhiloxOp : Exec_Op<"philox", [Pure, AttrSizedOperandSegments]> {
  let summary = "The 32 random bits of one element";
  let description = [{
    Philox4x32-10 (Salmon et al., SC 2011). With `i = base + map`, the counter
    is `c = (i / 64) * 16 + i % 16` and the word `(i / 16) % 4`: 64 consecutive
    elements share 16 draws of four words. The key is the seed, the counter's
    words are the halves of `c`, the id and the step. The id is `id`, plus
    `added` if given, so that kernels which differ only in it are merged. `base`
    is a multiple of `base_multiple`.
  }];
  let arguments = (ins I64:$seed, I64:$step, Optional<I64>:$added,
                       Optional<I64>:$base, AffineMapAttr:$map,
                       DefaultValuedAttr<I64Attr, "0">:$id,
                       DefaultValuedAttr<I64Attr, "1">:$base_multiple);
  let results = (outs I32:$bits);
  let assemblyFormat = [{
    $seed `,` $step (`id` $added^)? (`base` $base^)? `at` $map attr-dict
  }];
}

#endif // CLEAVE_DIALECT_EXEC_IR_KERNELOPS_TD
