//===- Artifact.cpp - A program and its kernels ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/Artifact.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/BinaryFormat/ELF.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/xxhash.h"
#include "llvm/TargetParser/Host.h"
#include "llvm/TargetParser/X86TargetParser.h"

#include <cerrno>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

using namespace cleave::runtime;

Artifact::Artifact(Artifact &&other) noexcept { *this = std::move(other); }

Artifact &Artifact::operator=(Artifact &&other) noexcept {
  positions = std::move(other.positions);
  summary = std::move(other.summary);
  resolver = std::move(other.resolver);
  programHash = std::move(other.programHash);
  fileHash = std::move(other.fileHash);
  std::swap(handle, other.handle);
  std::swap(copy, other.copy);
  return *this;
}

Artifact::~Artifact() {
  if (handle)
    ::dlclose(handle);
  if (copy >= 0)
    ::close(copy);
}

/// The mismatch between a command's call and its kernel, or nothing.
static std::string misuse(const KernelCommand &kernel, bool finish,
                          const KernelSignature &signature) {
  if (signature.arguments != kernel.args.size())
    return ("takes " + llvm::Twine(signature.arguments) +
            " arguments, but the program gives " +
            llvm::Twine(kernel.args.size()))
        .str();
  auto expected = finish                  ? KernelSignature::Second
                  : kernel.finish.empty() ? KernelSignature::Only
                                          : KernelSignature::First;
  if (signature.stage != expected)
    return "is another stage of a kernel than the program calls";
  if (expected != KernelSignature::Only && kernel.scratch.buffer < 0)
    return "needs scratch memory, but the program gives none";
  return "";
}

llvm::Error Artifact::checkSymbols(bool strict) const {
  for (const Program &program : positions)
    for (const Part &part : program.parts)
      for (const Command &command : part.commands) {
        if (command.kind != CommandKind::Kernel)
          continue;
        for (const std::string *symbol :
             {&command.kernel.symbol, &command.kernel.finish}) {
          if (symbol->empty())
            continue;
          auto fail = [&](const llvm::Twine &why) {
            return makeError("kernel '" + *symbol + "' of part '" + part.name +
                             "' (" + command.label + ") " + why);
          };
          // The code of devices is in one image.
          if (!lookup(program.isForGpu() ? llvm::StringRef(kImageSymbol)
                                         : llvm::StringRef(*symbol)))
            return fail("has no code");
          auto *signature = static_cast<const KernelSignature *>(
              lookup(kSignaturePrefix + *symbol));
          if (!signature && strict)
            return fail("has no signature; compile the model again");
          std::string wrong =
              signature ? misuse(command.kernel,
                                 symbol == &command.kernel.finish, *signature)
                        : "";
          if (!wrong.empty())
            return fail(wrong);
        }
      }
  return llvm::Error::success();
}

void Artifact::summarise() {
  const Program &first = positions.front();
  summary = Program();
  summary.target = first.target;
  summary.architecture = first.architecture;
  summary.cpu = first.cpu;
  summary.vectorBits = first.vectorBits;
  summary.threads = first.threads;
  summary.mesh = first.mesh;
  summary.pipelineAxis = first.pipelineAxis;
  summary.lossScaling = first.lossScaling;
  summary.metadata = first.metadata;
  summary.unread = first.unread;
  std::map<std::string, int32_t> numbers;
  for (const Program &program : positions) {
    summary.arenaBytes = std::max(summary.arenaBytes, program.arenaBytes);
    summary.tierBytes = std::max(summary.tierBytes, program.tierBytes);
    summary.microBatches = std::max(summary.microBatches, program.microBatches);
    std::vector<int32_t> number;
    for (const Tensor &tensor : program.tensors) {
      auto [it, fresh] = numbers.try_emplace(
          tensor.name, static_cast<int32_t>(summary.tensors.size()));
      if (fresh)
        summary.tensors.push_back(tensor);
      number.push_back(it->second);
      Tensor &known = summary.tensors[static_cast<size_t>(it->second)];
      known.written |= tensor.written;
      known.additive |= tensor.additive;
      if (tensor.upperBound > 0 &&
          (known.upperBound == 0 || tensor.upperBound < known.upperBound))
        known.upperBound = tensor.upperBound;
    }
    for (const auto &[name, entry] : program.entries) {
      Entry &own = summary.entries[name];
      auto add = [&](std::vector<int32_t> &to,
                     const std::vector<int32_t> &from) {
        for (int32_t index : from)
          if (int32_t there = number[static_cast<size_t>(index)];
              !llvm::is_contained(to, there))
            to.push_back(there);
      };
      add(own.inputs, entry.inputs);
      add(own.scalars, entry.scalars);
      add(own.outputs, entry.outputs);
    }
  }
}

