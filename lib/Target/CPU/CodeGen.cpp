//===- CodeGen.cpp - Native code of kernels -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Target/CPU/CodeGen.h"
#include "KernelEmitter.h"
#include "Machine.h"
#include "cleave/Executable/Format/Artifact.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/ExecutionEngine/Orc/ExecutionUtils.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Verifier.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/SmallVectorMemoryBuffer.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetOptions.h"
#include "llvm/TargetParser/Host.h"
#include "llvm/TargetParser/X86TargetParser.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/LICM.h"
#include "llvm/Transforms/Scalar/LoopPassManager.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"
#include <limits>
#include <mutex>

using namespace cleave;
using llvm::failure;
using llvm::FailureOr;
using llvm::StringRef;

static void initializeTarget() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
}

static llvm::Error error(const llvm::Twine &message) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), message);
}

//===----------------------------------------------------------------------===//
// Targets
//===----------------------------------------------------------------------===//

CpuTarget CpuTarget::host() {
  auto features = llvm::sys::getHostCPUFeatures();
  CpuTarget target;
  target.cpu = llvm::sys::getHostCPUName().str();
  target.vectorBits = features.lookup("avx512f") && features.lookup("avx512vl")
                          ? 512
                      : features.lookup("avx2") ? 256
                                                : 128;
  return target;
}

llvm::Expected<CpuTarget> CpuTarget::get(StringRef cpu, int vectorBits) {
  CpuTarget target = host();
  if (!cpu.empty() && cpu != "native" && cpu != target.cpu) {
    if (llvm::X86::parseArchX86(cpu, /*Only64Bit=*/true) == llvm::X86::CK_None)
      return error("unknown x86-64 processor '" + cpu + "'");
    llvm::SmallVector<StringRef> features;
    llvm::X86::getFeaturesForCPU(cpu, features);
    target.cpu = cpu.str();
    target.vectorBits = llvm::is_contained(features, "avx512vl") ? 512
                        : llvm::is_contained(features, "avx2")   ? 256
                                                                 : 128;
  }
  if (vectorBits != 0) {
    if (vectorBits != 128 && vectorBits != 256 && vectorBits != 512)
      return error("vectors of " + llvm::Twine(vectorBits) +
                   " bits are not supported: choose 128, 256 or 512");
    if (vectorBits > target.vectorBits)
      return error("processor '" + target.cpu + "' has no vectors of " +
                   llvm::Twine(vectorBits) + " bits");
    target.vectorBits = vectorBits;
  }
  return target;
}

/// Features that the host lacks although processors of its name have them, as
/// under a hypervisor.
static std::string featuresOf(const CpuTarget &target) {
  if (target.cpu != llvm::sys::getHostCPUName())
    return {};
  std::string text;
  for (const auto &feature : llvm::sys::getHostCPUFeatures())
    text += (text.empty() ? "" : ",") +
            ((feature.second ? "+" : "-") + feature.first().str());
  return text;
}

llvm::Expected<std::unique_ptr<llvm::TargetMachine>>
cpu::createMachine(const CpuTarget &target) {
  initializeTarget();
  llvm::Triple triple(llvm::sys::getDefaultTargetTriple());
  if (!triple.isX86_64())
    return error("kernels are generated for x86-64 only, not for " +
                 triple.str());
  std::string message;
  const llvm::Target *registered =
      llvm::TargetRegistry::lookupTarget(triple, message);
  if (!registered)
    return error(message);
  llvm::TargetOptions options;
  // Multiply-adds are contracted only where written.
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  std::unique_ptr<llvm::TargetMachine> machine(registered->createTargetMachine(
      triple, target.cpu, featuresOf(target), options, llvm::Reloc::PIC_,
      std::nullopt, llvm::CodeGenOptLevel::Default));
  if (!machine)
    return error("no code generator for " + triple.str());
  return machine;
}

//===----------------------------------------------------------------------===//
// Compilation
//===----------------------------------------------------------------------===//

