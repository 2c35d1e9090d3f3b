//===- Workspace.cpp - Memory of library calls ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/CPU/Workspace.h"
#include "cleave/Runtime/CPU/Contraction.h"

#include <algorithm>
#include <set>
#include <tuple>

// Of the OpenMP runtime of the library; see ThreadTeam.cpp.
extern "C" {
int omp_get_max_threads(void);
void omp_set_num_threads(int);
}

using namespace cleave::runtime;

namespace {
/// The number of threads that the library plans its workspace for, in a scope:
/// that of a program, not that of the process that compiles it.
class PlannedThreads {
public:
  explicit PlannedThreads(int threads) : before(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~PlannedThreads() { omp_set_num_threads(before); }
  PlannedThreads(const PlannedThreads &) = delete;
  PlannedThreads &operator=(const PlannedThreads &) = delete;

private:
  int before;
};
} // namespace

int64_t cleave::runtime::workspaceBytes(const Program &program) {
  PlannedThreads planned(std::max(1, program.threads));
  int64_t bytes = 0;
  std::set<std::tuple<DType, int64_t, int64_t, int64_t, bool, bool, int64_t,
                      int64_t, int64_t, bool>>
      seen;
  for (const Part &part : program.parts)
    for (const Command &command : part.commands) {
      const ContractCommand &c = command.contract;
      // Other contractions are not computed by the primitive.
      if (command.kind != CommandKind::Contract || c.batch > 1 ||
          c.alpha != 1.0f || c.m * c.n * c.k == 0 ||
          !seen.insert({c.type, c.m, c.n, c.k, c.transA, c.transB, c.lda, c.ldb,
                        c.ldc, c.beta != 0.0f})
               .second)
        continue;
      for (auto method :
           {ContractionMethod::Matmul, ContractionMethod::Widened}) {
        Contraction contraction(c, nullptr, nullptr, nullptr, method);
        if (contraction.isValid())
          bytes = std::max(bytes, contraction.workspaceBytes());
      }
    }
  return bytes;
}
