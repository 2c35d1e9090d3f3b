//===- ProgramTest.cpp - Tests of programs --------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/BufferUse.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Runtime/Core/Arena.h"
#include "gtest/gtest.h"

using namespace cleave::runtime;

namespace {

/// Rows to all members, and their wait.
void addRows(Part &part) {
  Command c;
  c.kind = CommandKind::Collective;
  c.timeClass = TimeClass::Communication;
  c.collective.collective = CollectiveKind::AllToAllRows;
  c.collective.axes = {{1, 1, 2}, {2, 2, 2}};
  c.collective.src = {0, 0};
  c.collective.dst = {1, 0};
  c.collective.sizes = {8, 4};
  c.collective.srcStrides = c.collective.dstStrides = {4, 1};
  c.collective.sendOffsets = {3, 0};
  c.collective.receiveOffsets = {3, 64};
  c.collective.bound = 16;
  c.collective.token = 8;
  part.commands.push_back(c);
  c = Command();
  c.kind = CommandKind::Wait;
  c.wait.token = 8;
  part.commands.push_back(c);
}

/// A part that has each kind of command.
Part samplePart() {
  Part part;
  part.name = "forward";
  part.scheduled = {"1F*", "forward", 1};
  part.buffers = {{4096, "activation"},
                  {4096, "scratch"},
                  {16, "scalar"},
                  {8192, "scratch"}};
  Command c;
  c.kind = CommandKind::Kernel;
  c.timeClass = TimeClass::Optimizer;
  c.label = "graph.add at model.py:3";
  c.kernel.symbol = "k0";
  c.kernel.args = {{0, 64}, {1, 0}};
  c.kernel.items = 12;
  c.kernel.grain = 3;
  c.kernel.finish = "k0_finish";
  c.kernel.finishItems = 8;
  c.kernel.scratch = {1, 128};
  part.commands.push_back(c);
  c = Command();
  c.kind = CommandKind::Contract;
  c.timeClass = TimeClass::Contraction;
  c.contract.m = c.contract.n = c.contract.k = 4;
  c.contract.lda = c.contract.ldb = c.contract.ldc = 4;
  c.contract.a = c.contract.b = {0, 0};
  c.contract.c = {1, 0};
  c.contract.transB = true;
  c.contract.alpha = 0.1f;
  c.contract.beta = 1.0f;
  part.commands.push_back(c);
  c = Command();
  c.kind = CommandKind::AttentionBackward;
  c.timeClass = TimeClass::Attention;
  AttentionCommand &a = c.attention;
  a.batch = a.heads = a.kvHeads = 1;
  a.queries = a.keys = a.headSize = a.valueSize = 4;
  for (HeadView *view : {&a.q, &a.k, &a.v, &a.o, &a.dO, &a.dQ, &a.dK, &a.dV}) {
    view->ref = {0, 0};
    view->stridePosition = 4;
  }
  a.lse = {1, 0};
  a.bias = {0, 0};
  a.biasStrides[3] = 1;
  a.dBias = {1, 64};
  a.dropout = 0.1f;
  a.rng = {2, 0};
  a.origin = {0, 0};
  a.globalHeads = 1;
  a.globalQueries = a.globalKeys = 4;
  a.scratchBytesPerThread = 1024;
  a.scratch = {1, 0};
  part.commands.push_back(c);
  c = Command();
  c.kind = CommandKind::ScatterAdd;
  c.scatterAdd.rows = c.scatterAdd.out = {0, 0};
  c.scatterAdd.ids = {1, 0};
  c.scatterAdd.count = c.scatterAdd.columns = c.scatterAdd.outRows = 4;
  c.scatterAdd.idType = DType::I32;
  part.commands.push_back(c);
  c = Command();
  c.kind = CommandKind::Copy;
  c.copy.src = {0, 0};
  c.copy.dst = {1, 0};
  c.copy.sizes = {2, 3};
  c.copy.srcStrides = {0, 1};
  c.copy.dstStrides = {3, 1};
  part.commands.push_back(c);
  c = Command();
  c.kind = CommandKind::Fill;
  c.fill.dst = {0, 0};
  c.fill.bytes = 64;
  c.fill.elementBytes = 8;
  c.fill.pattern = 0xfedcba9876543210ull;
  part.commands.push_back(c);
  c = Command();
  c.kind = CommandKind::Check;
  c.check.flag = {2, 0};
  c.check.message = "the gradient norm is not a number";
  part.commands.push_back(c);
  c = Command();
  c.kind = CommandKind::Collective;
  c.timeClass = TimeClass::Communication;
  c.collective.collective = CollectiveKind::AllToAll;
  c.collective.dtype = DType::I64;
  c.collective.axes = {{1, 1, 2}, {2, 2, 2}};
  c.collective.src = {0, 0};
  c.collective.dst = {1, 0};
  c.collective.sizes = c.collective.srcStrides = c.collective.dstStrides = {2};
  c.collective.srcOffsets = {0, 4, 8, 12};
  c.collective.dstOffsets = {12, 8, 4, 0};
  c.collective.token = 7;
  part.commands.push_back(c);
  c = Command();
  c.kind = CommandKind::Wait;
  c.wait.token = 7;
  part.commands.push_back(c);
  c = Command();
  c.kind = CommandKind::Orthonormalize;
  c.timeClass = TimeClass::Optimizer;
  c.orthonormalize = {{0, 0}, {1, 0}, 1, 4, 2, {3, 0}};
  part.commands.push_back(c);
  c = Command();
  c.kind = CommandKind::TopK;
  c.topK = {{0, 0}, {1, 0}, {1, 64}, 2, 10, 3, {3, 0}};
  part.commands.push_back(c);
  c = Command();
  c.kind = CommandKind::SortRows;
  c.sortRows = {{0, 0}, {}, {1, 0}, {1, 16}, {1, 32}, 2, 3, DType::I32};
  part.commands.push_back(c);
  c = Command();
  c.kind = CommandKind::GroupedContract;
  c.timeClass = TimeClass::Contraction;
  c.groupedContract = {false,   true, DType::BF16, {0, 0}, {0, 16}, {1, 0},
                       {1, 64}, 2,    2,           2,      1,       1,
                       2,       2,    4,           {3, 0}};
  part.commands.push_back(c);
  addRows(part);
  return part;
}

/// A program that uses each kind of command.
Program sample() {
  Program program;
  program.cpu = "znver5";
  program.vectorBits = 512;
  program.threads = 2;
  program.microBatches = 2;
  program.arenaBytes = 1 << 16;
  program.metadata = "{\"optimizer\": \"sgd \\u00e9\"}";
  Tensor weight;
  weight.name = "weight";
  weight.role = Role::Parameter;
  weight.dtype = DType::F32;
  weight.shape = {4, 8};
  weight.frameworkShape = {32};
  weight.aliases = {"tied"};
  program.tensors.push_back(weight);
  Tensor ids;
  ids.name = "ids";
  ids.role = Role::Input;
  ids.dtype = DType::I64;
  ids.shape = {2, 3};
  ids.offset = 128;
  ids.batchDim = 0;
  ids.upperBound = 50257;
  ids.hasIgnoreIndex = true;
  ids.ignoreIndex = -100;
  program.tensors.push_back(ids);

  program.parts.push_back(samplePart());
  program.mesh = {{"mb", 2, true}, {"dp", 2, false}, {"tp", 4, false}};
  program.tensors[0].sharding = {{{2, 1, 2}}, {{1, 1, 2}}};
  program.deviceConstants = {{512, {{3, {{{{1, 1, 2}}, 5}}}, {4, {}}}}};
  Entry entry;
  entry.actions = {{0, 0}, {0, 1}};
  entry.rows = {
      {0, {{{1024}, {2048}, 0, {}}, {{}, {8192}}, {{}, {512}}, {{}, {16384}}}}};
  entry.inputs = {1};
  program.entries["train"] = entry;
  return program;
}

std::string messageOf(const Program &program) {
  return llvm::toString(validate(program));
}

TEST(Program, RoundTrip) {
  Program program = sample();
  EXPECT_EQ(messageOf(program), "");
  std::string text = toJSON(program);
  llvm::Expected<Program> again = parseProgram(text);
  ASSERT_TRUE(bool(again)) << llvm::toString(again.takeError());
  EXPECT_EQ(toJSON(*again), text);
  // Spot checks that the text holds what the structures held.
  EXPECT_EQ(again->parts[0].commands[5].fill.pattern, 0xfedcba9876543210ull);
  EXPECT_EQ(again->parts[0].commands[1].contract.alpha, 0.1f);
  EXPECT_EQ(again->tensors[1].ignoreIndex, -100);
  EXPECT_EQ(again->tensors[0].aliases[0], "tied");
  EXPECT_EQ(again->entries["train"].rows[0].columns[0].at(1, 2), 2048);
  EXPECT_EQ(again->metadata, program.metadata);
  EXPECT_EQ(again->mesh[0].name, "mb");
  EXPECT_TRUE(again->mesh[0].sequential);
  EXPECT_EQ(again->tensors[0].sharding[0][0], (Digit{2, 1, 2}));
  EXPECT_EQ(again->deviceConstants[0].values[0].terms[0].factor, 5);
  const CollectiveCommand &collective = again->parts[0].commands[7].collective;
  EXPECT_EQ(collective.collective, CollectiveKind::AllToAll);
  EXPECT_EQ(collective.axes[1], (Digit{2, 2, 2}));
  EXPECT_EQ(collective.dstOffsets[0], 12);
  EXPECT_EQ(again->parts[0].commands[8].wait.token, 7);
  EXPECT_EQ(again->parts[0].commands[9], program.parts[0].commands[9]);
  EXPECT_EQ(again->parts[0].commands[10], program.parts[0].commands[10]);
  EXPECT_EQ(again->parts[0].commands[11], program.parts[0].commands[11]);
  EXPECT_EQ(again->parts[0].scheduled, (ScheduledAction{"1F*", "forward", 1}));
}

TEST(Program, ParseErrorsSayWhere) {
  auto message = [](std::string text) {
    llvm::Expected<Program> program = parseProgram(text);
    return program ? "" : llvm::toString(program.takeError());
  };
  EXPECT_NE(message("{").find("not valid JSON"), std::string::npos);
  EXPECT_NE(message("{}").find("no version"), std::string::npos);
  EXPECT_NE(message("{\"version\": 99}").find("version 99"), std::string::npos);
  EXPECT_NE(message("{\"version\": 16, \"colour\": 3}").find("unknown field"),
            std::string::npos);
  EXPECT_NE(message("{\"version\": 16, \"arenaBytes\": \"x\"}")
                .find("expected an integer at program.arenaBytes"),
            std::string::npos);
  EXPECT_NE(message("{\"version\": 16, \"parts\": [{\"commands\": [{\"kind\": "
                    "\"dance\"}]}]}")
                .find("program.parts[0].commands[0].kind"),
            std::string::npos);
}

TEST(Program, ConditionsOfParts) {
  Program program = sample();
  Part &part = program.parts[0];
  part.commands.resize(1);
  part.unless = {0, 3};
  EXPECT_EQ(messageOf(program), "");
  llvm::Expected<Program> again = parseProgram(toJSON(program));
  ASSERT_TRUE(bool(again)) << llvm::toString(again.takeError());
  EXPECT_EQ(again->parts[0].unless, (Ref{0, 3}));
  auto expect = [&](auto change, const char *text) {
    Program other = program;
    change(other.parts[0]);
    EXPECT_NE(messageOf(other).find(text), std::string::npos)
        << messageOf(other);
  };
  const char *outside = "has a flag that is in none of its buffers";
  expect([](Part &p) { p.unless = {0, p.buffers[0].bytes}; }, outside);
  expect([](Part &p) { p.unless = {0, -1}; }, outside);
  expect([](Part &p) { p.unless = {99, 0}; }, outside);
  expect([](Part &p) { p.whenStopped = true; },
         "has a flag although it runs in a stopped step");
  Command check;
  check.kind = CommandKind::Check;
  check.check.flag = {0, 0};
  expect([&](Part &p) { p.commands.push_back(check); }, "others wait for it");
  const std::vector<Command> all = sample().parts[0].commands;
  part.commands.assign(all.begin() + 7, all.end());
  EXPECT_EQ(messageOf(program), "");
  expect(
      [](Part &p) {
        p.unless = {};
        p.whenStopped = true;
      },
      "in which ranks must not wait for each other");
}

/// Expects the words `part` in the message on the sample after `change`.
template <class Change> void expect(Change change, const char *part) {
  Program program = sample();
  change(program);
  EXPECT_NE(messageOf(program).find(part), std::string::npos)
      << messageOf(program) << "\nwithout: " << part;
}

/// The same of a command of its part.
template <class Change>
void command(int index, Change change, const char *part) {
  expect([&](Program &p) { change(p.parts[0].commands[index]); }, part);
}

TEST(Program, ValidationSaysWhatIsWrong) {
  expect([](Program &p) { p.version = 1; }, "version 1");
  expect([](Program &p) { p.tensors[0].offset = 1 << 20; },
         "do not fit the arena");
  expect([](Program &p) { p.tensors[0].offset = 32; }, "multiple of 64");
  expect([](Program &p) { p.tensors[0].shape = {1LL << 40, 1LL << 40}; },
         "no valid size");
  expect([](Program &p) { p.tensors[0].frameworkShape = {31}; },
         "framework's shape [31]");
  expect([](Program &p) { p.tensors[1].name = "tied"; }, "two tensors");
  auto columns = [](Program &p) -> std::vector<Column> & {
    return p.entries["train"].rows[0].columns;
  };
  expect([&](Program &p) { columns(p)[1].step = 56000; },
         "buffer 1 of part 'forward' of 4096 bytes at offset 64192");
  expect([&](Program &p) { columns(p)[1].step = INT64_MAX; }, "has steps of");
  expect([&](Program &p) { columns(p)[1].turn.clear(); }, "no offsets in turn");
  expect([&](Program &p) { columns(p)[1].last = {0, 0, 0}; },
         "more offsets than runs");
  expect([&](Program &p) { columns(p).pop_back(); },
         "3 columns for the 4 buffers");
  expect([&](Program &p) { p.entries["train"].rows.clear(); },
         "has no rows of part 'forward'");
  expect([&](Program &p) { p.entries["train"].rows[0].part = 9; },
         "has rows of part 9");
  expect([](Program &p) { p.entries["train"].actions[0].part = 7; },
         "part 7 does not exist");
  expect([](Program &p) { p.entries["train"].actions[0].microBatch = 2; },
         "micro-batch 2 does not exist");
  expect([](Program &p) { p.entries["train"].inputs[0] = 9; },
         "names tensor 9");
}

TEST(Program, ValidationSaysWhatIsWrongInCommands) {
  command(
      0, [](Command &c) { c.kernel.args[0].buffer = 4; },
      "names buffer 4, but the part has 4");
  command(
      0, [](Command &c) { c.kernel.args[0].offset = 5000; },
      "at offset 5000 of buffer 0");
  command(0, [](Command &c) { c.kernel.grain = 0; }, "grain");
  command(1, [](Command &c) { c.contract.m = 1000; }, "'a' needs");
  command(1, [](Command &c) { c.contract.ldb = 3; }, "leading dimension");
  command(
      1, [](Command &c) { c.contract.lda = 1LL << 62; },
      "does not fit 64 bits");
  command(
      1, [](Command &c) { c.contract.type = c.contract.typeB = DType::F16; },
      "only f32 and bf16 are multiplied");
  command(
      1, [](Command &c) { c.contract.resultType = DType::BF16; },
      "a product is f32");
  command(
      1, [](Command &c) { c.contract.bias = {1, 0}; },
      "a product with a bias or an epilogue");
  command(2, [](Command &c) { c.attention.kvHeads = 0; }, "multiple");
  command(2, [](Command &c) { c.attention.dropout = 1.0f; }, "dropout");
  command(
      2, [](Command &c) { c.attention.type = DType::F64; },
      "attention is of f32, f16 or bf16");
  command(
      2, [](Command &c) { c.attention.resultType = DType::F16; },
      "results of attention");
  command(
      2, [](Command &c) { c.attention.origin = {2, 0}; }, "'origin' needs 32");
  command(
      2, [](Command &c) { c.attention.v.stridePosition = 2000; }, "'v' needs");
  command(
      2, [](Command &c) { c.attention.scratchBytesPerThread = 4000; },
      "'scratch' needs 8000");
  command(3, [](Command &c) { c.scatterAdd.idType = DType::F32; }, "ids");
  command(9, [](Command &c) { c.orthonormalize.columns = 5; }, "more columns");
  command(
      9, [](Command &c) { c.orthonormalize.rows = 3000; }, "'in' needs 24000");
  command(
      9, [](Command &c) { c.orthonormalize.scratch = {1, 0}; },
      "'scratch' needs");
  command(10, [](Command &c) { c.topK.k = 11; }, "k must be 1 to");
  command(10, [](Command &c) { c.topK.rows = 300; }, "'in' needs 12000");
  command(10, [](Command &c) { c.topK.scratch = {2, 0}; }, "'scratch' needs");
  command(4, [](Command &c) { c.copy.sizes = {2}; }, "differ in length");
  command(4, [](Command &c) { c.copy.sizes = {2000, 3}; }, "'dst' needs");
  command(5, [](Command &c) { c.fill.bytes = 63; }, "multiple");
  command(6, [](Command &c) { c.check.flag.offset = 16; }, "'flag' needs 1");
}

TEST(Program, ValidationSaysWhatIsWrongOnMeshes) {
  expect([](Program &p) { p.mesh[1].size = 0; }, "axis 'dp' of the mesh");
  expect([](Program &p) { p.mesh[1].name = "tp"; }, "two axes 'tp'");
  expect([](Program &p) { p.mesh[0].size = 3; },
         "axis 'mb' has 3 positions for 2 micro-batches");
  expect([](Program &p) { p.mesh[1].size = 1LL << 40; }, "too many positions");
  expect([](Program &p) { p.tensors[0].sharding.pop_back(); },
         "the sharding has 1 dimensions");
  expect([](Program &p) { p.tensors[0].sharding[0] = {{3, 1, 2}}; },
         "axis 3 does not exist");
  expect([](Program &p) { p.tensors[0].sharding[0] = {{2, 3, 2}}; },
         "has no digit (3)2");
  expect([](Program &p) { p.tensors[0].sharding[0] = {{1, 1, 2}}; },
         "axis 'dp' is used twice");
  expect(
      [](Program &p) {
        p.tensors[0].sharding[1] = {{0, 1, 2}, {2, 2, 2}};
        p.tensors[0].shape[1] = 6;
        p.tensors[0].frameworkShape = {24};
      },
      "a dimension of 6 has no 4 equal parts");
  expect([](Program &p) { p.tensors[0].padded = {p.tensors[0].shape[0] - 1}; },
         "the padded shape");
  expect([](Program &p) { p.deviceConstants[0].offset = (1 << 16) - 8; },
         "a constant of 16 bytes");
  expect(
      [](Program &p) {
        p.deviceConstants[0].values[0].terms[0].digits[0].axis = -1;
      },
      "a constant of the devices: axis -1");
  command(
      7, [](Command &c) { c.collective.axes = {{0, 1, 2}, {1, 1, 2}}; },
      "along a sequential axis");
  command(
      7, [](Command &c) { c.collective.dstOffsets.pop_back(); },
      "'dstOffsets' has 3 entries, not 4");
  command(
      7, [](Command &c) { c.collective.sources = {0, 1, 2, 3}; },
      "'sources' has 4 entries, not 0");
  command(
      7, [](Command &c) { c.collective.srcOffsets[1] = -1; },
      "extent of 'src' is negative");
  command(
      7, [](Command &c) { c.collective.srcOffsets[1] = 511; },
      "'src' needs 4112 bytes");
  command(
      7, [](Command &c) { c.collective.sizes = {2, 2}; }, "differ in length");
  command(
      7,
      [](Command &c) {
        c.collective.more = {c.collective};
        c.collective.more[0].dstOffsets.pop_back();
      },
      "'dstOffsets' has 3 entries, not 4");
  command(
      7,
      [](Command &c) {
        c.collective.more = {c.collective};
        c.collective.more[0].srcOffsets[1] = 511;
      },
      "'src' needs 4112 bytes");
  command(7, [](Command &c) { c.collective.root = 4; }, "the root");
  command(7, [](Command &c) { c.collective.dst = {0, 64}; }, "in place");
  auto reduce = [](Command &c) {
    c.collective.collective = CollectiveKind::AllReduce;
    c.collective.srcOffsets = c.collective.dstOffsets = {};
  };
  command(
      7,
      [&](Command &c) {
        reduce(c);
        c.collective.dtype = DType::I8;
      },
      "does not support i8");
  command(
      7,
      [&](Command &c) {
        reduce(c);
        c.collective.dtype = DType::I1;
      },
      "does not support i1");
  command(
      8, [](Command &c) { c.wait.token = 6; },
      "a wait names token 6, which no collective has");
  expect([](Program &p) { p.parts[0].commands.resize(8); },
         "nothing waits for token 7");
  expect(
      [](Program &p) {
        p.parts[0].commands.push_back(p.parts[0].commands[7]);
        p.parts[0].commands.push_back(p.parts[0].commands[7]);
      },
      "token 7 is given to two collectives");
}

/// Where the sample's part sends rows.
int rowsCommand() {
  const std::vector<Command> commands = samplePart().commands;
  auto it = llvm::find_if(commands, [](const Command &c) {
    return c.kind == CommandKind::Collective &&
           c.collective.collective == CollectiveKind::AllToAllRows;
  });
  return it - commands.begin();
}

TEST(Program, ValidationSaysWhatIsWrongInRows) {
  auto rows = [](auto change, const char *part) {
    command(rowsCommand(), [&](Command &c) { change(c.collective); }, part);
  };
  using C = CollectiveCommand;
  rows([](C &c) { c.bound = 300; }, "'dst' needs 4800 bytes");
  rows([](C &c) { c.bound = -1; }, "negative number of rows");
  rows([](C &c) { c.bound = 1LL << 61; }, "extent of 'dst'");
  rows([](C &c) { c.sizes[0] = 300; }, "'src' needs 4800 bytes");
  rows([](C &c) { c.sizes = {8}; }, "differ in length");
  rows([](C &c) { c.sizes = c.srcStrides = c.dstStrides = {}; },
       "rows have 1 to 8 dimensions");
  rows([](C &c) { c.dstStrides[0] = 5; }, "rows must be dense");
  rows([](C &c) { c.sizes = {8, -4}; }, "negative extent");
  rows([](C &c) { c.sendOffsets = {2, 0}; }, "'sendOffsets' needs 40 bytes");
  rows([](C &c) { c.receiveOffsets.buffer = -1; }, "'receiveOffsets' names");
  rows([](C &c) { c.receiveOffsets.offset = 4; }, "offsets are not aligned");
  rows([](C &c) { c.receiveOffsets.buffer = 1; }, "rows replace their offsets");
  rows([](C &c) { c.dst = {0, 2048}; }, "rows are sent in place");
  rows([](C &c) { c.more = {c}; }, "one block without offsets");
  rows([](C &c) { c.srcOffsets = {0, 0, 0, 0}; }, "one block without offsets");
  rows([](C &c) { c.sources = {0, 0, 0, 0}; }, "'sources' has 4 entries");
  command(
      7, [](Command &c) { c.collective.collective = CollectiveKind::Rotate; },
      "a step of a reshard is no collective");
  command(
      7, [](Command &c) { c.collective.bound = 4; },
      "only rows that go to all members have offsets and a bound");
}

/// Passes that order commands must know the reads and writes of rows.
TEST(Program, RowsReadTheirOffsets) {
  Part part = samplePart();
  const Command &c = part.commands[rowsCommand()];
  EXPECT_EQ(buffersOf(c), (std::set<int32_t>{0, 1, 3}));
  EXPECT_EQ(writtenBuffersOf(c), (std::set<int32_t>{1}));
  bool reads = false;
  for (const BufferRange &range :
       rangesOf(part, c.collective, &CollectiveBlock::src))
    reads |= range.buffer == 3 && !range.written;
  EXPECT_TRUE(reads);
}

/// The sample as a program for a device, with a launch of each kernel.
Program sampleOfDevice() {
  Program device = sample();
  device.target = "cuda";
  device.architecture = "sm_90";
  for (Part &part : device.parts)
    for (Command &command : part.commands)
      for (LaunchShape *shape :
           {&command.kernel.launch, &command.kernel.finishLaunch})
        *shape = {1, 32, 0};
  return device;
}

// A launch on a device has many uses of a kernel; the first arguments of each
// are only read.
TEST(Program, LaunchesOfManyUses) {
  Program device = sampleOfDevice();
  KernelCommand &kernel = device.parts[0].commands[0].kernel;
  kernel.uses = 2;
  kernel.inputs = 1;
  kernel.scratch = {1, 128};
  kernel.args = {{0, 0}, {1, 0}, {0, 64}, {2, 0}};
  EXPECT_EQ(messageOf(device), "");
  EXPECT_EQ(writtenBuffersOf(device.parts[0].commands[0]),
            std::set<int32_t>({1, 2}));
  llvm::Expected<Program> again = parseProgram(toJSON(device));
  ASSERT_TRUE(static_cast<bool>(again)) << llvm::toString(again.takeError());
  EXPECT_EQ(again->parts[0].commands[0].kernel, kernel);

  auto expect = [&](auto change, const std::string &part) {
    Program program = device;
    change(program.parts[0].commands[0].kernel, program);
    EXPECT_NE(messageOf(program).find(part), std::string::npos)
        << messageOf(program) << "\nwithout: " << part;
  };
  using K = KernelCommand;
  expect([](K &k, Program &) { k.uses = 3; }, "the number of uses");
  expect([](K &k, Program &) { k.uses = 0; }, "the number of uses");
  expect([](K &k, Program &) { k.inputs = 3; }, "the number of inputs");
  expect([](K &k, Program &) { k.args.assign(512, {0, 0}); },
         "cannot have so many");
  expect([](K &, Program &p) { p.target = p.architecture = ""; },
         "the number of uses");
}

// A device rounds sums of products, and does something with them before.
TEST(Program, ProductsOfADevice) {
  Program device = sampleOfDevice();
  ContractCommand &product = device.parts[0].commands[1].contract;
  product.type = product.typeB = product.resultType = DType::BF16;
  product.beta = 0;
  product.bias = {2, 0};
  product.epilogue = Epilogue::GeluGradient;
  product.beside = {0, 0};
  product.ldBeside = 4;
  EXPECT_EQ(messageOf(device), "");
  EXPECT_EQ(writtenBuffersOf(device.parts[0].commands[1]),
            std::set<int32_t>({1}));
  llvm::Expected<Program> again = parseProgram(toJSON(device));
  ASSERT_TRUE(static_cast<bool>(again)) << llvm::toString(again.takeError());
  EXPECT_EQ(again->parts[0].commands[1].contract, product);

  auto expect = [&](auto change, const std::string &part) {
    Program program = device;
    change(program.parts[0].commands[1].contract);
    EXPECT_NE(messageOf(program).find(part), std::string::npos)
        << messageOf(program) << "\nwithout: " << part;
  };
  using C = ContractCommand;
  expect([](C &c) { c.type = DType::F8E4M3; }, "only f32, bf16 and f16");
  expect([](C &c) { c.typeB = DType::F16; }, "only f32, bf16 and f16");
  expect([](C &c) { c.type = c.typeB = DType::F8E4M3; }, "multiples of 16");
  expect([](C &c) { c.resultType = DType::F16; }, "of the type of its factors");
  expect([](C &c) { c.batch = 2, c.batchStrideC = 16; }, "a batch or no");
  expect([](C &c) { c.k = 0; }, "a batch or no products");
  expect([](C &c) { c.beta = 1; }, "that accumulates");
  expect([](C &c) { c.beside = {}; }, "without the matrix beside it");
  expect([](C &c) { c.epilogue = Epilogue::None; }, "or that without one");
  expect([](C &c) { c.ldBeside = 3; }, "beside a product overlap");
  expect([](C &c) { c.beside.offset = 4090; }, "'beside' needs 32");
  expect([](C &c) { c.bias.offset = 10; }, "'bias' needs 8");
  // Gelu writes what it is taken of, or not.
  product.epilogue = Epilogue::Gelu;
  EXPECT_EQ(messageOf(device), "");
  EXPECT_EQ(writtenBuffersOf(device.parts[0].commands[1]),
            std::set<int32_t>({0, 1}));
  product.beside = {};
  EXPECT_EQ(messageOf(device), "");
}

TEST(Arena, MapsZeros) {
  for (int64_t bytes : {int64_t(0), int64_t(100), int64_t(10) << 20}) {
    llvm::Expected<Arena> arena = Arena::map(bytes);
    ASSERT_TRUE(bool(arena)) << llvm::toString(arena.takeError());
    EXPECT_EQ(uintptr_t(arena->data()) % 64, 0u);
    EXPECT_EQ(arena->size(), bytes);
    for (int i = 0; i < 3; ++i)
      arena->touch(i, 3);
    for (int64_t i = 0; i < bytes; i += 97)
      ASSERT_EQ(arena->data()[i], 0);
  }
  llvm::Expected<Arena> tooLarge = Arena::map(int64_t(1) << 60);
  ASSERT_FALSE(bool(tooLarge));
  EXPECT_NE(llvm::toString(tooLarge.takeError()).find("cannot map"),
            std::string::npos);
}

} // namespace
