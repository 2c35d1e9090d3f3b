//===- HostTensors.cpp - What the host gives and takes each run -----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "HostTensors.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "llvm/ADT/STLExtras.h"

#include <cstring>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
using llvm::Error;
using llvm::Expected;

/// A result that has more is read when it is asked for; results within as many
/// are copied at once, with what lies between them.
static constexpr int64_t kMostResultBytes = 1024;

static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

Expected<std::unique_ptr<HostTensors>>
HostTensors::make(const Program &program, Gpu &gpu, CUdeviceptr arena,
                  llvm::ArrayRef<MemoryRange> written, WorkRecord *record) {
  std::unique_ptr<HostTensors> own(new HostTensors(gpu, arena, record));
  int64_t scalarBytes = 0;
  for (const Tensor &tensor : program.tensors) {
    MemoryRange range{Place::Arena, tensor.offset,
                      localBytes(program.mesh, tensor)};
    bool isInput = tensor.role == Role::Input;
    if ((!isInput && tensor.role != Role::Scalar) || tensor.tier ||
        range.bytes == 0 || overlaps(written, range))
      continue;
    int64_t &at = isInput ? own->inputBytes : scalarBytes;
    (isInput ? own->inputs : own->scalars)
        .push_back({range.offset, range.bytes, at});
    at += aligned(range.bytes);
    own->given.writes.push_back(range);
  }
  own->values.resize(static_cast<size_t>(scalarBytes));
  for (Given &scalar : own->scalars)
    scalar.at += own->inputBytes;
  own->turnBytes = own->inputBytes + scalarBytes;
  Expected<CUstream> stream = gpu.makeStream();
  if (!stream)
    return stream.takeError();
  own->stream = *stream;
  for (CUevent *event : {&own->copied, &own->hasRead, &own->taken[0],
                         &own->taken[1], &own->hasResults}) {
    Expected<CUevent> made = gpu.makeEvent();
    if (!made)
      return made.takeError();
    *event = *made;
  }
  return own;
}

HostTensors::Results
HostTensors::plan(const Program &program, const Entry &entry,
                  llvm::function_ref<int64_t(const MemoryRange &)> writer) {
  Results found;
  for (int32_t index : entry.outputs) {
    const Tensor &tensor = program.tensors[static_cast<size_t>(index)];
    int64_t bytes = localBytes(program.mesh, tensor);
    if (tensor.role != Role::Output || tensor.tier || bytes == 0 ||
        bytes > kMostResultBytes)
      continue;
    int64_t last = writer({Place::Arena, tensor.offset, bytes});
    if (last < 0)
      continue;
    found.list.push_back({tensor.offset, bytes, 0});
    found.last = std::max(found.last, last);
  }
  return found;
}

void HostTensors::place(Results &results, MemoryRange status) {
  auto sort = [](std::vector<Results::Copy> &list) {
    llvm::sort(list, [](const Results::Copy &one, const Results::Copy &two) {
      return one.offset < two.offset;
    });
  };
  if (!results.list.empty() && status.bytes > 0) {
    std::vector<Results::Copy> all = results.list;
    all.push_back({status.offset, status.bytes, 0});
    sort(all);
    int64_t end = 0;
    for (const Results::Copy &own : all)
      end = std::max(end, own.offset + own.bytes);
    if (end - all.front().offset <= kMostResultBytes) {
      results.list = std::move(all);
      results.status = 0;
    }
  }
  sort(results.list);
  for (Results::Copy &own : results.list) {
    int64_t end = own.offset + own.bytes;
    if (results.ranges.empty() ||
        end - results.ranges.back().offset > kMostResultBytes)
      results.ranges.push_back({own.offset, 0, resultBytes});
    Results::Copy &range = results.ranges.back();
    // One that lies within another ends before it.
    resultBytes -= aligned(range.bytes);
    range.bytes = std::max(range.bytes, end - range.offset);
    resultBytes += aligned(range.bytes);
    own.at = range.at + (own.offset - range.offset);
    if (results.status >= 0 && own.offset == status.offset)
      results.status = own.at;
  }
}

Error HostTensors::allocate() {
  Expected<char *> made = gpu.allocateHost(2 * turnBytes + resultBytes);
  if (!made)
    return made.takeError();
  pinned = *made;
  return Error::success();
}

bool HostTensors::readsInput(llvm::ArrayRef<MemoryRange> ranges) const {
  return llvm::any_of(inputs, [&](const Given &input) {
    return overlaps(ranges, {Place::Arena, input.offset, input.bytes});
  });
}

//===----------------------------------------------------------------------===//
// Events
//===----------------------------------------------------------------------===//

Error HostTensors::mark(CUevent event, CUstream on, llvm::StringRef name) {
  if (record)
    record->event(name, event);
  return gpu.check(gpu.driver.cuEventRecord(event, on), "an event");
}

Error HostTensors::await(CUevent event, CUstream on, llvm::StringRef name) {
  if (record)
    record->wait(name, event);
  return gpu.check(gpu.driver.cuStreamWaitEvent(on, event, 0), "an event");
}

Error HostTensors::reach(CUevent event) {
  if (record)
    record->reach(event);
  return gpu.finish(event);
}

void HostTensors::finished() {
  reading = writing = false;
  taking[0] = taking[1] = false;
}

Error HostTensors::take() {
  if (!taking[turn])
    return Error::success();
  taking[turn] = false;
  return reach(taken[turn]);
}

//===----------------------------------------------------------------------===//
// The host
//===----------------------------------------------------------------------===//

