//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_EXEC_IR_EXECDIALECT_TD
#define CLEAVE_DIALECT_EXEC_IR_EXECDIALECT_TD

include "mlir/IR/OpBase.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Exec_Dialect : Dialect {
  let name = "exec";
  let cppNamespace = "::cleave::exec";
  let summary = "How it runs: kernels, library calls, offsets in one arena";
  let description = [{
    The form in which every decision has been taken. Values are tensors that
    stand for memory; a tensor's encoding, `#exec.layout`, is its layout.
    `exec.kernel` holds generated code in the kernel form; commands call it and
    the libraries; memory planning gives every value an offset.
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect",
                           "::cleave::spmd::SpmdDialect"];
  let useDefaultAttributePrinterParser = 1;
  let hasOperationAttrVerify = 1;
  let hasRegionArgAttrVerify = 1;
  let hasRegionResultAttrVerify = 1;
}

class Exec_Op<string mnemonic, list<Trait> traits = []>
    : Op<Exec_Dialect, mnemonic, traits>;

class Exec_Attr<string name, string attrMnemonic, list<Trait> traits = []>
    : AttrDef<Exec_Dialect, name, traits> {
  let mnemonic = attrMnemonic;
}

def Exec_LayoutAttr : Exec_Attr<"Layout", "layout"> {
  let summary = "The layout of a tensor in its buffer";
  let description = [{
    One stride per dimension and an offset, in elements. A stride of 0 repeats
    a value. A tensor without this encoding is dense in row-major order at
    offset 0.
    ```mlir
    tensor<4x12x512x64xf32, #exec.layout<[1179648, 64, 2304, 1], offset = 768>>
    ```
  }];
  let parameters = (ins ArrayRefParameter<"int64_t">:$strides,
                        DefaultValuedParameter<"int64_t", "0">:$offset);
  let assemblyFormat = [{
    `<` `[` $strides `]` (`,` `offset` `=` $offset^)? `>`
  }];
}

/// `#spmd.axes<...>`; including that dialect's own definition would include its
/// enums.
def Exec_MeshAxesAttr
    : Attr<CPred<"::llvm::isa<::cleave::spmd::AxesAttr>($_self)">,
           "axes of a mesh"> {
  let storageType = "::cleave::spmd::AxesAttr";
  let returnType = "::cleave::spmd::AxesAttr";
  let convertFromStorage = "$_self";
}

def Exec_DeviceValuesAttr : Exec_Attr<"DeviceValues", "device_values"> {
  let summary = "Numbers that depend on the rank";
  let description = [{
    One i64 for each dimension of `axes`: its `base`, plus, for each axis of
    that dimension, the `factor` (one for each axis, in order) times the rank's
    coordinate on it. With several rows, each has its own base and all share the
    factors.
    ```mlir
    #exec.device_values<[8, 0] plus #spmd.sharding<@mesh, [{"dp"}, {} ]> times[4]>
    ```
  }];
  let parameters = (ins ArrayRefParameter<"int64_t">:$base,
                        "::cleave::spmd::ShardingAttr":$axes,
                        ArrayRefParameter<"int64_t">:$factors);
  let assemblyFormat = [{
    `<` `[` $base `]` `plus` $axes `times` `[` $factors `]` `>`
  }];
  let genVerifyDecl = 1;
}

def Exec_RepeatAttr : Exec_Attr<"Repeat", "repeat"> {
  let summary = "Actions that a program repeats without writing them out";
  let description = [{
    The `length` runs of a program from number `first` on are written out
    `times` times, each time with micro-batches greater by `step`. They are
    repeated `more` times after those that are written out, with the same
    increments of micro-batches and of the offsets that they read and write.
    ```mlir
    #exec.repeat<first = 2, length = 4, times = 18, more = 492, step = 1>
    ```
  }];
  let parameters = (ins "int64_t":$first, "int64_t":$length, "int64_t":$times,
                        "int64_t":$more, "int64_t":$step);
  let assemblyFormat = "`<` struct(params) `>`";
}
def Exec_RepeatArrayAttr
    : TypedArrayAttrBase<Exec_RepeatAttr, "repetitions, in order">;

#endif // CLEAVE_DIALECT_EXEC_IR_EXECDIALECT_TD
