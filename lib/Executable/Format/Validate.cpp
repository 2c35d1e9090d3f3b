//===- Validate.cpp - Checks of programs ----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ValidateCommand.h"
#include "cleave/Executable/Format/BufferUse.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/MathExtras.h"

#include <set>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Twine;

static Error validateTensor(const Program &program, const Tensor &tensor) {
  auto fail = [&](const Twine &message) {
    return makeError("tensor '" + tensor.name + "': " + message);
  };
  if (tensor.name.empty())
    return makeError("a tensor has no name");
  int64_t bytes = byteSize(tensor.dtype);
  for (int64_t size : tensor.shape)
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes))
      return fail("shape " + shapeText(tensor.shape) + " has no valid size");
  if (!tensor.padded.empty()) {
    bool fits = tensor.padded.size() == tensor.shape.size();
    int64_t held = byteSize(tensor.dtype);
    for (auto [more, size] : llvm::zip(tensor.padded, tensor.shape))
      fits &= more >= size && !__builtin_mul_overflow(held, more, &held);
    if (!fits)
      return fail("the padded shape " + shapeText(tensor.padded) +
                  " does not hold " + shapeText(tensor.shape));
  }
  if (!tensor.sharding.empty() && tensor.sharding.size() != tensor.shape.size())
    return fail("the sharding has " + Twine(tensor.sharding.size()) +
                " dimensions, but the shape is " + shapeText(tensor.shape));
  if (std::string why = digitsProblem(program, tensor.sharding); !why.empty())
    return fail(why);
  for (auto [digits, size] : llvm::zip(tensor.sharding, tensor.heldShape()))
    if (size % partCount(digits) != 0)
      return fail("a dimension of " + Twine(size) + " has no " +
                  Twine(partCount(digits)) + " equal parts");
  bytes = localBytes(program.mesh, tensor);
  if (tensor.offset < 0 || tensor.offset % 64)
    return fail("offset " + Twine(tensor.offset) +
                " is not a multiple of 64 bytes");
  int64_t room = tensor.tier ? program.tierBytes : program.arenaBytes;
  if (tensor.offset > room || bytes > room - tensor.offset)
    return fail(Twine(bytes) + " bytes at offset " + Twine(tensor.offset) +
                " do not fit the " +
                (tensor.tier ? "second tier of " : "arena of ") + Twine(room));
  if (tensor.tier && tensor.role != Role::Parameter &&
      tensor.role != Role::State)
    return fail("only parameters and state can be in the second tier");
  if (!tensor.value.empty()) {
    std::string known;
    uint64_t size = 2 * static_cast<uint64_t>(tensor.numElements() *
                                              byteSize(tensor.dtype));
    if (tensor.role != Role::Buffer || tensor.value.size() != size ||
        !llvm::tryGetFromHex(tensor.value, known))
      return fail("its value is not that of a buffer of its size");
  }
  if (!tensor.frameworkShape.empty()) {
    int64_t elements = 1;
    for (int64_t size : tensor.frameworkShape)
      if (size < 0 || __builtin_mul_overflow(elements, size, &elements))
        return fail("the framework's shape has no valid size");
    if (elements != tensor.numElements())
      return fail("the framework's shape " + shapeText(tensor.frameworkShape) +
                  " has not as many elements as " + shapeText(tensor.shape));
  }
  if (tensor.batchDim < -1 ||
      tensor.batchDim >= static_cast<int>(tensor.shape.size()))
    return fail("dimension " + Twine(tensor.batchDim) + " does not exist");
  return Error::success();
}

static Error validateMesh(const Program &program) {
  llvm::StringSet<> names;
  int64_t positions = 1;
  for (const MeshAxis &axis : program.mesh) {
    if (axis.size < 1)
      return makeError("axis '" + axis.name + "' of the mesh has size " +
                       Twine(axis.size));
    if (!names.insert(axis.name).second)
      return makeError("the mesh has two axes '" + axis.name + "'");
    if (__builtin_mul_overflow(positions, axis.size, &positions) ||
        positions > (int64_t(1) << 24))
      return makeError("the mesh has too many positions");
    if (axis.sequential && axis.size != 1 && axis.size != program.microBatches)
      return makeError("axis '" + axis.name + "' has " + Twine(axis.size) +
                       " positions for " + Twine(program.microBatches) +
                       " micro-batches");
  }
  for (const DeviceConstant &constant : program.deviceConstants) {
    int64_t bytes = static_cast<int64_t>(constant.values.size()) * 8;
    if (constant.offset < 0 || constant.offset % 8 ||
        constant.offset > program.arenaBytes ||
        bytes > program.arenaBytes - constant.offset)
      return makeError("a constant of " + Twine(bytes) + " bytes at offset " +
                       Twine(constant.offset) + " does not fit the arena of " +
                       Twine(program.arenaBytes));
    for (const DeviceValue &value : constant.values)
      for (const DeviceTerm &term : value.terms)
        if (std::string why = digitsProblem(program, {term.digits});
            !why.empty())
          return makeError("a constant of the devices: " + why);
  }
  return Error::success();
}

