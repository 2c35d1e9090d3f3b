//===----------------------------------------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_SPMD_IR_SPMDATTRIBUTES_TD
#define CLEAVE_DIALECT_SPMD_IR_SPMDATTRIBUTES_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"

def Spmd_Dialect : Dialect {
  let name = "spmd";
  let cppNamespace = "::cleave::spmd";
  let summary = "Device meshes, shardings and collectives";
  let description = [{
    A mesh has named axes. A sharding gives, for each dimension of a tensor, the
    axes over which it is sharded. It is an attribute, never part of a type:

    | attribute | on | meaning |
    |---|---|---|
    | `spmd.sharding` | argument, result of a function | its sharding |
    | `spmd.shardings` | op | the shardings of its results |
    | `spmd.global_type` | argument, result of a function | its type before partitioning |
    | `spmd.global_types` | op | the types of its results before partitioning |

    An axis is *sequential* when its positions run one after the other on the
    same device: the micro-batch is one.
  }];
  let dependentDialects = ["::cleave::graph::GraphDialect"];
  let useDefaultAttributePrinterParser = 1;
  let extraClassDeclaration = [{
    void registerAttributes();
  }];
  let hasOperationAttrVerify = 1;
  let hasRegionArgAttrVerify = 1;
  let hasRegionResultAttrVerify = 1;
}

class Spmd_Attr<string name, string attrMnemonic> : AttrDef<Spmd_Dialect, name> {
  let mnemonic = attrMnemonic;
}

/// Arrays of plain structures, which copy what they refer to.
class Spmd_ArrayParameter<string type> : AttrOrTypeParameter<type, ""> {
  let allocator = "$_dst = ::cleave::spmd::copyAll($_allocator, $_self);";
}
def Spmd_AxisArray
    : Spmd_ArrayParameter<"::llvm::ArrayRef<::cleave::spmd::AxisRef>">;
def Spmd_DimArray
    : Spmd_ArrayParameter<"::llvm::ArrayRef<::cleave::spmd::DimSharding>">;
def Spmd_PartialArray
    : Spmd_ArrayParameter<"::llvm::ArrayRef<::cleave::spmd::PartialAxis>">;

def Spmd_AxesAttr : Spmd_Attr<"Axes", "axes"> {
  let summary = "A list of mesh axes and sub-axes";
  let description = "`#spmd.axes<{\"dp\", \"tp\":(1)2}>`";
  let parameters = (ins
      Spmd_AxisArray:$axes);
  let hasCustomAssemblyFormat = 1;
}

def Spmd_ShardingAttr : Spmd_Attr<"Sharding", "sharding"> {
  let summary = "The axes over which each dimension of a tensor is sharded";
  let description = [{
    The axes of a dimension are listed major to minor; `?` lets propagation add
    axes. `partial` lists axes along which each position holds a summand (or, with
    `max` and `min`, a candidate) of the value. `"tp":(1)2` is a sub-axis: the
    digit of size 2 of `"tp"` whose more significant digits have product 1.
    ```mlir
    #spmd.sharding<@mesh, [ {"dp", "cp"}, {?}, {"tp":(1)2} ], partial = {"ep", max "x"}>
    ```
  }];
  let parameters = (ins "::mlir::FlatSymbolRefAttr":$mesh,
      Spmd_DimArray:$dims,
      Spmd_PartialArray:$partial);
  let extraClassDeclaration = [{
    /// The sharding as data for the algebra.
    ::cleave::spmd::Sharding getSharding() const;
    static ShardingAttr get(::mlir::FlatSymbolRefAttr mesh,
                            const ::cleave::spmd::Sharding &sharding);
  }];
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

#endif // CLEAVE_DIALECT_SPMD_IR_SPMDATTRIBUTES_TD
