//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_TRANSFORMS_PASSES_TD
#define CLEAVE_DIALECT_EXEC_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

def AssignLayouts : Pass<"exec-assign-layouts", "::mlir::ModuleOp"> {
  let summary = "Lets commands write results in the layout of their readers";
  let description = [{
    A copy into another layout is removed if the command that makes the value
    can write that layout directly and every other reader can read it, in this
    part or in another that receives the value. A join whose operands are made
    with their dimensions in another order gets that order, if its readers can
    read it and its operands are then written in place.
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

def MatchForms : Pass<"exec-match-forms", "::mlir::ModuleOp"> {
  let summary = "Gives recomputed contractions the form of their originals";
  let description = [{
    A library adds up products in another order where an operand is transposed. A
    contraction that backward computes again (attributes `twin` and `clone`, see
    Clones.h) therefore gets its operands as the original has them, copied where
    they have another layout. Removes these attributes.
  }];
}

def Fuse : Pass<"exec-fuse", "::mlir::ModuleOp"> {
  let summary = "Fuses graph ops into generated kernels";
  let description = [{
    Groups the graph ops of each function that generated code can compute, so
    that values are passed between them in registers, and replaces each group by
    an `exec.launch` of an `exec.kernel`. Equal kernels are generated once. Ops
    without kernel code stay. A result that would be copied into a join is
    written there, if its place has no gaps.
    ```mlir
    %s = graph.add %x, %r : ...
    %y, %mean, %rstd = graph.layer_norm %s weight %w bias %b ...
    ```
    becomes
    ```mlir
    %y, %mean, %rstd, %s = exec.launch @add_layer_norm(%x, %r, %w, %b) : ...
    ```
  }];
  let options = [
    Option<"processors", "processors", "int64_t", "0",
           "Multiprocessors of the GPU that kernels are for: sums over rows are "
           "divided so that they fill it; 0: kernels are for this processor">,
  ];
  let dependentDialects = ["::cleave::exec::ExecDialect",
                           "::mlir::arith::ArithDialect",
                           "::mlir::math::MathDialect"];
}

def Offload : Pass<"exec-offload", "::mlir::ModuleOp"> {
  let summary = "Moves state, masters or saved values to the second tier";
  let description = [{
    Values of the given kinds are in the second tier (a file, for the CPU) when
    no command uses them. A part fetches those that it reads into buffers of the
    arena before their first reader, and evicts the new values that it computes.

    | kind | values |
    |---|---|
    | `state` | the optimizer's state |
    | `masters` | parameters of which forward and backward read narrower copies only |
    | `saved` | what forward saves for backward and nothing else reads |
    ```mlir
    func.func private @train.U(%w: tensor<8xf32>, %m: tensor<8xf32>, %g: tensor<8xf32>)
        -> (tensor<8xf32> {exec.alias = 0}, tensor<8xf32> {exec.alias = 1}) {
      %0:2 = exec.launch @update(%w, %m, %g) : ...
      return %0#0, %0#1 : tensor<8xf32>, tensor<8xf32>
    }
    ```
    becomes
    ```mlir
    func.func private @train.U(%w: tensor<8xf32>, %m: tensor<8xf32> {exec.tier}, %g: tensor<8xf32>)
        -> (tensor<8xf32> {exec.alias = 0}, tensor<8xf32> {exec.alias = 1}) {
      %1 = exec.fetch %m : tensor<8xf32>
      %0:2 = exec.launch @update(%w, %1, %g) : ...
      %2 = exec.evict %0#1 : tensor<8xf32> into %m : tensor<8xf32>
      return %0#0, %2 : tensor<8xf32>, tensor<8xf32>
    }
    ```
  }];
  let dependentDialects = ["::cleave::exec::ExecDialect"];
  let options = [
    Option<"kinds", "kinds", "std::string", "\"\"",
           "What is offloaded: state, masters and saved, with commas between">,
    Option<"minSavedBytes", "min-saved-bytes", "int64_t", "4096",
           "The least bytes of a saved value that is offloaded">,
  ];
}

def MergeLaunches : Pass<"exec-merge-launches", "::mlir::ModuleOp"> {
  let summary = "Lets one launch run many uses of a kernel, for GPUs";
  let description = [{
    Launches of one kernel in one part that do not depend on each other become
    one with several `uses`, where that of the first or of the last was, as far
    as its addresses fit into the parameters of a launch. Commands are in the
    order that memory planning chooses. The peak of a part stays, but for a
    thousandth of it or a 64th of `moved-bytes`, and what a part computes for
    itself lives no longer than before if it has more than `moved-bytes`.
    ```mlir
    %0 = exec.launch @mul_reduce(%g0) : (tensor<768xf32>) -> tensor<f32>
    %1 = exec.launch @mul_reduce(%g1) : (tensor<768xf32>) -> tensor<f32>
    // becomes
    %0:2 = exec.launch @mul_reduce(%g0, %g1) {uses = 2 : i64}
        : (tensor<768xf32>, tensor<768xf32>) -> (tensor<f32>, tensor<f32>)
    ```
  }];
  let options = [
    Option<"threads", "threads", "int64_t", "1",
           "Number of threads for which scratch memory is planned">,
    Option<"movedBytes", "moved-bytes", "int64_t", "4194304",
           "The most bytes that live longer because one launch is moved">,
  ];
  let dependentDialects = ["::cleave::exec::ExecDialect"];
}

def PlanMemory : Pass<"exec-plan-memory", "::mlir::ModuleOp"> {
  let summary = "Assigns every buffer of every action an offset in one arena";
  let description = [{
    Orders the commands of each part so that memory is released early, lets
    results take the memory of dead operands, and packs all buffers over the
    whole schedule. Parameters, state, inputs, constants and small outputs have
    fixed offsets that all entries share; the memory after them is used by each
    entry in turn. Repeated actions share offsets. Values of the second tier
    have offsets in it; fetches begin some commands before their first reader.
    The decisions are recorded in the IR:

    | attribute | on | meaning |
    |---|---|---|
    | `exec.arena_bytes`, `exec.threads` | module | size of the arena; threads that scratch is planned for |
    | `exec.tier_bytes` | module, entries | size of the second tier, if it holds anything |
    | `exec.offset` | an entry's arguments and results, `exec.constant` | bytes from the arena's start |
    | `exec.memory` | part | bytes and kind of each of its buffers |
    | `exec.buffer` | a part's arguments | index of its buffer |
    | `exec.buffers`, `exec.scratch` | ops of a part | buffers of the results; of scratch memory |
    | `offsets` | `exec.run` | bytes from the arena's start of each of the part's buffers |
    | `exec.peak`, `exec.lower_bound`, `exec.live` | entry | bytes used behind the fixed places; the least any packing needs; what is in use at that time |
    | `exec.peak_time`, `exec.profile` | entry | the action and command of the peak; with `profile`, the bytes in use over all actions, by kind (MemoryKind.h) |
  }];
  let dependentDialects = ["::cleave::exec::ExecDialect"];
  let options = [
    Option<"threads", "threads", "int64_t", "1",
           "Number of threads for which scratch memory is planned">,
    Option<"profile", "profile", "bool", "false",
           "Also record the bytes in use over each entry, by kind">,
    Option<"prefetchBytes", "prefetch-bytes", "int64_t", "33554432",
           "The most bytes of fetches that begin before the command before "
           "their reader has ended">,
  ];
}

def VerifyExecutable : Pass<"exec-verify-executable", "::mlir::ModuleOp"> {
  let summary = "Verifies that no decision is left";
  let description = [{
    The end of the phase `executable`:
    - Parts are made of commands, views, joins and constants alone.
    - The bytes of the arena are a constant of the module; each position of a
      pipeline has its own, of which that is the largest.
    - Each argument, result and constant of an entry has an offset at which it
      is in the arena, or in the second tier.
    - Each argument, result and scratch memory of a command has a buffer of its
      part, and each action an offset for each buffer, at which it is in the
      arena or in the second tier.
  }];
}

#endif // CLEAVE_DIALECT_EXEC_TRANSFORMS_PASSES_TD
