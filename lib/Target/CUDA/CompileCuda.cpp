//===- CompileCuda.cpp - CUDA C++ as device code --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Target/CUDA/CompileCuda.h"
#include "CommandKernels.h"
#include "KernelPrinter.h"
#include "cleave/Executable/Cuda/CudaLibraries.h"
#include "cleave/Executable/Format/Artifact.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace cleave;
using runtime::makeError;

/// Those of NVRTC 13 from sm_80 on, whose instructions the kernels use. From 90
/// on there is code for one device alone (a), from 100 on for its family (f).
std::string cleave::checkArchitecture(StringRef architecture) {
  std::string all;
  for (int number : {80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121}) {
    std::string name = "sm_" + std::to_string(number);
    if (architecture == name || (number >= 90 && architecture == name + "a") ||
        (number >= 100 && architecture == name + "f"))
      return "";
    all += (all.empty() ? "" : ", ") + name;
  }
  return "unknown architecture '" + architecture.str() + "': it is one of " +
         all +
         ", from sm_90 on also with an a at its end, from sm_100 on with "
         "an f";
}

int64_t cleave::multiprocessorsOf(StringRef architecture) {
  // Of the A100, the H100 and H200, and the B200.
  StringRef number = architecture.drop_front(3);
  return number.starts_with("8") ? 108 : number.starts_with("9") ? 132 : 148;
}

bool cleave::multipliesFloat8(StringRef architecture) {
  unsigned number = 0;
  return !architecture.drop_front(3).consumeInteger(10, number) && number >= 89;
}

int64_t cleave::sharedBytesOf(StringRef architecture) {
  int64_t kib = llvm::StringSwitch<int64_t>(architecture.drop_front(3))
                    .StartsWith("80", 163)
                    .StartsWith("87", 163)
                    .StartsWith("8", 99)
                    .StartsWith("12", 99)
                    .Default(227);
  return kib << 10;
}

//===----------------------------------------------------------------------===//
// Text
//===----------------------------------------------------------------------===//

FailureOr<std::string>
cleave::printCudaPrograms(ModuleOp module,
                          MutableArrayRef<runtime::Program> programs,
                          StringRef architecture) {
  LaunchShapes launches;
  FailureOr<std::string> text =
      printCuda(module, launches, sharedBytesOf(architecture));
  if (failed(text))
    return failure();
  for (runtime::Program &program : programs)
    for (runtime::Part &part : program.parts)
      for (runtime::Command &command : part.commands) {
        if (command.kind != runtime::CommandKind::Kernel)
          continue;
        runtime::KernelCommand &kernel = command.kernel;
        kernel.launch = launches.lookup(kernel.symbol);
        if (!kernel.finish.empty())
          kernel.finishLaunch = launches.lookup(kernel.finish);
      }
  return *text + cuda::commandKernels(programs);
}

//===----------------------------------------------------------------------===//
// NVRTC
//===----------------------------------------------------------------------===//

namespace {

using Handle = struct _nvrtcProgram *;

/// The functions of the library that are used; they return 0, or the number of
/// an error.
struct Nvrtc {
  int (*create)(Handle *, const char *source, const char *name, int headers,
                const char *const *contents, const char *const *names);
  int (*compile)(Handle, int count, const char *const *options);
  int (*logSize)(Handle, size_t *);
  int (*log)(Handle, char *);
  int (*cubinSize)(Handle, size_t *);
  int (*cubin)(Handle, char *);
  int (*ptxSize)(Handle, size_t *);
  int (*ptx)(Handle, char *);
  int (*destroy)(Handle *);
  const char *(*errorText)(int);
};

} // namespace

