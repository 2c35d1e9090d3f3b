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

/// A value, and the dimension that holds samples: its major part, if other
/// dimensions were merged into it; -1 if the value is the same for all samples.
struct Item {
  mlir::Value value;
  int64_t batchDim = -1;

  llvm::ArrayRef<int64_t> shape() const {
    return llvm::cast<mlir::RankedTensorType>(value.getType()).getShape();
  }
  int64_t rank() const { return shape().size(); }
  int64_t last() const { return shape().back(); }
};

/// Draws one model. Each `add...` appends ops to the pool, or nothing if the
/// chosen value is not suitable.
class Generator {
public:
  Generator(mlir::MLIRContext *context, uint64_t seed,
            const RandomGraphOptions &options)
      : rng(seed), options(options), builder(context),
        loc(mlir::UnknownLoc::get(context)),
        element(options.element == "f64" ? mlir::Type(builder.getF64Type())
                                         : mlir::Type(builder.getF32Type())),
        hasTwins(Random(seed ^ 0x7417).chance(0.3)),
        hasWritten(Random(seed ^ 0xb0f5).chance(0.25)),
        hasMixture(Random(seed ^ 0xe8be).chance(0.15)),
        hasRows(Random(seed ^ 0x90c5).chance(0.15)),
        hasProjections(Random(seed ^ 0x94a0).chance(0.3)) {}

  RandomGraph run();

private:
  /// The largest size of a value.
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

  // Choosing values and changing their shapes.
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

  // Kinds of ops.
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
  void addTwins();
  void addProjections();
  void addWritten();
  void addMixture();
  void addRowsOfExperts();
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
  /// New values of buffers that the model writes, and the buffers' names.
  llvm::SmallVector<std::pair<mlir::Value, std::string>> written;
  mlir::Value rngValue;
  int64_t names = 0, dropouts = 0;
  bool isDerivative = true;
  /// Whether two parameters have one gradient, the model writes buffers, has a
  /// mixture of experts, and several products of one value: drawn separately,
  /// which leaves other models unchanged.
  bool hasTwins, hasWritten, hasMixture, hasRows, hasProjections;
};

} // namespace cleave

#endif // CLEAVE_LIB_TESTING_GENERATOR_H
