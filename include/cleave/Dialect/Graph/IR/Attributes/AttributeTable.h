//===- AttributeTable.h - The attributes of a dialect -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Each dialect has one table of the attributes that it puts on ops, on
/// arguments and on results besides those that an op declares: its verifier
/// checks them by it, and refuses other names with the prefix of the dialect.
/// docs/Attributes.md is written from the tables.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_ATTRIBUTETABLE_H
#define CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_ATTRIBUTETABLE_H

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Operation.h"

namespace cleave::graph {

/// The form of an attribute's value.
enum class AttributeForm : uint8_t {
  Unit,
  String,
  Integer, ///< an i64
  Number,  ///< an f64
  Type,
  Elements, ///< dense elements of a tensor
  Integers, ///< array<i64>
  Array,
  Dictionary,
  Other ///< an attribute of the dialect
};

/// What has an attribute.
enum AttributeHolder : unsigned {
  OnOp = 1,
  OnArgument = 2,
  OnResult = 4,
  OnEntry = OnArgument | OnResult
};

/// One attribute, where it was found.
struct AttributeUse {
  mlir::Operation *op;
  mlir::Attribute value;
  /// The type of the argument or result, if it is on one.
  mlir::Type type = {};
  /// All attributes of that argument or result.
  mlir::DictionaryAttr others = {};

  mlir::RankedTensorType tensor() const {
    return mlir::dyn_cast_or_null<mlir::RankedTensorType>(type);
  }
};

/// A row of the table.
struct AttributeRow {
  llvm::StringLiteral name;
  AttributeForm form;
  unsigned holders;
  /// "a string", after "must be".
  llvm::StringLiteral expected;
  llvm::StringLiteral meaning;
  /// Of a value of this form.
  bool (*isValid)(const AttributeUse &use) = nullptr;
};

/// True for an integer that is not negative, or that is positive.
bool isNotNegative(const AttributeUse &use);
bool isPositive(const AttributeUse &use);
/// True for an array of strings, or of dictionaries.
bool holdsStrings(const AttributeUse &use);
bool holdsDictionaries(const AttributeUse &use);

bool hasForm(mlir::Attribute value, AttributeForm form);
/// "unit", "string", ...
llvm::StringRef attributeFormName(AttributeForm form);
/// "op, argument"
std::string attributeHolderNames(unsigned holders);

/// Checks the attribute `name`, which is on `holder`, by `table`.
llvm::LogicalResult verifyAttribute(llvm::ArrayRef<AttributeRow> table,
                                    AttributeHolder holder,
                                    llvm::StringRef name,
                                    const AttributeUse &use);
/// The same for an argument or a result of a function.
llvm::LogicalResult verifyEntryAttribute(llvm::ArrayRef<AttributeRow> table,
                                         AttributeHolder holder,
                                         mlir::Operation *function,
                                         unsigned index,
                                         mlir::NamedAttribute attribute);

/// The attributes of this dialect.
llvm::ArrayRef<AttributeRow> attributeTable();

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_ATTRIBUTES_ATTRIBUTETABLE_H
