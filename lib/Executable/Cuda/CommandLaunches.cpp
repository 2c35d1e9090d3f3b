//===- CommandLaunches.cpp - Launches of command kernels ------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Cuda/CommandLaunches.h"
#include "cleave/Executable/Cuda/CollectivePlan.h"
#include "cleave/Executable/Cuda/KernelArguments.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Support/OrthonormalScratch.h"
#include "cleave/Support/Philox.h"
#include "cleave/Support/TopKScratch.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <algorithm>
#include <limits>
#include <optional>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;

static constexpr int64_t maxInt = std::numeric_limits<int32_t>::max();

static int64_t divideUp(int64_t n, int64_t by) { return (n + by - 1) / by; }

namespace {

/// Plans the launches of one command.
class Planner {
public:
  explicit Planner(const Addresses &addresses) : addresses(addresses) {}

  void copy(const CopyCommand &c);
  void fill(const FillCommand &c) { fill(c, addresses.at(c.dst)); }
  void scatterAdd(const ScatterAddCommand &c);
  void topK(const TopKCommand &c);
  void orthonormalize(const OrthonormalizeCommand &c);
  void sortRows(const SortRowsCommand &c);
  void groupedContract(const GroupedContractCommand &c);
  void attention(const AttentionCommand &c, bool backward);
  void check(const CheckCommand &c);

  std::vector<Launch> launches;
  std::string problem;

private:
  void fill(const FillCommand &c, uint64_t dst);

  /// The address of a reference; null if absent.
  template <typename T> T *at(const Ref &ref) const {
    return ref.buffer < 0 ? nullptr : reinterpret_cast<T *>(addresses.at(ref));
  }
  template <typename T> T *scratch(int64_t offset) const {
    return reinterpret_cast<T *>(addresses.scratch +
                                 static_cast<uint64_t>(offset));
  }

  Launch &launch(std::string symbol, int64_t blocks, uint32_t threads) {
    if (blocks > maxInt && problem.empty())
      problem = "the command has too many blocks";
    Launch &launch = launches.emplace_back();
    launch.symbol = std::move(symbol);
    launch.grid[0] = static_cast<uint32_t>(blocks);
    launch.block = threads;
    return launch;
  }

  const Addresses &addresses;
};

struct Dim {
  int64_t size, src, dst;
};

/// How many elements each thread moves: several are under way at a time, unless
/// too few blocks for a large GPU are left then.
int perThread(llvm::function_ref<int64_t(int64_t)> blocks) {
  constexpr int64_t enough = 264;
  int count = 4;
  while (count > 1 && blocks(count) < enough)
    count /= 2;
  return count;
}

/// Buffers of the sort of a scatter-add: two of keys and of indices, the counts
/// of digits by block, and where each digit starts.
struct SortLayout {
  explicit SortLayout(const ScatterAddCommand &c)
      : blocks(divideUp(c.count, 2048)) {
    // Keys are at most `outRows`.
    for (int64_t rest = c.outRows >> 8; rest > 0; rest >>= 8)
      ++passes;
    auto place = [&](int64_t numbers) {
      int64_t at = bytes;
      bytes += (numbers * 4 + 255) / 256 * 256;
      return at;
    };
    for (int i = 0; i < 2; ++i) {
      keys[i] = place(c.count);
      indices[i] = place(c.count);
    }
    counts = place(256 * blocks);
    starts = place(256);
  }

  int passes = 1;
  int64_t blocks, keys[2], indices[2], counts, starts, bytes = 0;
};

} // namespace

//===----------------------------------------------------------------------===//
// Copy
//===----------------------------------------------------------------------===//