/// Each exchange that a part begins ends in it, once, except those that end
/// later.
static std::string tokensProblem(const Part &part) {
  std::set<int32_t> open;
  for (const Command &command : part.commands) {
    if ((command.kind == CommandKind::Collective &&
         command.collective.endsLater()) ||
        (command.kind == CommandKind::Wait && command.wait.transfer))
      continue;
    if (command.kind == CommandKind::Collective &&
        !open.insert(command.collective.token).second)
      return ("token " + Twine(command.collective.token) +
              " is given to two collectives at once")
          .str();
    if (command.isMove() && !open.insert(command.move.token).second)
      return ("token " + Twine(command.move.token) +
              " is given to a fetch or an eviction and to another command")
          .str();
    if (command.kind == CommandKind::Wait && !open.erase(command.wait.token))
      return ("a wait names token " + Twine(command.wait.token) +
              ", which no collective has")
          .str();
  }
  if (!open.empty())
    return ("nothing waits for token " + Twine(*open.begin())).str();
  return "";
}

/// What a fetch brings has arrived before a command uses it, and what is
/// evicted has left before its memory is used again.
static std::string arrivalProblem(const Part &part,
                                  std::vector<PartRuns> runs) {
  SharedMemory memory(part, std::move(runs));
  struct Open {
    const Command *move;
    std::set<int32_t> buffers;
  };
  std::vector<Open> open;
  std::set<int32_t> used;
  for (size_t i = 0; i < part.commands.size(); ++i) {
    const Command &command = part.commands[i];
    std::set<int32_t> buffers = buffersOf(command);
    if (command.kind == CommandKind::Wait && !command.wait.transfer)
      std::erase_if(open, [&](const Open &other) {
        return other.move->move.token == command.wait.token;
      });
    for (const Open &other : open)
      if (memory.meet(other.buffers, buffers))
        return ("command " + Twine(i) + " (" + command.label +
                ") uses memory of " + other.move->label +
                ", which has not arrived")
            .str();
    if (command.kind == CommandKind::Fetch &&
        used.count(command.move.memory.buffer))
      return ("command " + Twine(i) + " (" + command.label +
              ") fetches buffer " + Twine(command.move.memory.buffer) +
              ", which an earlier command uses")
          .str();
    if (command.isMove())
      open.push_back({&command, buffers});
    used.merge(buffers);
  }
  return "";
}

/// Each part that an entry runs has a row for each run, inside the arena.
static std::string rowsProblem(const Program &program, const Entry &entry) {
  std::vector<int64_t> runs(program.parts.size(), 0);
  for (const Action &action : entry.actions)
    ++runs[static_cast<size_t>(action.part)];
  std::vector<bool> seen(program.parts.size(), false);
  for (const Rows &rows : entry.rows) {
    auto index = static_cast<size_t>(rows.part);
    if (rows.part < 0 || index >= program.parts.size() || seen[index])
      return ("has rows of part " + Twine(rows.part) +
              ", which does not exist or has rows already")
          .str();
    seen[index] = true;
    const Part &part = program.parts[index];
    if (rows.columns.size() != part.buffers.size())
      return ("has " + Twine(rows.columns.size()) + " columns for the " +
              Twine(part.buffers.size()) + " buffers of part '" + part.name +
              "'")
          .str();
    for (auto [b, column] : llvm::enumerate(rows.columns)) {
      auto fail = [&, b = b](const Twine &message) {
        return ("buffer " + Twine(b) + " of part '" + part.name + "' " +
                message)
            .str();
      };
      auto written =
          static_cast<int64_t>(column.first.size() + column.last.size());
      if (column.turn.empty() || written > runs[index])
        return fail("has no offsets in turn, or more offsets than runs");
      for (int64_t run = 0; run < runs[index]; ++run) {
        // A step that overflows would leave the arena.
        int64_t away = 0, unused = 0;
        if (llvm::MulOverflow(column.step, run, away) ||
            llvm::any_of(column.turn, [&](int64_t place) {
              return llvm::AddOverflow(place, away, unused);
            }))
          return fail("has steps of " + Twine(column.step));
        int64_t offset = column.at(run, runs[index]);
        bool tier = part.buffers[b].tier;
        int64_t room = tier ? program.tierBytes : program.arenaBytes;
        if (offset < 0 || offset > room ||
            part.buffers[b].bytes > room - offset)
          return fail("of " + Twine(part.buffers[b].bytes) +
                      " bytes at offset " + Twine(offset) +
                      " does not fit the " +
                      (tier ? "second tier of " : "arena of ") + Twine(room));
      }
    }
  }
  for (size_t i = 0; i < runs.size(); ++i)
    if (runs[i] > 0 && !seen[i])
      return "has no rows of part '" + program.parts[i].name + "'";
  return "";
}

