//===- ShardLayout.cpp - The shard of each rank ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/ShardLayout.h"

#include <algorithm>
#include <cstring>

using namespace cleave::runtime;

using Axes = std::vector<MeshAxis>;

int64_t cleave::runtime::deviceCount(const Axes &mesh) {
  int64_t count = 1;
  for (const MeshAxis &axis : mesh)
    if (!axis.sequential)
      count *= axis.size;
  return count;
}

/// The distance of neighbours on an axis that is not sequential, in rank
/// numbers.
static int64_t deviceStride(const Axes &mesh, int32_t axis) {
  int64_t stride = 1;
  for (size_t i = static_cast<size_t>(axis) + 1; i < mesh.size(); ++i)
    if (!mesh[i].sequential)
      stride *= mesh[i].size;
  return stride;
}

/// The difference in rank number when a digit grows by 1.
static int64_t digitStride(const Axes &mesh, const Digit &digit) {
  const MeshAxis &axis = mesh[static_cast<size_t>(digit.axis)];
  return deviceStride(mesh, digit.axis) *
         (axis.size / (digit.pre * digit.size));
}

static bool isSequential(const Axes &mesh, const Digit &digit) {
  return mesh[static_cast<size_t>(digit.axis)].sequential;
}

static int64_t digitValue(const Axes &mesh, const Digit &digit, int64_t rank) {
  return isSequential(mesh, digit)
             ? 0
             : rank / digitStride(mesh, digit) % digit.size;
}

int64_t cleave::runtime::positionOf(const Program &program, int64_t rank) {
  if (program.pipelineAxis < 0)
    return 0;
  const MeshAxis &axis =
      program.mesh[static_cast<size_t>(program.pipelineAxis)];
  return digitValue(program.mesh, {program.pipelineAxis, 1, axis.size}, rank);
}

int64_t cleave::runtime::partIndex(const Axes &mesh,
                                   const std::vector<Digit> &digits,
                                   int64_t rank) {
  int64_t index = 0;
  for (const Digit &digit : digits)
    index = index * digit.size + digitValue(mesh, digit, rank);
  return index;
}

int64_t cleave::runtime::partCount(const std::vector<Digit> &digits) {
  int64_t count = 1;
  for (const Digit &digit : digits)
    count *= digit.size;
  return count;
}

std::vector<int32_t> cleave::runtime::groupOf(const Axes &mesh,
                                              const std::vector<Digit> &digits,
                                              int64_t rank) {
  int64_t first = rank;
  for (const Digit &digit : digits)
    first -= digitValue(mesh, digit, rank) * digitStride(mesh, digit);
  std::vector<int32_t> ranks;
  for (int64_t index = 0, n = partCount(digits); index < n; ++index) {
    int64_t rest = index, member = first;
    for (size_t i = digits.size(); i-- > 0;) {
      member += rest % digits[i].size * digitStride(mesh, digits[i]);
      rest /= digits[i].size;
    }
    ranks.push_back(static_cast<int32_t>(member));
  }
  return ranks;
}

int64_t cleave::runtime::evaluate(const Axes &mesh, const DeviceValue &value,
                                  int64_t rank) {
  int64_t result = value.base;
  for (const DeviceTerm &term : value.terms)
    result += term.factor * partIndex(mesh, term.digits, rank);
  return result;
}

std::string cleave::runtime::axesText(const Axes &mesh,
                                      const std::vector<Digit> &digits) {
  std::string text;
  for (const Digit &digit : digits) {
    const MeshAxis &axis = mesh[static_cast<size_t>(digit.axis)];
    text += (text.empty() ? "" : ",") + axis.name;
    if (digit.size != axis.size)
      text +=
          ":(" + std::to_string(digit.pre) + ")" + std::to_string(digit.size);
  }
  return text;
}

//===----------------------------------------------------------------------===//
// Shards of tensors
//===----------------------------------------------------------------------===//

std::vector<int64_t> cleave::runtime::localShape(const Axes &mesh,
                                                 const Tensor &tensor) {
  std::vector<int64_t> shape = tensor.heldShape();
  for (size_t d = 0; d < tensor.sharding.size(); ++d)
    for (const Digit &digit : tensor.sharding[d])
      if (!isSequential(mesh, digit))
        shape[d] /= digit.size;
  return shape;
}

int64_t cleave::runtime::localBytes(const Axes &mesh, const Tensor &tensor) {
  int64_t bytes = byteSize(tensor.dtype);
  for (int64_t size : localShape(mesh, tensor))
    bytes *= size;
  return bytes;
}

bool cleave::runtime::isWhole(const Axes &mesh, const Tensor &tensor) {
  // A shard of a padded tensor may have the global shape by chance.
  return tensor.padded.empty() && localShape(mesh, tensor) == tensor.shape;
}

int64_t cleave::runtime::partOf(const Axes &mesh, const Tensor &tensor,
                                int64_t rank) {
  int64_t index = 0;
  for (const std::vector<Digit> &digits : tensor.sharding)
    for (const Digit &digit : digits)
      if (!isSequential(mesh, digit))
        index = index * digit.size + digitValue(mesh, digit, rank);
  return index;
}

