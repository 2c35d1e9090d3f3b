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
#include "lld/Common/Driver.h"
#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/CrashRecoveryContext.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Support/xxhash.h"

#include <dlfcn.h>
#include <math.h>
#include <mutex>

LLD_HAS_DRIVER(elf)

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

/// Runs LLD in this process, with `args` after the name of the program.
static Error runLinker(ArrayRef<const char *> args) {
  // Its state is global.
  static std::mutex oneLink;
  static bool canRun = true;
  std::lock_guard<std::mutex> lock(oneLink);
  if (!canRun)
    return error("cannot link the artifact: the linker failed before in this "
                 "process");
  // The linker gives all options of LLVM their defaults: it finds none.
  auto &options = cl::getRegisteredOptions();
  auto kept = std::move(options);
  options.clear();
  auto restore = make_scope_exit([&] { options = std::move(kept); });
  // A fatal error of the linker ends this call, and not the process.
  CrashRecoveryContext::Enable();
  auto disable = make_scope_exit([] { CrashRecoveryContext::Disable(); });
  SmallVector<const char *> all = {"ld.lld", "--threads=1"};
  all.append(args.begin(), args.end());
  std::string message;
  raw_string_ostream said(message);
  lld::Result result =
      lld::lldMain(all, said, said, {{lld::Gnu, &lld::elf::link}});
  canRun = result.canRunAgain;
  if (result.retCode != 0 || !canRun)
    return error("cannot link the artifact: " + StringRef(message).rtrim());
  return Error::success();
}

Error cleave::linkSharedObject(StringRef objectBytes, StringRef programJson,
                               StringRef outputPath) {
  // A rename would replace a device or a pipe by a file.
  if (sys::fs::exists(outputPath) && !sys::fs::is_regular_file(outputPath))
    return error("cannot write '" + outputPath +
                 "': an artifact must be a regular file");
  StringRef directory = sys::path::parent_path(outputPath);
  if (directory.empty())
    directory = ".";
  TemporaryFile kernels, data, output;
  if (Error e = writeTemporary(kernels, directory, ".o", objectBytes))
    return e;
  Expected<std::string> program = dataObject(programJson);
  if (!program)
    return program.takeError();
  if (Error e = writeTemporary(data, directory, ".o", *program))
    return e;
  if (Error e = writeTemporary(output, directory, ".so", ""))
    return e;
  SmallVector<const char *> args = {"-shared",
                                    "-o",
                                    output.path.c_str(),
                                    kernels.path.c_str(),
                                    data.path.c_str(),
                                    "--build-id",
                                    "-z",
                                    "noexecstack"};
  // Kernels may call mathematical functions of the C library; the process that
  // opens the artifact need not have loaded them.
  Dl_info library;
  double (*sine)(double) = &::sin;
  if (::dladdr(reinterpret_cast<void *>(sine), &library) && library.dli_fname &&
      StringRef(library.dli_fname).contains("libm"))
    args.append({"--as-needed", library.dli_fname});
  if (Error e = runLinker(args)) {
    std::string text = toString(std::move(e));
    if (StringRef(text).contains(
            ("failed to open " + Twine(output.path)).str()))
      return error("cannot write '" + outputPath + "': " + text);
    return error(text);
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
