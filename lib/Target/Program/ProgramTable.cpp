//===- ProgramTable.cpp - From the exec dialect to the command table ------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Target/Program/ProgramTable.h"
#include "CommandTable.h"
#include "RepeatedRows.h"
#include "cleave/Dialect/Exec/IR/ExecOps.h"
#include "cleave/Dialect/Graph/IR/AdditiveParameters.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "cleave/Executable/Format/Rows.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;
using runtime::Program;
using runtime::Role;

FailureOr<runtime::DType> cleave::dtypeOf(Location loc, Type type) {
  using runtime::DType;
  if (type.isF64())
    return DType::F64;
  if (type.isF32())
    return DType::F32;
  if (type.isF16())
    return DType::F16;
  if (type.isBF16())
    return DType::BF16;
  if (isa<Float8E4M3FNType>(type))
    return DType::F8E4M3;
  if (isa<Float8E5M2Type>(type))
    return DType::F8E5M2;
  if (type.isInteger(64))
    return DType::I64;
  if (type.isInteger(32))
    return DType::I32;
  if (type.isInteger(8))
    return DType::I8;
  if (type.isInteger(1))
    return DType::I1;
  return emitError(loc) << "the command table has no element type " << type;
}

/// The word for an argument of this role in messages.
static std::optional<Role> roleOf(StringRef role) {
  return llvm::StringSwitch<std::optional<Role>>(role)
      .Case("parameter", Role::Parameter)
      .Case("buffer", Role::Buffer)
      .Case("state", Role::State)
      .Case("gradient", Role::Gradient)
      .Case("input", Role::Input)
      .Cases({"scalar", "rng"}, Role::Scalar)
      .Default(std::nullopt);
}

namespace {

class Translator {
public:
  /// For the programs of one pipeline position.
  Translator(ModuleOp module, const SymbolTable &symbols, int64_t position)
      : module(module), symbols(symbols), position(position) {}

  FailureOr<Program> run();

private:
  LogicalResult addEntry(ProgramOp entry);
  LogicalResult addActions(ProgramOp op, runtime::Entry &entry);
  LogicalResult addConstants(ArrayRef<ProgramOp> entries);
  /// Shape and sharding of a tensor, of which a rank holds `local`.
  void place(runtime::Tensor &tensor, RankedTensorType local,
             DictionaryAttr attributes);
  runtime::DeviceConstant deviceConstant(int64_t offset,
                                         DeviceValuesAttr values);
  FailureOr<int32_t> addArgument(ProgramOp entry, BlockArgument argument);
  FailureOr<int32_t> addOutput(ProgramOp entry, unsigned index);
  FailureOr<int32_t> addTensor(Location loc, runtime::Tensor tensor);
  FailureOr<int32_t> addPart(RunOp run);

  ModuleOp module;
  const SymbolTable &symbols;
  int64_t position;
  Program program;
  spmd::Mesh mesh;
  llvm::StringMap<int32_t> tensors, parts;
};

} // namespace

/// The attribute of an argument or result, as an integer.
static std::optional<int64_t> integer(Attribute attr) {
  if (auto value = dyn_cast_or_null<IntegerAttr>(attr))
    return value.getInt();
  return std::nullopt;
}

static std::string text(Attribute attr) {
  auto value = dyn_cast_or_null<StringAttr>(attr);
  return value ? value.getValue().str() : "";
}

/// The bytes of a constant, in hexadecimal digits.
static std::string hexOf(DenseElementsAttr value) {
  std::string bytes;
  if (value.getElementType().isInteger(1))
    for (bool flag : value.getValues<bool>())
      bytes.push_back(flag ? 1 : 0);
  else if (value.isSplat())
    for (int64_t i = 0; i < value.getNumElements(); ++i)
      bytes.append(value.getRawData().begin(), value.getRawData().end());
  else
    bytes.assign(value.getRawData().begin(), value.getRawData().end());
  return llvm::toHex(bytes, /*LowerCase=*/true);
}

/// Entries share a tensor by name: it must be equal in all.
FailureOr<int32_t> Translator::addTensor(Location loc, runtime::Tensor tensor) {
  auto [it, fresh] = tensors.try_emplace(tensor.name, program.tensors.size());
  if (fresh) {
    program.tensors.push_back(std::move(tensor));
    return it->second;
  }
  runtime::Tensor &old = program.tensors[it->second];
  if (old.role != tensor.role || old.dtype != tensor.dtype ||
      old.shape != tensor.shape || old.padded != tensor.padded ||
      old.sharding != tensor.sharding || old.offset != tensor.offset ||
      old.tier != tensor.tier)
    return emitError(loc) << "'" << tensor.name
                          << "' is one tensor in one entry and another one in "
                             "another";
  old.additive |= tensor.additive;
  if (tensor.upperBound > 0 &&
      (old.upperBound == 0 || tensor.upperBound < old.upperBound))
    old.upperBound = tensor.upperBound;
  if (tensor.upperBound > 0 &&
      (!tensor.hasIgnoreIndex || tensor.ignoreIndex != old.ignoreIndex))
    old.hasIgnoreIndex = false;
  return it->second;
}