/// The emitter writes efficient code except for values common to a loop's
/// iterations and vectors; few passes suffice to clean that up.
static void optimize(llvm::Module &module, llvm::TargetMachine &machine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager graphs;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(graphs);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, graphs, modules);
  llvm::FunctionPassManager passes;
  passes.addPass(llvm::EarlyCSEPass());
  passes.addPass(llvm::SimplifyCFGPass());
  passes.addPass(llvm::InstCombinePass());
  passes.addPass(llvm::createFunctionToLoopPassAdaptor(
      llvm::LICMPass(llvm::LICMOptions()), /*UseMemorySSA=*/true));
  passes.addPass(llvm::EarlyCSEPass());
  for (llvm::Function &function : module)
    if (!function.isDeclaration())
      passes.run(function, functions);
}

llvm::Expected<std::string> cpu::emitObject(llvm::Module &module,
                                            llvm::TargetMachine &machine) {
  llvm::SmallString<0> object;
  llvm::raw_svector_ostream stream(object);
  llvm::legacy::PassManager passes;
  if (machine.addPassesToEmitFile(passes, stream, nullptr,
                                  llvm::CodeGenFileType::ObjectFile))
    return error("the code generator cannot write object files");
  passes.run(module);
  return object.str().str();
}

/// Sets the attributes that a kernel's function expects of its callers.
static void addSignature(llvm::Module &module, const std::string &symbol,
                         size_t arguments,
                         runtime::KernelSignature::Stage stage) {
  auto *type = llvm::Type::getInt32Ty(module.getContext());
  auto *value = llvm::ConstantArray::get(
      llvm::ArrayType::get(type, 2),
      {llvm::ConstantInt::get(type, arguments),
       llvm::ConstantInt::get(type, static_cast<uint32_t>(stage))});
  new llvm::GlobalVariable(module, value->getType(), /*isConstant=*/true,
                           llvm::GlobalValue::ExternalLinkage, value,
                           runtime::kSignaturePrefix + symbol);
}

/// Kernels in order.
using Kernels = llvm::SmallVector<exec::KernelOp>;

/// The kernels as an optimised LLVM module.
static FailureOr<std::unique_ptr<llvm::Module>>
emitModule(llvm::ArrayRef<exec::KernelOp> kernels, const CpuTarget &target,
           llvm::TargetMachine &machine, llvm::LLVMContext &context) {
  auto result = std::make_unique<llvm::Module>("kernels", context);
  result->setDataLayout(machine.createDataLayout());
  result->setTargetTriple(machine.getTargetTriple());
  result->setPICLevel(llvm::PICLevel::BigPIC);
  for (exec::KernelOp kernel : kernels) {
    if (failed(cpu::KernelEmitter(kernel, *result, target).emit()))
      return failure();
    using Signature = runtime::KernelSignature;
    size_t arguments = kernel.getBody().front().getNumArguments();
    bool twoStage = kernel.isTwoStage();
    addSignature(*result, kernel.getFunctionName(), arguments,
                 twoStage ? Signature::First : Signature::Only);
    if (twoStage)
      addSignature(*result, kernel.getFinishName(), arguments,
                   Signature::Second);
    std::string message;
    llvm::raw_string_ostream stream(message);
    for (const std::string &name :
         {kernel.getFunctionName(), kernel.getFinishName()})
      if (llvm::Function *function = result->getFunction(name))
        if (llvm::verifyFunction(*function, &stream)) {
          kernel.emitError("native code is not valid: ") << message;
          return failure();
        }
  }
  optimize(*result, machine);
  return result;
}

/// What `print` makes of the code of `kernels` and the machine that it is for.
static FailureOr<std::string>
withCode(mlir::ModuleOp module, llvm::ArrayRef<exec::KernelOp> kernels,
         const CpuTarget &target,
         llvm::function_ref<FailureOr<std::string>(llvm::Module &,
                                                   llvm::TargetMachine &)>
             print) {
  auto machine = cpu::createMachine(target);
  if (!machine)
    return module.emitError(llvm::toString(machine.takeError()));
  llvm::LLVMContext context;
  auto code = emitModule(kernels, target, **machine, context);
  if (failed(code))
    return failure();
  return print(**code, **machine);
}

