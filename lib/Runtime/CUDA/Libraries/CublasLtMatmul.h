//===- CublasLtMatmul.h - Contractions by cuBLASLt --------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_CUBLASLTMATMUL_H
#define CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_CUBLASLTMATMUL_H

#include "CublasLt.h"
#include "Driver.h"
#include "cleave/Executable/Cuda/CommandLaunches.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include <map>
#include <memory>
#include <string>

namespace cleave::runtime::cuda {

/// The addresses of a contraction's operands; 0: absent.
struct Operands {
  CUdeviceptr a = 0, b = 0, c = 0, bias = 0, beside = 0;

  Operands(const ContractCommand &command,
           llvm::function_ref<CUdeviceptr(const Ref &)> at)
      : a(at(command.a)), b(at(command.b)), c(at(command.c)),
        bias(command.bias.buffer < 0 ? 0 : at(command.bias)),
        beside(command.beside.buffer < 0 ? 0 : at(command.beside)) {}
};

/// One contraction with its algorithm.
class Contraction {
public:
  Contraction(Contraction &&) = default;
  Contraction &operator=(Contraction &&) = default;

  /// Enqueues it.
  llvm::Error run(CUstream stream) const;

private:
  friend class CublasLtMatmuls;
  using Object = std::unique_ptr<void, int (*)(void *)>;
  Contraction(const CublasLt &library, const ContractCommand &command,
              Operands operands);
  llvm::Error describe();
  llvm::Error describeEpilogue();
  llvm::Error multiply(const lt::Algorithm &algorithm, CUstream stream) const;

  const CublasLt *library;
  void *handle = nullptr;
  CUdeviceptr workspace = 0;
  const ContractCommand *command;
  Operands operands;
  Object desc, a, b, c;
  lt::Algorithm algorithm{};
};

/// Makes contractions, and chooses their algorithms: all that cuBLASLt proposes
/// are measured if they are to be tuned, else its first one is taken. A choice
/// holds for a shape, its layout, types and alignment, on one kind of GPU.
class CublasLtMatmuls {
public:
  /// `device` is the name of the GPU, of which choices are; `workspace` has
  /// `kContractionWorkspaceBytes`.
  CublasLtMatmuls(const Driver &driver, std::string device,
                  CUdeviceptr workspace)
      : driver(driver), device(std::move(device)), workspace(workspace) {}
  ~CublasLtMatmuls();
  CublasLtMatmuls(const CublasLtMatmuls &) = delete;
  CublasLtMatmuls &operator=(const CublasLtMatmuls &) = delete;

  llvm::Expected<Contraction> make(const ContractCommand &command,
                                   Operands operands);
  /// Measures the algorithms of one that has no choice yet, with what its
  /// operands hold.
  llvm::Error tune(const ContractCommand &command, Operands operands,
                   CUstream stream);

  /// Takes over choices, as "key<tab>algorithm" lines. Those of another version
  /// of the library, or of another kind of GPU, are left out.
  void take(llvm::StringRef choices);
  std::string text() const;

private:
  llvm::Error open();
  llvm::Expected<Contraction> describe(const ContractCommand &command,
                                       Operands operands);
  llvm::Expected<std::vector<lt::HeuristicResult>>
  propose(const Contraction &contraction, int count) const;
  /// The time of one run in milliseconds.
  llvm::Expected<float> measure(const Contraction &contraction,
                                const lt::Algorithm &algorithm,
                                CUstream stream) const;
  /// How keys begin; the version is known when the library is open.
  std::string keyBegin() const;
  void leaveOutOthers();
  std::string keyOf(const ContractCommand &command, Operands operands) const;

  const Driver &driver;
  std::string device;
  CUdeviceptr workspace;
  const CublasLt *library = nullptr;
  void *handle = nullptr;
  std::map<std::string, std::string> choices;
};

} // namespace cleave::runtime::cuda

#endif // CLEAVE_LIB_RUNTIME_CUDA_LIBRARIES_CUBLASLTMATMUL_H
