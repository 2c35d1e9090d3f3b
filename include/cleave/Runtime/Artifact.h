//===- Artifact.h - A program and its kernels -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_ARTIFACT_H
#define CLEAVE_RUNTIME_ARTIFACT_H

#include "cleave/Runtime/Placement.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <functional>

namespace cleave::runtime {

/// The interface between kernels and runtime; an artifact states the one it
/// was compiled for in `cleave_abi_version`.
inline constexpr uint32_t kAbiVersion = 1;

/// The address of a kernel, or null.
using SymbolResolver = std::function<void *(llvm::StringRef)>;

/// A validated program, that of each position of its pipeline, with the
/// addresses of their kernels.
class Artifact {
public:
  Artifact(Artifact &&other) noexcept;
  Artifact &operator=(Artifact &&other) noexcept;
  ~Artifact();

  /// Opens a shared object that exports
  ///   const char cleave_program[];            the program, or programs, as
  ///   JSON const uint64_t cleave_program_size;     its bytes const uint32_t
  ///   cleave_abi_version;
  /// and each kernel by its symbol.
  static llvm::Expected<Artifact> open(llvm::StringRef path);

  /// Takes programs whose kernels are in this process. Code must outlive the
  /// artifact.
  static llvm::Expected<Artifact> create(std::vector<Program> positions,
                                         SymbolResolver resolver);

  /// What all positions have in common: every tensor (whose offset is that at
  /// one of them), the entries without their actions, and the largest arena.
  const Program &getProgram() const { return summary; }
  /// What each position of the pipeline runs.
  llvm::ArrayRef<Program> getPositions() const { return positions; }
  const Program &programOf(int64_t rank) const {
    return positions[static_cast<size_t>(positionOf(summary, rank))];
  }
  /// The address of a kernel, or null.
  void *lookup(llvm::StringRef symbol) const { return resolver(symbol); }

private:
  Artifact() = default;
  /// Fails if a kernel that a program names is missing.
  llvm::Error checkSymbols() const;
  void summarise();

  std::vector<Program> positions;
  Program summary;
  SymbolResolver resolver;
  void *handle = nullptr;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_ARTIFACT_H
