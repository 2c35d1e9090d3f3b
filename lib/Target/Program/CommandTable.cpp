//===- CommandTable.cpp - The commands of one part ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CommandTable.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;
using graph::tensorTypeOf;
using runtime::Command;
using runtime::CommandKind;
using runtime::Ref;
using runtime::TimeClass;

/// The op that computes `value`, which may then be evicted.
static Operation *computes(Value value) {
  if (auto evict = value.getDefiningOp<EvictOp>())
    value = evict.getInput();
  return value.getDefiningOp();
}

CommandTable::CommandTable(func::FuncOp part, const SymbolTable &symbols,
                           int64_t threads)
    : part(part), symbols(symbols), threads(threads) {
  for (auto [i, value] :
       llvm::enumerate(part.front().getTerminator()->getOperands()))
    if (Operation *op = computes(value);
        op && part.getResultAttrOfType<IntegerAttr>(i, kAliasAttr) &&
        part.getResultAttr(i, kUpdateAttr))
      updates.insert(op);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// The buffer that memory planning assigned to a value, and the offset of the
/// value's first element in it.
Ref CommandTable::refOf(Value value) {
  Ref ref;
  if (!value)
    return ref;
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    ref.buffer =
        part.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), kBufferAttr)
            .getInt();
  } else {
    auto result = cast<OpResult>(value);
    ref.buffer = result.getOwner()
                     ->getAttrOfType<DenseI64ArrayAttr>(kBuffersAttr)
                     .asArrayRef()[result.getResultNumber()];
  }
  RankedTensorType type = tensorTypeOf(value);
  ref.offset = getLayout(type).offset * elementBytes(type.getElementType());
  return ref;
}

Ref CommandTable::scratchOf(Operation *op) {
  Ref ref;
  if (auto scratch = op->getAttrOfType<IntegerAttr>(kScratchAttr))
    ref.buffer = scratch.getInt();
  return ref;
}

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

LogicalResult CommandTable::convert(LaunchOp op, Command &command) {
  auto kernel = symbols.lookup<KernelOp>(op.getKernel());
  if (!kernel)
    return op.emitOpError("'") << op.getKernel() << "' is not a kernel";
  command.kind = CommandKind::Kernel;
  command.timeClass =
      updates.contains(op) ? TimeClass::Optimizer : TimeClass::RowWise;
  runtime::KernelCommand &k = command.kernel;
  auto uses = static_cast<int64_t>(op.getUses());
  k.symbol = kernel.getFunctionName(uses);
  k.uses = static_cast<int32_t>(uses);
  k.inputs = static_cast<int32_t>(kernel.getNumInputs());
  size_t inputs = kernel.getInputs().size(),
         outputs = kernel.getOutputs().size();
  for (int64_t use = 0; use < uses; ++use) {
    for (Value value : op.getOperands().slice(use * inputs, inputs))
      k.args.push_back(refOf(value));
    for (Value value : op.getResults().slice(use * outputs, outputs))
      k.args.push_back(refOf(value));
  }
  k.items = kernel.getItems();
  k.grain = kernel.getGrain();
  if (kernel.isTwoStage()) {
    k.finish = kernel.getFinishName(uses);
    k.finishItems = kernel.getFinishItems();
  }
  k.scratch = scratchOf(op);
  return success();
}

