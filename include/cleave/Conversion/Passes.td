//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_CONVERSION_PASSES_TD
#define CLEAVE_CONVERSION_PASSES_TD

include "mlir/Pass/PassBase.td"

// Conversion/PipeToExec

def UnrollSchedule : Pass<"exec-unroll-schedule", "::mlir::ModuleOp"> {
  let summary = "Writes a program as the list of its actions";
  let description = [{
    Each action of the schedule becomes one `exec.run`. A micro-batch's slice is
    a view of the whole tensor; slices that micro-batches write are joined. A
    part whose results are summed over micro-batches gets a second form, for all
    micro-batches but the first, that adds to the sums in place. A result that
    updates an argument takes its memory. If each micro-batch has its own
    update, the last update takes the argument's memory; each other one takes
    the memory of a version that is not read again, preferably the previous one,
    or else new memory.

    If a schedule does the same for most micro-batches, only as many are written
    out as are needed to show how memory is reused; `repeats` describes the
    rest. A step of 512 micro-batches then compiles as fast as one of 20.
    ```mlir
    %g = pipe.invoke @train.B(%s) {part = "B", split = array<i64: -1>, results = ["accumulate"]} : ...
    // becomes, in the order of the schedule
    %g0 = exec.run @train.B(%s0) {micro_batch = 0 : i64} : ...
    %g1 = exec.run @train.B.next(%s1, %g0) {micro_batch = 1 : i64} : ...
    ```
  }];
  let options = [Option<"writeOut", "write-out", "bool", "false",
                        "Write out every action; nothing is repeated">];
  let dependentDialects = ["::cleave::exec::ExecDialect"];
}

// Conversion/SpmdToExec

def SelectCollectives : Pass<"exec-select-collectives", "::mlir::func::FuncOp"> {
  let summary = "Lowers collectives to exchanges of blocks";
  let description = [{
    The offsets of blocks are listed for each member of a group; a collective in
    a group of one becomes its operand.
    ```mlir
    %y = spmd.all_gather %x by #spmd.sharding<@mesh, [{"tp"}, {} ]>
        : tensor<2x4xf32> -> tensor<4x4xf32>
    // becomes
    %y = exec.collective all_gather %x over @mesh #spmd.axes<{"tp"}>
        {block = array<i64: 2, 4>, dst_starts = array<i64: 0, 0, 2, 0>}
        : tensor<2x4xf32> -> tensor<4x4xf32>
    ```
  }];
  let dependentDialects = ["::cleave::exec::ExecDialect",
                           "::cleave::graph::GraphDialect"];
}

// Conversion/GraphToExec

def Decompose : Pass<"exec-decompose", "::mlir::func::FuncOp"> {
  let summary = "Decomposes rare graph ops into common ones";
  let description = [{
    Decomposes ops that neither a kernel nor a library call computes directly:
    windows with padding (a pad, then windows), the adjoint of windows (a sum of
    pads), cumulative sums (a logarithmic number of shifted sums), sums along
    other dimensions than the first (transposes), the seed of backward (a
    constant). A sum of zero-padded tensors that tile the result becomes their
    concatenation:
    ```mlir
    %0 = graph.pad %q {low = [0], high = [8], ...} : (tensor<8xf32>) -> tensor<16xf32>
    %1 = graph.pad %k {low = [8], high = [0], ...} : (tensor<8xf32>) -> tensor<16xf32>
    %2 = graph.add %0, %1
    // becomes
    %2 = graph.concat %q, %k {dim = 0 : i64}
    ```
    The largest or least numbers of 16 bits are those of the same numbers in f32.
    Attention of 16-bit heads is computed on copies in f32, unless
    `wide-attention` is off and the command computes the op: the target then has
    kernels for it.
  }];
  let dependentDialects = ["::cleave::exec::ExecDialect"];
  let options = [
    Option<"wideAttention", "wide-attention", "bool", "true",
           "Whether attention of 16-bit heads is computed on copies in f32">,
  ];
}

def JoinBlocks : Pass<"exec-join-blocks", "::mlir::func::FuncOp"> {
  let summary = "Computes blocks as a whole whose parts no rank has alone";
  let description = [{
    Where shards may end within blocks, what belongs to a block is computed of
    its parts. On a rank that has all of them, the largest of the largest of
    parts is one reduction, and an element-wise op reads the value of a block
    where it is, instead of a copy for each part:
    ```mlir
    %0 = graph.reduce max %x {dims = array<i64: 1>} : (tensor<32x64xf32>) -> tensor<32xf32>
    %1 = graph.reshape %0 : (tensor<32xf32>) -> tensor<4x8xf32>
    %2 = graph.reduce max %1 {dims = array<i64: 1>} : (tensor<4x8xf32>) -> tensor<4xf32>
    // becomes
    %1 = graph.reshape %x : (tensor<32x64xf32>) -> tensor<4x8x64xf32>
    %2 = graph.reduce max %1 {dims = array<i64: 1, 2>} : (tensor<4x8x64xf32>) -> tensor<4xf32>
    ```
  }];
  let dependentDialects = ["::cleave::exec::ExecDialect"];
}

def FoldViews : Pass<"exec-fold-views", "::mlir::func::FuncOp"> {
  let summary = "Lowers layout ops to views or copies";
  let description = [{
    An op whose result is a strided view of its operand becomes `exec.view`; if
    the operand's layout does not allow that, it is copied first. A
    concatenation becomes copies into the slices of one buffer, `exec.join`,
    which `--exec-assign-layouts` removes where it can.
    ```mlir
    %t = graph.transpose %x {permutation = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
    // becomes
    %t = exec.view %x : tensor<4x8xf32> -> tensor<8x4xf32, #exec.layout<[1, 8]>>
    ```
  }];
  let dependentDialects = ["::cleave::exec::ExecDialect"];
}

def SelectKernels : Pass<"exec-select-kernels", "::mlir::func::FuncOp"> {
  let summary = "Lowers contractions, attention and scatters to library calls";
  let description = [{
    Contractions become matrix products that read their operands in place if
    strides allow it; a sum of a dead value and a product becomes an
    accumulating product; a fused head and loss becomes commands on chunks of
    rows. The remaining ops are lowered by `--exec-fuse`.
    ```mlir
    %c = graph.contract "bsh,oh->bso" %x, %w
    // becomes
    %0 = exec.view %x : tensor<2x4x8xf32> -> tensor<8x8xf32>
    %1 = exec.view %w : tensor<16x8xf32> -> tensor<8x16xf32, #exec.layout<[1, 8]>>
    %2 = exec.contract %0, %1
    %c = exec.view %2 : tensor<8x16xf32> -> tensor<2x4x16xf32>
    ```
  }];
  let dependentDialects = ["::cleave::exec::ExecDialect"];
  let options = [
    Option<"chunkBytes", "chunk-bytes", "int64_t", "1 << 27",
           "Largest buffer of logits that a fused head and loss may use">,
    Option<"products16", "products16", "bool", "false",
           "The library multiplies f16, and rounds sums of 16-bit products and "
           "adds a bias to them: that of a GPU">,
    Option<"products8", "products8", "bool", "false",
           "The library multiplies rows and columns of 8-bit floats: that of a "
           "GPU of capability 8.9 or later">,
  ];
}

#endif // CLEAVE_CONVERSION_PASSES_TD
