//===- Session.cpp - A program that runs ----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Runtime/Session.h"
#include "cleave/Runtime/Philox.h"
#include "cleave/Runtime/ProgramIO.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <malloc.h>
#include <sys/resource.h>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

//===----------------------------------------------------------------------===//
// Creation
//===----------------------------------------------------------------------===//

static int threadsFor(const Program &program, int wanted) {
  int threads = wanted > 0 ? wanted : ThreadTeam::defaultThreads();
  return std::min(threads, program.threads);
}

Session::Session(Artifact artifactIn, int threads,
                 const SessionOptions &options)
    : artifact(std::move(artifactIn)), team(threads, options.pinCaller),
      tuner(ContractionTuner::fromEnvironment()), seed(options.seed) {
  for (const Tensor &tensor : getProgram().tensors) {
    names[tensor.name] = &tensor;
    for (const std::string &alias : tensor.aliases)
      names[alias] = &tensor;
  }
}

Error Session::start(const SessionOptions &options) {
  Expected<Arena> mapped = Arena::map(getProgram().arenaBytes);
  if (!mapped)
    return mapped.takeError();
  arena = std::move(*mapped);
  team.run([&](int thread, int count) { arena.touch(thread, count); });
  for (const auto &[key, name] : options.contractions)
    for (auto method : {ContractionMethod::Sgemm, ContractionMethod::Matmul})
      if (name == methodName(method))
        tuner.preset(key, method);
  Expected<Executor> created = Executor::create(artifact, arena, team, tuner);
  if (!created)
    return created.takeError();
  executor.emplace(std::move(*created));
  executor->setTiming(options.timing);
#ifdef __GLIBC__
  // What reading the program and tuning took stays with the allocator otherwise.
  malloc_trim(0);
#endif
  return Error::success();
}

Expected<std::unique_ptr<Session>>
Session::open(llvm::StringRef path, const SessionOptions &options) {
  Expected<Artifact> artifact = Artifact::open(path);
  if (!artifact)
    return artifact.takeError();
  int threads = threadsFor(artifact->getProgram(), options.threads);
  std::unique_ptr<Session> session(
      new Session(std::move(*artifact), threads, options));
  if (Error error = session->start(options))
    return makeError(path + ": " + llvm::toString(std::move(error)));
  return session;
}

Expected<std::unique_ptr<Session>>
Session::create(Program program, SymbolResolver resolver,
                const SessionOptions &options) {
  Expected<Artifact> artifact =
      Artifact::create(std::move(program), std::move(resolver));
  if (!artifact)
    return artifact.takeError();
  int threads = threadsFor(artifact->getProgram(), options.threads);
  std::unique_ptr<Session> session(
      new Session(std::move(*artifact), threads, options));
  if (Error error = session->start(options))
    return error;
  return session;
}

//===----------------------------------------------------------------------===//
// Tensors
//===----------------------------------------------------------------------===//

const Tensor *Session::find(llvm::StringRef name) const {
  auto it = names.find(name.str());
  return it == names.end() ? nullptr : it->second;
}

int64_t Session::bytes(const Tensor &tensor) const {
  return tensor.numElements() * byteSize(tensor.dtype);
}

bool cleave::runtime::acceptsId(const Tensor &tensor, int64_t id) {
  if (tensor.dtype == DType::I32 && id != static_cast<int32_t>(id))
    return false;
  return tensor.upperBound <= 0 || (id >= 0 && id < tensor.upperBound) ||
         (tensor.hasIgnoreIndex && id == tensor.ignoreIndex);
}

template <typename Id>
static Error checkIds(const Tensor &tensor, const Id *ids) {
  int64_t count = tensor.numElements();
  for (int64_t i = 0; i < count; ++i) {
    int64_t id = ids[i];
    if (acceptsId(tensor, id))
      continue;
    std::vector<int64_t> at(tensor.shape.size());
    int64_t rest = i;
    for (size_t d = at.size(); d-- > 0;) {
      at[d] = rest % tensor.shape[d];
      rest /= tensor.shape[d];
    }
    return makeError("input '" + tensor.name + "' has token id " + Twine(id) +
                     " at " + shapeText(at) +
                     ", but the model's vocabulary has " +
                     Twine(tensor.upperBound) + " rows");
  }
  return Error::success();
}

Error cleave::runtime::checkTokenIds(const Tensor &tensor, const void *data) {
  if (tensor.upperBound <= 0)
    return Error::success();
  if (tensor.dtype == DType::I64)
    return checkIds(tensor, static_cast<const int64_t *>(data));
  if (tensor.dtype == DType::I32)
    return checkIds(tensor, static_cast<const int32_t *>(data));
  return Error::success();
}

Error Session::setInput(llvm::StringRef name, const void *source, DType dtype,
                        llvm::ArrayRef<int64_t> shape) {
  const Tensor *tensor = find(name);
  if (!tensor || tensor->role != Role::Input)
    return makeError("the program has no input '" + name + "'");
  if (dtype != tensor->dtype)
    return makeError("input '" + name + "' is " + dtypeName(dtype) +
                     ", but the program takes " + dtypeName(tensor->dtype));
  if (shape != llvm::ArrayRef<int64_t>(tensor->shape))
    return makeError("input '" + name + "' has shape " +
                     shapeText(shape.vec()) + ", but the program takes " +
                     shapeText(tensor->shape));
  if (Error error = checkTokenIds(*tensor, source))
    return error;
  std::memcpy(data(*tensor), source, static_cast<size_t>(bytes(*tensor)));
  return Error::success();
}

