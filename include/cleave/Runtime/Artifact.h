//===- Artifact.h - A program and its kernels -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_ARTIFACT_H
#define CLEAVE_RUNTIME_ARTIFACT_H

#include "cleave/Runtime/Program.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <functional>

namespace cleave::runtime {

/// The interface between kernels and runtime; an artifact states the one it
/// was compiled for in `cleave_abi_version`.
inline constexpr uint32_t kAbiVersion = 1;

/// The address of a kernel, or null.
using SymbolResolver = std::function<void *(llvm::StringRef)>;

/// A validated program with the addresses of its kernels.
class Artifact {
public:
  Artifact(Artifact &&other) noexcept;
  Artifact &operator=(Artifact &&other) noexcept;
  ~Artifact();

  /// Opens a shared object that exports
  ///   const char cleave_program[];            the program as JSON
  ///   const uint64_t cleave_program_size;     its bytes
  ///   const uint32_t cleave_abi_version;
  /// and each kernel by its symbol.
  static llvm::Expected<Artifact> open(llvm::StringRef path);

  /// Takes a program whose kernels are in this process. Code must outlive the
  /// artifact.
  static llvm::Expected<Artifact> create(Program program,
                                         SymbolResolver resolver);

  const Program &getProgram() const { return program; }
  /// The address of a kernel, or null.
  void *lookup(llvm::StringRef symbol) const { return resolver(symbol); }

private:
  Artifact() = default;
  /// Fails if a kernel that the program names is missing.
  llvm::Error checkSymbols() const;

  Program program;
  SymbolResolver resolver;
  void *handle = nullptr;
};

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_ARTIFACT_H
