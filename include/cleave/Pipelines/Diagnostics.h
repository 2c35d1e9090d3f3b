//===- Diagnostics.h - Messages for people ----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_PIPELINES_DIAGNOSTICS_H
#define CLEAVE_PIPELINES_DIAGNOSTICS_H

#include "mlir/IR/Diagnostics.h"
#include <optional>

namespace cleave {

/// While it lives, an error at the place of the error before it is dropped:
/// the first says what is wrong, the next only that this made a caller fail.
/// Stands after the handler that reports.
class OneErrorPerPlace : public mlir::ScopedDiagnosticHandler {
public:
  explicit OneErrorPerPlace(mlir::MLIRContext *context)
      : ScopedDiagnosticHandler(context) {
    setHandler([this](mlir::Diagnostic &diagnostic) {
      if (diagnostic.getSeverity() != mlir::DiagnosticSeverity::Error)
        return mlir::failure();
      bool repeated = last == diagnostic.getLocation();
      last = diagnostic.getLocation();
      return mlir::success(repeated);
    });
  }

private:
  std::optional<mlir::Location> last;
};

} // namespace cleave

#endif // CLEAVE_PIPELINES_DIAGNOSTICS_H