/// Numbers as 16-bit floats are not needed by any scalar of a program.
template <typename F> static bool withNumbers(DType dtype, char *data, F body) {
  switch (dtype) {
  case DType::F64:
    return body(reinterpret_cast<double *>(data)), true;
  case DType::F32:
    return body(reinterpret_cast<float *>(data)), true;
  case DType::I64:
    return body(reinterpret_cast<int64_t *>(data)), true;
  case DType::I32:
    return body(reinterpret_cast<int32_t *>(data)), true;
  case DType::I8:
  case DType::I1:
    return body(reinterpret_cast<int8_t *>(data)), true;
  default:
    return false;
  }
}

Error Session::setScalar(llvm::StringRef name, double value) {
  const Tensor *tensor = find(name);
  if (!tensor || tensor->role != Role::Scalar)
    return makeError("the program has no scalar '" + name + "'");
  int64_t count = tensor->numElements();
  if (!withNumbers(tensor->dtype, data(*tensor), [&](auto *at) {
        for (int64_t i = 0; i < count; ++i)
          at[i] = static_cast<std::remove_pointer_t<decltype(at)>>(value);
      }))
    return makeError("scalar '" + name + "' is " + dtypeName(tensor->dtype));
  return Error::success();
}

Expected<double> Session::getScalar(llvm::StringRef name) const {
  const Tensor *tensor = find(name);
  if (!tensor || tensor->numElements() == 0)
    return makeError("the program has no tensor '" + name + "'");
  double result = 0;
  if (!withNumbers(tensor->dtype, data(*tensor),
                   [&](auto *at) { result = static_cast<double>(*at); }))
    return makeError("tensor '" + name + "' is " + dtypeName(tensor->dtype));
  return result;
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

void Session::setCounters(int64_t number) {
  auto set = [&](llvm::StringRef name, int64_t index, int64_t value) {
    const Tensor *tensor = find(name);
    if (!tensor || tensor->role != Role::Scalar ||
        tensor->numElements() <= index)
      return;
    withNumbers(tensor->dtype, data(*tensor), [&](auto *at) {
      at[index] = static_cast<std::remove_pointer_t<decltype(at)>>(value);
    });
  };
  set("seed", 0, seed);
  set("step", 0, number);
  set("rng", 0, seed);
  set("rng", 1, number);
}

/// Page faults of this process so far.
static int64_t countPageFaults() {
  rusage usage;
  return ::getrusage(RUSAGE_SELF, &usage) == 0
             ? int64_t(usage.ru_minflt) + usage.ru_majflt
             : 0;
}

Expected<StepResult> Session::run(llvm::StringRef entry) {
  if (!hasEntry(entry))
    return makeError("the program has no entry '" + entry + "'");
  bool training = entry == "train";
  setCounters(training ? step + 1 : step);
  int64_t faults = countPageFaults();
  auto start = std::chrono::steady_clock::now();
  if (auto message = executor->run(entry))
    return makeError(*message);
  StepResult result;
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  result.pageFaults = countPageFaults() - faults;
  result.breakdown = executor->getBreakdown();
  if (training)
    ++step;
  return result;
}

void Session::resetTraining() {
  for (const Tensor &tensor : getProgram().tensors)
    if (tensor.role == Role::State)
      std::memset(data(tensor), 0, static_cast<size_t>(bytes(tensor)));
  step = 0;
}

Error Session::initialiseRandomly(int64_t initSeed) {
  std::string constants, others;
  for (const Tensor &tensor : getProgram().tensors) {
    if (tensor.role == Role::Buffer)
      constants += (constants.empty() ? "'" : ", '") + tensor.name + "'";
    if (tensor.role == Role::Parameter && tensor.dtype != DType::F32)
      others += (others.empty() ? "'" : ", '") + tensor.name + "'";
  }
  if (!constants.empty())
    return makeError(
        "the model has constants that only a weights file holds: " + constants);
  if (!others.empty())
    return makeError("random values are made for f32 only, not for " + others);
  uint32_t id = 0;
  for (const Tensor &tensor : getProgram().tensors) {
    if (tensor.role != Role::Parameter)
      continue;
    ++id;
    auto *at = reinterpret_cast<float *>(data(tensor));
    int64_t count = tensor.numElements();
    const auto &shape =
        tensor.frameworkShape.empty() ? tensor.shape : tensor.frameworkShape;
    if (shape.size() < 2) {
      float value = llvm::StringRef(tensor.name).ends_with("bias") ? 0 : 1;
      std::fill_n(at, count, value);
      continue;
    }
    // Box and Muller: two normal numbers out of two uniform ones.
    philox::Stream stream{static_cast<uint64_t>(initSeed), id, 0xffffffffu};
    team.parallelFor(count, 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        uint64_t pair = static_cast<uint64_t>(i) & ~uint64_t(1);
        double u = (philox::draw(stream, pair) + 0.5) / 4294967296.0;
        double v = philox::draw(stream, pair + 1) / 4294967296.0;
        double radius = 0.02 * std::sqrt(-2.0 * std::log(u));
        double angle = 6.283185307179586 * v;
        at[i] = static_cast<float>(radius *
                                   (i & 1 ? std::sin(angle) : std::cos(angle)));
      }
    });
  }
  return Error::success();
}

MemoryReport Session::getMemory() const {
  MemoryReport report;
  report.arena = arena.size();
  report.workspace = executor->workspaceBytes();
  int64_t rest = arena.size();
  for (const Tensor &tensor : getProgram().tensors) {
    int64_t size = bytes(tensor);
    report.byKind[roleName(tensor.role).str()] += size;
    rest -= size;
  }
  report.byKind["activations and scratch"] = rest;
  return report;
}
