//===- DumpPhases.h - Modules of a compilation in files ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_DUMPPHASES_H
#define CLEAVE_PIPELINES_DUMPPHASES_H

#include "cleave/Pipelines/Compile.h"

namespace cleave {

/// Writes the module of each phase of one compilation, as --dump-phases asks
/// for: `0-model.mlir` to `5-executable.mlir`, which `cleave-opt` reads. The
/// first line of a file is the command that makes it of the file before.
class PhaseDump {
public:
  /// A second compilation of a process that names the same folder writes to
  /// its folder `2`, and so on.
  explicit PhaseDump(const CompileOptions &options);

  /// Writes `module`, which `options` have led to `phase`; does nothing where
  /// no folder is given. Reports a file that cannot be written.
  llvm::LogicalResult write(mlir::ModuleOp module, Phase phase,
                            const CompileOptions &options) const;

private:
  std::string folder;
};

} // namespace cleave

#endif // CLEAVE_PIPELINES_DUMPPHASES_H
