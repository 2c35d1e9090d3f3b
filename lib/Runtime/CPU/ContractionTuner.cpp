//===- ContractionTuner.cpp - Choice of contraction methods ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// The speed of the library's implementations differs by up to a third depending
// on the shape, the layout and the machine, and simple rules do not predict the
// fastest.
//
//===----------------------------------------------------------------------===//

#include "OneDnn.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Runtime/CPU/Contraction.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/TargetParser/Host.h"

#include <chrono>
#include <cstdlib>
#include <mutex>

using namespace cleave::runtime;

static constexpr llvm::StringLiteral methodNames[] = {"sgemm", "matmul",
                                                      "batch", "widened"};

llvm::StringRef cleave::runtime::methodName(ContractionMethod method) {
  return methodNames[static_cast<size_t>(method)];
}

std::optional<ContractionMethod>
cleave::runtime::measuredMethod(llvm::StringRef name) {
  for (auto method : {ContractionMethod::Sgemm, ContractionMethod::Matmul,
                      ContractionMethod::Widened})
    if (name == methodName(method))
      return method;
  return std::nullopt;
}

/// All properties on which the speed depends, as text.
static std::string keyOf(const ContractCommand &c, int threads) {
  const dnnl_version_t *version = oneDnn().version();
  std::string key;
  llvm::raw_string_ostream os(key);
  os << llvm::sys::getHostCPUName() << " dnnl" << version->major << '.'
     << version->minor << '.' << version->patch << " t" << threads << ' ' << c.m
     << 'x' << c.n << 'x' << c.k << (c.transA ? " T" : " N")
     << (c.transB ? "T" : "N") << " ld" << c.lda << ',' << c.ldb << ',' << c.ldc
     << (c.type == DType::BF16 ? " bf16 or widened" : "")
     << (c.beta == 0.0f ? "" : " accumulate") << " depth" << kContractionDepth
     << " width" << kContractionWidth;
  return key;
}

ContractionTuner::ContractionTuner(std::string path, bool measure)
    : file(std::move(path)), measure(measure) {
  if (file.empty())
    return;
  if (!llvm::sys::fs::exists(file))
    return;
  auto buffer = readFile(file);
  if (buffer && (*buffer)->getBufferSize() == 0)
    return;
  if (buffer && readTable((*buffer)->getBuffer()))
    return;
  if (!buffer)
    llvm::consumeError(buffer.takeError()); // as one of something else
  // Only what was written here is replaced.
  llvm::errs() << "warning: " << file
               << " is not a file of measured contractions: it is left as it "
                  "is, and what is measured is not kept (CLEAVE_TUNING names "
                  "another)\n";
  file.clear();
}

bool ContractionTuner::readTable(llvm::StringRef text) {
  llvm::Expected<llvm::json::Value> value = parseJson(text);
  if (!value) {
    llvm::consumeError(value.takeError());
    return false;
  }
  const llvm::json::Object *object = value->getAsObject();
  if (!object)
    return false;
  std::map<std::string, ContractionMethod> read;
  for (const auto &[key, method] : *object) {
    auto name = method.getAsString();
    if (!name || !llvm::StringRef(key).contains(" dnnl"))
      return false;
    // Another version may have had other methods.
    if (auto known = measuredMethod(*name))
      read[key.str()] = *known;
  }
  for (const auto &[key, method] : read)
    table[key] = method;
  return true;
}

ContractionTuner ContractionTuner::fromEnvironment() {
  if (const char *text = std::getenv("CLEAVE_TUNING")) {
    if (llvm::StringRef(text) == "off")
      return ContractionTuner("", /*measure=*/false);
    return ContractionTuner(text, /*measure=*/true);
  }
  llvm::SmallString<128> path;
  if (!llvm::sys::path::cache_directory(path))
    return ContractionTuner("", /*measure=*/true);
  llvm::sys::path::append(path, "cleave", "contractions.json");
  return ContractionTuner(std::string(path), /*measure=*/true);
}

/// The minimum time of a few runs in seconds; long ones run fewer times,
/// because a cold start hardly affects them.
static double measureSeconds(const Contraction &contraction,
                             const ThreadTeam &team, char *workspace) {
  using Clock = std::chrono::steady_clock;
  double best = 1e30, total = 0;
  for (int i = 0; i < 5 && (i < 2 || total < 0.02); ++i) {
    auto start = Clock::now();
    contraction.execute(team, workspace);
    double seconds =
        std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds > 0.03)
      return std::min(best, seconds);
    // The first run also warms caches.
    if (i > 0)
      best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

/// Measurements of this process, for sessions without a common file.
static std::map<std::string, ContractionMethod> &measured() {
  static std::map<std::string, ContractionMethod> table;
  return table;
}

ContractionMethod ContractionTuner::choose(const ContractCommand &command,
                                           char *a, char *b, char *c,
                                           const ThreadTeam &team) {
  double flops = 2.0 * command.m * command.n * command.k;
  // Small products of a batch do not keep a team busy; large ones do.
  if (command.batch > 1)
    return command.batch >= team.size() || flops < 4e6
               ? ContractionMethod::Batch
               : ContractionMethod::Sgemm;
  if (flops == 0 || command.alpha != 1.0f)
    return ContractionMethod::Sgemm;
  std::string key = keyOf(command, team.size());
  // Two measurements at once would disturb each other.
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  auto it = table.find(key);
  ContractionMethod method = ContractionMethod::Sgemm;
  if (it != table.end()) {
    method = it->second;
  } else if (!measure) {
    // No measurement exists, and measuring is off.
  } else if (auto known = measured().find(key); known != measured().end()) {
    method = known->second;
  } else {
    double best = 0;
    for (auto candidate : {ContractionMethod::Sgemm, ContractionMethod::Matmul,
                           ContractionMethod::Widened}) {
      Contraction contraction(command, a, b, c, candidate);
      if (!contraction.isValid())
        continue;
      std::vector<char> workspace(
          static_cast<size_t>(contraction.workspaceBytes()) + 64);
      auto aligned =
          (reinterpret_cast<uintptr_t>(workspace.data()) + 63) & ~uintptr_t(63);
      double seconds =
          measureSeconds(contraction, team, reinterpret_cast<char *>(aligned));
      // A small gain may be noise.
      if (candidate != ContractionMethod::Sgemm && seconds >= 0.97 * best)
        continue;
      best = seconds;
      method = candidate;
    }
    table[key] = measured()[key] = method;
    changed = true;
  }
  used[key] = method;
  return method;
}

void ContractionTuner::save() {
  if (file.empty() || !changed)
    return;
  changed = false;
  llvm::json::Object object;
  // Another process may have written since: the first measurement is kept.
  ContractionTuner current(file, false);
  for (const auto *choices : {&table, &current.table})
    for (const auto &[key, method] : *choices)
      object[key] = methodName(method);
  // Without the file the next run measures again.
  if (llvm::Error error = createFolders(llvm::sys::path::parent_path(file)))
    return llvm::consumeError(std::move(error));
  llvm::consumeError(writeFileAtomically(file, [&](llvm::raw_ostream &os) {
    os << llvm::json::Value(std::move(object)) << '\n';
  }));
}
