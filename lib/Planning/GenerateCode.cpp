//===- GenerateCode.cpp - From a module to an artifact --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Planning/GenerateCode.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Target/CPU/CodeGen.h"
#include "cleave/Target/CUDA/CompileCuda.h"

using namespace mlir;
using namespace cleave;

/// The processor that `options` name; an error is reported at the module.
static FailureOr<CpuTarget> processorOf(ModuleOp module,
                                        const CompileOptions &options) {
  auto target = CpuTarget::get(options.cpu, options.vectorBits);
  if (!target)
    return emitError(module.getLoc()) << llvm::toString(target.takeError());
  return *target;
}

FailureOr<CompiledProgram> cleave::generateCode(ModuleOp module,
                                                const CompileOptions &options,
                                                const PlannedProgram &planned) {
  auto target = processorOf(module, options);
  if (failed(target))
    return failure();
  if (options.traits().isGpu()) {
    FailureOr<std::string> text =
        printCudaPrograms(module, planned.positions, options.architecture);
    if (failed(text))
      return failure();
    auto emit = [&]() -> llvm::Expected<std::string> {
      auto code = compileCuda(*text, options.architecture);
      if (!code)
        return code.takeError();
      return emitImage(*code, module);
    };
    auto object = emit();
    if (!object)
      return emitError(module.getLoc()) << llvm::toString(object.takeError());
    return CompiledProgram{planned.positions, std::move(*object)};
  }
  auto object = compileKernels(module, *target);
  if (failed(object))
    return failure();
  return CompiledProgram{planned.positions, std::move(*object)};
}

FailureOr<CompiledProgram> cleave::generateCode(ModuleOp module,
                                                const CompileOptions &options,
                                                const PlannedProgram &planned,
                                                ModuleOp lender,
                                                BorrowedFunctions &borrowed) {
  auto target = processorOf(module, options);
  if (failed(target))
    return failure();
  auto object = compileKernels(module, *target, lender, borrowed);
  if (failed(object))
    return failure();
  return CompiledProgram{planned.positions, std::move(*object)};
}

std::pair<int64_t, int64_t>
cleave::countKernels(ModuleOp module, const BorrowedFunctions &borrowed) {
  int64_t compiled = 0, lent = 0;
  for (auto kernel : module.getOps<exec::KernelOp>())
    ++(borrowed.contains(kernel.getFunctionName()) ? lent : compiled);
  return {compiled, lent};
}

FailureOr<CompiledProgram> cleave::generateCode(ModuleOp module,
                                                const CompileOptions &options) {
  FailureOr<PlannedProgram> planned = planProgram(module, options);
  if (failed(planned))
    return failure();
  return generateCode(module, options, *planned);
}

FailureOr<std::string> cleave::printKernels(ModuleOp module, KernelText text,
                                            const CompileOptions &options) {
  LaunchShapes launches;
  if (text == KernelText::Cuda && !options.traits().isGpu())
    return printCuda(module, launches);
  if (text == KernelText::Cuda) {
    FailureOr<PlannedProgram> planned = planProgram(module, options);
    if (failed(planned))
      return failure();
    return printCudaPrograms(module, planned->positions, options.architecture);
  }
  auto target = processorOf(module, options);
  if (failed(target))
    return failure();
  return printLLVM(module, *target);
}

llvm::Error cleave::writeArtifact(const CompiledProgram &compiled,
                                  StringRef path) {
  if (llvm::Error error = runtime::validate(compiled.positions))
    return error;
  return linkSharedObject(compiled.object, runtime::toJSON(compiled.positions),
                          path);
}

llvm::Expected<std::unique_ptr<runtime::Session>>
cleave::openSession(const CompiledProgram &compiled,
                    const runtime::SessionOptions &options) {
  auto library = loadKernels(compiled.object);
  if (!library)
    return library.takeError();
  return openSession(compiled, std::move(*library), nullptr, {}, options);
}

llvm::Expected<std::unique_ptr<runtime::Session>>
cleave::openSession(const CompiledProgram &compiled, SharedKernels kernels,
                    SharedKernels lender, BorrowedFunctions borrowed,
                    const runtime::SessionOptions &options) {
  // The session's resolver keeps the code alive.
  return runtime::Session::create(
      compiled.positions,
      [kernels, lender, borrowed = std::move(borrowed)](StringRef symbol) {
        auto other = borrowed.find(symbol);
        return other == borrowed.end() ? kernels->lookup(symbol)
                                       : lender->lookup(other->second);
      },
      options);
}
