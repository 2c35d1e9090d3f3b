//===- Chain.h - A pipeline whose stages form a chain -----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What generators and the search work on: forward F, the two halves I and W
/// of backward, and whole backward B, of stages of which each reads its
/// neighbours alone. Micro-batches are alike, so those of one part and stage
/// may come in their order: an order is a word for each device, without
/// micro-batches. (Given any order, let the k-th run of a part in a stage do
/// micro-batch k: whenever k runs of it have begun, k runs of what it reads
/// have ended, so nothing starts later, and as much is saved.)
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_PIPE_IR_CHAIN_H
#define CLEAVE_LIB_DIALECT_PIPE_IR_CHAIN_H

#include "cleave/Dialect/Pipe/IR/Schedule.h"
#include "cleave/Dialect/Pipe/IR/StageMap.h"
#include <array>
#include <limits>

namespace cleave::pipe {

/// The parts of a stage.
enum Kind : unsigned char { F, I, W, B };

/// One letter of a word.
struct Letter {
  Kind kind;
  int16_t stage;
  bool operator==(const Letter &other) const = default;
};
using Word = std::vector<Letter>;
using Words = std::vector<Word>;

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct Chain {
  Chain(const StageMap &map, int64_t stages, int64_t microBatches);

  StageMap map;
  int64_t stages, microBatches;
  /// Of each stage, what F, I, W and B take.
  std::vector<std::array<double, 4>> cost;
  /// Of each stage, what it takes to move its F to the next stage, and its I
  /// (or B) to the one before; 0 within a device.
  std::vector<double> forwardMove, backwardMove;
  /// Of each stage, what an F saves until its W or B.
  std::vector<int64_t> saved;
  /// The most that each device may have saved.
  std::vector<int64_t> limit;
  /// Whether backward may be split.
  bool split = true;
  /// The stages of each device.
  std::vector<std::vector<int16_t>> own;

  /// When the last letter ends; never, if the words deadlock or exceed a
  /// limit.
  double evaluate(const Words &words) const;
  /// Whether a device has F before I before W of each stage, and keeps its
  /// limit.
  bool isLegal(const Word &word, int64_t device) const;
  /// No order ends earlier.
  double lowerBound() const;

  Schedule toSchedule(const Words &words, bool update) const;
  /// The words of a schedule of these parts; nothing for one that does not
  /// run each in the order of micro-batches.
  std::optional<Words> toWords(const Schedule &schedule) const;
};

/// How a device that is free chooses.
struct Policy {
  /// Of what can start, that of the least rank is taken.
  std::array<double, 2> rank = {1, 0}; ///< Of F and I.
  /// Among stages of a device, in favour of late ones (1) or early ones (-1).
  double lateForward = 1, lateBackward = -1;
  /// W runs when nothing else can; with this, only if it ends before the next
  /// thing known to come, or when what it frees is needed.
  bool patient = false;
  /// B in place of I and W.
  bool whole = false;
  /// At most so many micro-batches between F and I of a stage; empty: any
  /// number.
  std::vector<int64_t> ahead = {};
  /// The order of F and I on each device, which leaves the choice of W alone;
  /// letters W in it are skipped.
  const Words *order = nullptr;
};

/// Each device runs, whenever it is free, what `policy` says. Keeps the limits
/// of `chain`, which must be at least the sum of what one micro-batch saves on
/// a device, or the result is empty.
Words chooseGreedily(const Chain &chain, const Policy &policy);

} // namespace cleave::pipe

#endif // CLEAVE_LIB_DIALECT_PIPE_IR_CHAIN_H
