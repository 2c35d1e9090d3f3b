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
    without kernel code stay.
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
  let summary = "Assigns every buffer of every action an offset in one arena";
  let description = [{
    Orders the commands of each part so that memory is released early, lets
    results take the memory of dead operands, and packs all buffers over the
    whole schedule. Parameters, state, inputs, constants and small outputs have
    fixed offsets that all entries share; the memory after them is used by each
    entry in turn. Repeated actions share offsets. The decisions are recorded in
    the IR:

    | attribute | on | meaning |
    |---|---|---|
    | `exec.arena_bytes`, `exec.threads` | module | size of the arena; threads that scratch is planned for |
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
  ];
}

#endif // CLEAVE_DIALECT_EXEC_TRANSFORMS_PASSES_TD