void Planner::copy(const CopyCommand &c) {
  llvm::SmallVector<Dim, 8> dims;
  for (size_t i = 0; i < c.sizes.size(); ++i) {
    if (c.sizes[i] == 0)
      return;
    if (c.sizes[i] > 1)
      dims.push_back({c.sizes[i], c.srcStrides[i], c.dstStrides[i]});
  }
  // Writes are in order, and dimensions that are contiguous in both tensors
  // become one.
  llvm::sort(dims, [](const Dim &a, const Dim &b) { return a.dst > b.dst; });
  llvm::SmallVector<Dim, 8> merged;
  for (const Dim &inner : dims) {
    if (!merged.empty() && merged.back().src == inner.src * inner.size &&
        merged.back().dst == inner.dst * inner.size)
      merged.back() = {merged.back().size * inner.size, inner.src, inner.dst};
    else
      merged.push_back(inner);
  }
  if (merged.empty())
    merged.push_back({1, 1, 1});

  uint64_t src = addresses.at(c.src), dst = addresses.at(c.dst);
  int64_t bytes = c.elementBytes;
  // Two neighbours become one element as long as all is even.
  auto widens = [&] {
    const Dim &inner = merged.back();
    uint64_t wide = static_cast<uint64_t>(2 * bytes);
    return inner.src == 1 && inner.dst == 1 && inner.size % 2 == 0 &&
           src % wide == 0 && dst % wide == 0 &&
           llvm::all_of(llvm::ArrayRef(merged).drop_back(), [](const Dim &dim) {
             return dim.src % 2 == 0 && dim.dst % 2 == 0;
           });
  };
  while (bytes < 16 && widens()) {
    bytes *= 2;
    merged.back().size /= 2;
    for (Dim &dim : llvm::MutableArrayRef(merged).drop_back()) {
      dim.src /= 2;
      dim.dst /= 2;
    }
  }

  CopyArguments a{};
  a.src = reinterpret_cast<const void *>(src);
  a.dst = reinterpret_cast<void *>(dst);
  Dim columns = merged.pop_back_val();
  a.columns = columns.size;
  a.srcColumn = columns.src;
  a.dstColumn = columns.dst;
  // A dimension that is contiguous in the source, if the last is not.
  auto *other = merged.end();
  if (columns.dst == 1 && columns.src > 1 && columns.size >= 8 && bytes <= 8)
    other = llvm::find_if(
        merged, [](const Dim &dim) { return dim.src == 1 && dim.size >= 8; });
  bool transposes = other != merged.end();
  if (transposes)
    std::rotate(other, other + 1, merged.end());
  a.rank = static_cast<int>(merged.size());
  a.rows = 1;
  for (auto [i, dim] : llvm::enumerate(merged)) {
    a.sizes[i] = dim.size;
    a.srcStrides[i] = dim.src;
    a.dstStrides[i] = dim.dst;
    a.rows *= dim.size;
  }
  std::string width = std::to_string(bytes);
  if (transposes) {
    a.blocksPerRow = divideUp(a.columns, 32);
    int64_t last = merged.back().size;
    a.rows /= last;
    launch("cleave_transpose_" + width,
           a.rows * divideUp(last, 32) * a.blocksPerRow, 256)
        .add(a);
    return;
  }
  while (a.columnBits < 8 && (int64_t(1) << a.columnBits) < a.columns)
    ++a.columnBits;
  int64_t groups = divideUp(a.rows, 256 >> a.columnBits);
  a.perThread = perThread([&](int64_t count) {
    return groups * divideUp(a.columns, count << a.columnBits);
  });
  a.blocksPerRow = divideUp(a.columns, int64_t(a.perThread) << a.columnBits);
  launch("cleave_copy_" + width, groups * a.blocksPerRow, 256).add(a);
}

//===----------------------------------------------------------------------===//
// Fill
//===----------------------------------------------------------------------===//

void Planner::fill(const FillCommand &c, uint64_t dst) {
  int64_t bytes = c.bytes / c.elementBytes * c.elementBytes;
  if (bytes == 0)
    return;
  FillArguments a{};
  a.dst = reinterpret_cast<unsigned char *>(dst);
  a.head = static_cast<int>(std::min<int64_t>((16 - dst % 16) % 16, bytes));
  a.words = (bytes - a.head) / 16;
  a.tail = static_cast<int>((bytes - a.head) % 16);
  unsigned char head[16], words[16];
  for (int i = 0; i < 16; ++i) {
    auto byteAt = [&](int64_t i) {
      return static_cast<unsigned char>(c.pattern >> (i % c.elementBytes * 8));
    };
    head[i] = byteAt(i);
    words[i] = byteAt(i + a.head);
  }
  __builtin_memcpy(a.headPattern, head, 16);
  __builtin_memcpy(a.pattern, words, 16);
  auto blocks = [&](int64_t count) {
    return std::max<int64_t>(1, divideUp(a.words, 256 * count));
  };
  a.perThread = perThread(blocks);
  launch("cleave_fill", blocks(a.perThread), 256).add(a);
}