static std::string hashText(llvm::StringRef bytes) {
  return llvm::utohexstr(llvm::xxh3_64bits(bytes), /*LowerCase=*/true,
                         /*Width=*/16);
}

/// Checks that all parts named in the file's own tables are there: the loader
/// relies on the tables, and reading beyond the end of a mapped file ends the
/// process.
static llvm::Error checkWhole(llvm::StringRef path, llvm::StringRef bytes) {
  llvm::ELF::Elf64_Ehdr header;
  if (!bytes.starts_with(llvm::ELF::ElfMagic) || bytes.size() < sizeof header)
    return makeError(path + ": not an artifact of cleave-compile");
  std::memcpy(&header, bytes.data(), sizeof header);
  auto inside = [&](uint64_t offset, uint64_t size) {
    return offset <= bytes.size() && size <= bytes.size() - offset;
  };
  bool whole =
      inside(header.e_shoff, uint64_t(header.e_shnum) * header.e_shentsize) &&
      inside(header.e_phoff, uint64_t(header.e_phnum) * header.e_phentsize);
  for (unsigned i = 0; whole && i < header.e_phnum; ++i) {
    llvm::ELF::Elf64_Phdr segment;
    uint64_t at = header.e_phoff + uint64_t(i) * header.e_phentsize;
    whole = inside(at, sizeof segment);
    if (!whole)
      break;
    std::memcpy(&segment, bytes.data() + at, sizeof segment);
    whole = inside(segment.p_offset, segment.p_filesz);
  }
  if (!whole)
    return makeError(path + ": the artifact is truncated at " +
                     llvm::Twine(bytes.size()) +
                     " bytes; compile the model again");
  return llvm::Error::success();
}

std::string cleave::runtime::artifactEnd(llvm::StringRef bytes) {
  return "\nxxh3 of the file above: " + hashText(bytes) + "\n";
}

/// Checks that a file is what was linked: a changed address would lead the
/// loader, or a kernel, anywhere.
static llvm::Error checkSame(llvm::StringRef path, llvm::StringRef bytes) {
  size_t size = artifactEnd("").size();
  llvm::StringRef end = bytes.take_back(size), above = bytes.drop_back(size);
  bool has = end.starts_with(llvm::StringRef(artifactEnd("")).drop_back(17));
  if (has && end != artifactEnd(above))
    return makeError(path + ": the artifact is damaged: it is not what was "
                            "compiled; compile the model again");
  // What earlier versions compiled has no hash.
  if (!has && bytes.contains(kEndSymbol))
    return makeError(path + ": the artifact is truncated at " +
                     llvm::Twine(bytes.size()) +
                     " bytes, or damaged: it does not end with its hash; "
                     "compile the model again");
  return llvm::Error::success();
}

/// A copy of an artifact that has no name, or -1 where the system makes none:
/// its code stays as it is when others shorten or overwrite the file, which
/// would end the process.
static int copyOf(llvm::StringRef path, llvm::StringRef bytes) {
  std::string name = llvm::sys::path::filename(path).take_back(200).str();
  int copy = ::memfd_create(name.c_str(), MFD_CLOEXEC);
  while (copy >= 0 && !bytes.empty()) {
    ssize_t done = ::write(copy, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR)
      continue;
    if (done <= 0) {
      ::close(copy);
      return -1;
    }
    bytes = bytes.drop_front(static_cast<size_t>(done));
  }
  return copy;
}

/// Opens the shared object that was read from a file. `copy` is the file that
/// must be open as long as the object.
static void *openCopy(llvm::StringRef path, llvm::StringRef bytes, int &copy) {
  copy = copyOf(path, bytes);
  if (copy >= 0) {
    std::string file = "/proc/self/fd/" + std::to_string(copy);
    if (void *handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL))
      return handle;
    ::close(copy);
    copy = -1;
  }
  // Not where memory may not be executed, or files may not grow. Without a
  // slash the loader would search its own path.
  std::string file = path.contains('/') ? path.str() : "./" + path.str();
  return ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
}

