//===- CompileCache.cpp - Programs that were compiled before --------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Pipelines/CompileCache.h"
#include "cleave/Executable/Format/FileHash.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "mlir/IR/Verifier.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/Endian.h"
#include "llvm/TargetParser/Host.h"

#include <cmath>
#include <link.h>
#include <set>

using namespace cleave;
using llvm::StringRef;

//===----------------------------------------------------------------------===//
// What a program follows from
//===----------------------------------------------------------------------===//

namespace {
/// The loaded object that has an address, and the build that it says it is of.
struct LoadedObject {
  uintptr_t address;
  std::string path, build;
};
} // namespace

/// The build of the object that a note of the linker gives.
static void readNotes(StringRef notes, std::string &build) {
  auto word = [&](size_t at) {
    return llvm::support::endian::read32le(notes.data() + at);
  };
  auto aligned = [](size_t size) { return (size + 3) & ~size_t(3); };
  while (notes.size() >= 12) {
    size_t name = aligned(word(0)), content = aligned(word(4));
    if (name + content > notes.size() - 12)
      return;
    if (word(8) == NT_GNU_BUILD_ID &&
        notes.substr(12, 4) == StringRef("GNU\0", 4))
      build = llvm::toHex(notes.substr(12 + name, word(4)), /*LowerCase=*/true);
    notes = notes.drop_front(12 + name + content);
  }
}

static int visitObject(dl_phdr_info *info, size_t, void *data) {
  auto &object = *static_cast<LoadedObject *>(data);
  bool holds = false;
  for (const ElfW(Phdr) &part :
       llvm::ArrayRef(info->dlpi_phdr, info->dlpi_phnum))
    holds |= part.p_type == PT_LOAD &&
             object.address - (info->dlpi_addr + part.p_vaddr) < part.p_memsz;
  if (!holds)
    return 0;
  object.path =
      info->dlpi_name && *info->dlpi_name ? info->dlpi_name : "/proc/self/exe";
  for (const ElfW(Phdr) &part :
       llvm::ArrayRef(info->dlpi_phdr, info->dlpi_phnum))
    if (part.p_type == PT_NOTE)
      readNotes(StringRef(reinterpret_cast<const char *>(info->dlpi_addr +
                                                         part.p_vaddr),
                          part.p_memsz),
                object.build);
  return 1;
}

/// The build of the object with `address`: what its linker noted, or else the
/// hash of its file; empty if neither is known.
static std::string buildOf(const void *address) {
  LoadedObject object{reinterpret_cast<uintptr_t>(address), {}, {}};
  ::dl_iterate_phdr(visitObject, &object);
  if (object.build.empty() && !object.path.empty()) {
    if (auto facts = runtime::hashFile(object.path))
      object.build = facts->hash;
    else
      llvm::consumeError(facts.takeError());
  }
  return object.build;
}

const std::string &cleave::codeIdentity() {
  static const std::string identity = [] {
    double (*root)(double) = &std::cbrt;
    std::string text = "llvm " LLVM_VERSION_STRING;
    for (const void *address :
         {reinterpret_cast<const void *>(&buildOf),
          reinterpret_cast<const void *>(&llvm::sys::getHostCPUName),
          reinterpret_cast<const void *>(&mlir::verify),
          reinterpret_cast<const void *>(root)}) {
      std::string build = buildOf(address);
      if (build.empty())
        return std::string();
      text += " " + build;
    }
    text += " " + llvm::sys::getHostCPUName().str();
    std::set<std::string> features;
    for (const auto &feature : llvm::sys::getHostCPUFeatures())
      features.insert((feature.second ? "+" : "-") + feature.first().str());
    for (const std::string &feature : features)
      text += "," + feature;
    return text;
  }();
  return identity;
}

bool cleave::isCacheable(const CompileOptions &options) {
  // What a GPU's compiler is, and does, is not known here. What comes from the
  // cache has no phases.
  return !options.traits().isGpu() && options.dumpPhases.empty() &&
         options.timePhases == "off" && !codeIdentity().empty();
}

std::string cleave::compilationKey(StringRef module, StringRef json,
                                   const CompileOptions &options) {
  // Options that name files have their contents after they were read.
  return cacheKey({"program", codeIdentity(), json.str(),
                   options.phases.machine, options.phases.measuredCosts,
                   options.phases.mesh, options.phases.recipes, module.str()});
}

//===----------------------------------------------------------------------===//
// Programs as bytes
//===----------------------------------------------------------------------===//

static void append(std::string &bytes, StringRef text) {
  char size[8];
  llvm::support::endian::write64le(size, text.size());
  bytes.append(size, sizeof size);
  bytes += text;
}

/// The next text; nothing at the end.
static std::optional<StringRef> take(StringRef &bytes) {
  if (bytes.size() < 8)
    return std::nullopt;
  uint64_t size = llvm::support::endian::read64le(bytes.data());
  bytes = bytes.drop_front(8);
  if (size > bytes.size())
    return std::nullopt;
  StringRef text = bytes.take_front(size);
  bytes = bytes.drop_front(size);
  return text;
}

static std::optional<Compilation> decode(StringRef bytes) {
  std::vector<StringRef> texts;
  while (std::optional<StringRef> text = take(bytes))
    texts.push_back(*text);
  if (texts.size() < 3 || !bytes.empty())
    return std::nullopt;
  Compilation result;
  auto positions = runtime::parsePrograms(texts[0]);
  auto report = Report::parse(texts[1]);
  llvm::Error error =
      positions ? runtime::validate(*positions) : positions.takeError();
  if (error || !report) {
    llvm::consumeError(std::move(error)); // as one that is not there
    return std::nullopt;
  }
  result.program.positions = std::move(*positions);
  result.report = std::move(*report);
  result.program.object = texts[2].str();
  for (StringRef warning : llvm::ArrayRef(texts).drop_front(3))
    result.warnings.push_back(warning.str());
  return result;
}

std::optional<Compilation> cleave::loadCompilation(const CacheFolder &cache,
                                                   StringRef key) {
  std::optional<std::string> bytes = cache.load(key);
  return bytes ? decode(*bytes) : std::nullopt;
}

llvm::Error cleave::storeCompilation(const CacheFolder &cache, StringRef key,
                                     const CompiledProgram &program,
                                     const Report &report,
                                     const std::vector<std::string> &warnings) {
  std::string positions = runtime::toJSON(program.positions),
              facts = report.str(), bytes;
  for (StringRef text :
       {StringRef(positions), StringRef(facts), StringRef(program.object)})
    append(bytes, text);
  for (const std::string &warning : warnings)
    append(bytes, warning);
  // Ranks of which one reads the entry and another compiles must agree.
  std::optional<Compilation> read = decode(bytes);
  if (!read || runtime::toJSON(read->program.positions) != positions ||
      read->report.str() != facts)
    return llvm::Error::success();
  return cache.store(key, bytes);
}