void Translator::place(runtime::Tensor &tensor, RankedTensorType local,
                       DictionaryAttr attributes) {
  tensor.shape.assign(local.getShape().begin(), local.getShape().end());
  if (!attributes)
    return;
  auto global = attributes.getAs<TypeAttr>(spmd::kGlobalTypeAttr);
  auto sharding = attributes.getAs<spmd::ShardingAttr>(spmd::kShardingAttr);
  if (global && sharding) {
    auto type = cast<RankedTensorType>(global.getValue());
    tensor.shape.assign(type.getShape().begin(), type.getShape().end());
    for (const spmd::DimSharding &dim : sharding.getDims())
      tensor.sharding.push_back(digitsOf(mesh, dim.axes));
  }
  if (auto valid =
          attributes.getAs<DenseI64ArrayAttr>(graph::kValidShapeAttr)) {
    tensor.padded = tensor.shape;
    tensor.shape.assign(valid.asArrayRef().begin(), valid.asArrayRef().end());
  }
}

FailureOr<int32_t> Translator::addArgument(ProgramOp entry,
                                           BlockArgument argument) {
  unsigned i = argument.getArgNumber();
  auto attr = [&](StringRef name) { return entry.getArgAttr(i, name); };
  auto type = cast<RankedTensorType>(argument.getType());
  FailureOr<runtime::DType> dtype =
      dtypeOf(argument.getLoc(), type.getElementType());
  std::optional<Role> role = roleOf(text(attr(graph::kRoleAttr)));
  std::optional<int64_t> offset = integer(attr(kOffsetAttr));
  if (failed(dtype))
    return failure();
  if (!role || !offset)
    return graph::emitArgumentError(entry, i)
           << (role ? " has no offset in the arena" : " has no graph.role");
  runtime::Tensor tensor;
  tensor.name = text(attr(graph::kNameAttr));
  tensor.role = *role;
  tensor.dtype = *dtype;
  place(tensor, type, entry.getArgAttrDict(i));
  tensor.offset = *offset;
  tensor.tier = attr(kTierAttr) != nullptr;
  if (auto aliases = dyn_cast_or_null<ArrayAttr>(attr(graph::kAliasesAttr)))
    for (Attribute alias : aliases)
      tensor.aliases.push_back(text(alias));
  tensor.frozen = attr(graph::kFrozenAttr) != nullptr;
  tensor.additive = attr(graph::kAdditiveAttr) != nullptr;
  tensor.persistent = !attr(graph::kTransientAttr);
  if (auto value = dyn_cast_or_null<DenseElementsAttr>(attr(graph::kValueAttr)))
    tensor.value = hexOf(value);
  tensor.of = text(attr(tensor.role == Role::Parameter ? graph::kInitialAttr
                                                       : graph::kOfAttr));
  tensor.slot = text(attr(graph::kSlotAttr));
  tensor.optional = text(attr(graph::kOptionalAttr));
  tensor.summed = attr(graph::kSummedAttr) != nullptr;
  tensor.elements = integer(attr(graph::kElementsAttr)).value_or(0);
  tensor.batchDim = integer(attr(graph::kBatchDimAttr)).value_or(-1);
  tensor.upperBound = integer(attr(kUpperBoundAttr)).value_or(0);
  if (std::optional<int64_t> ignored = integer(attr(kIgnoreIndexAttr))) {
    tensor.hasIgnoreIndex = true;
    tensor.ignoreIndex = *ignored;
  }
  if (auto shape =
          dyn_cast_or_null<DenseI64ArrayAttr>(attr(graph::kFrameworkShapeAttr)))
    tensor.frameworkShape.assign(shape.asArrayRef().begin(),
                                 shape.asArrayRef().end());
  return addTensor(argument.getLoc(), std::move(tensor));
}

FailureOr<int32_t> Translator::addOutput(ProgramOp entry, unsigned index) {
  auto type = cast<RankedTensorType>(entry.getResultTypes()[index]);
  FailureOr<runtime::DType> dtype =
      dtypeOf(entry.getLoc(), type.getElementType());
  std::optional<int64_t> offset =
      integer(entry.getResultAttr(index, kOffsetAttr));
  if (failed(dtype))
    return failure();
  if (!offset)
    return graph::emitResultError(entry, index)
           << " has no offset in the arena";
  runtime::Tensor tensor;
  tensor.name = text(entry.getResultAttr(index, graph::kNameAttr));
  tensor.role = Role::Output;
  tensor.dtype = *dtype;
  place(tensor, type, entry.getResultAttrDict(index));
  tensor.offset = *offset;
  tensor.batchDim =
      integer(entry.getResultAttr(index, graph::kBatchDimAttr)).value_or(-1);
  return addTensor(entry.getLoc(), std::move(tensor));
}

