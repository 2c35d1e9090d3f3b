//===- Bigram.cpp - A small model by hand ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Bigram.h"
#include "cleave/Executable/Format/Rows.h"
#include "cleave/Executable/Format/ShardLayout.h"

using namespace cleave::runtime;

static constexpr int64_t microBatches = 2;

/// The axis "dp" of a mesh <["mb" = 2, "dp" = n]>.
static Digit devicesDigit(int64_t devices) { return {1, 1, devices}; }

static Command startOf(CollectiveKind kind, DType dtype, Ref src, Ref dst,
                       std::vector<int64_t> sizes, int64_t devices,
                       int32_t token) {
  Command c;
  c.kind = CommandKind::Collective;
  c.timeClass = TimeClass::Communication;
  c.label = "start";
  c.collective.collective = kind;
  c.collective.dtype = dtype;
  c.collective.axes = {devicesDigit(devices)};
  c.collective.src = src;
  c.collective.dst = dst;
  c.collective.token = token;
  c.collective.sizes = sizes;
  c.collective.srcStrides = c.collective.dstStrides =
      sizes.size() == 1 ? std::vector<int64_t>{1}
                        : std::vector<int64_t>{sizes[1], 1};
  return c;
}

static Command waitFor(int32_t token) {
  Command c;
  c.kind = CommandKind::Wait;
  c.timeClass = TimeClass::Communication;
  c.label = "wait";
  c.wait.token = token;
  return c;
}

/// Where the columns of each device begin.
static std::vector<int64_t> columnOffsets(int64_t hidden, int64_t devices) {
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < devices; ++i)
    offsets.push_back(i * (hidden / devices));
  return offsets;
}

