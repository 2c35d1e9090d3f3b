//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_TRANSFORMS_PASSES_TD
#define CLEAVE_DIALECT_EXEC_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

def UnrollSchedule : Pass<"exec-unroll-schedule", "::mlir::ModuleOp"> {
  let summary = "Writes a program as the list of its actions";
  let description = [{
    Each action of the schedule becomes one `exec.run`. A micro-batch's slice is
    a view of the whole; what is laid side by side is joined. A part that is
    summed over micro-batches gets a second form, for all but the first, that
    adds onto the sums so far in their own memory. A result that updates an
    argument takes its memory. Where each micro-batch has its own update, the
    last one does; each other one takes the memory of a version that nothing
    reads again, the one before it if it can, and else gets its own.

    Of a schedule that does the same for most micro-batches, as many are written
    out as show how memory is used in turn; `repeats` says the rest. So a step of
    512 micro-batches is compiled as fast as one of 20.
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

def GuardIndices : Pass<"exec-guard-indices", "::mlir::ModuleOp"> {
  let summary = "Lets no computed index leave its tensor";
  let description = [{
    Native code reads memory where an index says. What a session is given, inputs
    and buffers, it checks before it is used, also where a model only moves it;
    other indices that are not known to stay inside, by the ranges of the
    integers that they are computed from, are checked in the step, which ends
    with an error before anything is updated. What is read then is another
    element. Runs on models, where indices are those of whole tensors.
    ```mlir
    %y = graph.gather %table, %i {dim = 0 : i64} : (tensor<10x4xf32>, tensor<6xi64>) -> tensor<6x4xf32>
    // becomes
    %ok = ... 0 <= %i < 10
    %all = ... no element is wrong
    graph.check %all, "an index is outside of [0, 10)" : tensor<i1>
    %j = graph.select %ok, %i, %zero : (tensor<6xi1>, tensor<6xi64>, tensor<i64>) -> tensor<6xi64>
    %y = graph.gather %table, %j {dim = 0 : i64} : (tensor<10x4xf32>, tensor<6xi64>) -> tensor<6x4xf32>
    ```
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect"];
}

def SelectCollectives : Pass<"exec-select-collectives", "::mlir::func::FuncOp"> {
  let summary = "Movements between devices become exchanges of blocks";
  let description = [{
    Which block goes where is written down for each member of a group; a
    movement in a group of one is its operand.
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

def Decompose : Pass<"exec-decompose", "::mlir::func::FuncOp"> {
  let summary = "Expresses rare graph ops by common ones";
  let description = [{
    What neither a kernel nor a library call computes directly: windows with
    padding (a pad, then windows), the adjoint of windows (a sum of pads),
    cumulative sums (a logarithmic number of shifted sums), sums along other
    dimensions than the first (transposes), the seed of backward (a constant).
    A sum of zero-padded tensors that tile the result becomes their
    concatenation:
    ```mlir
    %0 = graph.pad %q {low = [0], high = [8], ...} : (tensor<8xf32>) -> tensor<16xf32>
    %1 = graph.pad %k {low = [8], high = [0], ...} : (tensor<8xf32>) -> tensor<16xf32>
    %2 = graph.add %0, %1
    // becomes
    %2 = graph.concat %q, %k {dim = 0 : i64}
    ```
  }];
  let dependentDialects = ["::cleave::exec::ExecDialect"];
}

def FoldViews : Pass<"exec-fold-views", "::mlir::func::FuncOp"> {
  let summary = "Turns movement of data into views, or into copies";
  let description = [{
    An op whose result is a strided view of its operand becomes `exec.view`;
    where the operand's own layout stands in the way, it is copied first. An op
    that lays its operands side by side becomes copies into the slices of one
    buffer, `exec.join`, which `--exec-assign-layouts` removes where it can.
    ```mlir
    %t = graph.transpose %x {permutation = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
    // becomes
    %t = exec.view %x : tensor<4x8xf32> -> tensor<8x4xf32, #exec.layout<[1, 8]>>
    ```
  }];
  let dependentDialects = ["::cleave::exec::ExecDialect"];
}

def SelectKernels : Pass<"exec-select-kernels", "::mlir::func::FuncOp"> {
  let summary = "Gives contractions, attention and scatters to library calls";
  let description = [{
    Contractions become matrix products whose operands are read where they lie
    when strides allow it; a sum of a value that dies and a product becomes an
    accumulating product; a head with its loss becomes commands on chunks of
    rows. What is left is for `--exec-fuse`.
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
           "Largest buffer of logits that a head with its loss may use">,
  ];
}

def AssignLayouts : Pass<"exec-assign-layouts", "::mlir::ModuleOp"> {
  let summary = "Lets commands write where their results are wanted";
  let description = [{
    A copy into another layout disappears when the command that made the value
    can write that layout at once and every other reader can read it, in this
    part or in another that receives the value.
    ```mlir
    %o, %lse = exec.attention ... -> (tensor<2x4x16x8xf32>, ...)
    %t = exec.view %o : tensor<2x4x16x8xf32> -> tensor<2x16x4x8xf32, #exec.layout<[512, 8, 128, 1]>>
    %c = exec.copy %t : ... -> tensor<2x16x4x8xf32>
    // becomes
    %o, %lse = exec.attention ... -> (tensor<2x4x16x8xf32, #exec.layout<[512, 8, 32, 1]>>, ...)
    %c = exec.view %o : ... -> tensor<2x16x4x8xf32>
    ```
  }];
}

def Fuse : Pass<"exec-fuse", "::mlir::ModuleOp"> {
  let summary = "Turns graph ops into generated kernels";
  let description = [{
    Groups the graph ops of each function that generated code can compute, so
    that values pass between them in registers, and replaces each group by an
    `exec.launch` of an `exec.kernel`. Equal kernels are made once. Ops without
    kernel code stay.
    ```mlir
    %s = graph.add %x, %r : ...
    %y, %mean, %rstd = graph.layer_norm %s weight %w bias %b ...
    ```
    becomes
    ```mlir
    %y, %mean, %rstd, %s = exec.launch @add_layer_norm(%x, %r, %w, %b) : ...
    ```
  }];
  let dependentDialects = ["::cleave::exec::ExecDialect",
                           "::mlir::arith::ArithDialect",
                           "::mlir::math::MathDialect"];
}

def PlanMemory : Pass<"exec-plan-memory", "::mlir::ModuleOp"> {
  let summary = "Gives every buffer of every action its place in one arena";
  let description = [{
    Orders the commands of each part so that memory is freed early, lets results
    take the memory of operands that die, and packs all buffers over the whole
    schedule. Parameters, state, inputs, constants and small outputs have fixed
    places that all entries share; behind them each entry uses the same memory.
    Actions that repeat share their places. What was decided stands in the IR:

    | attribute | on | meaning |
    |---|---|---|
    | `exec.arena_bytes`, `exec.threads` | module | size of the arena; threads that scratch is planned for |
    | `exec.offset` | an entry's arguments and results, `exec.constant` | bytes from the arena's start |
    | `exec.memory` | part | bytes and kind of each of its buffers |
    | `exec.buffer` | a part's arguments | index of its buffer |
    | `exec.buffers`, `exec.scratch` | ops of a part | buffers of the results; of scratch memory |
    | `offsets` | `exec.run` | bytes from the arena's start of each of the part's buffers |
    | `exec.peak`, `exec.lower_bound`, `exec.live` | entry | bytes used behind the fixed places; the least any packing needs; what is in use at that time |
  }];
  let dependentDialects = ["::cleave::exec::ExecDialect"];
  let options = [
    Option<"threads", "threads", "int64_t", "1",
           "Threads that scratch memory is planned for">,
  ];
}

#endif // CLEAVE_DIALECT_EXEC_TRANSFORMS_PASSES_TD
