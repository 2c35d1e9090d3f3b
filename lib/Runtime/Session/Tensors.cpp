//===- Tensors.cpp - Whole tensors of a session ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Runtime/Communicator/ThreadWorld.h"
#include "cleave/Runtime/Session/Session.h"
#include "cleave/Support/Philox.h"
#include "llvm/ADT/StringExtras.h"

#include <cmath>
#include <cstring>
#include <set>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

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

std::vector<int64_t> cleave::runtime::indexOf(const std::vector<int64_t> &shape,
                                              int64_t at) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = index.size(); d-- > 0;) {
    index[d] = at % shape[d];
    at /= shape[d];
  }
  return index;
}

template <typename Id>
static Error checkIds(const Tensor &tensor, const Id *ids) {
  int64_t count = tensor.numElements();
  for (int64_t i = 0; i < count; ++i) {
    int64_t id = ids[i];
    if (acceptsId(tensor, id))
      continue;
    std::vector<int64_t> at = indexOf(tensor.shape, i);
    if (tensor.role != Role::Input)
      return makeError("'" + tensor.name + "' has the index " + Twine(id) +
                       " at " + shapeText(at) + ", outside of [0, " +
                       Twine(tensor.upperBound) + ")");
    return makeError("input '" + tensor.name + "' has " + Twine(id) + " at " +
                     shapeText(at) +
                     ", where the model takes an index from 0 to " +
                     Twine(tensor.upperBound - 1) +
                     (tensor.hasIgnoreIndex
                          ? " (or " + std::to_string(tensor.ignoreIndex) + ")"
                          : std::string()));
  }
  return Error::success();
}

Error cleave::runtime::checkIndexRange(const Tensor &tensor, const void *data) {
  if (tensor.upperBound <= 0)
    return Error::success();
  if (tensor.dtype == DType::I64)
    return checkIds(tensor, static_cast<const int64_t *>(data));
  if (tensor.dtype == DType::I32)
    return checkIds(tensor, static_cast<const int32_t *>(data));
  return Error::success();
}

/// What `program` has of `role`, in a message that says what it lacks.
static std::string knownOf(const Program &program, Role role) {
  std::string known;
  for (const Tensor &tensor : program.tensors)
    if (tensor.role == role)
      known += (known.empty() ? "'" : ", '") + tensor.name + "'";
  return "; it has " + (known.empty() ? "none" : known);
}

Error Session::setInput(llvm::StringRef name, const void *source, DType dtype,
                        llvm::ArrayRef<int64_t> shape) {
  const Tensor *tensor = find(name);
  if (!tensor || tensor->role != Role::Input)
    return makeError("the program has no input '" + name + "'" +
                     knownOf(getProgram(), Role::Input));
  if (dtype != tensor->dtype)
    return makeError("input '" + name + "' is " + dtypeName(dtype) +
                     ", but the program takes " + dtypeName(tensor->dtype));
  if (shape != llvm::ArrayRef<int64_t>(tensor->shape))
    return makeError("input '" + name + "' has shape " +
                     shapeText(shape.vec()) + ", but the program takes " +
                     shapeText(tensor->shape));
  if (Error error = checkIndexRange(*tensor, source))
    return error;
  write(*tensor, source);
  return Error::success();
}

//===----------------------------------------------------------------------===//
// Shards
//===----------------------------------------------------------------------===//

/// Whether updates change `tensor`.
static bool isUpdated(const Tensor &tensor) {
  return tensor.role == Role::Parameter || tensor.role == Role::State;
}

void Session::beforeWriting(const Tensor &tensor) {
  if (!isUpdated(tensor))
    return;
  if (Error error = finishUpdate())
    fail(llvm::toString(std::move(error)));
}

void Session::write(const Tensor &tensor, const void *whole) {
  beforeWriting(tensor);
  if (tensor.role == Role::Buffer)
    valued.insert(tensor.name);
  for (const std::unique_ptr<Rank> &rank : ranks)
    if (rank->holds(tensor))
      if (Error error = rank->change(tensor, [&](char *part) {
            cutPart(getProgram().mesh, tensor, rank->number(), whole, part);
          }))
        fail(llvm::toString(std::move(error)));
}

void Session::writeValues() {
  for (const Tensor &tensor : getProgram().tensors)
    if (!tensor.value.empty())
      write(tensor, llvm::fromHex(tensor.value).data());
}

static bool has(const Program &program, const Tensor &tensor) {
  return llvm::any_of(program.tensors, [&](const Tensor &own) {
    return own.name == tensor.name;
  });
}

static bool gives(const Program &program, const std::string &entry,
                  const Tensor &tensor) {
  auto found = program.entries.find(entry);
  return found != program.entries.end() &&
         llvm::any_of(found->second.outputs, [&](int32_t i) {
           return program.tensors[static_cast<size_t>(i)].name == tensor.name;
         });
}

