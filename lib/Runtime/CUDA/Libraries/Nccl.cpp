//===- Nccl.cpp - The functions of NCCL -----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Nccl.h"
#include "cleave/Executable/Cuda/CudaLibraries.h"
#include "cleave/Executable/Format/ProgramIO.h"

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;

/// The oldest version whose calls need not block.
static constexpr int oldestVersion = 21400;

static llvm::Expected<Nccl> openNccl() {
  auto library = openCudaLibrary("libnccl.so.2", "collectives between GPUs");
  if (!library)
    return makeError(llvm::toString(library.takeError()) +
                     "; it comes as the Python package nvidia-nccl-cu13");
  Nccl found;
  CudaFunctions functions(*library);
  functions.find(found.version, "ncclGetVersion");
  functions.find(found.errorString, "ncclGetErrorString");
  functions.find(found.makeId, "ncclGetUniqueId");
  functions.find(found.create, "ncclCommInitRankConfig");
  functions.find(found.finalize, "ncclCommFinalize");
  functions.find(found.destroy, "ncclCommDestroy");
  functions.find(found.abort, "ncclCommAbort");
  functions.find(found.asyncError, "ncclCommGetAsyncError");
  functions.find(found.groupStart, "ncclGroupStart");
  functions.find(found.groupEnd, "ncclGroupEnd");
  functions.find(found.allReduce, "ncclAllReduce");
  functions.find(found.allGather, "ncclAllGather");
  functions.find(found.reduceScatter, "ncclReduceScatter");
  functions.find(found.broadcast, "ncclBroadcast");
  functions.find(found.reduce, "ncclReduce");
  functions.find(found.send, "ncclSend");
  functions.find(found.receive, "ncclRecv");
  if (llvm::Error error = functions.check("libnccl.so.2"))
    return error;
  int version = 0;
  if (llvm::Error error =
          found.check(found.version(&version), "asking its version"))
    return error;
  if (version < oldestVersion)
    return makeError("NCCL is too old: of version " + llvm::Twine(version) +
                     ", and Cleave needs " + llvm::Twine(oldestVersion));
  return found;
}

llvm::Expected<const Nccl *> Nccl::get() { return openOnce<Nccl>(openNccl); }

llvm::Error Nccl::check(int status, const llvm::Twine &what) const {
  if (status == nccl::Success || status == nccl::InProgress)
    return llvm::Error::success();
  const char *text = errorString(status);
  return makeError("NCCL: " + what + ": " + (text ? text : "unknown error") +
                   " (" + llvm::Twine(status) + ")");
}