FailureOr<int32_t> Translator::addPart(RunOp run) {
  auto [it, fresh] = parts.try_emplace(run.getCallee(), program.parts.size());
  if (!fresh)
    return it->second;
  auto function = symbols.lookup<func::FuncOp>(run.getCallee());
  auto memory = function->getAttrOfType<ArrayAttr>(kMemoryAttr);
  if (!memory)
    return run.emitOpError("'")
           << run.getCallee()
           << "' has no planned memory; run --exec-plan-memory";
  runtime::Part part;
  part.name = function.getName().str();
  if (auto action = function->getAttrOfType<DictionaryAttr>(kActionAttr))
    part.scheduled = {text(action.get("name")), text(action.get("kind")),
                      integer(action.get("stage")).value_or(0),
                      integer(action.get("flops")).value_or(0)};
  for (Attribute attr : memory) {
    auto entry = cast<DictionaryAttr>(attr);
    std::string kind = text(entry.get("kind"));
    part.buffers.push_back(
        {*integer(entry.get("bytes")), kind, kind == kOffloadedKind});
  }
  CommandTable table(function, symbols, program.threads);
  if (failed(table.translate(part.commands)))
    return failure();
  for (BlockArgument argument : function.getArguments())
    if (function.getArgAttr(argument.getArgNumber(), kUnlessAttr))
      part.unless = table.refOf(argument);
  part.whenStopped = function->hasAttr(kWhenStoppedAttr);
  int32_t index = it->second;
  program.parts.push_back(std::move(part));
  return index;
}

/// The actions, including repetitions, and the offsets of their buffers:
/// repeated actions continue the pattern of those written out.
LogicalResult Translator::addActions(ProgramOp op, runtime::Entry &entry) {
  std::map<int32_t, std::vector<ArrayRef<int64_t>>> known;
  llvm::DenseMap<Operation *, int32_t> partOf;
  for (auto run : op.getBody().getOps<RunOp>()) {
    if (!run.getOffsets())
      return run.emitOpError("has no offsets; run --exec-plan-memory");
    FailureOr<int32_t> part = addPart(run);
    if (failed(part))
      return failure();
    partOf[run] = *part;
    known[*part].push_back(*run.getOffsets());
  }
  std::map<int32_t, int64_t> counts;
  op.forEachAction([&](RunOp run, int64_t microBatch) {
    int32_t part = partOf.lookup(run);
    entry.actions.push_back({part, static_cast<int32_t>(microBatch)});
    program.microBatches = std::max(program.microBatches, microBatch + 1);
    ++counts[part];
  });
  for (const auto &[part, rows] : known) {
    const runtime::Rows &own =
        entry.rows.emplace_back(runtime::rowsOf(part, rows));
    auto count = static_cast<int64_t>(rows.size()), more = counts[part] - count;
    for (const auto &[b, column] : llvm::enumerate(own.columns)) {
      if (!isPeriodic(column, count, more))
        return op.emitOpError("buffer ")
               << b << " of part '" << program.parts[part].name
               << "' has irregular offsets, so that its actions cannot be "
                  "repeated; write them out "
                  "(--exec-unroll-schedule=write-out)";
    }
  }
  return success();
}

LogicalResult Translator::addEntry(ProgramOp op) {
  runtime::Entry entry;
  for (BlockArgument argument : op.getBody().getArguments()) {
    FailureOr<int32_t> tensor = addArgument(op, argument);
    if (failed(tensor))
      return failure();
    if (program.tensors[*tensor].role == Role::Input)
      entry.inputs.push_back(*tensor);
    if (program.tensors[*tensor].role == Role::Scalar)
      entry.scalars.push_back(*tensor);
  }
  for (unsigned i = 0; i < op.getResultTypes().size(); ++i) {
    if (Attribute updated = op.getResultAttr(i, graph::kUpdatesAttr)) {
      if (auto it = tensors.find(text(updated)); it != tensors.end())
        if (runtime::Tensor &tensor = program.tensors[it->second];
            tensor.role == Role::Buffer)
          tensor.written = true;
      continue;
    }
    FailureOr<int32_t> tensor = addOutput(op, i);
    if (failed(tensor))
      return failure();
    entry.outputs.push_back(*tensor);
  }
  if (failed(addActions(op, entry)))
    return failure();
  program.entries[op.getEntryName().str()] = std::move(entry);
  return success();
}