LogicalResult CommandTable::convert(ContractOp op, Command &command) {
  command.kind = CommandKind::Contract;
  command.timeClass = TimeClass::Contraction;
  runtime::ContractCommand &c = command.contract;
  RankedTensorType type = tensorTypeOf(op.getOutput());
  int64_t rank = type.getRank();
  FailureOr<runtime::DType> factor =
      dtypeOf(op.getLoc(), tensorTypeOf(op.getLhs()).getElementType());
  FailureOr<runtime::DType> other =
      dtypeOf(op.getLoc(), tensorTypeOf(op.getRhs()).getElementType());
  FailureOr<runtime::DType> result =
      dtypeOf(op.getLoc(), type.getElementType());
  if (failed(factor) || failed(other) || failed(result))
    return failure();
  c.type = *factor;
  c.typeB = *other;
  c.resultType = *result;
  c.m = type.getDimSize(rank - 2);
  c.n = type.getDimSize(rank - 1);
  c.k = tensorTypeOf(op.getLhs()).getShape().back();
  c.batch = rank == 3 ? type.getDimSize(0) : 1;
  auto matrix = [&](Value value, Ref &ref, int64_t &ld, int64_t &batchStride) {
    ref = refOf(value);
    Strided layout = getLayout(tensorTypeOf(value));
    ArrayRef<int64_t> shape = tensorTypeOf(value).getShape().take_back(2),
                      strides = ArrayRef(layout.strides).take_back(2);
    bool rows = (strides[1] == 1 || shape[1] == 1) &&
                (strides[0] >= shape[1] || shape[0] == 1);
    ld = rows ? std::max(shape[0] == 1 ? 0 : strides[0], shape[1])
              : std::max(shape[1] == 1 ? 0 : strides[1], shape[0]);
    ld = std::max<int64_t>(ld, 1);
    batchStride = rank == 3 ? layout.strides[0] : 0;
    return !rows;
  };
  c.transA = matrix(op.getLhs(), c.a, c.lda, c.batchStrideA);
  c.transB = matrix(op.getRhs(), c.b, c.ldb, c.batchStrideB);
  matrix(op.getOutput(), c.c, c.ldc, c.batchStrideC);
  c.beta = op.getAccumulator() ? 1.0f : 0.0f;
  if (op.getBias())
    c.bias = refOf(op.getBias());
  if (op.getGelu())
    c.epilogue = runtime::Epilogue::Gelu;
  else if (op.getSlopeOf())
    c.epilogue = runtime::Epilogue::GeluGradient;
  if (Value beside = op.getGelu() ? op.getBefore() : op.getSlopeOf()) {
    int64_t stride = 0;
    matrix(beside, c.beside, c.ldBeside, stride);
  }
  return success();
}

runtime::HeadView CommandTable::headView(Value value) {
  Strided layout = getLayout(tensorTypeOf(value));
  return {refOf(value), layout.strides[0], layout.strides[1],
          layout.strides[2]};
}

/// A value broadcast to [batch, head, query, key] by strides of 0.
void CommandTable::broadcastView(Value value, Ref &ref, int64_t (&strides)[4]) {
  if (!value)
    return;
  ref = refOf(value);
  RankedTensorType type = tensorTypeOf(value);
  Strided layout = getLayout(type);
  int64_t missing = 4 - type.getRank();
  for (int64_t i = 0; i < 4; ++i)
    strides[i] = i < missing || type.getDimSize(i - missing) == 1
                     ? 0
                     : layout.strides[i - missing];
}

template <typename OpTy>
LogicalResult CommandTable::attention(OpTy op, runtime::AttentionCommand &a) {
  RankedTensorType q = tensorTypeOf(op.getQuery()),
                   k = tensorTypeOf(op.getKey()),
                   v = tensorTypeOf(op.getValue());
  FailureOr<runtime::DType> type = dtypeOf(op.getLoc(), q.getElementType());
  FailureOr<runtime::DType> resultType =
      dtypeOf(op.getLoc(), tensorTypeOf(op->getResult(0)).getElementType());
  if (failed(type) || failed(resultType))
    return failure();
  a.type = *type;
  a.resultType = *resultType;
  a.batch = q.getDimSize(0);
  a.heads = q.getDimSize(1);
  a.kvHeads = k.getDimSize(1);
  a.queries = q.getDimSize(2);
  a.keys = k.getDimSize(2);
  a.headSize = q.getDimSize(3);
  a.valueSize = v.getDimSize(3);
  a.scale = op.getScale().convertToDouble();
  a.causal = op.getCausal();
  a.window = op.getWindow().value_or(0);
  a.blocks = op.getBlocks();
  a.q = headView(op.getQuery());
  a.k = headView(op.getKey());
  a.v = headView(op.getValue());
  a.o = headView(op.getOutput());
  a.lse = refOf(op.getLse());
  broadcastView(op.getBias(), a.bias, a.biasStrides);
  broadcastView(op.getMask(), a.mask, a.maskStrides);
  if (Value segments = op.getSegments()) {
    if (!tensorTypeOf(segments).getElementType().isInteger(64))
      return op.emitOpError("needs segments of i64, not ")
             << segments.getType();
    a.querySegments = a.keySegments = refOf(segments);
    if (op.getKeySegments())
      a.keySegments = refOf(op.getKeySegments());
  }
  auto starts = [&](Value value, runtime::Ref &ref, int64_t &pieces) {
    ref = refOf(value);
    pieces = value ? tensorTypeOf(value).getDimSize(0) : 0;
  };
  starts(op.getQueryStarts(), a.queryStarts, a.queryPieces);
  starts(op.getKeyStarts(), a.keyStarts, a.keyPieces);
  a.dropout = op.getDropout().convertToDouble();
  a.dropoutId = op.getDropoutId();
  a.rng = refOf(op.getRng());
  a.origin = refOf(op.getOrigin());
  ArrayRef<int64_t> global = op.getGlobalShape().value_or(ArrayRef<int64_t>());
  a.globalHeads = global.empty() ? a.heads : global[1];
  a.globalQueries = global.empty() ? a.queries : global[2];
  a.globalKeys = global.empty() ? a.keys : global[3];
  int64_t scratch =
      cast<CommandOpInterface>(op.getOperation()).getScratchBytes(threads);
  a.scratch = scratchOf(op);
  a.scratchBytesPerThread = scratch / threads;
  return success();
}

