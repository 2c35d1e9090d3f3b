//===- Contraction.h - Contractions by the library --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_RUNTIME_CPU_CONTRACTION_H
#define CLEAVE_RUNTIME_CPU_CONTRACTION_H

#include "cleave/Executable/Format/Program.h"
#include "cleave/Runtime/CPU/ThreadTeam.h"
#include "llvm/Support/Error.h"
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace cleave::runtime {

/// Longer sums are split into pieces of this many products, whose results are
/// added. The library's chains of additions lose accuracy with their length; a
/// piece more costs a pass over C: here up to 2 % of the time, for half of the
/// error.
inline constexpr int64_t kContractionDepth = 512;

/// `sgemm` computes C in square tiles of this size: the library packs operands
/// of the full width, and those of a vocabulary would take 40 MiB more.
inline constexpr int64_t kContractionWidth = 4096;

/// Row-major C = alpha * op(A) * op(B) + beta * C on the threads of the
/// caller's team; on one thread inside a parallel region. Extents of zero are
/// fine, and C is not read when beta is 0.
void sgemm(bool transA, bool transB, int64_t m, int64_t n, int64_t k,
           float alpha, const float *a, int64_t lda, const float *b,
           int64_t ldb, float beta, float *c, int64_t ldc);

/// The same of factors of bf16.
void gemmOfBF16(bool transA, bool transB, int64_t m, int64_t n, int64_t k,
                float alpha, const uint16_t *a, int64_t lda, const uint16_t *b,
                int64_t ldb, float beta, float *c, int64_t ldc);

/// Why the library has failed in this process, or "": its results must then not
/// be used.
std::string libraryFailure();

/// The ways to compute a contraction. Their results differ in rounding.
enum class ContractionMethod : uint8_t {
  Sgemm,  ///< the library's sgemm, or that of bf16, on the whole team
  Matmul, ///< the library's matmul primitive on the whole team
  Batch,  ///< one sgemm per thread, over the batch
  /// bf16 operands made f32 piece by piece, and sgemm: the fastest where the
  /// processor multiplies bf16 no faster than f32 (without AMX)
  Widened
};

/// A contraction with its operands resolved and its method chosen.
class Contraction {
public:
  Contraction(const ContractCommand &command, char *a, char *b, char *c,
              ContractionMethod method);
  Contraction(Contraction &&) noexcept;
  Contraction &operator=(Contraction &&) noexcept;
  ~Contraction();

  /// False if the library has no such primitive.
  bool isValid() const { return valid; }
  /// Bytes of workspace that `execute` needs.
  int64_t workspaceBytes() const;
  void execute(const ThreadTeam &team, char *workspace) const;

private:
  void executeWidened(const ThreadTeam &team, char *workspace) const;

  struct Primitive;
  ContractCommand command;
  const char *a, *b;
  float *c;
  ContractionMethod method;
  bool valid = true;
  /// One for each piece of the sum.
  std::vector<Primitive> primitives;
};

/// Chooses methods by measurement, once for each distinct shape. Choices are
/// kept in a file, so that later runs on this machine compute the same bits.
class ContractionTuner {
public:
  /// `file` may be empty: then measurements are kept in this process only, as
  /// they are, with a warning, where it is a file of something else.
  /// Without `measure`, shapes that are in neither table nor file use sgemm.
  ContractionTuner(std::string file, bool measure);

  /// $CLEAVE_TUNING ("off" for no measurement and no file), or else a file in
  /// the user's cache folder.
  static ContractionTuner fromEnvironment();

  /// The method for `command`; measures with the given operands, which must
  /// hold zeros (and still do afterwards).
  ContractionMethod choose(const ContractCommand &command, char *a, char *b,
                           char *c, const ThreadTeam &team);

  /// Choices by key, for a checkpoint; a resumed run uses them.
  const std::map<std::string, ContractionMethod> &getChoices() const {
    return used;
  }
  void preset(const std::string &key, ContractionMethod method) {
    table[key] = method;
  }

  /// Writes new choices to the file. A file that cannot be written is not an
  /// error: the next run measures again.
  void save();

private:
  /// Reads what `save` wrote. Returns false for any other text.
  bool readTable(llvm::StringRef text);

  std::string file;
  bool measure;
  bool changed = false;
  std::map<std::string, ContractionMethod> table;
  std::map<std::string, ContractionMethod> used;
};

llvm::StringRef methodName(ContractionMethod method);

/// The method of this name, of those among which is chosen by measurement.
std::optional<ContractionMethod> measuredMethod(llvm::StringRef name);

} // namespace cleave::runtime

#endif // CLEAVE_RUNTIME_CPU_CONTRACTION_H
