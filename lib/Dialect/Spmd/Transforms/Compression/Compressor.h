//===- Compressor.h - What a compressor of gradients is ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// A compressor replaces the sum of a gradient over workers by one of less
/// data. It works on whole tensors, of which the workers are the first
/// dimension.
///
/// | file | compressor |
/// |---|---|
/// | PowerSgd.cpp | `powersgd`: a product of two matrices of low rank |
/// | LargestElements.cpp | `topk`: the largest elements of each worker |
/// | Threshold.cpp | `threshold`: the elements above a threshold |
/// | Quantized.cpp | `int8`, `1bit`: codes, summed by the owner of a piece |
///
/// Compressors.cpp has the table and reads settings; CompressGradients.cpp
/// finds the gradients (WorkerGradients.h), adds the residual, calls the
/// compressor, and packs what is exchanged (PackedCollectives.h). Units.h is
/// what a compressor chooses from: tensors, or shards of them; Sparse.h sums
/// chosen elements.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_COMPRESSOR_H
#define CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_COMPRESSOR_H

#include "cleave/Dialect/Graph/IR/Formula.h"
#include "llvm/ADT/StringMap.h"
#include <functional>
#include <memory>

namespace cleave::spmd {

using graph::Formula;
using graph::tensorTypeOf;

/// How state goes on in a program with other workers, of another number.
struct OtherWorkers {
  /// Only the sum over the first dimension, the workers, counts: others take
  /// shares of it.
  bool summed = false;
  /// Its elements in order (of a worker, if `summed`) are so many, and zeros
  /// behind them, of which there may be another number; 0: all elements.
  int64_t elements = 0;
};

/// The gradient of one parameter, in the shape of its framework.
struct WorkerTerms {
  graph::Formula f;
  /// The terms of each worker with its residual: `[workers, shape...]`.
  mlir::Value terms;
  /// The number of elements of the parameter on one rank, by dimension of the
  /// shape: less than the shape where the parameter is sharded.
  llvm::SmallVector<int64_t> shard;
  /// Adds a tensor of state, which begins as zero, placed as `place` says.
  std::function<mlir::Value(llvm::StringRef slot, mlir::RankedTensorType type,
                            int64_t workers, int64_t units,
                            const OtherWorkers &others)>
      addState;
  /// Gives a tensor of state its next value.
  std::function<void(mlir::Value state, mlir::Value next)> write;
  /// Places `value`: dimension `workers` is sharded over the workers' axis, and
  /// `units` over the axes of the parameter's shards; no dimension for -1.
  std::function<mlir::Value(mlir::Value value, int64_t workers, int64_t units)>
      place;
  /// The sum of `value` over its first dimension, the workers.
  std::function<mlir::Value(mlir::Value value)> sum;

  /// The number of the update, from 1.
  mlir::Value step;
  /// The scale of the loss, which gradients have and state has not; or null.
  mlir::Value lossScale;
  mlir::Value scaled(mlir::Value state) {
    return lossScale ? f.mul(state, lossScale) : state;
  }
  mlir::Value unscaled(mlir::Value value) {
    return lossScale ? f.div(value, lossScale) : value;
  }

  int64_t workers() const { return graph::tensorTypeOf(terms).getDimSize(0); }
  llvm::ArrayRef<int64_t> shape() const {
    return graph::tensorTypeOf(terms).getShape().drop_front();
  }
};

/// What becomes of the terms: their sum, as every worker knows it, and what
/// each worker keeps for the next step. `sum` and the kept terms add up to the
/// sum of the terms.
struct CompressedSum {
  mlir::Value sum, kept;
};

class Compressor {
public:
  virtual ~Compressor() = default;
  /// Why a parameter of this shape, of which a rank holds `shard`, cannot be
  /// compressed although it would be: an error. Empty if it can.
  virtual std::string refusal(llvm::ArrayRef<int64_t> shape,
                              llvm::ArrayRef<int64_t> shard) const {
    return "";
  }
  /// Why a gradient of this shape is not compressed, but summed as it is; empty
  /// if it is compressed.
  virtual std::string whyNot(llvm::ArrayRef<int64_t> shape) const = 0;
  /// Whether the ranks of a worker, if it has several, each compress a piece of
  /// its terms.
  virtual bool choosesFromPieces() const { return false; }
  /// The share of all elements that a worker sends with their indices, if that
  /// is what it sends: a rank receives those of all workers.
  virtual std::optional<double> sharedSparsely() const { return std::nullopt; }
  virtual CompressedSum build(WorkerTerms &terms) const = 0;
};

/// Numbers by name; a setting that is a name has its number in the list.
using CompressorSettings = llvm::StringMap<double>;

/// A setting of a compressor. One without a default must be given.
struct CompressorSetting {
  llvm::StringRef name;
  std::optional<double> value;
  /// What it must be, as text, and whether a number is that.
  llvm::StringRef must;
  bool (*isValid)(double);
  /// The names of the values of a setting that has no number.
  llvm::SmallVector<llvm::StringRef, 2> names = {};
};

/// A row of the table.
struct CompressorKind {
  llvm::StringRef name;
  llvm::SmallVector<CompressorSetting, 4> settings;
  std::unique_ptr<Compressor> (*create)(const CompressorSettings &settings);
};

/// What a tensor of this shape lacks where `smallest` elements are needed.
std::string tooSmall(llvm::ArrayRef<int64_t> shape, int64_t smallest);

const CompressorKind &powerSgdCompressor();
const CompressorKind &topKCompressor();
const CompressorKind &thresholdCompressor();
const CompressorKind &int8Compressor();
const CompressorKind &oneBitCompressor();

/// Settings that compressors of elements have: "smallest", the number of
/// elements from which on a tensor is compressed; "unit", which is "tensor" or
/// "shard".
CompressorSetting smallestSetting();
CompressorSetting unitSetting();

/// Why a tensor of which ranks hold a shard is no unit; empty if they hold all.
std::string splitUnit(llvm::ArrayRef<int64_t> shape,
                      llvm::ArrayRef<int64_t> shard);

/// Creates the compressor that `text`, such as "powersgd,rank=4", describes;
/// otherwise returns null and says why in `error`.
std::unique_ptr<Compressor> createCompressor(llvm::StringRef text,
                                             std::string &error);

} // namespace cleave::spmd

#endif // CLEAVE_LIB_DIALECT_SPMD_TRANSFORMS_COMPRESSION_COMPRESSOR_H