LogicalResult CommandTable::convert(AttentionOp op, Command &command) {
  command.kind = CommandKind::AttentionForward;
  command.timeClass = TimeClass::Attention;
  command.attention.onto = op.getOnto() != nullptr;
  return attention(op, command.attention);
}

LogicalResult CommandTable::convert(AttentionGradOp op, Command &command) {
  command.kind = CommandKind::AttentionBackward;
  command.timeClass = TimeClass::Attention;
  runtime::AttentionCommand &a = command.attention;
  if (failed(attention(op, a)))
    return failure();
  a.dO = headView(op.getGradient());
  a.dQ = headView(op.getQueryGradient());
  a.dK = headView(op.getKeyGradient());
  a.dV = headView(op.getValueGradient());
  a.dBias = refOf(op.getBiasGradient());
  return success();
}

LogicalResult CommandTable::convert(ScatterAddOp op, Command &command) {
  command.kind = CommandKind::ScatterAdd;
  runtime::ScatterAddCommand &s = command.scatterAdd;
  s.rows = refOf(op.getRows());
  s.ids = refOf(op.getIds());
  s.out = refOf(op.getOutput());
  s.count = tensorTypeOf(op.getRows()).getDimSize(0);
  s.columns = tensorTypeOf(op.getRows()).getDimSize(1);
  s.outRows = op.getType().getDimSize(0);
  FailureOr<runtime::DType> dtype =
      dtypeOf(op.getLoc(), tensorTypeOf(op.getIds()).getElementType());
  if (failed(dtype))
    return failure();
  s.idType = *dtype;
  s.accumulate = op.getAccumulator() != nullptr;
  s.hasSkip = op.getSkip().has_value();
  s.skipIndex = op.getSkip().value_or(0);
  return success();
}

LogicalResult CommandTable::convert(TopKOp op, Command &command) {
  command.kind = CommandKind::TopK;
  RankedTensorType rows = tensorTypeOf(op.getInput());
  runtime::TopKCommand &t = command.topK;
  t.in = refOf(op.getInput());
  t.values = refOf(op.getValues());
  t.indices = refOf(op.getIndices());
  t.rows = rows.getDimSize(0);
  t.columns = rows.getDimSize(1);
  t.k = tensorTypeOf(op.getValues()).getDimSize(1);
  t.scratch = scratchOf(op);
  return success();
}

LogicalResult CommandTable::convert(OrthonormalizeOp op, Command &command) {
  command.kind = CommandKind::Orthonormalize;
  command.timeClass = TimeClass::Optimizer;
  RankedTensorType type = op.getType();
  command.orthonormalize = {refOf(op.getInput()), refOf(op.getOutput()),
                            type.getDimSize(0),   type.getDimSize(1),
                            type.getDimSize(2),   scratchOf(op)};
  return success();
}

LogicalResult CommandTable::convert(SortRowsOp op, Command &command) {
  command.kind = CommandKind::SortRows;
  RankedTensorType groups = tensorTypeOf(op.getGroups());
  FailureOr<runtime::DType> dtype =
      dtypeOf(op.getLoc(), groups.getElementType());
  if (failed(dtype))
    return failure();
  command.sortRows = {refOf(op.getGroups()),
                      op.getOrigin() ? refOf(op.getOrigin()) : runtime::Ref(),
                      refOf(op.getOrder()),
                      refOf(op.getInverse()),
                      refOf(op.getOffsets()),
                      groups.getDimSize(0),
                      tensorTypeOf(op.getOffsets()).getDimSize(1) - 1,
                      *dtype};
  return success();
}