/// Each exchange over parts that an entry begins ends in it, once for each
/// micro-batch.
static std::string transfersProblem(const Program &program,
                                    const Entry &entry) {
  std::set<std::pair<int32_t, int32_t>> open;
  for (const Action &action : entry.actions)
    for (const Command &command : program.parts[action.part].commands) {
      if (command.kind == CommandKind::Collective &&
          command.collective.endsLater() &&
          !open.insert({command.collective.token, action.microBatch}).second)
        return ("transfer " + Twine(command.collective.token) +
                " of micro-batch " + Twine(action.microBatch) + " begins twice")
            .str();
      if (command.kind == CommandKind::Wait && command.wait.transfer &&
          !open.erase({command.wait.token, action.microBatch}))
        return ("a wait names transfer " + Twine(command.wait.token) +
                " of micro-batch " + Twine(action.microBatch) +
                ", which has not begun")
            .str();
    }
  if (!open.empty())
    return ("nothing waits for transfer " + Twine(open.begin()->first) +
            " of micro-batch " + Twine(open.begin()->second))
        .str();
  return "";
}

static std::string pipelineProblem(const Program &program) {
  int64_t axes = static_cast<int64_t>(program.mesh.size());
  if (program.pipelineAxis < -1 || program.pipelineAxis >= axes)
    return ("axis " + Twine(program.pipelineAxis) + " does not exist").str();
  int64_t positions = 1;
  if (program.pipelineAxis >= 0) {
    const MeshAxis &axis = program.mesh[program.pipelineAxis];
    if (axis.sequential)
      return "the axis of the pipeline is sequential";
    positions = axis.size;
  }
  if (program.position < 0 || program.position >= positions)
    return ("position " + Twine(program.position) +
            " of the pipeline does not exist")
        .str();
  return "";
}

/// Why its conditions to run are invalid; empty if they are valid. No rank may
/// wait for a part that is skipped.
static std::string conditionProblem(const Part &part) {
  bool flagged = part.unless.buffer >= 0;
  if (flagged) {
    auto buffer = static_cast<size_t>(part.unless.buffer);
    if (buffer >= part.buffers.size() || part.unless.offset < 0 ||
        part.unless.offset >= part.buffers[buffer].bytes)
      return "has a flag that is in none of its buffers";
  }
  if (flagged && part.buffers[part.unless.buffer].tier)
    return "has a flag in the second tier";
  if (flagged && part.whenStopped)
    return "has a flag although it runs in a stopped step";
  std::set<int32_t> moves;
  for (const Command &command : part.commands) {
    bool transfer =
        command.kind == CommandKind::Collective
            ? command.collective.endsLater()
            : command.kind == CommandKind::Wait && command.wait.transfer;
    if ((flagged || part.whenStopped) &&
        (transfer || command.kind == CommandKind::Check))
      return "may be skipped, but others wait for it";
    if (command.isMove())
      moves.insert(command.move.token);
    bool own = command.kind == CommandKind::Wait && !command.wait.transfer &&
               moves.count(command.wait.token);
    if (part.whenStopped && !own &&
        (command.kind == CommandKind::Collective ||
         command.kind == CommandKind::Wait))
      return "runs in a stopped step, in which ranks must not wait for each "
             "other";
  }
  return "";
}

Error cleave::runtime::validate(llvm::ArrayRef<Program> positions) {
  for (auto [i, program] : llvm::enumerate(positions)) {
    if (Error error = validate(program))
      return error;
    const Program &first = positions.front();
    if (program.mesh != first.mesh ||
        program.pipelineAxis != first.pipelineAxis ||
        program.lossScaling != first.lossScaling ||
        program.position != static_cast<int64_t>(i))
      return makeError("the programs are not those of the positions of one "
                       "pipeline, in their order");
  }
  std::map<std::string, const Tensor *> known;
  for (const Program &program : positions)
    for (const Tensor &tensor : program.tensors) {
      const Tensor *&first = known[tensor.name];
      if (first &&
          (first->role != tensor.role || first->dtype != tensor.dtype ||
           first->shape != tensor.shape || first->padded != tensor.padded ||
           first->sharding != tensor.sharding))
        return makeError("tensor '" + tensor.name +
                         "' is one tensor at one "
                         "position of the pipeline and another one at another");
      first = &tensor;
    }
  size_t wanted = 1;
  if (!positions.empty() && positions.front().pipelineAxis >= 0)
    wanted = static_cast<size_t>(
        positions.front().mesh[positions.front().pipelineAxis].size);
  if (positions.size() != wanted)
    return makeError("there are " + Twine(positions.size()) +
                     " programs for the " + Twine(wanted) +
                     " positions of the pipeline");
  return Error::success();
}