static llvm::Expected<Nvrtc> openNvrtc() {
  constexpr const char *purpose = "compiling for a GPU";
  // It opens the other one by itself, but only in folders of the system.
  if (auto builtins =
          runtime::openCudaLibrary("libnvrtc-builtins.so.13.0", purpose);
      !builtins)
    llvm::consumeError(builtins.takeError());
  auto library = runtime::openCudaLibrary("libnvrtc.so.13", purpose);
  if (!library)
    return makeError(llvm::toString(library.takeError()) +
                     "; it comes with the toolkit of CUDA 13, and as the "
                     "Python package nvidia-cuda-nvrtc");
  Nvrtc nvrtc;
  runtime::CudaFunctions functions(*library);
  functions.find(nvrtc.create, "nvrtcCreateProgram");
  functions.find(nvrtc.compile, "nvrtcCompileProgram");
  functions.find(nvrtc.logSize, "nvrtcGetProgramLogSize");
  functions.find(nvrtc.log, "nvrtcGetProgramLog");
  functions.find(nvrtc.cubinSize, "nvrtcGetCUBINSize");
  functions.find(nvrtc.cubin, "nvrtcGetCUBIN");
  functions.find(nvrtc.ptxSize, "nvrtcGetPTXSize");
  functions.find(nvrtc.ptx, "nvrtcGetPTX");
  functions.find(nvrtc.destroy, "nvrtcDestroyProgram");
  functions.find(nvrtc.errorText, "nvrtcGetErrorString");
  if (llvm::Error error = functions.check("libnvrtc.so.13"))
    return error;
  return nvrtc;
}

llvm::Expected<CudaCode> cleave::compileCuda(StringRef text,
                                             StringRef architecture) {
  if (std::string why = checkArchitecture(architecture); !why.empty())
    return makeError(why);
  llvm::Expected<Nvrtc> nvrtc = openNvrtc();
  if (!nvrtc)
    return nvrtc.takeError();
  Handle program = nullptr;
  auto failed = [&](int code, const Twine &log = "") {
    if (program)
      nvrtc->destroy(&program);
    return makeError("NVRTC cannot compile the kernels for " + architecture +
                     ": " + nvrtc->errorText(code) + log);
  };
  std::vector<std::string> options = {
      ("--gpu-architecture=" + architecture).str(), "--std=c++17",
      "--fmad=false", "--device-int128", "-default-device"};
  for (const std::string &folder : runtime::cudaHeaderFolders())
    options.push_back("--include-path=" + folder);
  std::vector<const char *> words;
  for (const std::string &option : options)
    words.push_back(option.c_str());
  if (int code = nvrtc->create(&program, text.str().c_str(), "kernels.cu", 0,
                               nullptr, nullptr))
    return failed(code);
  if (int code = nvrtc->compile(program, static_cast<int>(words.size()),
                                words.data())) {
    size_t size = 0;
    std::string log;
    if (nvrtc->logSize(program, &size) == 0 && size > 1) {
      log.resize(size);
      nvrtc->log(program, log.data());
      log.resize(size - 1);
    }
    return failed(code, "\n" + log);
  }
  CudaCode result;
  for (auto [size, copy, to] :
       {std::tuple(nvrtc->cubinSize, nvrtc->cubin, &result.cubin),
        std::tuple(nvrtc->ptxSize, nvrtc->ptx, &result.ptx)}) {
    size_t bytes = 0;
    if (int code = size(program, &bytes))
      return failed(code);
    to->resize(bytes);
    if (int code = copy(program, to->data()))
      return failed(code);
  }
  nvrtc->destroy(&program);
  return result;
}

//===----------------------------------------------------------------------===//
// Artifacts
//===----------------------------------------------------------------------===//

template <typename T> static std::string rawBytes(const T &value) {
  return std::string(reinterpret_cast<const char *>(&value), sizeof(T));
}

llvm::Expected<std::string> cleave::emitImage(const CudaCode &code,
                                              ModuleOp module) {
  using Signature = runtime::KernelSignature;
  std::vector<DataSymbol> symbols = {
      {runtime::kImageSymbol, code.cubin},
      {runtime::kImageSizeSymbol, rawBytes<uint64_t>(code.cubin.size())},
      {runtime::kPtxSymbol, code.ptx}};
  auto usesOf = cuda::usesOfKernels(module);
  for (auto kernel : module.getOps<exec::KernelOp>())
    for (int64_t uses : usesOf[kernel.getSymName()]) {
      auto arguments = static_cast<uint32_t>(
          uses * kernel.getBody().front().getNumArguments());
      auto add = [&](const std::string &symbol, Signature::Stage stage) {
        symbols.push_back({runtime::kSignaturePrefix + symbol,
                           rawBytes(Signature{arguments, stage})});
      };
      if (!kernel.isTwoStage()) {
        add(kernel.getFunctionName(uses), Signature::Only);
        continue;
      }
      add(kernel.getFunctionName(uses), Signature::First);
      add(kernel.getFinishName(uses), Signature::Second);
    }
  return emitData(symbols);
}
