//===- Cudnn.cpp - Fused attention by cuDNN -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Cudnn.h"
#include "CublasLt.h"
#include "cleave/Executable/Cuda/CudaLibraries.h"
#include "cleave/Executable/Cuda/PlanCudnnAttention.h"
#include "cleave/Executable/Format/ProgramIO.h"

#include <cstdlib>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
using llvm::Error;
using llvm::Expected;

bool Cudnn::isOff() { return environment("CLEAVE_CUDNN") == "off"; }
bool Cudnn::isRequired() { return environment("CLEAVE_CUDNN") == "required"; }

//===----------------------------------------------------------------------===//
// The library
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_CUDNN

Expected<std::unique_ptr<Cudnn>> Cudnn::open(CUstream, int) {
  return makeError("Cleave was built without the headers of cuDNN and "
                   "cudnn-frontend");
}
Cudnn::~Cudnn() = default;

Expected<CudnnAttention>
Cudnn::make(const Command &, llvm::function_ref<CUdeviceptr(const Ref &)>,
            CUdeviceptr) {
  return makeError("there is no cuDNN");
}

Error CudnnAttention::run() const { return makeError("there is no cuDNN"); }

#else

namespace {

/// Earlier versions do not compute the backward pass in a fixed order on all
/// devices, or leave work on their memory to kernels of their callers.
constexpr size_t oldestVersion = 91800;

struct Functions {
  int (*create)(void **handle);
  int (*destroy)(void *handle);
  int (*setStream)(void *handle, CUstream stream);
  const char *(*errorString)(int status);

  static Expected<const Functions *> get();
  Error check(int status, const llvm::Twine &what) const {
    if (status == 0)
      return Error::success();
    return makeError("cuDNN: " + what + ": " + errorString(status) + " (" +
                     llvm::Twine(status) + ")");
  }
};

} // namespace

static Expected<Functions> openFunctions() {
  // cuDNN opens it by its name, which finds what is already open.
  if (auto library = CublasLt::get(); !library)
    return library.takeError();
  auto library = openCudaLibrary("libcudnn.so.9", "fused attention");
  if (!library)
    return makeError(llvm::toString(library.takeError()) +
                     "; it comes as the Python package nvidia-cudnn-cu13");
  Functions found;
  size_t (*version)() = nullptr;
  CudaFunctions functions(*library);
  functions.find(version, "cudnnGetVersion");
  functions.find(found.create, "cudnnCreate");
  functions.find(found.destroy, "cudnnDestroy");
  functions.find(found.setStream, "cudnnSetStream");
  functions.find(found.errorString, "cudnnGetErrorString");
  if (Error error = functions.check("libcudnn.so.9"))
    return error;
  if (version() < oldestVersion)
    return makeError("cuDNN is too old: of version " + llvm::Twine(version()) +
                     ", and Cleave needs " + llvm::Twine(oldestVersion));
  CudnnGraph::use(*library);
  return found;
}

Expected<const Functions *> Functions::get() {
  return openOnce<Functions>(openFunctions);
}

Expected<std::unique_ptr<Cudnn>> Cudnn::open(CUstream stream, int capability) {
  Expected<const Functions *> functions = Functions::get();
  if (!functions)
    return functions.takeError();
  std::unique_ptr<Cudnn> library(new Cudnn);
  library->capability = capability;
  library->architecture = "sm_" + std::to_string(capability);
  if (Error error =
          (*functions)
              ->check((*functions)->create(&library->handle), "a handle"))
    return error;
  if (Error error =
          (*functions)
              ->check((*functions)->setStream(library->handle, stream),
                      "its stream"))
    return error;
  return library;
}

Cudnn::~Cudnn() {
  plans.clear();
  Expected<const Functions *> functions = Functions::get();
  if (!functions)
    llvm::consumeError(functions.takeError());
  else if (handle)
    (void)(*functions)->destroy(handle);
}

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

/// What a plan depends on: all but where operands are.
static std::string keyOf(const Command &command, int64_t samples) {
  const AttentionCommand &a = command.attention;
  std::string key =
      (command.kind == CommandKind::AttentionBackward ? "B" : "F") +
      dtypeName(a.type).str();
  auto add = [&](auto... values) {
    ((key += ' ' + std::to_string(values)), ...);
  };
  add(samples, a.batch, a.heads, a.kvHeads, a.queries, a.keys, a.headSize,
      a.valueSize, a.scale, a.causal, a.window, a.libraryBytes, a.fixedOrder);
  for (const HeadView *view :
       {&a.q, &a.k, &a.v, &a.o, &a.dO, &a.dQ, &a.dK, &a.dV})
    add(view->strideBatch, view->strideHead, view->stridePosition);
  return key;
}

Expected<CudnnAttention>
Cudnn::make(const Command &command,
            llvm::function_ref<CUdeviceptr(const Ref &)> at,
            CUdeviceptr workspace) {
  const AttentionCommand &a = command.attention;
  bool backward = command.kind == CommandKind::AttentionBackward;
  if (std::string why = cudnnRefusal(command, architecture); !why.empty())
    return makeError("cuDNN does not compute it: " + why);
  int64_t samples = cudnnSamples(command, architecture, a.libraryBytes);
  if (samples == 0)
    return makeError("on " + architecture + " cuDNN needs " +
                     llvm::Twine(cudnnBytes(command, architecture, 1)) +
                     " bytes of workspace, and " + llvm::Twine(a.libraryBytes) +
                     " are planned");
  Plan &plan = plans[keyOf(command, samples)];
  if (!plan.graph && plan.problem.empty())
    plan.graph = CudnnGraph::make(handle, capability, a, backward, samples,
                                  a.libraryBytes, plan.problem);
  if (!plan.graph)
    return makeError("cuDNN: " + plan.problem);

  CudnnAttention attention;
  attention.library = this;
  attention.graph = plan.graph;
  this->workspace = reinterpret_cast<void *>(workspace);
  int64_t element = byteSize(a.type);
  bool aligned = true;
  for (int64_t first = 0; first < a.batch; first += samples) {
    auto operand = [&](const HeadView &view) -> void * {
      if (view.ref.buffer < 0)
        return nullptr;
      CUdeviceptr address =
          at(view.ref) +
          static_cast<CUdeviceptr>(first * view.strideBatch * element);
      aligned &= address % 16 == 0;
      return reinterpret_cast<void *>(address);
    };
    CudnnOperands &call = attention.calls.emplace_back();
    call.q = operand(a.q);
    call.k = operand(a.k);
    call.v = operand(a.v);
    call.o = operand(a.o);
    call.lse = reinterpret_cast<void *>(
        at(a.lse) + static_cast<CUdeviceptr>(4 * first * a.heads * a.queries));
    if (!backward)
      continue;
    call.dO = operand(a.dO);
    call.dQ = operand(a.dQ);
    call.dK = operand(a.dK);
    call.dV = operand(a.dV);
  }
  if (!aligned)
    return makeError("operands are not aligned to 16 bytes");
  return attention;
}

Error CudnnAttention::run() const {
  for (const CudnnOperands &operands : calls)
    if (std::string problem =
            graph->run(library->handle, operands, library->workspace);
        !problem.empty())
      return makeError("cuDNN: " + problem);
  return Error::success();
}

#endif // CLEAVE_CUDNN