/// The common part of both contractions of sorted rows; `b` is the weight or
/// gradients.
template <typename OpTy>
static LogicalResult groupedContract(CommandTable &table, OpTy op, Value b,
                                     runtime::Ref scratch, Command &command) {
  command.kind = CommandKind::GroupedContract;
  command.timeClass = TimeClass::Contraction;
  runtime::GroupedContractCommand &g = command.groupedContract;
  RankedTensorType rows = tensorTypeOf(op.getRows()),
                   offsets = tensorTypeOf(op.getOffsets());
  FailureOr<runtime::DType> dtype = dtypeOf(op.getLoc(), rows.getElementType());
  if (failed(dtype))
    return failure();
  g.type = *dtype;
  g.transposed = op.getTranspose();
  g.a = table.refOf(op.getRows());
  g.b = table.refOf(b);
  g.offsets = table.refOf(op.getOffsets());
  g.out = table.refOf(op.getOutput());
  g.scratch = scratch;
  g.rows = rows.getDimSize(0);
  g.k = rows.getDimSize(1);
  g.groups = offsets.getDimSize(1) - 1;
  g.ranges = offsets.getDimSize(0);
  // Of one row, the stride may be any.
  auto stride = [](RankedTensorType type, int64_t dim) {
    return std::max<int64_t>(getLayout(type).strides[dim],
                             type.getShape().back());
  };
  g.lda = stride(rows, 0);
  RankedTensorType other = tensorTypeOf(b);
  g.ldb = stride(other, other.getRank() - 2);
  if (other.getRank() == 3)
    g.groupStrideB = getLayout(other).strides[0];
  return success();
}

LogicalResult CommandTable::convert(GroupedContractOp op, Command &command) {
  command.groupedContract.m = tensorTypeOf(op.getOutput()).getDimSize(1);
  return groupedContract(*this, op, op.getWeight(), scratchOf(op), command);
}

LogicalResult CommandTable::convert(GroupedContractWeightGradOp op,
                                    Command &command) {
  command.groupedContract.weightGradient = true;
  command.groupedContract.m = tensorTypeOf(op.getGrads()).getDimSize(1);
  return groupedContract(*this, op, op.getGrads(), scratchOf(op), command);
}

LogicalResult CommandTable::convert(CopyOp op, Command &command) {
  command.kind = CommandKind::Copy;
  runtime::CopyCommand &c = command.copy;
  c.src = refOf(op.getInput());
  c.dst = refOf(op.getOutput());
  RankedTensorType type = op.getType();
  c.elementBytes = elementBytes(type.getElementType());
  Strided from = getLayout(tensorTypeOf(op.getInput())), to = getLayout(type);
  // Neighbouring dimensions that form one dimension in both need no loop of
  // their own.
  for (auto [i, size] : llvm::enumerate(type.getShape())) {
    if (size == 1)
      continue;
    if (!c.sizes.empty() && c.srcStrides.back() == from.strides[i] * size &&
        c.dstStrides.back() == to.strides[i] * size) {
      c.sizes.back() *= size;
      c.srcStrides.back() = from.strides[i];
      c.dstStrides.back() = to.strides[i];
      continue;
    }
    c.sizes.push_back(size);
    c.srcStrides.push_back(from.strides[i]);
    c.dstStrides.push_back(to.strides[i]);
  }
  if (c.sizes.size() > 8)
    return op.emitOpError("needs ")
           << c.sizes.size() << " loops; at most 8 are supported";
  return success();
}

LogicalResult CommandTable::convert(FillOp op, Command &command) {
  command.kind = CommandKind::Fill;
  runtime::FillCommand &f = command.fill;
  f.dst = refOf(op.getOutput());
  f.elementBytes = elementBytes(op.getType().getElementType());
  f.bytes = op.getType().getNumElements() * f.elementBytes;
  if (auto value = dyn_cast<FloatAttr>(op.getValue()))
    f.pattern = value.getValue().bitcastToAPInt().getZExtValue();
  else if (auto value = dyn_cast<IntegerAttr>(op.getValue()))
    f.pattern = value.getValue().getZExtValue();
  else
    return op.emitOpError("has a value that is not a number");
  return success();
}

LogicalResult CommandTable::convert(CheckOp op, Command &command) {
  command.kind = CommandKind::Check;
  command.check = {refOf(op.getFlag()), op.getMessage().str(), op.getDeferred(),
                   op.getSkips(), op.getRoom()};
  if (Value values = op.getValues()) {
    command.check.values = refOf(values);
    command.check.count =
        static_cast<int32_t>(tensorTypeOf(values).getNumElements());
  }
  return success();
}

