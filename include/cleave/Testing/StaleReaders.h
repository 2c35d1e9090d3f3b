//===- StaleReaders.h - Readers of copies that nothing updates --*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Mutation testing of what guards the copies of arguments in a pipeline: in a
/// `scheduled` program, a part is made to read a copy that its position does
/// not update. A further reader changes no result where its copy is updated, so
/// that such readers show what the guards refuse without need.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_TESTING_STALEREADERS_H
#define CLEAVE_TESTING_STALEREADERS_H

#include "cleave/Interpreter/Interpreter.h"
#include "cleave/Testing/Random.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace cleave {

enum class StaleReader : uint8_t {
  /// A part reads a further argument.
  Added,
  /// A part that runs once a step moves to another stage.
  Moved,
  /// One of several positions does not keep its update.
  Dropped
};
inline constexpr unsigned kStaleReaders = 3;
llvm::StringRef staleReaderName(StaleReader kind);

/// A changed program.
struct SeededReader {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  /// A position reads a copy that it does not update; otherwise it updates what
  /// it now reads.
  bool stale = false;
  std::string what;
};

/// A copy of `module` with one change of `kind`. Its module is null if the
/// change drawn is not possible. `schedule` is the generator of its schedule.
SeededReader seedReader(mlir::ModuleOp module, StaleReader kind,
                        llvm::StringRef schedule, Random &random);

/// The findings of the guards on a changed program.
struct ReaderVerdict {
  /// Refused because a copy would not be updated; or for another reason.
  bool rejected = false, malformed = false;
  /// The interpreter, in which such copies are unknown, gives other results.
  bool unequal = false;
};

/// Verifies `changed`, and runs the entries of `expected`, which are the
/// original program's results.
ReaderVerdict
judgeReader(mlir::ModuleOp changed, const NamedTensors &inputs,
            const std::map<std::string, ReferenceResult> &expected);

} // namespace cleave

#endif // CLEAVE_TESTING_STALEREADERS_H