//===----------------------------------------------------------------------===//
// Check
//===----------------------------------------------------------------------===//

void Planner::check(const CheckCommand &c) {
  Launch &check = launch("cleave_check", 1, 1);
  check.add(at<const unsigned char>(c.flag));
  check.add(int(addresses.checkIndex));
  check.add(int(c.severity()));
  check.add(c.count > 0 ? at<const long long>(c.values) : nullptr);
  check.add(int(c.count));
  check.add(reinterpret_cast<CheckStatus *>(addresses.status));
}

//===----------------------------------------------------------------------===//
// Scatter-add
//===----------------------------------------------------------------------===//

void Planner::scatterAdd(const ScatterAddCommand &c) {
  if (c.outRows == 0 || c.columns == 0)
    return;
  if (c.count > maxInt - 2048 || c.outRows >= maxInt) {
    problem = "a scatter-add has too many rows";
    return;
  }
  if (!c.accumulate) {
    FillCommand zero;
    zero.bytes = c.outRows * c.columns * 4;
    fill(zero, addresses.at(c.out));
  }
  if (c.count == 0)
    return;
  SortLayout layout(c);
  int from = 0;
  for (int pass = 0; pass < layout.passes; ++pass) {
    SortArguments s{};
    if (pass == 0)
      s.ids = at<const void>(c.ids);
    s.wide = c.idType == DType::I64;
    s.hasSkip = c.hasSkip;
    s.skipIndex = c.skipIndex;
    s.fromKeys = scratch<int>(layout.keys[from]);
    s.fromIndices = scratch<int>(layout.indices[from]);
    from = 1 - from;
    s.toKeys = scratch<int>(layout.keys[from]);
    s.toIndices = scratch<int>(layout.indices[from]);
    s.counts = scratch<int>(layout.counts);
    s.starts = scratch<int>(layout.starts);
    s.count = static_cast<int>(c.count);
    s.outRows = static_cast<int>(c.outRows);
    s.blocks = static_cast<int>(layout.blocks);
    s.shift = 8 * pass;
    launch("cleave_sort_count", layout.blocks, 256).add(s);
    launch("cleave_sort_sum", 1, 256).add(s);
    launch("cleave_sort_move", layout.blocks, 256).add(s);
  }
  ScatterArguments a{};
  a.rows = at<const float>(c.rows);
  a.out = at<float>(c.out);
  a.keys = scratch<const int>(layout.keys[from]);
  a.indices = scratch<const int>(layout.indices[from]);
  a.columns = c.columns;
  a.count = static_cast<int>(c.count);
  a.outRows = static_cast<int>(c.outRows);
  // Whichever leaves fewer threads without work.
  a.byRow = c.outRows < c.count;
  while (a.columnBits < 7 && (int64_t(1) << a.columnBits) < c.columns)
    ++a.columnBits;
  a.blocksPerRow = divideUp(c.columns, int64_t(1) << a.columnBits);
  launch("cleave_scatter_add",
         divideUp(a.byRow ? c.outRows : c.count, 128 >> a.columnBits) *
             a.blocksPerRow,
         128)
      .add(a);
}

//===----------------------------------------------------------------------===//
// The largest elements
//===----------------------------------------------------------------------===//

