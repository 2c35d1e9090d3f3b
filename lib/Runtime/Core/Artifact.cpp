//===- Artifact.cpp - A program and its kernels ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Artifact.h"
#include "cleave/Runtime/ProgramIO.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <dlfcn.h>
#include <utility>

using namespace cleave::runtime;

Artifact::Artifact(Artifact &&other) noexcept { *this = std::move(other); }

Artifact &Artifact::operator=(Artifact &&other) noexcept {
  program = std::move(other.program);
  resolver = std::move(other.resolver);
  std::swap(handle, other.handle);
  return *this;
}

Artifact::~Artifact() {
  if (handle)
    ::dlclose(handle);
}

llvm::Error Artifact::checkSymbols() const {
  for (const Part &part : program.parts)
    for (const Command &command : part.commands) {
      if (command.kind != CommandKind::Kernel)
        continue;
      for (const std::string *symbol :
           {&command.kernel.symbol, &command.kernel.finish})
        if (!symbol->empty() && !lookup(*symbol))
          return makeError("kernel '" + *symbol + "' of part '" + part.name +
                           "' (" + command.label + ") has no code");
    }
  return llvm::Error::success();
}

llvm::Expected<Artifact> Artifact::open(llvm::StringRef path) {
  std::string file = path.str();
  if (!llvm::sys::fs::exists(file))
    return makeError(file + ": no such file");
  // Without a slash the loader would search its own path.
  if (!llvm::StringRef(file).contains('/'))
    file = "./" + file;
  Artifact artifact;
  artifact.handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
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
  llvm::Expected<Program> program =
      parseProgram(llvm::StringRef(text, static_cast<size_t>(*size)));
  if (!program)
    return makeError(path + ": " + llvm::toString(program.takeError()));
  artifact.program = std::move(*program);
  if (llvm::Error error = validate(artifact.program))
    return makeError(path + ": " + llvm::toString(std::move(error)));
  artifact.resolver = [handle](llvm::StringRef symbol) {
    return ::dlsym(handle, symbol.str().c_str());
  };
  if (llvm::Error error = artifact.checkSymbols())
    return makeError(path + ": " + llvm::toString(std::move(error)));
  return artifact;
}

llvm::Expected<Artifact> Artifact::create(Program program,
                                          SymbolResolver resolver) {
  Artifact artifact;
  artifact.program = std::move(program);
  artifact.resolver = std::move(resolver);
  if (llvm::Error error = validate(artifact.program))
    return error;
  if (llvm::Error error = artifact.checkSymbols())
    return error;
  return artifact;
}