/// `memory` and `tier` have no gaps.
void CommandTable::move(Value memory, Value tier, Command &command) {
  command.timeClass = TimeClass::Offload;
  command.move.memory = refOf(memory);
  command.move.tier = refOf(tier);
  command.move.bytes = extentBytes(tensorTypeOf(memory));
  command.move.token = tokens++;
}

LogicalResult CommandTable::convert(FetchOp op, Command &command) {
  command.kind = CommandKind::Fetch;
  move(op.getOutput(), op.getInput(), command);
  return success();
}

LogicalResult CommandTable::convert(EvictOp op, Command &command) {
  command.kind = CommandKind::Evict;
  move(op.getInput(), op.getOutput(), command);
  return success();
}

std::vector<runtime::Digit> cleave::digitsOf(const spmd::Mesh &mesh,
                                             ArrayRef<spmd::AxisRef> axes) {
  std::vector<runtime::Digit> digits;
  for (const spmd::AxisRef &axis : axes) {
    int32_t index = 0;
    while (mesh.axes[index].name != axis.name)
      ++index;
    digits.push_back({index, axis.pre, mesh.size(axis)});
  }
  return digits;
}

LogicalResult CommandTable::convert(CollectiveOp op, Command &command) {
  command.kind = CommandKind::Collective;
  command.timeClass = TimeClass::Communication;
  runtime::CollectiveCommand &c = command.collective;
  spmd::MeshOp mesh = spmd::lookupMesh(op, op.getMeshAttr());
  c.collective = op.getKind();
  c.reduction = op.getReduction();
  auto from = cast<RankedTensorType>(op.getInput().getType());
  FailureOr<runtime::DType> dtype = dtypeOf(op.getLoc(), from.getElementType());
  if (failed(dtype))
    return failure();
  c.dtype = *dtype;
  c.axes = digitsOf(mesh.getMesh(), op.getAxes().getAxes());
  c.src = refOf(op.getInput());
  c.dst = refOf(op.getOutput());
  Strided src = getLayout(from), dst = getLayout(op.getType());
  c.sizes.assign(op.getBlock().begin(), op.getBlock().end());
  c.srcStrides.assign(src.strides.begin(), src.strides.end());
  c.dstStrides.assign(dst.strides.begin(), dst.strides.end());
  // Converts an index for each dimension to an offset in elements.
  auto offsets = [&](ArrayRef<int64_t> starts, ArrayRef<int64_t> strides) {
    std::vector<int64_t> result;
    for (; !starts.empty(); starts = starts.drop_front(strides.size())) {
      int64_t offset = 0;
      for (auto [start, stride] : llvm::zip(starts, strides))
        offset += start * stride;
      result.push_back(offset);
    }
    return result;
  };
  c.srcOffsets = offsets(op.getSrcStarts(), src.strides);
  c.dstOffsets = offsets(op.getDstStarts(), dst.strides);
  c.sources.assign(op.getSources().begin(), op.getSources().end());
  c.root = static_cast<int32_t>(op.getRoot());
  c.token = tokens++;
  return success();
}

LogicalResult CommandTable::convert(AllToAllRowsOp op, Command &command) {
  command.kind = CommandKind::Collective;
  command.timeClass = TimeClass::Communication;
  runtime::CollectiveCommand &c = command.collective;
  spmd::MeshOp mesh = spmd::lookupMesh(op, op.getMeshAttr());
  c.collective = CollectiveKind::AllToAllRows;
  auto from = cast<RankedTensorType>(op.getInput().getType());
  FailureOr<runtime::DType> dtype = dtypeOf(op.getLoc(), from.getElementType());
  if (failed(dtype))
    return failure();
  c.dtype = *dtype;
  c.axes = digitsOf(mesh.getMesh(), op.getAxes().getAxes());
  c.src = refOf(op.getInput());
  c.dst = refOf(op.getOutput());
  c.sendOffsets = refOf(op.getSendOffsets());
  c.receiveOffsets = refOf(op.getReceiveOffsets());
  c.bound = op.getType().getDimSize(0);
  c.sizes.assign(from.getShape().begin(), from.getShape().end());
  Strided layout = getLayout(from);
  c.srcStrides.assign(layout.strides.begin(), layout.strides.end());
  c.dstStrides = c.srcStrides;
  c.token = tokens++;
  return success();
}