void Planner::topK(const TopKCommand &c) {
  int64_t selected = c.rows * c.k;
  if (selected == 0)
    return;
  if (selected > maxInt - 2048 || c.columns > maxInt / 2) {
    problem = "a top-k has too many elements";
    return;
  }
  cleave::TopKScratch place(c.rows, c.columns, c.k);
  auto *scratch = at<char>(c.scratch);
  auto ints = [&](int64_t offset) {
    return reinterpret_cast<int *>(scratch + offset);
  };
  TopKArguments a{};
  a.in = at<const float>(c.in);
  a.values = at<float>(c.values);
  a.indices = at<long long>(c.indices);
  a.histograms = reinterpret_cast<unsigned *>(ints(place.histograms));
  a.totals = ints(place.totals);
  a.counts = ints(place.counts);
  a.keys = ints(place.keys[0]);
  a.places = ints(place.places[0]);
  a.chosen = ints(place.chosen);
  a.columns = static_cast<int>(c.columns);
  a.k = static_cast<int>(c.k);
  a.segment = static_cast<int>(place.segment);
  a.chunks = static_cast<int>(place.chunks);
  a.selected = static_cast<int>(selected);
  if (place.isShort) {
    launch("cleave_top_k_row", c.rows, 256).add(a);
  } else {
    FillCommand zero;
    zero.bytes = c.rows * place.kPasses * place.kBins * 4;
    fill(zero,
         addresses.at(c.scratch) + static_cast<uint64_t>(place.histograms));
    for (; a.pass < place.kPasses; ++a.pass)
      launch("cleave_top_k_count", c.rows * place.chunks, 256).add(a);
    launch("cleave_top_k_totals", c.rows * place.chunks, 256).add(a);
    launch("cleave_top_k_collect", c.rows * place.chunks, 256).add(a);
  }
  int from = 0;
  auto sort = [&](int64_t bits) {
    for (int64_t shift = 0; shift < bits; shift += 8) {
      SortArguments s{};
      s.fromKeys = ints(place.keys[from]);
      s.fromIndices = ints(place.places[from]);
      from = 1 - from;
      s.toKeys = ints(place.keys[from]);
      s.toIndices = ints(place.places[from]);
      s.counts = ints(place.sortCounts);
      s.starts = ints(place.sortStarts);
      s.count = a.selected;
      s.blocks = static_cast<int>(place.sortBlocks);
      s.shift = static_cast<int>(shift);
      launch("cleave_sort_count", place.sortBlocks, 256).add(s);
      launch("cleave_sort_sum", 1, 256).add(s);
      launch("cleave_sort_move", place.sortBlocks, 256).add(s);
    }
  };
  sort(32);
  // All rows are sorted together: then by rows.
  if (c.rows > 1) {
    a.keys = ints(place.keys[from]);
    a.places = ints(place.places[from]);
    launch("cleave_top_k_rows", divideUp(selected, 256), 256).add(a);
    int64_t bits = 0;
    while ((c.rows - 1) >> bits)
      ++bits;
    sort(bits);
  }
  a.places = ints(place.places[from]);
  launch("cleave_top_k_write", divideUp(selected, 256), 256).add(a);
}

//===----------------------------------------------------------------------===//
// Orthonormal columns
//===----------------------------------------------------------------------===//

void Planner::orthonormalize(const OrthonormalizeCommand &c) {
  if (c.batch == 0 || c.columns == 0)
    return;
  cleave::OrthonormalScratch place(c.rows, c.columns);
  OrthonormalArguments a{};
  a.in = at<const float>(c.in);
  a.out = at<float>(c.out);
  a.scratch = at<double>(c.scratch);
  a.rows = c.rows;
  a.size = place.size;
  a.matrix = place.matrix;
  a.norms = place.norms;
  a.sums[0] = place.sums[0];
  a.sums[1] = place.sums[1];
  a.pivots = place.pivots;
  a.gram = place.gram;
  a.triangle = place.triangle;
  a.product = place.product;
  a.factors = place.factors;
  a.signs = place.signs;
  a.tolerance = place.kTolerance;
  a.columns = static_cast<int>(c.columns);
  a.blockRows = static_cast<int>(place.blockRows);
  a.blocks = static_cast<int>(place.blocks);
  launch("cleave_orthonormal_load", c.batch * place.blocks, 256).add(a);
  for (; a.column < a.columns; ++a.column)
    launch("cleave_orthonormal_reflect", c.batch * place.blocks, 256).add(a);
  launch("cleave_orthonormal_finish", c.batch, 256).add(a);
  launch("cleave_orthonormal_form", c.batch * place.blocks, 256).add(a);
}

//===----------------------------------------------------------------------===//
// Rows sorted by group
//===----------------------------------------------------------------------===//

void Planner::sortRows(const SortRowsCommand &c) {
  SortRowsArguments a{};
  a.groups = at<const void>(c.groups);
  a.origin = at<const long long>(c.origin);
  a.order = at<long long>(c.order);
  a.inverse = at<long long>(c.inverse);
  a.offsets = at<long long>(c.offsets);
  a.rows = static_cast<int>(c.rows);
  a.size = static_cast<int>(c.size);
  a.width = static_cast<int>(byteSize(c.groupType));
  if (c.rows > maxInt - 256) {
    problem = "a sort has too many rows";
    return;
  }
  launch("cleave_grouped_order", c.size + 1, 256).add(a);
}