/// Checks that this processor has the instructions that kernels may use; a
/// missing one would end the process.
static llvm::Error checkProcessor(const Program &program) {
  // For a processor of the same name, the compiler used only the features that
  // it had.
  if (program.cpu.empty() || program.cpu == llvm::sys::getHostCPUName() ||
      llvm::X86::parseArchX86(program.cpu) == llvm::X86::CK_None)
    return llvm::Error::success();
  static constexpr llvm::StringLiteral used[] = {
      "avx", "fma", "f16c", "xop", "bmi", "sse", "lzcnt", "popcnt", "movbe"};
  auto host = llvm::sys::getHostCPUFeatures();
  llvm::SmallVector<llvm::StringRef> features, lacking;
  llvm::X86::getFeaturesForCPU(program.cpu, features);
  for (llvm::StringRef feature : features)
    if (llvm::any_of(
            used,
            [&](llvm::StringRef name) { return feature.starts_with(name); }) &&
        !host.lookup(feature))
      lacking.push_back(feature);
  if (lacking.empty())
    return llvm::Error::success();
  return makeError("compiled for processor '" + program.cpu +
                   "', but this one lacks " + llvm::join(lacking, ", ") +
                   "; compile the model again on this machine, or with --cpu");
}

llvm::Expected<Artifact> Artifact::open(llvm::StringRef path) {
  std::string file = path.str();
  if (!llvm::sys::fs::exists(file))
    return makeError(file + ": no such file");
  Artifact artifact;
  auto buffer = readFile(file);
  if (!buffer)
    return buffer.takeError();
  llvm::StringRef bytes = (*buffer)->getBuffer();
  if (llvm::Error error = checkWhole(file, bytes))
    return error;
  if (llvm::Error error = checkSame(file, bytes))
    return error;
  artifact.fileHash = hashText(bytes);
  artifact.handle = openCopy(file, bytes, artifact.copy);
  buffer->reset();
  if (!artifact.handle)
    return makeError(path + ": cannot open the artifact: " + ::dlerror());
  void *handle = artifact.handle;
  auto *abi = static_cast<uint32_t *>(::dlsym(handle, "cleave_abi_version"));
  auto *size = static_cast<uint64_t *>(::dlsym(handle, "cleave_program_size"));
  auto *text = static_cast<char *>(::dlsym(handle, "cleave_program"));
  if (!abi || !size || !text)
    return makeError(path + ": not an artifact of cleave-compile (it exports "
                            "no cleave_program)");
  if (*abi != kAbiVersion)
    return makeError(path + ": compiled for ABI version " + llvm::Twine(*abi) +
                     ", but this runtime has version " +
                     llvm::Twine(kAbiVersion) + "; compile the model again");
  llvm::StringRef program(text, static_cast<size_t>(*size));
  artifact.programHash = hashText(program);
  // Artifacts of earlier versions have none.
  auto *hash = static_cast<uint64_t *>(::dlsym(handle, "cleave_program_hash"));
  if (hash && *hash != llvm::xxh3_64bits(program))
    return makeError(path + ": the artifact is damaged: its table is not what "
                            "was compiled; compile the model again");
  llvm::Expected<std::vector<Program>> programs = parsePrograms(program);
  if (!programs)
    return makeError(path + ": " + llvm::toString(programs.takeError()));
  artifact.positions = std::move(*programs);
  if (llvm::Error error = validate(artifact.positions))
    return makeError(path + ": " + llvm::toString(std::move(error)));
  artifact.summarise();
  if (llvm::Error error = checkProcessor(artifact.summary))
    return makeError(path + ": " + llvm::toString(std::move(error)));
  artifact.resolver = [handle](llvm::StringRef symbol) {
    return ::dlsym(handle, symbol.str().c_str());
  };
  if (llvm::Error error = artifact.checkSymbols(/*strict=*/true))
    return makeError(path + ": " + llvm::toString(std::move(error)));
  return artifact;
}

llvm::Expected<Artifact> Artifact::create(std::vector<Program> positions,
                                          SymbolResolver resolver) {
  Artifact artifact;
  artifact.positions = std::move(positions);
  artifact.resolver = std::move(resolver);
  if (llvm::Error error = validate(artifact.positions))
    return error;
  artifact.summarise();
  if (llvm::Error error = artifact.checkSymbols(/*strict=*/false))
    return error;
  return artifact;
}