/// One end of a transfer, which communicates along the whole pipeline axis.
LogicalResult CommandTable::transfer(Value value, bool sends,
                                     Command &command) {
  command.kind = CommandKind::Collective;
  command.timeClass = TimeClass::Communication;
  runtime::CollectiveCommand &c = command.collective;
  c.collective =
      sends ? runtime::CollectiveKind::Send : runtime::CollectiveKind::Receive;
  RankedTensorType type = tensorTypeOf(value);
  FailureOr<runtime::DType> dtype =
      dtypeOf(value.getLoc(), type.getElementType());
  if (failed(dtype))
    return failure();
  c.dtype = *dtype;
  spmd::Mesh mesh = spmd::findMesh(part->getParentOfType<ModuleOp>()).getMesh();
  c.axes = digitsOf(mesh, spmd::AxisRef{spmd::kPipelineAxis});
  c.sizes.assign(type.getShape().begin(), type.getShape().end());
  Strided layout = getLayout(type);
  (sends ? c.src : c.dst) = refOf(value);
  (sends ? c.srcStrides : c.dstStrides)
      .assign(layout.strides.begin(), layout.strides.end());
  return success();
}

LogicalResult CommandTable::convert(SendOp op, Command &command) {
  command.collective.root = static_cast<int32_t>(op.getTo());
  command.collective.token = static_cast<int32_t>(op.getToken());
  return transfer(op.getInput(), /*sends=*/true, command);
}

LogicalResult CommandTable::convert(ReceiveOp op, Command &command) {
  command.collective.root = static_cast<int32_t>(op.getFrom());
  command.collective.token = static_cast<int32_t>(op.getToken());
  return transfer(op.getOutput(), /*sends=*/false, command);
}

/// One wait for each transfer that ends.
static void addWaits(AwaitOp op, std::vector<Command> &commands) {
  for (int64_t token : op.getTokens()) {
    Command wait;
    wait.kind = CommandKind::Wait;
    wait.timeClass = TimeClass::Communication;
    wait.label = "await";
    if (std::string line = sourceLine(op.getLoc()); !line.empty())
      wait.label += " " + line;
    wait.wait = {static_cast<int32_t>(token), /*transfer=*/true};
    commands.push_back(std::move(wait));
  }
}

LogicalResult CommandTable::translate(std::vector<Command> &commands) {
  // Commands are large: few are moved as the list grows.
  commands.reserve(llvm::range_size(part.front()));
  for (Operation &op : part.front()) {
    auto interface = dyn_cast<CommandOpInterface>(op);
    if (!interface)
      continue;
    if (auto await = dyn_cast<AwaitOp>(op)) {
      addWaits(await, commands);
      continue;
    }
    Command command;
    LogicalResult done =
        llvm::TypeSwitch<Operation *, LogicalResult>(&op)
            .Case<LaunchOp, ContractOp, AttentionOp, AttentionGradOp,
                  ScatterAddOp, TopKOp, OrthonormalizeOp, SortRowsOp,
                  GroupedContractOp, GroupedContractWeightGradOp, CopyOp,
                  FillOp, CheckOp, CollectiveOp, AllToAllRowsOp, SendOp,
                  ReceiveOp, FetchOp, EvictOp>(
                [&](auto typed) { return convert(typed, command); })
            .Default([](Operation *other) {
              return other->emitOpError("has no form in the command table");
            });
    if (failed(done))
      return failure();
    command.flops = interface.getFlops();
    command.label = command.kind == CommandKind::Kernel
                        ? cast<LaunchOp>(op).getKernel().str()
                        : op.getName().stripDialect().str();
    if (std::string line = sourceLine(op.getLoc()); !line.empty())
      command.label += " " + line;
    if (auto launch = dyn_cast<LaunchOp>(op); launch && launch.getUses() > 1)
      command.label += " and " + std::to_string(launch.getUses() - 1) + " more";
    commands.push_back(std::move(command));
    // Commands that may overlap are known when all buffers have offsets.
    const Command &last = commands.back();
    bool exchanges =
        last.kind == CommandKind::Collective && !last.collective.isTransfer();
    if (exchanges || last.isMove()) {
      Command wait;
      wait.kind = CommandKind::Wait;
      wait.timeClass = last.timeClass;
      wait.label = last.label;
      wait.wait.token = exchanges ? last.collective.token : last.move.token;
      commands.push_back(std::move(wait));
    }
  }
  return success();
}