Error cleave::runtime::validate(const Program &program) {
  if (program.version != Program::kVersion)
    return makeError("the program has version " + Twine(program.version) +
                     ", but this runtime reads version " +
                     Twine(Program::kVersion) + "; compile the model again");
  if (!program.target.empty() && !program.isForGpu())
    return makeError("unknown target '" + program.target + "'");
  if (program.isForGpu() == program.architecture.empty())
    return makeError("a program for a device, and no other, has an "
                     "architecture");
  if (program.arenaBytes < 0)
    return makeError("the arena has a negative size");
  if (program.tierBytes < 0)
    return makeError("the second tier has a negative size");
  if (program.threads < 1 || program.threads > Program::kMaxThreads)
    return makeError("the program was planned for " + Twine(program.threads) +
                     " threads, not for 1 to " + Twine(Program::kMaxThreads));
  if (program.microBatches < 1)
    return makeError("the program has " + Twine(program.microBatches) +
                     " micro-batches");

  if (std::string why = program.lossScaling.problem(); !why.empty())
    return makeError(why);
  if (Error error = validateMesh(program))
    return error;
  if (std::string why = pipelineProblem(program); !why.empty())
    return makeError(why);

  llvm::StringSet<> names;
  for (const Tensor &tensor : program.tensors) {
    if (Error error = validateTensor(program, tensor))
      return error;
    if (!names.insert(tensor.name).second)
      return makeError("two tensors have the name '" + tensor.name + "'");
    for (const std::string &alias : tensor.aliases)
      if (!names.insert(alias).second)
        return makeError("two tensors have the name '" + alias + "'");
  }

  for (const Constant &constant : program.constants) {
    int64_t bytes = static_cast<int64_t>(constant.hex.size() / 2);
    if (constant.hex.size() % 2 != 0 ||
        !llvm::all_of(constant.hex, llvm::isHexDigit))
      return makeError("a constant is not written in hexadecimal digits");
    if (constant.offset < 0 || constant.offset > program.arenaBytes ||
        bytes > program.arenaBytes - constant.offset)
      return makeError("a constant of " + Twine(bytes) + " bytes at offset " +
                       Twine(constant.offset) + " does not fit the arena of " +
                       Twine(program.arenaBytes));
  }

  for (const Part &part : program.parts) {
    for (const Buffer &buffer : part.buffers)
      if (buffer.bytes < 0)
        return makeError("part '" + part.name +
                         "' has a buffer of negative size");
    for (auto [i, command] : llvm::enumerate(part.commands)) {
      std::string where = ("part '" + part.name + "', command " + Twine(i) +
                           " (" + command.label + ")")
                              .str();
      if (Error error = validateCommand(program, part, command, where))
        return error;
    }
    if (std::string why = tokensProblem(part); !why.empty())
      return makeError("part '" + part.name + "': " + why);
    if (std::string why = conditionProblem(part); !why.empty())
      return makeError("part '" + part.name + "' " + why);
  }

  for (const auto &[name, entry] : program.entries) {
    for (auto [i, action] : llvm::enumerate(entry.actions)) {
      auto fail = [&, index = i](const Twine &message) {
        return makeError("entry '" + name + "', action " + Twine(index) + ": " +
                         message);
      };
      if (action.part < 0 ||
          action.part >= static_cast<int64_t>(program.parts.size()))
        return fail("part " + Twine(action.part) + " does not exist");
      if (action.microBatch < 0 || action.microBatch >= program.microBatches)
        return fail("micro-batch " + Twine(action.microBatch) +
                    " does not exist");
    }
    if (std::string why = rowsProblem(program, entry); !why.empty())
      return makeError("entry '" + name + "': " + why);
    if (std::string why = transfersProblem(program, entry); !why.empty())
      return makeError("entry '" + name + "': " + why);
    for (const auto *list : {&entry.inputs, &entry.scalars, &entry.outputs})
      for (int32_t index : *list)
        if (index < 0 || index >= static_cast<int64_t>(program.tensors.size()))
          return makeError("entry '" + name + "' names tensor " + Twine(index) +
                           ", but the program has " +
                           Twine(program.tensors.size()));
  }
  std::vector<std::vector<PartRuns>> runs = runsOfParts(program);
  for (auto [i, part] : llvm::enumerate(program.parts))
    if (std::string why = arrivalProblem(part, std::move(runs[i]));
        !why.empty())
      return makeError("part '" + part.name + "': " + why);
  return Error::success();
}