/// Relocatable object code of `kernels`, which are in `module`.
static FailureOr<std::string> compile(mlir::ModuleOp module,
                                      llvm::ArrayRef<exec::KernelOp> kernels,
                                      const CpuTarget &target) {
  return withCode(module, kernels, target,
                  [&](llvm::Module &code,
                      llvm::TargetMachine &machine) -> FailureOr<std::string> {
                    auto object = cpu::emitObject(code, machine);
                    if (!object)
                      return module.emitError(
                          llvm::toString(object.takeError()));
                    return std::move(*object);
                  });
}

FailureOr<std::string> cleave::compileKernels(mlir::ModuleOp module,
                                              const CpuTarget &target) {
  return compile(module, Kernels(module.getOps<exec::KernelOp>()), target);
}

/// The text of all that the code of a kernel follows from: all but its name
/// and location.
static std::string contentOf(exec::KernelOp kernel) {
  mlir::OwningOpRef<exec::KernelOp> copy = kernel.clone();
  copy->setSymName("kernel");
  std::string text;
  llvm::raw_string_ostream os(text);
  (*copy)->print(
      os, mlir::OpPrintingFlags()
              .useLocalScope()
              .enableDebugInfo(false)
              .printGenericOpForm()
              .elideLargeElementsAttrs(std::numeric_limits<int64_t>::max()));
  return text;
}

FailureOr<std::string> cleave::compileKernels(mlir::ModuleOp module,
                                              const CpuTarget &target,
                                              mlir::ModuleOp lender,
                                              BorrowedFunctions &borrowed) {
  llvm::StringMap<exec::KernelOp> lent;
  for (auto kernel : lender.getOps<exec::KernelOp>())
    lent.try_emplace(contentOf(kernel), kernel);
  Kernels own;
  auto borrow = [&](const std::string &name, const std::string &there) {
    for (StringRef prefix : {"", runtime::kSignaturePrefix})
      borrowed[(prefix + name).str()] = (prefix + there).str();
  };
  for (auto kernel : module.getOps<exec::KernelOp>()) {
    auto found = lent.find(contentOf(kernel));
    if (found == lent.end()) {
      own.push_back(kernel);
      continue;
    }
    exec::KernelOp there = found->second;
    borrow(kernel.getFunctionName(), there.getFunctionName());
    if (kernel.isTwoStage())
      borrow(kernel.getFinishName(), there.getFinishName());
  }
  return compile(module, own, target);
}

FailureOr<std::string> cleave::printLLVM(mlir::ModuleOp module,
                                         const CpuTarget &target) {
  return withCode(module, Kernels(module.getOps<exec::KernelOp>()), target,
                  [](llvm::Module &code, llvm::TargetMachine &) {
                    std::string text;
                    llvm::raw_string_ostream stream(text);
                    code.print(stream, nullptr);
                    return FailureOr<std::string>(text);
                  });
}

//===----------------------------------------------------------------------===//
// Kernels in this process
//===----------------------------------------------------------------------===//

KernelLibrary::~KernelLibrary() = default;

namespace {
class JitLibrary : public KernelLibrary {
public:
  explicit JitLibrary(std::unique_ptr<llvm::orc::LLJIT> jit)
      : jit(std::move(jit)) {}
  void *lookup(StringRef name) override {
    auto address = jit->lookup(name);
    if (!address) {
      llvm::consumeError(address.takeError());
      return nullptr;
    }
    return address->toPtr<void *>();
  }

private:
  std::unique_ptr<llvm::orc::LLJIT> jit;
};
} // namespace

llvm::Expected<std::unique_ptr<KernelLibrary>>
cleave::loadKernels(StringRef objectBytes) {
  initializeTarget();
  auto jit = llvm::orc::LLJITBuilder().create();
  if (!jit)
    return jit.takeError();
  auto process = llvm::orc::DynamicLibrarySearchGenerator::GetForCurrentProcess(
      (*jit)->getDataLayout().getGlobalPrefix());
  if (!process)
    return process.takeError();
  (*jit)->getMainJITDylib().addGenerator(std::move(*process));
  if (llvm::Error failed = (*jit)->addObjectFile(
          llvm::MemoryBuffer::getMemBufferCopy(objectBytes, "kernels")))
    return std::move(failed);
  return std::make_unique<JitLibrary>(std::move(*jit));
}
