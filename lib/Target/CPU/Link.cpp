//===- Link.cpp - Kernels and program in a shared object ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Machine.h"
#include "cleave/Executable/Format/Artifact.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Support/xxhash.h"

#include <dlfcn.h>
#include <math.h>

using namespace llvm;

static Error error(const Twine &message) {
  return createStringError(inconvertibleErrorCode(), message);
}

/// A file that is removed when this goes out of scope, unless it was renamed.
namespace {
struct TemporaryFile {
  SmallString<128> path;
  ~TemporaryFile() {
    if (!path.empty())
      sys::fs::remove(path);
  }
};
} // namespace

static Error writeTemporary(TemporaryFile &file, StringRef directory,
                            StringRef suffix, StringRef bytes) {
  SmallString<128> model(directory);
  sys::path::append(model, ".cleave-%%%%%%%%" + suffix.str());
  int descriptor;
  if (std::error_code code =
          sys::fs::createUniqueFile(model, descriptor, file.path))
    return error("cannot write in '" + directory + "': " + code.message());
  raw_fd_ostream stream(descriptor, /*shouldClose=*/true);
  stream << bytes;
  stream.close();
  if (stream.has_error()) {
    std::string reason = stream.error().message();
    stream.clear_error();
    return error("cannot write '" + file.path + "': " + reason);
  }
  return Error::success();
}

template <typename T> static std::string rawBytes(T value) {
  return std::string(reinterpret_cast<const char *>(&value), sizeof(T));
}

Expected<std::string> cleave::emitData(ArrayRef<DataSymbol> symbols) {
  auto machine = cpu::createMachine(CpuTarget::host());
  if (!machine)
    return machine.takeError();
  LLVMContext context;
  Module module("data", context);
  module.setDataLayout((*machine)->createDataLayout());
  module.setTargetTriple((*machine)->getTargetTriple());
  for (const DataSymbol &symbol : symbols) {
    Constant *value = ConstantDataArray::getString(context, symbol.bytes,
                                                   /*AddNull=*/false);
    auto *variable =
        new GlobalVariable(module, value->getType(), /*isConstant=*/true,
                           GlobalValue::ExternalLinkage, value, symbol.name);
    variable->setAlignment(Align(16));
  }
  return cpu::emitObject(module, **machine);
}

/// The exports of an artifact besides its code.
static Expected<std::string> dataObject(StringRef json) {
  return cleave::emitData(
      {{"cleave_program", json.str() + '\0'},
       {"cleave_program_size", rawBytes<uint64_t>(json.size())},
       {"cleave_program_hash", rawBytes<uint64_t>(xxh3_64bits(json))},
       {cleave::runtime::kEndSymbol, rawBytes<uint32_t>(1)},
       {"cleave_abi_version", rawBytes(cleave::runtime::kAbiVersion)}});
}

/// Ends a file with its hash.
static Error appendHash(StringRef path) {
  auto file = MemoryBuffer::getFile(path, /*IsText=*/false,
                                    /*RequiresNullTerminator=*/false,
                                    /*IsVolatile=*/true);
  if (!file)
    return error("cannot read '" + path + "': " + file.getError().message());
  std::string end = cleave::runtime::artifactEnd((*file)->getBuffer());
  std::error_code code;
  raw_fd_ostream stream(path, code, sys::fs::OF_Append);
  if (!code) {
    stream << end;
    stream.close();
    code = stream.error();
    stream.clear_error();
  }
  return code ? error("cannot write '" + path + "': " + code.message())
              : Error::success();
}

Error cleave::linkSharedObject(StringRef objectBytes, StringRef programJson,
                               StringRef outputPath) {
  // A rename would replace a device or a pipe by a file.
  if (sys::fs::exists(outputPath) && !sys::fs::is_regular_file(outputPath))
    return error("cannot write '" + outputPath +
                 "': an artifact must be a regular file");
  ErrorOr<std::string> linker = sys::findProgramByName("ld.lld-22");
  if (!linker)
    linker = sys::findProgramByName("ld.lld");
  if (!linker)
    return error("linking an artifact needs ld.lld, which is not on PATH");
  StringRef directory = sys::path::parent_path(outputPath);
  if (directory.empty())
    directory = ".";
  TemporaryFile kernels, data, output, log;
  if (Error e = writeTemporary(kernels, directory, ".o", objectBytes))
    return e;
  Expected<std::string> program = dataObject(programJson);
  if (!program)
    return program.takeError();
  if (Error e = writeTemporary(data, directory, ".o", *program))
    return e;
  if (Error e = writeTemporary(output, directory, ".so", ""))
    return e;
  if (Error e = writeTemporary(log, directory, ".log", ""))
    return e;
  SmallVector<StringRef> args = {*linker,      "-shared",    "-o",
                                 output.path,  kernels.path, data.path,
                                 "--build-id", "-z",         "noexecstack"};
  // Kernels may call mathematical functions of the C library; the process that
  // opens the artifact need not have loaded them.
  Dl_info library;
  double (*sine)(double) = &::sin;
  if (::dladdr(reinterpret_cast<void *>(sine), &library) && library.dli_fname &&
      StringRef(library.dli_fname).contains("libm"))
    args.append({"--as-needed", library.dli_fname});
  std::string message;
  std::optional<StringRef> redirects[] = {StringRef(""), StringRef(log.path),
                                          StringRef(log.path)};
  int status = sys::ExecuteAndWait(*linker, args, std::nullopt, redirects, 0, 0,
                                   &message);
  if (status != 0) {
    if (auto text = MemoryBuffer::getFile(log.path))
      message += (*text)->getBuffer();
    return error("cannot link the artifact: " + message);
  }
  if (Error e = appendHash(output.path))
    return e;
  // Readable as the umask allows, like any file that a compiler writes.
  sys::fs::setPermissions(output.path,
                          sys::fs::perms(0777 & ~sys::fs::getUmask()));
  // The contents are on the disk before the name.
  if (Error e = runtime::syncFile(output.path))
    return e;
  if (std::error_code code = sys::fs::rename(output.path, outputPath))
    return error("cannot write '" + outputPath + "': " + code.message());
  output.path.clear();
  return runtime::syncFolder(directory);
}
