//===- Generator.h - Draws one random model ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_TESTING_GENERATOR_H
#define CLEAVE_LIB_TESTING_GENERATOR_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Testing/RandomGraph.h"

namespace cleave {

using Shape = llvm::SmallVector<int64_t, 4>;

/// A value, and the dimension that holds samples: its major part, when other
/// dimensions were merged into it; -1 when the value is the same for all.
struct Item {
  mlir::Value value;
  int64_t batchDim = -1;

  llvm::ArrayRef<int64_t> shape() const {
    return llvm::cast<mlir::RankedTensorType>(value.getType()).getShape();
  }
  int64_t rank() const { return shape().size(); }
  int64_t last() const { return shape().back(); }
};

/// Draws one model. Each `add...` appends ops to the pool, or nothing where
/// the value that was picked does not suit.
class Generator {
public:
  Generator(mlir::MLIRContext *context, uint64_t seed,
            const RandomGraphOptions &options)
      : rng(seed), options(options), builder(context),
        loc(mlir::UnknownLoc::get(context)),
        element(options.element == "f64" ? mlir::Type(builder.getF64Type())
                                         : mlir::Type(builder.getF32Type())) {}

  RandomGraph run();

private:
  /// Values above this size are not made.
  static constexpr int64_t kLargest = 2048;

  // Arguments and constants.
  mlir::Value argument(llvm::StringRef name, llvm::StringRef role,
                       llvm::ArrayRef<int64_t> shape, mlir::Type type,
                       llvm::function_ref<double()> draw,
                       llvm::ArrayRef<mlir::NamedAttribute> more = {});
  mlir::Value parameter(llvm::ArrayRef<int64_t> shape, double mean = 0,
                        double spread = 0.5);
  mlir::Value input(llvm::ArrayRef<int64_t> shape, mlir::Type type,
                    llvm::function_ref<double()> draw);
  mlir::Value splat(double value);
  mlir::Value rngArgument();
  Item startItem();

  // Picking and bringing into shape.
  Item pick();
  int64_t size(llvm::ArrayRef<int64_t> shape);
  void keep(mlir::Value value, int64_t batchDim) {
    pool.push_back({value, batchDim});
  }
  mlir::Value reshape(mlir::Value value, llvm::ArrayRef<int64_t> shape);
  Item batchFirst(Item item);
  Item sequence(Item item);
  mlir::Value heads(Item sequence, int64_t count, int64_t channels);
  mlir::Value weight(int64_t outputs, int64_t inputs);
  mlir::Value partner(Item item);

  // Steps.
  void addUnary();
  void addGuarded();
  void addBinary();
  void addSkip();
  void addLinear();
  void addContract();
  void addNorm();
  void addSoftmax();
  void addReshape();
  void addTranspose();
  void addReduce();
  void addSliceOrPad();
  void addConcat();
  void addCumulativeSum();
  void addGather();
  void addEmbedding();
  void addSelect();
  void addDropout();
  void addAttention();
  void addPatches();
  void addCast();
  void addParameterOnly();
  mlir::Value buildLoss();

  int64_t countOps() { return std::distance(block->begin(), block->end()); }

  Random rng;
  RandomGraphOptions options;
  mlir::OpBuilder builder;
  mlir::Location loc;
  mlir::Type element;
  mlir::Block *block = nullptr;
  llvm::SmallVector<Item> pool;
  llvm::SmallVector<Item> parameters;
  llvm::SmallVector<mlir::DictionaryAttr> argumentAttributes;
  NamedTensors inputs;
  mlir::Value rngValue;
  int64_t names = 0, dropouts = 0;
  bool isDerivative = true;
};

} // namespace cleave

#endif // CLEAVE_LIB_TESTING_GENERATOR_H
