//===- KnownValues.h - Elements that depend on no input ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Patterns ask for the values of tensors: the elements of those that
/// depend on no input and no parameter, such as positions and masks.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_KNOWNVALUES_H
#define CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_KNOWNVALUES_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include <memory>
#include <optional>
#include <variant>
#include <vector>

namespace cleave::graph {

/// The elements of a tensor. Along a dimension in which `stored` has size 1 and
/// `shape` has not, all are equal and one is stored.
class Elements {
public:
  Elements(llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> stored,
           mlir::Type element);

  llvm::ArrayRef<int64_t> getShape() const { return shape; }
  llvm::ArrayRef<int64_t> getStored() const { return stored; }
  mlir::Type getElement() const { return element; }
  /// The number of stored elements.
  size_t size() const { return count; }

  double number(size_t i) const;
  int64_t integer(size_t i) const;
  bool truth(size_t i) const { return integer(i) != 0; }
  /// Rounds to the type of the elements.
  void set(size_t i, double number);
  void set(size_t i, int64_t integer);

  /// For each dimension of `shape`, to which this broadcasts, by how many
  /// stored elements the next one is apart: 0 where all are equal.
  llvm::SmallVector<int64_t> stridesIn(llvm::ArrayRef<int64_t> shape) const;
  /// The same elements by a shape that differs in dimensions of size 1 that
  /// lead.
  Elements withRank(size_t rank) const;

  /// The elements for which `holds` is true.
  template <typename Holds> Elements where(Holds holds) const {
    Elements result(shape, stored,
                    mlir::IntegerType::get(element.getContext(), 1));
    for (size_t i = 0; i < count; ++i)
      result.set(i, static_cast<int64_t>(holds(number(i))));
    return result;
  }
  bool all() const;

private:
  llvm::SmallVector<int64_t> shape, stored;
  mlir::Type element;
  size_t count;
  std::variant<std::vector<uint8_t>, std::vector<int64_t>, std::vector<float>,
               std::vector<double>>
      data;
};

/// Where both are true, of shapes that broadcast.
Elements bothOf(const Elements &a, const Elements &b);

/// The known values of one function.
class KnownValues {
public:
  /// The largest number of elements of a value that is computed.
  static constexpr int64_t limit = int64_t(1) << 28;

  explicit KnownValues(mlir::func::FuncOp function);

  /// The elements of `value`, or null if they are not known.
  const Elements *of(mlir::Value value);

  /// Whether `value` is a float that depends on a trained parameter.
  bool isTrained(mlir::Value value) { return dependence(value).trained; }

private:
  struct Dependence {
    /// Whether it depends on no input and no parameter.
    bool constant = false;
    bool trained = false;
  };
  Dependence dependence(mlir::Value value);
  Dependence dependenceOf(mlir::Operation *op, mlir::Value result);

  llvm::DenseMap<mlir::Value, Dependence> dependences;
  llvm::DenseMap<mlir::Value, std::unique_ptr<Elements>> known;
};

} // namespace cleave::graph

#endif // CLEAVE_LIB_DIALECT_GRAPH_TRANSFORMS_RAISE_KNOWNVALUES_H