void Planner::groupedContract(const GroupedContractCommand &c) {
  if (c.m == 0 || (c.weightGradient ? c.k : c.rows) == 0)
    return;
  GroupedArguments a{};
  a.a = at<const void>(c.a);
  a.b = at<const void>(c.b);
  a.offsets = at<const long long>(c.offsets);
  a.out = at<void>(c.out);
  a.lda = c.lda;
  a.ldb = c.ldb;
  a.groupStrideB = c.groupStrideB;
  a.rows = static_cast<int>(c.rows);
  a.k = static_cast<int>(c.k);
  a.m = static_cast<int>(c.m);
  a.groups = static_cast<int>(c.groups);
  a.ranges = static_cast<int>(c.ranges);
  a.transposed = c.transposed;
  a.columnTiles = static_cast<int>(divideUp(c.m, 16));
  a.depthTiles = static_cast<int>(divideUp(c.k, 16));
  std::string type = c.type == DType::F64    ? "f64"
                     : c.type == DType::BF16 ? "bf16"
                                             : "f32";
  if (c.ranges > maxInt / c.groups || divideUp(c.rows, 16) > maxInt / 2) {
    problem = "a product of sorted rows has too many groups or rows";
    return;
  }
  if (c.weightGradient) {
    launch("cleave_grouped_weight_" + type,
           c.groups * a.columnTiles * a.depthTiles, 256)
        .add(a);
    return;
  }
  // Rows that are in no range.
  FillCommand zero;
  zero.bytes = c.rows * c.m * byteSize(c.resultType());
  fill(zero, addresses.at(c.out));
  // The last tile of each range may not be full.
  int64_t tiles = std::min(divideUp(c.rows, 16) + c.ranges * c.groups, c.rows);
  launch("cleave_grouped_rows_" + type, tiles * a.columnTiles, 256).add(a);
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

namespace {

/// The shape of the tiles of a class of head sizes; see KernelArguments.h.
struct AttentionClass {
  int size, forwardRows, forwardColumns;
  int queryRows, queryColumns, queryShares;
  int keyRows, keyColumns, keyShares;

  static uint32_t bytes(int64_t channelRows, int64_t size, int64_t scores,
                        int64_t columns) {
    return static_cast<uint32_t>(
        4 * (channelRows * (size + 4) + scores * (columns + 4)));
  }
  uint32_t forwardBytes() const {
    return bytes(forwardRows + forwardColumns, size, forwardRows,
                 forwardColumns);
  }
  uint32_t queryBytes() const {
    return bytes(2 * queryRows + (queryShares ? 1 : 2) * queryColumns, size,
                 queryRows, queryColumns);
  }
  uint32_t keyBytes() const {
    return bytes(2 * keyRows + (keyShares ? 1 : 2) * keyColumns, size,
                 2 * keyRows, keyColumns);
  }
};

/// That of a class of 16-bit heads.
struct AttentionClass16 {
  int size, forwardColumns, queryColumns, biasColumns, keyColumns, twice;
  static constexpr int rows = 64;

  uint32_t bytes(int64_t channelRows) const {
    return static_cast<uint32_t>(2 * channelRows * (size + 8));
  }
  uint32_t forwardBytes() const { return bytes(rows + 2 * forwardColumns); }
  /// Two tiles of keys, by turns.
  uint32_t queryBytes() const { return bytes(2 * rows + 3 * queryColumns); }
  uint32_t biasBytes() const { return bytes(2 * rows + 2 * biasColumns); }
  uint32_t keyBytes() const { return bytes(2 * rows + 2 * keyColumns); }
};

#define CLEAVE_CLASS(...) {__VA_ARGS__},
constexpr AttentionClass attentionClasses[] = {
    CLEAVE_ATTENTION_CLASSES(CLEAVE_CLASS)};
constexpr AttentionClass16 attentionClasses16[] = {
    CLEAVE_ATTENTION16_CLASSES(CLEAVE_CLASS)};
#undef CLEAVE_CLASS

/// What is launched: rows of the tiles of each kernel, the columns of those of
/// the bias, and bytes of shared memory.
struct AttentionShape {
  std::string suffix;
  int64_t forwardRows, queryRows, keyRows, biasColumns;
  uint32_t forwardBytes, queryBytes, keyBytes, biasBytes;
};

/// Nothing if no class has heads of that size.
std::optional<AttentionShape> attentionShape(DType type, int64_t size) {
  auto fits = [&](const auto &s) { return s.size >= size; };
  if (type == DType::F32) {
    const auto *s = llvm::find_if(attentionClasses, fits);
    if (s == std::end(attentionClasses))
      return std::nullopt;
    return AttentionShape{"_" + std::to_string(s->size),
                          s->forwardRows,
                          s->queryRows,
                          s->keyRows,
                          s->queryColumns,
                          s->forwardBytes(),
                          s->queryBytes(),
                          s->keyBytes(),
                          s->queryBytes()};
  }
  const auto *s = llvm::find_if(attentionClasses16, fits);
  if (s == std::end(attentionClasses16))
    return std::nullopt;
  return AttentionShape{"_" + dtypeName(type).str() + "_" +
                            std::to_string(s->size),
                        s->rows,
                        s->rows,
                        s->rows,
                        s->biasColumns,
                        s->forwardBytes(),
                        s->queryBytes(),
                        s->keyBytes(),
                        s->biasBytes()};
}

} // namespace

void Planner::attention(const AttentionCommand &c, bool backward) {
  int64_t size = std::max(c.headSize, c.valueSize);
  if (c.type != DType::F32 && c.type != DType::BF16 && c.type != DType::F16) {
    problem = "attention of the type " + dtypeName(c.type).str();
    return;
  }
  std::optional<AttentionShape> shape = attentionShape(c.type, size);
  if (!shape) {
    problem = "attention has heads of more than 256 channels";
    return;
  }
  if (std::max({c.queries, c.keys, c.batch * c.heads}) > maxInt - 256) {
    problem = "attention has too many positions";
    return;
  }
  auto number = [](int64_t x) { return static_cast<int>(x); };
  auto view = [&](const HeadView &v, int64_t channels, DType type) {
    HeadArguments result{};
    int64_t perVector = 16 / byteSize(type);
    result.data = at<void>(v.ref);
    result.wide = type == DType::F32;
    result.strideBatch = v.strideBatch;
    result.strideHead = v.strideHead;
    result.stridePosition = v.stridePosition;
    // A stride that is not used may be any.
    result.vector = channels >= perVector &&
                    reinterpret_cast<uintptr_t>(result.data) % 16 == 0 &&
                    v.strideBatch % perVector == 0 &&
                    v.strideHead % perVector == 0 &&
                    v.stridePosition % perVector == 0;
    return result;
  };
  AttentionArguments a{};
  a.q = view(c.q, c.headSize, c.type);
  a.k = view(c.k, c.headSize, c.type);
  a.v = view(c.v, c.valueSize, c.type);
  a.o = view(c.o, c.valueSize, backward ? c.type : c.resultType);
  if (backward) {
    a.dO = view(c.dO, c.valueSize, c.type);
    a.dQ = view(c.dQ, c.headSize, c.resultType);
    a.dK = view(c.dK, c.headSize, c.resultType);
    a.dV = view(c.dV, c.valueSize, c.resultType);
    a.dBias = at<float>(c.dBias);
    a.dots = scratch<float>(0);
  }
  a.lse = at<float>(c.lse);
  a.bias = at<const float>(c.bias);
  a.mask = at<const unsigned char>(c.mask);
  a.querySegments = at<const long long>(c.querySegments);
  a.keySegments = at<const long long>(c.keySegments);
  a.rng = at<const long long>(c.rng);
  a.origin = at<const long long>(c.origin);
  a.queryStarts = at<const long long>(c.queryStarts);
  a.keyStarts = at<const long long>(c.keyStarts);
  for (int d = 0; d < 4; ++d) {
    a.biasStrides[d] = c.biasStrides[d];
    a.maskStrides[d] = c.maskStrides[d];
  }
  a.window = c.window;
  a.shift = c.globalKeys - c.globalQueries;
  a.globalHeads = c.globalHeads;
  a.globalQueries = c.globalQueries;
  a.paddedKeys = divideUp(c.globalKeys, 64) * 64;
  a.batch = number(c.batch);
  a.heads = number(c.heads);
  a.kvHeads = number(c.kvHeads);
  a.group = number(c.kvHeads ? c.heads / c.kvHeads : 1);
  a.queries = number(c.queries);
  a.keys = number(c.keys);
  a.headSize = number(c.headSize);
  a.valueSize = number(c.valueSize);
  a.causal = c.causal;
  a.onto = c.onto;
  a.dropout = c.dropout > 0.0f;
  a.threshold = static_cast<int>(philox::threshold(c.dropout));
  a.keepScale = philox::keepScale(c.dropout);
  a.dropoutId = static_cast<int>(static_cast<uint32_t>(c.dropoutId));
  a.blocks = number(c.blocks);
  a.queriesPerBlock = number(c.queries / c.blocks);
  a.keysPerBlock = number(c.keys / c.blocks);
  a.queriesPerPiece =
      number(c.queryPieces ? c.queries / c.queryPieces : c.queries);
  a.keyPieces = number(c.keyPieces);
  a.keysPerPiece = number(c.keyPieces ? c.keys / c.keyPieces : c.keys);
  a.scale = c.scale;

  int64_t heads = c.batch * c.heads, keyHeads = c.batch * c.kvHeads;
  auto add = [&](const char *name, int64_t blocks, uint32_t bytes) {
    if (blocks == 0)
      return;
    Launch &own = launch(name + shape->suffix, blocks, 128);
    own.sharedBytes = bytes;
    own.add(a);
  };
  if (!backward) {
    add("cleave_attention_forward",
        heads * divideUp(c.queries, shape->forwardRows), shape->forwardBytes);
    return;
  }
  add("cleave_attention_queries", heads * divideUp(c.queries, shape->queryRows),
      shape->queryBytes);
  add("cleave_attention_keys", keyHeads * divideUp(c.keys, shape->keyRows),
      shape->keyBytes);
  if (!a.dBias)
    return;
  int64_t tiles = 1;
  if (c.biasStrides[0])
    tiles *= c.batch;
  if (c.biasStrides[1])
    tiles *= c.heads;
  if (c.biasStrides[2])
    tiles *= c.blocks * divideUp(c.queries / c.blocks, shape->queryRows);
  if (c.biasStrides[3])
    tiles *= divideUp(c.keysOf(c.biasStrides), shape->biasColumns);
  add("cleave_attention_bias", tiles, shape->biasBytes);
}

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

int64_t cuda::launchScratchBytes(const Command &command) {
  if (command.kind == CommandKind::ScatterAdd) {
    const ScatterAddCommand &c = command.scatterAdd;
    bool empty = c.count == 0 || c.outRows == 0 || c.columns == 0;
    return empty ? 0 : SortLayout(c).bytes;
  }
  const AttentionCommand &c = command.attention;
  int64_t library = std::max<int64_t>(0, c.libraryBytes);
  if (command.kind == CommandKind::AttentionForward)
    return library;
  if (command.kind == CommandKind::AttentionBackward)
    return std::max(library,
                    divideUp(4 * c.batch * c.heads * c.queries, 256) * 256);
  return 0;
}

llvm::Expected<std::vector<Launch>>
cuda::planLaunches(const Command &command, const Addresses &addresses) {
  Planner planner(addresses);
  switch (command.kind) {
  case CommandKind::Copy:
    planner.copy(command.copy);
    break;
  case CommandKind::Fill:
    planner.fill(command.fill);
    break;
  case CommandKind::ScatterAdd:
    planner.scatterAdd(command.scatterAdd);
    break;
  case CommandKind::TopK:
    planner.topK(command.topK);
    break;
  case CommandKind::Orthonormalize:
    planner.orthonormalize(command.orthonormalize);
    break;
  case CommandKind::SortRows:
    planner.sortRows(command.sortRows);
    break;
  case CommandKind::GroupedContract:
    planner.groupedContract(command.groupedContract);
    break;
  case CommandKind::AttentionForward:
  case CommandKind::AttentionBackward:
    planner.attention(command.attention,
                      command.kind == CommandKind::AttentionBackward);
    break;
  case CommandKind::Check:
    planner.check(command.check);
    break;
  default:
    return makeError("the command has no kernel of its own");
  }
  if (!planner.problem.empty())
    return makeError(planner.problem);
  return std::move(planner.launches);
}

int64_t cuda::launchScratchBytes(const Program &program) {
  int64_t scratch = 0;
  for (const Part &part : program.parts)
    for (const Command &command : part.commands)
      scratch = std::max(scratch, launchScratchBytes(command));
  return scratch;
}

int64_t cuda::outsideBytes(const Program &program) {
  return kContractionWorkspaceBytes + launchScratchBytes(program) +
         CollectiveStaging(program).getBytes();
}
