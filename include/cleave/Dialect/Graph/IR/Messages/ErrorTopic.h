//===- ErrorTopic.h - What an error is about --------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// What an error is about, for a front end that says more of it in words of its
/// own: it decides by this and not by the text of the message.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_IR_MESSAGES_ERRORTOPIC_H
#define CLEAVE_DIALECT_GRAPH_IR_MESSAGES_ERRORTOPIC_H

#include "mlir/IR/Diagnostics.h"
#include <optional>

namespace cleave::graph {

enum class ErrorTopic : uint8_t {
  /// A part of the batch needs the samples of another one.
  CoupledSamples
};

inline void setTopic(mlir::InFlightDiagnostic &error, ErrorTopic topic) {
  if (mlir::Diagnostic *diagnostic = error.getUnderlyingDiagnostic())
    diagnostic->getMetadata().push_back(
        mlir::DiagnosticArgument(static_cast<int64_t>(topic)));
}

inline bool isAbout(mlir::Diagnostic &diagnostic, ErrorTopic topic) {
  return llvm::any_of(
      diagnostic.getMetadata(), [&](const mlir::DiagnosticArgument &fact) {
        return fact.getKind() ==
                   mlir::DiagnosticArgument::DiagnosticArgumentKind::Integer &&
               fact.getAsInteger() == static_cast<int64_t>(topic);
      });
}

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_IR_MESSAGES_ERRORTOPIC_H