Program cleave::test::makeBigram(const BigramShape &shape) {
  auto [batch, length, vocabulary, hidden, devices] = shape;
  bool mesh = devices > 0;
  int64_t split = mesh ? devices : 1;
  int64_t localBatch = batch / split, columns = hidden / split;
  int64_t rows = localBatch / microBatches * length;
  Program program;
  program.cpu = "test";
  program.threads = 4;
  program.microBatches = microBatches;
  program.metadata = R"({"label_shift": 1})";
  Digit micro{0, 1, microBatches}, dp = devicesDigit(split);
  if (mesh)
    program.mesh = {{"mb", microBatches, true}, {"dp", devices, false}};

  int64_t at = 0;
  auto place = [&](int64_t bytes) {
    int64_t offset = at;
    at += (bytes + 63) / 64 * 64;
    return offset;
  };
  auto tensor = [&](const char *name, Role role, DType dtype,
                    std::vector<int64_t> dims,
                    std::vector<std::vector<Digit>> sharding = {}) -> Tensor & {
    Tensor t;
    t.name = name;
    t.role = role;
    t.dtype = dtype;
    t.shape = std::move(dims);
    if (mesh)
      t.sharding = std::move(sharding);
    t.offset = place(localBytes(program.mesh, t));
    program.tensors.push_back(t);
    return program.tensors.back();
  };
  tensor("embedding.weight", Role::Parameter, DType::F32, {vocabulary, hidden});
  Tensor &out = tensor("out.weight", Role::Parameter, DType::F32,
                       {vocabulary, hidden}, {{}, {dp}});
  out.aliases = {"head.weight"};
  tensor("embedding.momentum", Role::State, DType::F32, {vocabulary, hidden})
      .of = "embedding.weight";
  tensor("out.momentum", Role::State, DType::F32, {vocabulary, hidden},
         {{}, {dp}})
      .of = "out.weight";
  Tensor &ids = tensor("ids", Role::Input, DType::I64, {batch, length},
                       {{micro, dp}, {}});
  ids.batchDim = 0;
  ids.upperBound = vocabulary;
  Tensor &labels = tensor("labels", Role::Input, DType::I64, {batch, length},
                          {{micro, dp}, {}});
  labels.batchDim = 0;
  labels.upperBound = vocabulary;
  labels.hasIgnoreIndex = true;
  labels.ignoreIndex = -100;
  tensor("lr", Role::Scalar, DType::F32, {});
  tensor("rng", Role::Scalar, DType::I64, {2});
  tensor("loss", Role::Output, DType::F32, {});
  tensor("grad_norm", Role::Output, DType::F32, {});
  tensor("loss_weight", Role::Output, DType::F64, {});
  auto offsetOf = [&](const char *name) {
    for (const Tensor &t : program.tensors)
      if (t.name == name)
        return t.offset;
    return int64_t(-1);
  };

  int64_t weightBytes = vocabulary * hidden * 4;
  int64_t partBytes = vocabulary * columns * 4;
  int64_t labelBytes = localBatch * length * 8;
  int64_t dE = place(weightBytes), dW = place(weightBytes);
  // What the devices join and cut of "out.weight".
  int64_t whole = mesh ? place(weightBytes) : offsetOf("out.weight");
  int64_t dPart = mesh ? place(partBytes) : dW;
  int64_t sums = place(64), flags = place(64);
  int64_t hiddenAt = place(rows * hidden * 4);
  int64_t logitsAt = place(rows * vocabulary * 4);
  int64_t dHiddenAt = place(rows * hidden * 4);
  int64_t shapeAt = place(64), firstAt = place(64);
  program.arenaBytes = at;
  // The first element of a micro-batch's rows that a device has.
  if (mesh)
    program.deviceConstants = {{firstAt, {{0, {{{dp}, rows * hidden}}}}}};
  else
    program.constants = {{firstAt, std::string(16, '0')}};

  auto kernel = [](const char *symbol, std::vector<Ref> args, int64_t items,
                   int64_t grain = 1) {
    Command c;
    c.kind = CommandKind::Kernel;
    c.label = symbol;
    c.kernel.symbol = symbol;
    c.kernel.args = std::move(args);
    c.kernel.items = items;
    c.kernel.grain = grain;
    return c;
  };
  auto fill = [](Ref dst, int64_t bytes, uint64_t pattern = 0) {
    Command c;
    c.kind = CommandKind::Fill;
    c.label = "fill";
    c.fill = {dst, bytes, 8, pattern};
    return c;
  };
  auto check = [](Ref flag, const char *message) {
    Command c;
    c.kind = CommandKind::Check;
    c.label = "check";
    c.check = {flag, message};
    return c;
  };
  auto contract = [](int64_t m, int64_t n, int64_t k, Ref a, bool transA,
                     int64_t lda, Ref b, bool transB, int64_t ldb, Ref c,
                     float beta) {
    Command command;
    command.kind = CommandKind::Contract;
    command.timeClass = TimeClass::Contraction;
    command.label = "contract";
    ContractCommand &d = command.contract;
    d.m = m;
    d.n = n;
    d.k = k;
    d.a = a;
    d.b = b;
    d.c = c;
    d.transA = transA;
    d.transB = transB;
    d.lda = lda;
    d.ldb = ldb;
    d.ldc = n;
    d.beta = beta;
    return command;
  };

  // The sizes that kernels need lie in memory, as constants of a part.
  auto sizes = [&](int32_t buffer) {
    return std::vector<Command>{
        fill({buffer, 0}, 8, static_cast<uint64_t>(hidden)),
        fill({buffer, 8}, 8, static_cast<uint64_t>(vocabulary)),
        fill({buffer, 16}, 8, static_cast<uint64_t>(localBatch * length))};
  };
  using Kind = CollectiveKind;

  // 0 labels, 1 sums, 2 flags, 3 dE, 4 dW, 5 sizes, 6 own columns of W, 7 W
  Part prologue;
  prologue.name = "prologue";
  prologue.buffers = {{labelBytes, "input"},     {64, "scratch"},
                      {64, "scratch"},           {weightBytes, "gradient"},
                      {weightBytes, "gradient"}, {64, "scratch"},
                      {partBytes, "parameter"},  {weightBytes, "scratch"}};
  prologue.commands = sizes(5);
  if (mesh) {
    Command gather = startOf(Kind::AllGather, DType::F32, {6, 0}, {7, 0},
                             {vocabulary, columns}, devices, 0);
    gather.collective.dstStrides = {hidden, 1};
    gather.collective.dstOffsets = columnOffsets(hidden, devices);
    prologue.commands.push_back(gather);
  }
  prologue.commands.push_back(fill({1, 0}, 64));
  prologue.commands.push_back(fill({3, 0}, weightBytes));
  prologue.commands.push_back(fill({4, 0}, weightBytes));
  prologue.commands.push_back(
      kernel("bigram_count", {{0, 0}, {1, 0}, {2, 0}, {5, 0}}, 1));
  prologue.commands.push_back(check({2, 0}, "all labels are ignored"));
  if (mesh)
    prologue.commands.insert(
        prologue.commands.end(),
        {startOf(Kind::AllReduce, DType::F64, {1, 8}, {1, 8}, {1}, devices, 1),
         waitFor(1), waitFor(0)});

  // 0 ids, 1 labels, 2 E, 3 W, 4 dE, 5 dW, 6 sums, 7 hidden, 8 logits,
  // 9 dHidden, 10 sizes, 11 rng, 12 first element
  Part forward;
  forward.name = "forward";
  forward.buffers = {{rows * 8, "input"},
                     {rows * 8, "input"},
                     {weightBytes, "parameter"},
                     {weightBytes, "parameter"},
                     {weightBytes, "gradient"},
                     {weightBytes, "gradient"},
                     {64, "scratch"},
                     {rows * hidden * 4, "activation"},
                     {rows * vocabulary * 4, "activation"},
                     {rows * hidden * 4, "gradient"},
                     {64, "scratch"},
                     {16, "scalar"},
                     {8, "constant"}};
  auto forwardCommands = [&](const char *gather) {
    return std::vector<Command>{
        kernel(gather, {{0, 0}, {2, 0}, {7, 0}, {10, 0}, {11, 0}, {12, 0}},
               rows, 8),
        contract(rows, vocabulary, hidden, {7, 0}, false, hidden, {3, 0}, true,
                 hidden, {8, 0}, 0.0f),
        kernel("bigram_loss", {{8, 0}, {1, 0}, {6, 0}, {10, 0}}, rows,
               rows + 1)};
  };
  forward.commands = forwardCommands("bigram_gather_dropout");
  Part evaluate = forward;
  evaluate.name = "evaluate";
  evaluate.commands = forwardCommands("bigram_gather");
  forward.commands.push_back(contract(vocabulary, hidden, rows, {8, 0}, true,
                                      vocabulary, {7, 0}, false, hidden, {5, 0},
                                      1.0f));
  forward.commands.push_back(contract(rows, hidden, vocabulary, {8, 0}, false,
                                      vocabulary, {3, 0}, false, hidden, {9, 0},
                                      0.0f));
  Command scatter;
  scatter.kind = CommandKind::ScatterAdd;
  scatter.label = "scatter";
  scatter.scatterAdd.rows = {9, 0};
  scatter.scatterAdd.ids = {0, 0};
  scatter.scatterAdd.out = {4, 0};
  scatter.scatterAdd.count = rows;
  scatter.scatterAdd.columns = hidden;
  scatter.scatterAdd.outRows = vocabulary;
  scatter.scatterAdd.accumulate = true;
  forward.commands.push_back(scatter);

  // 0 E, 1 W, 2 dE, 3 dW, 4 momentum of E, 5 momentum of W, 6 sums, 7 flags,
  // 8 lr, 9 loss, 10 norm, 11 sizes, 12 own columns of dW
  Part update;
  update.name = "update";
  update.buffers = {{weightBytes, "parameter"},
                    {partBytes, "parameter"},
                    {weightBytes, "gradient"},
                    {weightBytes, "gradient"},
                    {weightBytes, "state"},
                    {partBytes, "state"},
                    {64, "scratch"},
                    {64, "scratch"},
                    {4, "scalar"},
                    {4, "output"},
                    {4, "output"},
                    {64, "scratch"},
                    {partBytes, "gradient"}};
  if (mesh) {
    Command scatterW = startOf(Kind::ReduceScatter, DType::F32, {3, 0}, {12, 0},
                               {vocabulary, columns}, devices, 0);
    scatterW.collective.srcStrides = {hidden, 1};
    scatterW.collective.srcOffsets = columnOffsets(hidden, devices);
    std::vector<int64_t> all{vocabulary * hidden};
    update.commands = {
        scatterW,
        startOf(Kind::AllReduce, DType::F32, {2, 0}, {2, 0}, all, devices, 1),
        startOf(Kind::AllReduce, DType::F64, {6, 0}, {6, 0}, {1}, devices, 2),
        waitFor(0),
        startOf(Kind::AllReduce, DType::F32, {3, 0}, {3, 0}, all, devices, 0),
        waitFor(2),
        waitFor(1),
        waitFor(0)};
  }
  for (const Command &command :
       {kernel("bigram_norm", {{2, 0}, {3, 0}, {10, 0}, {7, 0}, {11, 0}}, 1),
        check({7, 0}, "the gradient norm is not a number"),
        kernel("bigram_result", {{6, 0}, {9, 0}}, 1)})
    update.commands.push_back(command);
  for (int32_t i = 0; i < 2; ++i) {
    update.commands.push_back(
        kernel("bigram_sgd", {{i, 0}, {i == 0 ? 2 : 12, 0}, {i + 4, 0}, {8, 0}},
               vocabulary * (i == 0 ? hidden : columns), 256));
    update.commands.back().timeClass = TimeClass::Optimizer;
  }
  Part result;
  result.name = "result";
  result.buffers = {{64, "scratch"}, {4, "output"}, {8, "output"}};
  if (mesh)
    result.commands = {
        startOf(Kind::AllReduce, DType::F64, {0, 0}, {0, 0}, {1}, devices, 0),
        waitFor(0)};
  result.commands.push_back(kernel("bigram_result", {{0, 0}, {1, 0}}, 1));
  result.commands.push_back(kernel("bigram_weight", {{0, 0}, {2, 0}}, 1));
  program.parts = {prologue, forward, update, evaluate, result};

  auto forwardAction = [&](int32_t part, int32_t microBatch) {
    int64_t slice = microBatch * rows * 8;
    return PlacedAction{{part, microBatch},
                        {offsetOf("ids") + slice, offsetOf("labels") + slice,
                         offsetOf("embedding.weight"), whole, dE, dW, sums,
                         hiddenAt, logitsAt, dHiddenAt, shapeAt,
                         offsetOf("rng"), firstAt}};
  };
  PlacedAction prologueAction{{0, 0},
                              {offsetOf("labels"), sums, flags, dE, dW, shapeAt,
                               offsetOf("out.weight"), whole}};
  Entry train, eval;
  setActions(train,
             {prologueAction,
              forwardAction(1, 0),
              forwardAction(1, 1),
              {{2, 0},
               {offsetOf("embedding.weight"), offsetOf("out.weight"), dE, dW,
                offsetOf("embedding.momentum"), offsetOf("out.momentum"), sums,
                flags, offsetOf("lr"), offsetOf("loss"), offsetOf("grad_norm"),
                shapeAt, dPart}}});
  setActions(eval,
             {prologueAction,
              forwardAction(3, 0),
              forwardAction(3, 1),
              {{4, 0}, {sums, offsetOf("loss"), offsetOf("loss_weight")}}});
  train.inputs = eval.inputs = {4, 5};
  train.scalars = {6, 7};
  train.outputs = {8, 9};
  eval.outputs = {8, 10};
  program.entries = {{"train", train}, {"evaluate", eval}};
  return program;
}