FailureOr<Program> Translator::run() {
  if (auto names = module->getAttrOfType<ArrayAttr>(graph::kUnreadAttr))
    for (Attribute name : names)
      program.unread.push_back(text(name));
  auto arena = module->getAttrOfType<IntegerAttr>(kArenaBytesAttr);
  auto threads = module->getAttrOfType<IntegerAttr>(kThreadsAttr);
  if (!arena || !threads)
    return module.emitError("has no planned memory; run --exec-plan-memory");
  program.arenaBytes = arena.getInt();
  program.tierBytes = integer(module->getAttr(kTierBytesAttr)).value_or(0);
  program.position = static_cast<int32_t>(position);
  program.threads = threads.getInt();
  if (spmd::MeshOp meshOp = spmd::findMesh(module))
    mesh = meshOp.getMesh();
  SmallVector<ProgramOp> entries;
  for (auto entry : module.getOps<ProgramOp>()) {
    if (entry.getPipelinePosition() != position)
      continue;
    entries.push_back(entry);
    if (auto own = entry->getAttrOfType<IntegerAttr>(kArenaBytesAttr))
      program.arenaBytes = own.getInt();
    program.tierBytes = integer(entry->getAttr(kTierBytesAttr)).value_or(0);
    if (entry.getPosition())
      program.pipelineAxis =
          digitsOf(mesh, spmd::AxisRef{spmd::kPipelineAxis})[0].axis;
  }
  for (const spmd::MeshAxis &axis : mesh.axes) {
    program.mesh.push_back({axis.name, axis.size, axis.sequential});
    // Set also if no part of the program runs once for each micro-batch.
    if (axis.sequential)
      program.microBatches = std::max(program.microBatches, axis.size);
  }
  for (ProgramOp entry : entries)
    if (failed(addEntry(entry)))
      return failure();
  if (failed(addConstants(entries)))
    return failure();
  return std::move(program);
}

runtime::DeviceConstant Translator::deviceConstant(int64_t offset,
                                                   DeviceValuesAttr values) {
  runtime::DeviceConstant result;
  result.offset = offset;
  ArrayRef<spmd::DimSharding> dims = values.getAxes().getDims();
  ArrayRef<int64_t> factors;
  for (auto [i, base] : llvm::enumerate(values.getBase())) {
    const spmd::DimSharding &dim = dims[i % dims.size()];
    if (i % dims.size() == 0)
      factors = values.getFactors();
    runtime::DeviceValue &value = result.values.emplace_back();
    value.base = base;
    for (const spmd::AxisRef &axis : dim.axes) {
      value.terms.push_back({digitsOf(mesh, axis), factors.front()});
      factors = factors.drop_front();
    }
  }
  return result;
}

LogicalResult Translator::addConstants(ArrayRef<ProgramOp> entries) {
  std::map<int64_t, std::string> constants;
  std::map<int64_t, DeviceValuesAttr> deviceConstants;
  auto add = [&](ConstantOp constant) -> LogicalResult {
    if (auto values = dyn_cast<DeviceValuesAttr>(constant.getValue())) {
      if (std::optional<int64_t> offset =
              integer(constant->getAttr(kOffsetAttr)))
        deviceConstants[*offset] = values;
      return success();
    }
    auto value = dyn_cast<DenseElementsAttr>(constant.getValue());
    if (!value)
      return constant.emitOpError("has a value that cannot be stored");
    std::optional<int64_t> offset = integer(constant->getAttr(kOffsetAttr));
    if (offset && !constants.count(*offset))
      constants[*offset] = hexOf(value);
    return success();
  };
  SmallVector<Operation *> holders;
  for (ProgramOp entry : entries)
    holders.push_back(entry);
  for (auto &part : parts)
    holders.push_back(symbols.lookup(part.getKey()));
  for (Operation *holder : holders)
    if (holder
            ->walk(
                [&](ConstantOp constant) { return WalkResult(add(constant)); })
            .wasInterrupted())
      return failure();
  for (auto &[offset, hex] : constants)
    program.constants.push_back({offset, std::move(hex)});
  for (auto &[offset, values] : deviceConstants)
    program.deviceConstants.push_back(deviceConstant(offset, values));
  return success();
}

FailureOr<std::vector<Program>> cleave::translateToPrograms(ModuleOp module) {
  int64_t positions = 1;
  for (auto entry : module.getOps<ProgramOp>())
    positions = std::max(positions, entry.getPipelinePosition() + 1);
  SymbolTable symbols(module);
  std::vector<Program> programs;
  for (int64_t position = 0; position < positions; ++position) {
    FailureOr<Program> program = Translator(module, symbols, position).run();
    if (failed(program))
      return failure();
    programs.push_back(std::move(*program));
  }
  return programs;
}
