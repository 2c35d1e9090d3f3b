//===- CublasLtMatmul.cpp - Contractions by cuBLASLt ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Matrices of the command table are row-major, those of cuBLASLt column-major:
// the same memory is the transposed matrix there, and C' = B' A'.
//
//===----------------------------------------------------------------------===//

#include "CublasLtMatmul.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <cstring>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
using llvm::Error;
using llvm::Expected;

static int typeOf(DType type) {
  switch (type) {
  case DType::BF16:
    return lt::BF16;
  case DType::F16:
    return lt::F16;
  case DType::F8E4M3:
    return lt::F8E4M3;
  case DType::F8E5M2:
    return lt::F8E5M2;
  default:
    return lt::F32;
  }
}

/// The largest power of two that divides an address, up to what any algorithm
/// asks for.
static uint32_t alignmentOf(CUdeviceptr address) {
  uint64_t low = address & -address;
  return static_cast<uint32_t>(std::clamp<uint64_t>(low ? low : 256, 1, 256));
}

//===----------------------------------------------------------------------===//
// One contraction
//===----------------------------------------------------------------------===//

Contraction::Contraction(const CublasLt &library,
                         const ContractCommand &command, Operands operands)
    : library(&library), command(&command), operands(operands),
      desc(nullptr, library.destroyDesc), a(nullptr, library.destroyLayout),
      b(nullptr, library.destroyLayout), c(nullptr, library.destroyLayout) {}

Error Contraction::describe() {
  const ContractCommand &what = *command;
  // In f32, without TF32: sums and products have 24 bits.
  void *made = nullptr;
  if (Error error = CublasLt::check(
          library->createDesc(&made, lt::InF32, lt::F32), "a description"))
    return error;
  desc.reset(made);
  auto set = [&](int attribute, bool transposed) {
    int32_t value = transposed;
    return CublasLt::check(
        library->setDesc(made, attribute, &value, sizeof value),
        "a transposition");
  };
  if (Error error = set(lt::TransA, what.transB))
    return error;
  if (Error error = set(lt::TransB, what.transA))
    return error;
  auto layout = [&](Object &object, DType type, int64_t rows, int64_t columns,
                    int64_t ld, int64_t stride) -> Error {
    void *own = nullptr;
    if (Error error = CublasLt::check(
            library->createLayout(&own, typeOf(type),
                                  static_cast<uint64_t>(columns),
                                  static_cast<uint64_t>(rows), ld),
            "a layout"))
      return error;
    object.reset(own);
    if (what.batch == 1)
      return Error::success();
    auto count = static_cast<int32_t>(what.batch);
    if (Error error = CublasLt::check(
            library->setLayout(own, lt::BatchCount, &count, sizeof count),
            "a batch"))
      return error;
    return CublasLt::check(
        library->setLayout(own, lt::BatchStride, &stride, sizeof stride),
        "the stride of a batch");
  };
  if (Error error =
          layout(a, what.type, what.transA ? what.k : what.m,
                 what.transA ? what.m : what.k, what.lda, what.batchStrideA))
    return error;
  if (Error error =
          layout(b, what.typeB, what.transB ? what.n : what.k,
                 what.transB ? what.k : what.n, what.ldb, what.batchStrideB))
    return error;
  if (Error error = layout(c, what.resultType, what.m, what.n, what.ldc,
                           what.batchStrideC))
    return error;
  return describeEpilogue();
}

/// The bias and the matrix beside a product have the type of its result, which
/// is the library's default.
Error Contraction::describeEpilogue() {
  const ContractCommand &what = *command;
  int32_t bits = 0;
  auto set = [&](int attribute, auto value) {
    return CublasLt::check(
        library->setDesc(desc.get(), attribute, &value, sizeof value),
        "an epilogue");
  };
  if (operands.bias) {
    bits |= lt::Bias;
    if (Error error = set(lt::BiasPointer, operands.bias))
      return error;
  }
  if (what.epilogue != Epilogue::None) {
    bits |= what.epilogue == Epilogue::Gelu ? lt::Gelu : lt::GeluGradient;
  }
  if (operands.beside) {
    bits |= lt::Aux;
    if (Error error = set(lt::AuxPointer, operands.beside))
      return error;
    if (Error error = set(lt::AuxLd, what.ldBeside))
      return error;
  }
  return bits ? set(lt::Epilogue, bits) : Error::success();
}

