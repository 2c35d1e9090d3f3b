//===- CommandGridsTest.cpp - Blocks of commands' launches ----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// How many blocks the launches of large commands have. A GPU is filled where
/// each of its multiprocessors, 132 of an H100 or H200, has one.
///
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Cuda/CommandLaunches.h"
#include "gtest/gtest.h"

using namespace cleave::runtime;

namespace {

constexpr int64_t processors = 132, KiB = 1 << 10, MiB = 1 << 20;

std::vector<cuda::Launch> plan(const Command &command) {
  // Addresses are not read; all are those of aligned buffers.
  auto at = [](const Ref &) { return uint64_t(1) << 20; };
  cuda::Addresses addresses{at, uint64_t(1) << 30};
  llvm::Expected<std::vector<cuda::Launch>> launches =
      cuda::planLaunches(command, addresses);
  EXPECT_TRUE(!!launches);
  return launches ? std::move(*launches) : std::vector<cuda::Launch>();
}

/// The blocks of each launch of the kernel `name`, of any width or type.
int64_t blocks(const Command &command, llvm::StringRef name) {
  int64_t found = -1;
  for (const cuda::Launch &launch : plan(command))
    if (launch.symbol == name ||
        llvm::StringRef(launch.symbol).starts_with((name + "_").str())) {
      EXPECT_TRUE(found < 0 || found == launch.grid[0]) << launch.symbol;
      found = launch.grid[0];
    }
  EXPECT_GE(found, 0) << name.str();
  return found;
}

Command copyOf(std::vector<int64_t> sizes, std::vector<int64_t> src,
               std::vector<int64_t> dst, int64_t elementBytes) {
  Command command;
  command.kind = CommandKind::Copy;
  command.copy.src = {0, 0};
  command.copy.dst = {1, 0};
  command.copy.elementBytes = elementBytes;
  command.copy.sizes = std::move(sizes);
  command.copy.srcStrides = std::move(src);
  command.copy.dstStrides = std::move(dst);
  return command;
}

/// A block copies or fills 4 KiB, unless many blocks have more.
TEST(CommandGrids, CopyAndFill) {
  int64_t rows = MiB / 256 / 4;
  // Without gaps, with gaps, and transposed.
  EXPECT_GE(blocks(copyOf({rows, 256}, {256, 1}, {256, 1}, 4), "cleave_copy"),
            processors);
  EXPECT_GE(blocks(copyOf({rows, 256}, {512, 1}, {256, 1}, 4), "cleave_copy"),
            processors);
  EXPECT_GE(
      blocks(copyOf({rows, 256}, {1, rows}, {256, 1}, 4), "cleave_transpose"),
      processors);
  EXPECT_GE(
      blocks(copyOf({2 * rows, 256}, {512, 1}, {256, 1}, 2), "cleave_copy"),
      processors);
  Command fill;
  fill.kind = CommandKind::Fill;
  fill.fill.dst = {0, 0};
  fill.fill.bytes = MiB;
  EXPECT_GE(blocks(fill, "cleave_fill"), processors);
  fill.fill.bytes = 64 * MiB;
  EXPECT_EQ(blocks(fill, "cleave_fill"), 64 * MiB / 16 / 1024);
  EXPECT_EQ(blocks(copyOf({1 << 24}, {1}, {1}, 4), "cleave_copy"),
            64 * MiB / 16 / 1024);
}

/// Rows of an embedding. A block of the sort has 2048 ids: a pass moves less
/// than 16 bytes of each.
TEST(CommandGrids, ScatterAdd) {
  for (auto [count, outRows] : {std::pair<int64_t, int64_t>(4096, 50257),
                                {65536, 50257},
                                {65536, 1024},
                                {512, 512}}) {
    Command command;
    command.kind = CommandKind::ScatterAdd;
    ScatterAddCommand &c = command.scatterAdd;
    c.rows = {0, 0};
    c.ids = {1, 0};
    c.out = {2, 0};
    c.count = count;
    c.outRows = outRows;
    c.columns = 768;
    ASSERT_GT(4 * 768 * std::min(count, outRows), MiB);
    EXPECT_GE(blocks(command, "cleave_scatter_add"), processors);
    EXPECT_EQ(blocks(command, "cleave_sort_count"), (count + 2047) / 2048);
    EXPECT_EQ(blocks(command, "cleave_sort_move"), (count + 2047) / 2048);
  }
}

/// Long rows have a block for each 64 KiB, others one each.
TEST(CommandGrids, TopK) {
  Command command;
  command.kind = CommandKind::TopK;
  TopKCommand &c = command.topK;
  c.in = {0, 0};
  c.values = {1, 0};
  c.indices = {2, 0};
  c.scratch = {3, 0};
  c.rows = 1;
  c.columns = processors * 64 * KiB / 4;
  c.k = 1024;
  for (const char *name :
       {"cleave_top_k_count", "cleave_top_k_totals", "cleave_top_k_collect"})
    EXPECT_GE(blocks(command, name), processors);
  c.rows = processors;
  c.columns = 4096;
  c.k = 16;
  EXPECT_GE(blocks(command, "cleave_top_k_row"), processors);
}

/// A block has 64 queries or keys of a head, or fewer.
TEST(CommandGrids, Attention) {
  for (DType type : {DType::F32, DType::BF16}) {
    Command command;
    AttentionCommand &c = command.attention;
    c.type = c.resultType = type;
    c.batch = 1;
    c.heads = c.kvHeads = 12;
    c.headSize = c.valueSize = 64;
    // The smallest number of positions of this shape that fills a GPU.
    c.queries = c.keys = c.globalQueries = c.globalKeys = 64 * 11;
    command.kind = CommandKind::AttentionForward;
    EXPECT_GE(blocks(command, "cleave_attention_forward"), processors);
    command.kind = CommandKind::AttentionBackward;
    EXPECT_GE(blocks(command, "cleave_attention_queries"), processors);
    EXPECT_GE(blocks(command, "cleave_attention_keys"), processors);
  }
}

} // namespace