/// Entries at different positions may give outputs of one name: the value is
/// that of the entry that ran last of those that give it.
bool Session::holds(const Program &program, const Tensor &tensor) const {
  auto entry = givenBy.find(tensor.name);
  return has(program, tensor) &&
         (tensor.role != Role::Output || entry == givenBy.end() ||
          gives(program, entry->second, tensor));
}

void Session::noteOutputs(llvm::StringRef entry) {
  for (const Program &program : artifact.getPositions())
    for (const Tensor &tensor : program.tensors)
      if (tensor.role == Role::Output && gives(program, entry.str(), tensor))
        givenBy[tensor.name] = entry.str();
}

bool Session::isEverywhere(const Tensor &tensor) const {
  return isWhole(getProgram().mesh, tensor) &&
         llvm::all_of(artifact.getPositions(), [&](const Program &program) {
           return holds(program, tensor);
         });
}

Error Session::read(const Tensor &tensor, void *whole) const {
  if (isUpdated(tensor))
    if (Error error = finishUpdate())
      return error;
  const std::vector<MeshAxis> &mesh = getProgram().mesh;
  bool here = world || isEverywhere(tensor);
  std::set<int64_t> seen;
  if (here) {
    std::vector<char> copy;
    for (const std::unique_ptr<Rank> &rank : ranks) {
      if (!whole || !rank->holds(tensor) ||
          !holds(artifact.programOf(rank->number()), tensor) ||
          !seen.insert(partOf(mesh, tensor, rank->number())).second)
        continue;
      Expected<const char *> part = rank->view(tensor, copy);
      if (!part)
        return part.takeError();
      joinPart(mesh, tensor, rank->number(), *part, whole);
    }
    return Error::success();
  }
  // The first rank that has a shard sends it to all.
  std::vector<char> part(static_cast<size_t>(localBytes(mesh, tensor)));
  for (int rank = 0; rank < getRanks(); ++rank) {
    if (!holds(artifact.programOf(rank), tensor) ||
        !seen.insert(partOf(mesh, tensor, rank)).second)
      continue;
    // A rank that has none does not read the source.
    const char *own = data(tensor);
    if (!own && rank == getRank())
      if (Error error = first().read(tensor, part.data()))
        return error;
    if (Error error =
            all().broadcast(rank, own ? own : part.data(), part.data(),
                            static_cast<int64_t>(part.size())))
      return error;
    if (whole)
      joinPart(mesh, tensor, rank, part.data(), whole);
  }
  return Error::success();
}

//===----------------------------------------------------------------------===//
// Scalars
//===----------------------------------------------------------------------===//

/// No scalar of a program is a 16-bit float.
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

Error Session::editScalar(const Tensor &tensor,
                          llvm::function_ref<void(char *)> body) const {
  for (const std::unique_ptr<Rank> &rank : ranks)
    if (rank->holds(tensor))
      if (Error error = rank->edit(tensor, body))
        return error;
  return Error::success();
}

Error Session::setScalar(llvm::StringRef name, double value) {
  const Tensor *tensor = find(name);
  if (!tensor || tensor->role != Role::Scalar)
    return makeError("the program has no scalar '" + name + "'" +
                     knownOf(getProgram(), Role::Scalar));
  int64_t count =
      localBytes(getProgram().mesh, *tensor) / byteSize(tensor->dtype);
  bool known = true;
  Error error = editScalar(*tensor, [&](char *own) {
    known = withNumbers(tensor->dtype, own, [&](auto *at) {
      for (int64_t i = 0; i < count; ++i)
        at[i] = static_cast<std::remove_pointer_t<decltype(at)>>(value);
    });
  });
  if (!known)
    error = llvm::joinErrors(std::move(error),
                             makeError("scalar '" + name + "' is " +
                                       dtypeName(tensor->dtype) +
                                       ", which takes no number"));
  return error;
}

Expected<double> Session::getScalar(llvm::StringRef name) const {
  const Tensor *tensor = find(name);
  if (!tensor || tensor->numElements() == 0)
    return makeError("the program has no output '" + name + "'" +
                     knownOf(getProgram(), Role::Output));
  std::vector<char> whole(static_cast<size_t>(bytes(*tensor)));
  if (Error error = read(*tensor, whole.data()))
    return error;
  double result = 0;
  if (!withNumbers(tensor->dtype, whole.data(),
                   [&](auto *at) { result = static_cast<double>(*at); }))
    return makeError("tensor '" + name + "' is " + dtypeName(tensor->dtype) +
                     ", which is read as no number");
  return result;
}

/// Sets the flag that says whether the previous step has deferred its updates.
Error Session::setPending(bool value) const {
  const Tensor *flag = find("update_pending");
  return flag ? editScalar(*flag, [&](char *own) { *own = value; })
              : Error::success();
}