Error Contraction::multiply(const lt::Algorithm &with, CUstream stream) const {
  auto at = [](CUdeviceptr address) {
    return reinterpret_cast<void *>(address);
  };
  return CublasLt::check(
      library->multiply(handle, desc.get(), &command->alpha, at(operands.b),
                        b.get(), at(operands.a), a.get(), &command->beta,
                        at(operands.c), c.get(), at(operands.c), c.get(), &with,
                        at(workspace), kContractionWorkspaceBytes, stream),
      "a product");
}

Error Contraction::run(CUstream stream) const {
  return multiply(algorithm, stream);
}

//===----------------------------------------------------------------------===//
// Choices
//===----------------------------------------------------------------------===//

CublasLtMatmuls::~CublasLtMatmuls() {
  if (handle)
    library->destroy(handle);
}

Error CublasLtMatmuls::open() {
  if (handle)
    return Error::success();
  Expected<const CublasLt *> opened = CublasLt::get();
  if (!opened)
    return opened.takeError();
  library = *opened;
  leaveOutOthers();
  return CublasLt::check(library->create(&handle), "starting");
}

std::string CublasLtMatmuls::keyBegin() const {
  return "cublasLt on " + device + ": " +
         (library ? std::to_string(library->version()) + " " : "");
}

std::string CublasLtMatmuls::keyOf(const ContractCommand &c,
                                   Operands operands) const {
  std::string key;
  llvm::raw_string_ostream os(key);
  os << keyBegin() << dtypeName(c.type) << ' ' << c.m << 'x' << c.n << 'x'
     << c.k << (c.transA ? " T" : " N") << (c.transB ? 'T' : 'N') << ' '
     << c.lda << ' ' << c.ldb << ' ' << c.ldc << " batch " << c.batch << ' '
     << c.batchStrideA << ' ' << c.batchStrideB << ' ' << c.batchStrideC
     << " beta " << c.beta << " align " << alignmentOf(operands.a) << ' '
     << alignmentOf(operands.b) << ' ' << alignmentOf(operands.c);
  if (c.typeB != c.type)
    os << " by " << dtypeName(c.typeB);
  if (c.resultType != DType::F32)
    os << " to " << dtypeName(c.resultType);
  if (operands.bias)
    os << " bias";
  if (c.epilogue != Epilogue::None)
    os << (c.epilogue == Epilogue::Gelu ? " gelu " : " gelu-gradient ")
       << c.ldBeside << " align " << alignmentOf(operands.beside);
  return key;
}

Expected<Contraction> CublasLtMatmuls::describe(const ContractCommand &command,
                                                Operands operands) {
  if (Error error = open())
    return error;
  Contraction contraction(*library, command, operands);
  contraction.handle = handle;
  contraction.workspace = workspace;
  if (Error error = contraction.describe())
    return error;
  return contraction;
}

Expected<std::vector<lt::HeuristicResult>>
CublasLtMatmuls::propose(const Contraction &contraction, int count) const {
  void *made = nullptr;
  if (Error error =
          CublasLt::check(library->createPreference(&made), "a preference"))
    return error;
  Contraction::Object preference(made, library->destroyPreference);
  auto bytes = static_cast<uint64_t>(kContractionWorkspaceBytes);
  if (Error error =
          CublasLt::check(library->setPreference(made, lt::MaxWorkspaceBytes,
                                                 &bytes, sizeof bytes),
                          "the limit of the workspace"))
    return error;
  const Operands &at = contraction.operands;
  for (auto [attribute, address] :
       {std::pair(lt::AlignmentA, at.b), std::pair(lt::AlignmentB, at.a),
        std::pair(lt::AlignmentC, at.c), std::pair(lt::AlignmentD, at.c)}) {
    uint32_t alignment = alignmentOf(address);
    if (Error error =
            CublasLt::check(library->setPreference(made, attribute, &alignment,
                                                   sizeof alignment),
                            "an alignment"))
      return error;
  }
  std::vector<lt::HeuristicResult> results(static_cast<size_t>(count));
  int found = 0;
  int status = library->heuristics(handle, contraction.desc.get(),
                                   contraction.b.get(), contraction.a.get(),
                                   contraction.c.get(), contraction.c.get(),
                                   made, count, results.data(), &found);
  results.resize(status == 0 ? static_cast<size_t>(found) : 0);
  llvm::erase_if(results, [](const lt::HeuristicResult &result) {
    return result.state != 0;
  });
  if (results.empty())
    return makeError("cuBLASLt has no algorithm for the contraction " +
                     keyOf(*contraction.command, at));
  return results;
}