/// From the pinned memory of this turn, which the host has filled.
Error HostTensors::copy(const Given &own, CUstream on, llvm::StringRef name,
                        llvm::StringRef what) {
  if (record) {
    MemoryRange from{Place::Pinned, turn * turnBytes + own.at, own.bytes};
    record->host(what, {{}, {from}});
    record->work(name, what, {{from}, {{Place::Arena, own.offset, own.bytes}}});
  }
  return gpu.check(gpu.driver.cuMemcpyHtoDAsync(
                       arena + static_cast<CUdeviceptr>(own.offset),
                       pinnedAt(own), static_cast<size_t>(own.bytes), on),
                   what);
}

Error HostTensors::writeInput(Given &input, const char *from) {
  if (Error error = gpu.makeCurrent())
    return error;
  if (Error error = take())
    return error;
  // One that is given twice: its first copy may be under way.
  if (input.changed) {
    if (record)
      record->finish(kStreamName);
    if (Error error = gpu.finish(stream))
      return error;
  }
  if (reading) {
    reading = false;
    if (Error error = await(hasRead, stream, kStreamName))
      return error;
  }
  input.changed = true;
  std::memcpy(pinnedAt(input), from, static_cast<size_t>(input.bytes));
  return copy(input, stream, kStreamName, "an input");
}

HostTensors::Given *HostTensors::findScalar(int64_t offset, int64_t bytes) {
  for (Given &scalar : scalars)
    if (scalar.offset <= offset &&
        offset + bytes <= scalar.offset + scalar.bytes)
      return &scalar;
  return nullptr;
}

bool HostTensors::takes(int64_t offset, int64_t bytes) {
  return findScalar(offset, bytes) ||
         llvm::any_of(inputs, [&](const Given &input) {
           return input.offset == offset && input.bytes == bytes;
         });
}

Error HostTensors::finishInputs() {
  if (llvm::none_of(inputs, [](const Given &input) { return input.changed; }))
    return Error::success();
  if (Error error = gpu.makeCurrent())
    return error;
  if (record)
    record->finish(kStreamName);
  // The next run need not wait for them.
  for (Given &input : inputs)
    input.changed = false;
  return gpu.finish(stream);
}

Expected<bool> HostTensors::write(int64_t offset, const char *from,
                                  int64_t bytes) {
  for (Given &input : inputs)
    if (input.offset == offset && input.bytes == bytes) {
      if (Error error = writeInput(input, from))
        return error;
      return true;
    }
  Given *scalar = findScalar(offset, bytes);
  if (!scalar)
    return false;
  char *to = valueOf(*scalar) + (offset - scalar->offset);
  auto size = static_cast<size_t>(bytes);
  scalar->changed |= std::memcmp(to, from, size) != 0;
  std::memcpy(to, from, size);
  return true;
}

Expected<bool> HostTensors::read(int64_t offset, char *to, int64_t bytes) {
  auto size = static_cast<size_t>(bytes);
  if (Given *scalar = findScalar(offset, bytes)) {
    std::memcpy(to, valueOf(*scalar) + (offset - scalar->offset), size);
    return true;
  }
  if (!results)
    return false;
  for (const Results::Copy &own : results->list)
    if (own.offset == offset && own.bytes == bytes) {
      if (writing) {
        writing = false;
        if (Error error = gpu.makeCurrent())
          return error;
        if (Error error = reach(hasResults))
          return error;
        // It is behind these.
        taking[0] = taking[1] = false;
        reading &= !readFirst;
      }
      int64_t at = 2 * turnBytes + own.at;
      if (record)
        record->host("a result", {{{Place::Pinned, at, bytes}}, {}});
      std::memcpy(to, pinned + at, size);
      return true;
    }
  return false;
}

//===----------------------------------------------------------------------===//
// Runs
//===----------------------------------------------------------------------===//

Error HostTensors::begin() {
  results = nullptr;
  readFirst = false;
  bool some = false, waits = false;
  for (Given &input : inputs) {
    waits |= input.changed;
    input.changed = false;
  }
  if (waits) {
    if (Error error = mark(copied, stream, kStreamName))
      return error;
    if (Error error = await(copied, gpu.compute, "compute"))
      return error;
  }
  for (Given &scalar : scalars) {
    if (!scalar.changed)
      continue;
    if (Error error = take())
      return error;
    some = true;
    scalar.changed = false;
    std::memcpy(pinnedAt(scalar), valueOf(scalar),
                static_cast<size_t>(scalar.bytes));
    if (Error error = copy(scalar, gpu.compute, "compute", "a scalar"))
      return error;
  }
  if (!some && !waits)
    return Error::success();
  if (Error error = mark(taken[turn], gpu.compute, "compute"))
    return error;
  taking[turn] = true;
  turn = 1 - turn;
  return Error::success();
}

Error HostTensors::noteRead() {
  reading = true;
  readFirst = !results;
  return mark(hasRead, gpu.compute, "compute");
}

Error HostTensors::copyResults(const Results &own) {
  if (record)
    for (const Results::Copy &one : own.list)
      record->work("compute", "a result",
                   {{{Place::Arena, one.offset, one.bytes}},
                    {{Place::Pinned, 2 * turnBytes + one.at, one.bytes}}});
  for (const Results::Copy &one : own.ranges) {
    int64_t at = 2 * turnBytes + one.at;
    if (Error error = gpu.check(
            gpu.driver.cuMemcpyDtoHAsync(
                pinned + at, arena + static_cast<CUdeviceptr>(one.offset),
                static_cast<size_t>(one.bytes), gpu.compute),
            "copying results"))
      return error;
  }
  writing = true;
  results = &own;
  return mark(hasResults, gpu.compute, "compute");
}
