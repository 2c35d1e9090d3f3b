//===- Nccl.cpp - The functions of NCCL -----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Nccl.h"
#include "cleave/Runtime/Core/CudaLibraries.h"
#include "cleave/Runtime/Core/ProgramIO.h"

#include <mutex>
#include <optional>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;

/// The oldest version whose calls need not block.
static constexpr int oldestVersion = 21400;

static llvm::Expected<Nccl> openNccl() {
  auto library =
      openCudaLibrary("libnccl.so.2", "collectives between GPUs");
  if (!library)
    return makeError(llvm::toString(library.takeError()) +
                     "; it comes as the Python package nvidia-nccl-cu13");
  Nccl found;
  const char *missing = nullptr;
  auto find = [&](auto &function, const char *name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        findFunction(*library, name));
    if (!function)
      missing = name;
  };
  find(found.version, "ncclGetVersion");
  find(found.errorString, "ncclGetErrorString");
  find(found.makeId, "ncclGetUniqueId");
  find(found.create, "ncclCommInitRankConfig");
  find(found.finalize, "ncclCommFinalize");
  find(found.destroy, "ncclCommDestroy");
  find(found.abort, "ncclCommAbort");
  find(found.asyncError, "ncclCommGetAsyncError");
  find(found.groupStart, "ncclGroupStart");
  find(found.groupEnd, "ncclGroupEnd");
  find(found.allReduce, "ncclAllReduce");
  find(found.allGather, "ncclAllGather");
  find(found.reduceScatter, "ncclReduceScatter");
  find(found.broadcast, "ncclBroadcast");
  find(found.reduce, "ncclReduce");
  find(found.send, "ncclSend");
  find(found.receive, "ncclRecv");
  if (missing)
    return makeError(llvm::Twine("libnccl.so.2 has no ") + missing);
  int version = 0;
  if (llvm::Error error =
          found.check(found.version(&version), "asking its version"))
    return error;
  if (version < oldestVersion)
    return makeError("NCCL is too old: of version " + llvm::Twine(version) +
                     ", and Cleave needs " + llvm::Twine(oldestVersion));
  return found;
}

llvm::Expected<const Nccl *> Nccl::get() {
  static std::mutex mutex;
  static std::optional<Nccl> opened;
  std::lock_guard<std::mutex> lock(mutex);
  if (!opened) {
    llvm::Expected<Nccl> library = openNccl();
    if (!library)
      return library.takeError();
    opened = *library;
  }
  return &*opened;
}

llvm::Error Nccl::check(int status, const llvm::Twine &what) const {
  if (status == nccl::Success || status == nccl::InProgress)
    return llvm::Error::success();
  const char *text = errorString(status);
  return makeError("NCCL: " + what + ": " + (text ? text : "unknown error") +
                   " (" + llvm::Twine(status) + ")");
}