static std::string hexOf(const lt::Algorithm &algorithm) {
  return llvm::toHex(
      llvm::StringRef(reinterpret_cast<const char *>(algorithm.data),
                      sizeof algorithm.data),
      /*LowerCase=*/true);
}

Expected<Contraction> CublasLtMatmuls::make(const ContractCommand &command,
                                            Operands operands) {
  Expected<Contraction> contraction = describe(command, operands);
  if (!contraction)
    return contraction;
  auto it = choices.find(keyOf(command, operands));
  std::string bytes;
  lt::HeuristicResult checked;
  if (it != choices.end() && llvm::tryGetFromHex(it->second, bytes) &&
      bytes.size() == sizeof checked.algorithm.data) {
    std::memcpy(contraction->algorithm.data, bytes.data(), bytes.size());
    if (library->checkAlgorithm(handle, contraction->desc.get(),
                                contraction->b.get(), contraction->a.get(),
                                contraction->c.get(), contraction->c.get(),
                                &contraction->algorithm, &checked) == 0 &&
        checked.workspaceBytes <=
            static_cast<size_t>(kContractionWorkspaceBytes))
      return contraction;
  }
  auto proposed = propose(*contraction, 1);
  if (!proposed)
    return proposed.takeError();
  contraction->algorithm = proposed->front().algorithm;
  return contraction;
}

Expected<float> CublasLtMatmuls::measure(const Contraction &contraction,
                                         const lt::Algorithm &algorithm,
                                         CUstream stream) const {
  constexpr int repetitions = 3;
  CUevent events[2] = {};
  auto run = [&]() -> Expected<float> {
    for (CUevent &event : events)
      if (Error error = driver.check(
              driver.cuEventCreate(&event, CU_EVENT_DEFAULT), "an event"))
        return error;
    if (Error error = contraction.multiply(algorithm, stream))
      return error;
    if (Error error =
            driver.check(driver.cuEventRecord(events[0], stream), "an event"))
      return error;
    for (int i = 0; i < repetitions; ++i)
      if (Error error = contraction.multiply(algorithm, stream))
        return error;
    if (Error error =
            driver.check(driver.cuEventRecord(events[1], stream), "an event"))
      return error;
    if (Error error = driver.check(driver.cuEventSynchronize(events[1]),
                                   "measuring a product"))
      return error;
    float time = 0;
    if (Error error = driver.check(
            driver.cuEventElapsedTime(&time, events[0], events[1]), "a time"))
      return error;
    return time / repetitions;
  };
  Expected<float> time = run();
  for (CUevent event : events)
    if (event)
      (void)driver.cuEventDestroy(event);
  return time;
}

Error CublasLtMatmuls::tune(const ContractCommand &command, Operands operands,
                            CUstream stream) {
  Expected<Contraction> contraction = describe(command, operands);
  if (!contraction)
    return contraction.takeError();
  std::string key = keyOf(command, operands);
  if (choices.count(key))
    return Error::success();
  auto proposed = propose(*contraction, 8);
  if (!proposed)
    return proposed.takeError();
  const lt::Algorithm *best = nullptr;
  float least = 0;
  for (const lt::HeuristicResult &result : *proposed) {
    Expected<float> time = measure(*contraction, result.algorithm, stream);
    if (!time)
      return time.takeError();
    if (!best || *time < least) {
      best = &result.algorithm;
      least = *time;
    }
  }
  choices[key] = hexOf(*best);
  return Error::success();
}

void CublasLtMatmuls::take(llvm::StringRef text) {
  llvm::SmallVector<llvm::StringRef> lines;
  llvm::SplitString(text, lines, "\n");
  for (llvm::StringRef line : lines) {
    auto [key, algorithm] = line.rsplit('\t');
    choices[key.str()] = algorithm.str();
  }
  leaveOutOthers();
}

void CublasLtMatmuls::leaveOutOthers() {
  std::string begin = keyBegin();
  for (auto it = choices.begin(); it != choices.end();)
    it = llvm::StringRef(it->first).starts_with(begin) ? std::next(it)
                                                       : choices.erase(it);
}

std::string CublasLtMatmuls::text() const {
  std::string text;
  for (const auto &[key, algorithm] : choices)
    text += key + '\t' + algorithm + '\n';
  return text;
}