namespace {

/// A shard as loops over the whole (padded) tensor, outermost first; the shard
/// itself is dense in the order of the loops.
struct Loops {
  struct Loop {
    int64_t size, stride;
  };
  std::vector<Loop> loops;
  /// The offset of the shard in the whole tensor, in elements.
  int64_t first = 0;
  const Tensor &tensor;

  Loops(const Axes &mesh, const Tensor &tensor, int64_t rank) : tensor(tensor) {
    const std::vector<int64_t> &shape = tensor.heldShape();
    int64_t stride = 1;
    for (int64_t size : shape)
      stride *= size;
    for (size_t d = 0; d < shape.size(); ++d) {
      int64_t rest = shape[d];
      stride = rest == 0 ? 0 : stride / rest;
      if (d < tensor.sharding.size())
        for (const Digit &digit : tensor.sharding[d]) {
          rest /= digit.size;
          // A rank holds all positions of a sequential axis.
          if (isSequential(mesh, digit))
            add(digit.size, rest * stride);
          else
            first += digitValue(mesh, digit, rank) * rest * stride;
        }
      // With padding, a run is in the last dimension, even if it has one
      // element.
      if (isPadded() && d + 1 == shape.size())
        loops.push_back({rest, stride});
      else
        add(rest, stride);
    }
    if (loops.empty())
      loops.push_back({1, 1});
  }

  void add(int64_t size, int64_t stride) {
    if (!isPadded() && !loops.empty() && loops.back().stride == size * stride)
      loops.back() = {loops.back().size * size, stride};
    else if (size != 1)
      loops.push_back({size, stride});
  }

  bool isPadded() const { return !tensor.padded.empty(); }

  /// Calls `body(whole, part, count)` for each run of elements that is
  /// contiguous in both.
  template <typename F> void forEachRun(const F &body) const {
    bool dense = loops.back().stride == 1;
    int64_t run = dense ? loops.back().size : 1, runs = 1;
    size_t outer = loops.size() - (dense ? 1 : 0);
    for (size_t i = 0; i < outer; ++i)
      runs *= loops[i].size;
    for (int64_t index = 0; index < runs && run > 0; ++index) {
      int64_t rest = index, at = first;
      for (size_t i = outer; i-- > 0;) {
        at += rest % loops[i].size * loops[i].stride;
        rest /= loops[i].size;
      }
      int64_t count = isPadded() ? withoutPadding(at, run) : run;
      if (count > 0)
        body(at, index * run, count);
    }
  }

private:
  /// Converts an offset in the padded tensor to one in the tensor; returns how
  /// many of the `run` elements from there on, in the last dimension, are not
  /// padding.
  int64_t withoutPadding(int64_t &at, int64_t run) const {
    int64_t rest = at, stride = 1, count = run;
    at = 0;
    for (size_t d = tensor.shape.size(); d-- > 0;) {
      int64_t place = rest % tensor.padded[d], size = tensor.shape[d];
      bool last = d + 1 == tensor.shape.size();
      if (place >= size)
        return 0;
      if (last)
        count = std::min(run, size - place);
      at += place * stride;
      stride *= size;
      rest /= tensor.padded[d];
    }
    return count;
  }
};

} // namespace

void cleave::runtime::cutPart(const Axes &mesh, const Tensor &tensor,
                              int64_t rank, const void *whole, void *part) {
  int64_t bytes = byteSize(tensor.dtype);
  if (!tensor.padded.empty())
    std::memset(part, 0, static_cast<size_t>(localBytes(mesh, tensor)));
  Loops(mesh, tensor, rank)
      .forEachRun([&](int64_t from, int64_t to, int64_t count) {
        std::memcpy(static_cast<char *>(part) + to * bytes,
                    static_cast<const char *>(whole) + from * bytes,
                    static_cast<size_t>(count * bytes));
      });
}

void cleave::runtime::cutPart(
    const Axes &mesh, const Tensor &tensor, int64_t rank, void *part,
    llvm::function_ref<void(int64_t, int64_t, int64_t)> copy) {
  if (!tensor.padded.empty())
    std::memset(part, 0, static_cast<size_t>(localBytes(mesh, tensor)));
  Loops(mesh, tensor, rank).forEachRun(copy);
}

void cleave::runtime::joinPart(const Axes &mesh, const Tensor &tensor,
                               int64_t rank, const void *part, void *whole) {
  int64_t bytes = byteSize(tensor.dtype);
  Loops(mesh, tensor, rank)
      .forEachRun([&](int64_t to, int64_t from, int64_t count) {
        std::memcpy(static_cast<char *>(whole) + to * bytes,
                    static_cast<const char *>(part) + from * bytes,
                    static_cast<size_t>(count * bytes));
      });
}

int64_t Program::updatesPerStep() const {
  // The axis name that `--pipe-update-each` uses.
  for (const MeshAxis &axis : mesh)
    if (axis.sequential && axis.name == "updates")
      return axis.size;
  return 1;
}
