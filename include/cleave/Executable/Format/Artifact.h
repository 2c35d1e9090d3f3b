//===- Artifact.h - A program and its kernels -------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FORMAT_ARTIFACT_H
#define CLEAVE_EXECUTABLE_FORMAT_ARTIFACT_H

#include "cleave/Executable/Format/ShardLayout.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <functional>

namespace cleave::runtime {

/// The version of the interface between kernels and runtime; an artifact
/// exports that for which it was compiled as `cleave_abi_version`.
inline constexpr uint32_t kAbiVersion = 2;

/// The signature of a kernel function, exported under its symbol with this
/// prefix. The code generator writes it with the code: it does not depend on
/// the program.
inline constexpr const char *kSignaturePrefix = "cleave_signature_";
struct KernelSignature {
  enum Stage : uint32_t { Only, First, Second };
  /// The number of addresses that it reads from `args`.
  uint32_t arguments;
  /// Whether it is the first or the second of two stages, which need scratch
  /// memory.
  Stage stage;
};

/// The code for a device that is not the processor, such as a cubin: its bytes,
/// and how many there are as a `uint64_t`.
inline constexpr const char *kImageSymbol = "cleave_image";
inline constexpr const char *kImageSizeSymbol = "cleave_image_size";
/// The same code as PTX, text that ends with a zero, from which a driver makes
/// the code of a later device.
inline constexpr const char *kPtxSymbol = "cleave_ptx";

/// Exported by an artifact that ends with `artifactEnd`; those of earlier
/// versions do not.
inline constexpr const char *kEndSymbol = "cleave_file_hash";
/// What a file of these bytes has behind them: the loader trusts its tables, so
/// that all of the file is compared before it is loaded.
std::string artifactEnd(llvm::StringRef bytes);

/// The address of a kernel, or null.
using SymbolResolver = std::function<void *(llvm::StringRef)>;

/// A validated program for each pipeline position, with the addresses of its
/// kernels.
class Artifact {
public:
  Artifact(Artifact &&other) noexcept;
  Artifact &operator=(Artifact &&other) noexcept;
  ~Artifact();

  /// Opens a shared object that exports
  ///   const char cleave_program[];            the program, or programs, as
  ///   JSON const uint64_t cleave_program_size;     its bytes const uint32_t
  ///   cleave_abi_version;
  /// and each kernel by its symbol, with its signature.
  static llvm::Expected<Artifact> open(llvm::StringRef path);

  /// Takes programs whose kernels are in this process; kernels that have a
  /// signature are checked against it. The code must outlive the artifact.
  static llvm::Expected<Artifact> create(std::vector<Program> positions,
                                         SymbolResolver resolver);

  /// The data common to all positions: every tensor (with its offset at one of
  /// them), the entries without their actions, and the size of the largest
  /// arena.
  const Program &getProgram() const { return summary; }
  /// The program of each pipeline position.
  llvm::ArrayRef<Program> getPositions() const { return positions; }
  const Program &programOf(int64_t rank) const {
    return positions[static_cast<size_t>(positionOf(summary, rank))];
  }
  /// Hashes of the program's text and of the whole file; empty if the program
  /// was made in this process.
  const std::string &getProgramHash() const { return programHash; }
  const std::string &getFileHash() const { return fileHash; }
  /// The address of a kernel, or null.
  void *lookup(llvm::StringRef symbol) const { return resolver(symbol); }

private:
  Artifact() = default;
  /// Fails if a kernel that a program names is missing, or has another
  /// signature than the program's call; with `strict`, also if it has no
  /// signature.
  llvm::Error checkSymbols(bool strict) const;
  void summarise();

  std::vector<Program> positions;
  Program summary;
  SymbolResolver resolver;
  std::string programHash, fileHash;
  void *handle = nullptr;
  /// The file that `handle` was opened from, which has no name of its own; -1
  /// if there is none. While it is open, no other library has its path, by
  /// which the loader knows what is loaded.
  int copy = -1;
};

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FORMAT_ARTIFACT_H
