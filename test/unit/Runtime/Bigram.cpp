//===- Bigram.cpp - A small model by hand ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Bigram.h"

using namespace cleave::runtime;

static constexpr int64_t microBatches = 2;

Program cleave::test::makeBigram(const BigramShape &shape) {
  auto [batch, length, vocabulary, hidden] = shape;
  int64_t rows = batch / microBatches * length;
  Program program;
  program.cpu = "test";
  program.threads = 4;
  program.microBatches = microBatches;
  program.metadata = R"({"label_shift": 1})";

  int64_t at = 0;
  auto place = [&](int64_t bytes) {
    int64_t offset = at;
    at += (bytes + 63) / 64 * 64;
    return offset;
  };
  auto tensor = [&](const char *name, Role role, DType dtype,
                    std::vector<int64_t> dims) -> Tensor & {
    Tensor t;
    t.name = name;
    t.role = role;
    t.dtype = dtype;
    t.shape = std::move(dims);
    t.offset = place(t.numElements() * byteSize(dtype));
    program.tensors.push_back(t);
    return program.tensors.back();
  };
  tensor("embedding.weight", Role::Parameter, DType::F32, {vocabulary, hidden});
  Tensor &out =
      tensor("out.weight", Role::Parameter, DType::F32, {vocabulary, hidden});
  out.aliases = {"head.weight"};
  tensor("embedding.momentum", Role::State, DType::F32, {vocabulary, hidden})
      .of = "embedding.weight";
  tensor("out.momentum", Role::State, DType::F32, {vocabulary, hidden}).of =
      "out.weight";
  Tensor &ids = tensor("ids", Role::Input, DType::I64, {batch, length});
  ids.batchDim = 0;
  ids.upperBound = vocabulary;
  Tensor &labels = tensor("labels", Role::Input, DType::I64, {batch, length});
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
  int64_t labelBytes = batch * length * 8;
  int64_t dE = place(weightBytes), dW = place(weightBytes);
  int64_t sums = place(64), flags = place(64);
  int64_t hiddenAt = place(rows * hidden * 4);
  int64_t logitsAt = place(rows * vocabulary * 4);
  int64_t dHiddenAt = place(rows * hidden * 4);
  int64_t shapeAt = place(64);
  program.arenaBytes = at;

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
        fill({buffer, 16}, 8, static_cast<uint64_t>(batch * length))};
  };

  // 0 labels, 1 sums, 2 flags, 3 dE, 4 dW, 5 sizes
  Part prologue;
  prologue.name = "prologue";
  prologue.buffers = {{labelBytes, "input"},     {64, "scratch"},
                      {64, "scratch"},           {weightBytes, "gradient"},
                      {weightBytes, "gradient"}, {64, "scratch"}};
  prologue.commands = sizes(5);
  prologue.commands.push_back(fill({1, 0}, 64));
  prologue.commands.push_back(fill({3, 0}, weightBytes));
  prologue.commands.push_back(fill({4, 0}, weightBytes));
  prologue.commands.push_back(
      kernel("bigram_count", {{0, 0}, {1, 0}, {2, 0}, {5, 0}}, 1));
  prologue.commands.push_back(check({2, 0}, "all labels are ignored"));

  // 0 ids, 1 labels, 2 E, 3 W, 4 dE, 5 dW, 6 sums, 7 hidden, 8 logits,
  // 9 dHidden, 10 sizes, 11 rng
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
                     {16, "scalar"}};
  auto forwardCommands = [&](const char *gather) {
    return std::vector<Command>{
        kernel(gather, {{0, 0}, {2, 0}, {7, 0}, {10, 0}, {11, 0}}, rows, 8),
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
  // 8 lr, 9 loss, 10 norm, 11 sizes
  Part update;
  update.name = "update";
  update.buffers = {{weightBytes, "parameter"},
                    {weightBytes, "parameter"},
                    {weightBytes, "gradient"},
                    {weightBytes, "gradient"},
                    {weightBytes, "state"},
                    {weightBytes, "state"},
                    {64, "scratch"},
                    {64, "scratch"},
                    {4, "scalar"},
                    {4, "output"},
                    {4, "output"},
                    {64, "scratch"}};
  update.commands = {
      kernel("bigram_norm", {{2, 0}, {3, 0}, {10, 0}, {7, 0}, {11, 0}}, 1),
      check({7, 0}, "the gradient norm is not a number"),
      kernel("bigram_result", {{6, 0}, {9, 0}}, 1)};
  for (int32_t i = 0; i < 2; ++i) {
    update.commands.push_back(kernel("bigram_sgd",
                                     {{i, 0}, {i + 2, 0}, {i + 4, 0}, {8, 0}},
                                     vocabulary * hidden, 256));
    update.commands.back().timeClass = TimeClass::Optimizer;
  }
  Part result;
  result.name = "result";
  result.buffers = {{64, "scratch"}, {4, "output"}, {8, "output"}};
  result.commands = {kernel("bigram_result", {{0, 0}, {1, 0}}, 1),
                     kernel("bigram_weight", {{0, 0}, {2, 0}}, 1)};
  program.parts = {prologue, forward, update, evaluate, result};

  auto forwardAction = [&](int32_t part, int32_t microBatch) {
    int64_t slice = microBatch * rows * 8;
    return Action{part,
                  microBatch,
                  {offsetOf("ids") + slice, offsetOf("labels") + slice,
                   offsetOf("embedding.weight"), offsetOf("out.weight"), dE, dW,
                   sums, hiddenAt, logitsAt, dHiddenAt, shapeAt,
                   offsetOf("rng")}};
  };
  Action prologueAction{
      0, 0, {offsetOf("labels"), sums, flags, dE, dW, shapeAt}};
  Entry train, eval;
  train.actions = {
      prologueAction,
      forwardAction(1, 0),
      forwardAction(1, 1),
      {2,
       0,
       {offsetOf("embedding.weight"), offsetOf("out.weight"), dE, dW,
        offsetOf("embedding.momentum"), offsetOf("out.momentum"), sums, flags,
        offsetOf("lr"), offsetOf("loss"), offsetOf("grad_norm"), shapeAt}}};
  eval.actions = {prologueAction,
                  forwardAction(3, 0),
                  forwardAction(3, 1),
                  {4, 0, {sums, offsetOf("loss"), offsetOf("loss_weight")}}};
  train.inputs = eval.inputs = {4, 5};
  train.scalars = {6, 7};
  train.outputs = {8, 9};
  eval.outputs = {8, 10};
  program.entries = {{"train", train}, {"evaluate", eval}};
  return program;
}