/// Keeps the scalars of the last step for its deferred updates.
Error Session::keepScalars() {
  for (const Tensor &tensor : getProgram().tensors) {
    llvm::StringRef name = tensor.name;
    const Tensor *source =
        name.consume_front("previous.") ? find(name) : nullptr;
    if (!source || tensor.role != Role::Scalar)
      continue;
    std::vector<char> copy;
    for (const std::unique_ptr<Rank> &rank : ranks) {
      if (!rank->holds(tensor) || !rank->holds(*source) ||
          tensor.dtype != source->dtype)
        continue;
      Expected<const char *> from = rank->view(*source, copy);
      if (!from)
        return from.takeError();
      if (Error error = rank->write(tensor, *from))
        return error;
    }
  }
  return Error::success();
}

Error Session::setCounters(int64_t number, int64_t updates) {
  Error error = Error::success();
  auto set = [&](llvm::StringRef name, int64_t index, auto value) {
    const Tensor *tensor = find(name);
    if (!tensor || tensor->role != Role::Scalar ||
        tensor->numElements() <= index)
      return;
    error = llvm::joinErrors(
        std::move(error), editScalar(*tensor, [&](char *own) {
          withNumbers(tensor->dtype, own, [&](auto *at) {
            at[index] = static_cast<std::remove_pointer_t<decltype(at)>>(value);
          });
        }));
  };
  set("seed", 0, seed);
  set("step", 0, updates);
  set("rng", 0, seed);
  set("rng", 1, number);
  if (lossScale)
    set("loss_scale", 0, lossScale->scale);
  return error;
}

//===----------------------------------------------------------------------===//
// Initial values
//===----------------------------------------------------------------------===//

void Session::resetTraining() {
  if (Error error = finishUpdate())
    fail(llvm::toString(std::move(error)));
  for (const Tensor &tensor : getProgram().tensors)
    if (tensor.role == Role::State)
      for (const std::unique_ptr<Rank> &rank : ranks)
        if (rank->holds(tensor))
          if (Error error = rank->zero(tensor))
            fail(llvm::toString(std::move(error)));
  step = skipped = 0;
  setLossScale(std::nullopt);
}

Error Session::initialiseRandomly(int64_t initSeed) {
  std::string constants, others;
  for (const Tensor &tensor : getProgram().tensors) {
    if (tensor.role == Role::Buffer && !valued.count(tensor.name))
      constants += (constants.empty() ? "'" : ", '") + tensor.name + "'";
    if (tensor.role == Role::Parameter && tensor.dtype != DType::F32)
      others += (others.empty() ? "'" : ", '") + tensor.name + "'";
  }
  if (!constants.empty())
    return makeError(
        "the model has constants that only a weights file holds: " + constants +
        "; give one (--weights)");
  if (!others.empty())
    return makeError("random values are supported for f32 only, not for " +
                     others + "; give a file of weights (--weights)");
  // Drawn by the index in the whole tensor, so that values do not depend on the
  // mesh; but into the shards, so that no whole tensor is in memory.
  uint32_t id = 0;
  for (const Tensor &tensor : getProgram().tensors) {
    if (tensor.role != Role::Parameter)
      continue;
    philox::Stream stream{static_cast<uint64_t>(initSeed), ++id, 0xffffffffu};
    bool vector =
        (tensor.frameworkShape.empty() ? tensor.shape : tensor.frameworkShape)
            .size() < 2;
    auto draw = [&](int64_t i) {
      if (vector)
        return tensor.additive ? 0.0f : 1.0f;
      // Box-Muller: two normal numbers from two uniform ones.
      uint64_t pair = static_cast<uint64_t>(i) & ~uint64_t(1);
      double u = (philox::draw(stream, pair) + 0.5) / 4294967296.0;
      double v = philox::draw(stream, pair + 1) / 4294967296.0;
      double radius = 0.02 * std::sqrt(-2.0 * std::log(u));
      double angle = 6.283185307179586 * v;
      return static_cast<float>(radius *
                                (i & 1 ? std::sin(angle) : std::cos(angle)));
    };
    beforeWriting(tensor);
    for (const std::unique_ptr<Rank> &rank : ranks) {
      if (!rank->holds(tensor))
        continue;
      const char *known = rank != ranks.front() && isEverywhere(tensor)
                              ? data(tensor)
                              : nullptr;
      Error error = rank->change(tensor, [&](char *part) {
        if (known) {
          std::memcpy(part, known, static_cast<size_t>(bytes(tensor)));
          return;
        }
        auto fill = [&](int64_t from, int64_t to, int64_t count) {
          float *at = reinterpret_cast<float *>(part) + to;
          first().getTeam().parallelFor(count, 1 << 14,
                                        [&](int64_t begin, int64_t end) {
                                          for (int64_t i = begin; i < end; ++i)
                                            at[i] = draw(from + i);
                                        });
        };
        cutPart(getProgram().mesh, tensor, rank->number(), part, fill);
      });
      if (error)
        return error;
    }
  }
  return Error::success();
}
