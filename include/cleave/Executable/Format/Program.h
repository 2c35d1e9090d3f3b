//===- Program.h - The command table ----------------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The content of an artifact besides kernels: data that the executor of each
/// rank interprets. The code generator fills these structures; an artifact
/// stores them as JSON. They depend on no compiler library.
///
/// A *program* is an ordered list of *actions*. An action runs one *part* (a
/// list of commands compiled once) on one micro-batch, with its own row of
/// buffer offsets, so that packing is global while code is shared.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FORMAT_PROGRAM_H
#define CLEAVE_EXECUTABLE_FORMAT_PROGRAM_H

#include "cleave/Support/CollectiveKind.h"
#include "cleave/Support/ReductionKind.h"
#include "cleave/Support/TargetTraits.h"
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace cleave::runtime {

/// Element types of buffers; the names in JSON are "f32", "i64", ...
enum class DType : uint8_t {
  F64,
  F32,
  F16,
  BF16,
  I64,
  I32,
  I8,
  I1,
  F8E4M3, ///< "f8E4M3FN"
  F8E5M2
};

/// Bytes of one element; `I1` takes one byte.
int64_t byteSize(DType type);

/// The role of a persistent tensor.
enum class Role : uint8_t {
  Parameter, ///< a named entry of the model's state_dict
  Buffer,    ///< a named constant of the model (a mask, RoPE frequencies)
  State,     ///< optimizer state of the parameter `of`, slot `slot`
  Gradient,  ///< a value that a deferred update reads, kept for it
  Input,     ///< a tensor given at each step
  Scalar,    ///< a run-time scalar: "lr", "step", "seed", "loss_scale"
  Output     ///< a tensor read after a step: "loss", "grad_norm", "logits"
};

/// How a program whose gradients can overflow scales its loss: by the scalar
/// "loss_scale".
struct LossScaling {
  /// Whether it has that scalar. Then a step whose gradients overflow is
  /// skipped.
  bool used = false;
  /// Whether the scale falls and rises; a constant one ends the run at an
  /// overflow.
  bool dynamic = true;
  /// The first scale, and the least one.
  float initial = 65536, minimum = 1;
  /// The number of finite steps after which the scale doubles, and of overflows
  /// after which it is halved.
  int64_t window = 1000, hysteresis = 2;

  /// What is wrong with the numbers, or "".
  std::string problem() const {
    if (!(minimum > 0 && minimum <= 0x1p127f))
      return "the least loss scale must be positive and at most 2^127";
    if (!(initial >= minimum && initial <= 0x1p127f))
      return "the first loss scale must be at least the least one, and at most "
             "2^127";
    if (window < 1 || hysteresis < 1)
      return "the window and the hysteresis of the loss scale must be at least "
             "1";
    return "";
  }
  bool operator==(const LossScaling &) const = default;
};

/// One axis of the mesh of devices.
struct MeshAxis {
  std::string name;
  int64_t size = 1;
  /// Whether its positions run one after the other on the same rank: they are
  /// micro-batches.
  bool sequential = false;

  bool operator==(const MeshAxis &) const = default;
};

/// A digit of a coordinate on an axis, of size `size`; the product of the sizes
/// of the more significant digits is `pre`. The whole axis is the digit of its
/// size with `pre` 1.
struct Digit {
  int32_t axis = 0;
  int64_t pre = 1;
  int64_t size = 1;
  bool operator==(const Digit &other) const = default;
};

/// A tensor with a fixed offset in the arena, or in the second tier, for the
/// life of the process.
struct Tensor {
  std::string name;
  Role role;
  DType dtype;
  /// Logical shape of the whole tensor (all ranks, all micro-batches), in
  /// elements.
  std::vector<int64_t> shape;
  /// The shape after padding with zeros at the end of each dimension; empty if
  /// equal to `shape`.
  std::vector<int64_t> padded;
  /// The digits that shard each (padded) dimension, major to minor; empty if
  /// the tensor is replicated. Every rank has all digits of sequential axes.
  std::vector<std::vector<Digit>> sharding;
  /// Byte offset from the start of the arena or, with `tier`, of the second
  /// tier, 64-byte aligned.
  int64_t offset = 0;
  /// Parameter, State: whether it is in the second tier.
  bool tier = false;
  /// Other names of the same storage (tied weights).
  std::vector<std::string> aliases;
  /// Parameter: whether it has no gradient and no optimizer state.
  bool frozen = false;
  /// Parameter: whether the model adds it, as a bias, in all places.
  bool additive = false;
  /// State: the parameter it belongs to, and the slot ("exp_avg", ...).
  /// Parameter, `of`: the parameter whose value it starts with if none is
  /// given.
  std::string of, slot;
  /// State: the technique that it belongs to, if a checkpoint may lack all
  /// state of that technique, which is zero then; else empty.
  std::string optional;
  /// State: whether only the sum over the first dimension counts: if a
  /// checkpoint has another size there, each slice takes its share of the sum.
  bool summed = false;
  /// State: of how many elements it is the sequence (each slice of the first
  /// dimension, if `summed`), with zeros behind them, of which a checkpoint may
  /// have another number; 0: of all.
  int64_t elements = 0;
  /// Input, Output: the dimension that micro-batches slice, or -1.
  int batchDim = -1;
  /// Input: indices must satisfy 0 <= id < upperBound (0: unchecked);
  /// values equal to `ignoreIndex` are exempt when `hasIgnoreIndex`.
  int64_t upperBound = 0;
  bool hasIgnoreIndex = false;
  int64_t ignoreIndex = 0;
  /// Buffer: whether files of weights have to hold it; those that the framework
  /// does not save may lack it.
  bool persistent = true;
  /// Buffer: whether a step writes it.
  bool written = false;
  /// Buffer: its value before any is given, as the hexadecimal digits of the
  /// whole tensor's bytes; empty if none is known.
  std::string value;
  /// The framework's shape of the parameter if it is stored in factored shape
  /// (same elements in the same order); empty if equal to `shape`.
  std::vector<int64_t> frameworkShape;

  int64_t numElements() const {
    int64_t n = 1;
    for (int64_t d : shape)
      n *= d;
    return n;
  }
  /// The shape that is sharded.
  const std::vector<int64_t> &heldShape() const {
    return padded.empty() ? shape : padded;
  }

  bool operator==(const Tensor &) const = default;
};

/// A reference to memory from a command: a buffer of the part (an index into
/// the action's row of offsets) and a byte offset into it.
struct Ref {
  int32_t buffer = -1; ///< -1: absent
  int64_t offset = 0;

  bool operator==(const Ref &) const = default;
};

/// The category of a command in the times of a step.
enum class TimeClass : uint8_t {
  Contraction,
  Attention,
  RowWise,
  Optimizer,
  Communication,
  Offload
};

/// How a kernel is launched on a device that runs grids of blocks.
struct LaunchShape {
  /// The number of blocks; 0: the target has no grids.
  int64_t grid = 0;
  /// Threads of a block.
  int32_t block = 0;
  /// Bytes of dynamic shared memory of a block.
  int32_t sharedBytes = 0;

  bool operator==(const LaunchShape &) const = default;
};

/// Runs a generated kernel over `rows` independent items. Kernel ABI:
///   void kernel(void *const *args, int64_t begin, int64_t end, void *scratch)
/// processes items [begin, end). Items are rows of the iteration space (the
/// code generator divides `map` kernels into blocks, so that an item is never
/// too small). For `stages == 2` (column reductions) stage one writes partial
/// results for each of `groups` row groups into scratch memory in the arena,
/// and `finish(args, 0, columns, scratch)` combines them in index order: the
/// result does not depend on the number of threads.
struct KernelCommand {
  std::string symbol;
  /// How often a launch runs the kernel, each time with args of its own and at
  /// the same time as the others; 1 unless the device has grids.
  int32_t uses = 1;
  /// Those of one use after those of another.
  std::vector<Ref> args;
  /// How many of the args of a use, the first, are only read.
  int32_t inputs = 0;
  int64_t items = 0;
  /// The smallest number of items that is worth a thread.
  int64_t grain = 1;
  /// Second stage of a column reduction; empty otherwise.
  std::string finish;
  int64_t finishItems = 0;
  Ref scratch;
  /// On a device with grids: of each stage. Its kernels take `args`, those of
  /// several uses as one structure, and if there are two stages the address of
  /// the scratch memory, as parameters.
  LaunchShape launch, finishLaunch;

  /// How many args a use has.
  size_t argsOfUse() const {
    return args.size() / static_cast<size_t>(uses > 0 ? uses : 1);
  }

  bool operator==(const KernelCommand &) const = default;
};

/// What a product does with its sums before it rounds them.
enum class Epilogue : uint8_t {
  None,
  /// gelu in the form with tanh; what it is taken of is written `beside`, if
  /// that is given.
  Gelu,
  /// Times the slope of that gelu at what is `beside`.
  GeluGradient
};

/// C[b] = alpha * op(A[b]) * op(B[b]) + beta * C[b] + bias, row-major: op(A) is
/// m x k and op(B) k x n, of `type` and `typeB`, which are one type of f32 or
/// 16 bits, or two of 8 bits; C is `resultType`, f32 or, in 16 bits, `type`.
/// Factors of 8 bits are rows of A and columns of B, of 16 elements or a
/// multiple. `bias`, if any, has an element of `resultType` for each column.
/// Strides in elements. Batched over `batch` with strides per operand (0
/// broadcasts). Only a product of one matrix has an epilogue, which is of
/// `resultType` too. The processor takes f32 and bf16, gives f32, and has
/// neither bias nor epilogue.
struct ContractCommand {
  DType type = DType::F32, typeB = DType::F32;
  DType resultType = DType::F32;
  int64_t m = 0, n = 0, k = 0, batch = 1;
  Ref a, b, c;
  bool transA = false, transB = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t batchStrideA = 0, batchStrideB = 0, batchStrideC = 0;
  float alpha = 1.0f, beta = 0.0f;
  Ref bias;
  Epilogue epilogue = Epilogue::None;
  Ref beside;
  int64_t ldBeside = 0;

  bool operator==(const ContractCommand &) const = default;
};

/// A 4-d strided view [batch, head, position, channel]; channel stride is 1.
struct HeadView {
  Ref ref;
  int64_t strideBatch = 0, strideHead = 0, stridePosition = 0;

  bool operator==(const HeadView &) const = default;
};

/// Scaled dot-product attention, forward or backward, blockwise over query
/// rows: S = scale * Q K^T (+ bias) masked; P = softmax(S); O = dropout(P) V.
/// Heads of K and V are shared by heads / kvHeads query heads in order.
/// `lse` is [batch, heads, queries] f32, the log of the sum of exponentials
/// of the masked scores; a row with no visible key gives output 0 and -inf.
struct AttentionCommand {
  /// Of Q, K and V and, backward, of O and its gradient: f32 or, on devices
  /// that take it, f16 or bf16. Scores, sums, the bias and its gradient are
  /// f32.
  DType type = DType::F32;
  /// Of O forward, and of the gradients of Q, K and V: `type` or f32.
  DType resultType = DType::F32;
  int64_t batch = 0, heads = 0, kvHeads = 0, queries = 0, keys = 0,
          headSize = 0, valueSize = 0;
  float scale = 1.0f;
  /// Query i sees keys j <= i + keys - queries, in positions of the global
  /// scores.
  bool causal = false;
  /// Query i sees keys j > i + keys - queries - window (0: no window).
  int64_t window = 0;
  HeadView q, k, v, o;
  Ref lse;
  /// Optional additive bias, broadcast by zero strides (elements):
  /// [batch, head, query, key].
  Ref bias;
  int64_t biasStrides[4] = {0, 0, 0, 0};
  /// Optional byte mask (1: visible), broadcast likewise.
  Ref mask;
  int64_t maskStrides[4] = {0, 0, 0, 0};
  /// Optional segment numbers of queries and keys, i64 [batch, positions]: a
  /// query sees only keys of its own segment.
  Ref querySegments, keySegments;
  /// Dropout of P. The keep threshold is on the 32-bit draw; see Philox.h.
  float dropout = 0.0f;
  int64_t dropoutId = 0;
  Ref rng; ///< i64[2]: seed, step
  /// The offset of these scores in the global ones, i64[4]: the first batch,
  /// head, query and key. Absent: zero.
  Ref origin;
  int64_t globalHeads = 0, globalQueries = 0, globalKeys = 0;
  /// Queries and keys in as many equal pieces, each of which begins at the
  /// given position of the global scores, relative to the origin, i64[pieces];
  /// positions ascend. Absent: 0 pieces.
  Ref queryStarts, keyStarts;
  int64_t queryPieces = 0, keyPieces = 0;
  /// Queries and keys in as many equal blocks: a block of queries sees only the
  /// block of keys of the same index.
  int64_t blocks = 1;
  /// Forward only: `o` and `lse` hold the results on other keys; the softmax is
  /// taken over both sets of keys.
  bool onto = false;
  /// Backward only: `do` is an input, dq, dk and dv are outputs, all strided;
  /// `dbias` is dense with the bias's own broadcast shape, accumulated in index
  /// order.
  HeadView dO, dQ, dK, dV;
  Ref dBias;
  /// Scratch memory in the arena, `scratchBytesPerThread` for each thread.
  Ref scratch;
  int64_t scratchBytesPerThread = 0;
  /// Rows of queries processed at once.
  int64_t queryBlock = 64;
  /// On a GPU: bytes of memory besides the arena that a library's form of the
  /// command may use; -1: only the generated kernels run it.
  int64_t libraryBytes = -1;
  /// Backward, of a library: whether every run sums in the same order.
  bool fixedOrder = true;

  /// The number of keys of a bias or mask of such strides: those of all keys,
  /// or, if it has queries, those of the query's block.
  int64_t keysOf(const int64_t (&strides)[4]) const {
    return strides[2] != 0 ? keys / blocks : keys;
  }

  bool operator==(const AttentionCommand &) const = default;
};

/// out[ids[i], :] += rows[i, :] in increasing i for each row of `out`;
/// out is zeroed first unless `accumulate`. Rows whose id is `skipIndex`
/// (padding) are ignored when `hasSkip`.
struct ScatterAddCommand {
  Ref rows, ids, out;
  int64_t count = 0, columns = 0, outRows = 0;
  DType idType = DType::I64;
  bool accumulate = false, hasSkip = false;
  int64_t skipIndex = 0;

  bool operator==(const ScatterAddCommand &) const = default;
};

/// The `k` largest elements of each of `rows` f32 rows of `columns` elements,
/// in decreasing order, and their indices, i64, as `graph.top_k` defines them.
struct TopKCommand {
  Ref in, values, indices;
  int64_t rows = 0, columns = 0, k = 0;
  /// Of the size that TopKScratch.h says.
  Ref scratch;

  bool operator==(const TopKCommand &) const = default;
};

/// The Q factors of `batch` f32 matrices [rows, columns], columns <= rows, one
/// after the other, as `graph.orthonormalize` defines them. `in` may be `out`.
struct OrthonormalizeCommand {
  Ref in, out;
  int64_t batch = 0, rows = 0, columns = 0;
  /// Of the size that OrthonormalScratch.h says.
  Ref scratch;

  bool operator==(const OrthonormalizeCommand &) const = default;
};

/// The order of `rows` rows by their groups, as `graph.sort_rows` defines it:
/// `order` and `inverse` have an i64 for each row, `offsets` size + 1.
struct SortRowsCommand {
  Ref groups;
  /// The first of the `size` groups, i64. Absent: 0.
  Ref origin;
  Ref order, inverse, offsets;
  int64_t rows = 0, size = 0;
  DType groupType = DType::I64;

  bool operator==(const SortRowsCommand &) const = default;
};

/// Products of rows sorted by group, as `graph.grouped_contract` defines them:
/// `a` has `rows` rows of k elements, and `b` a matrix for each group, [k, m]
/// or, `transposed`, [m, k]; the result is [rows, m]. Of `weightGradient`, `b`
/// has `rows` rows of m elements, and the result a matrix for each group.
/// Offsets are i64 [ranges, groups + 1].
struct GroupedContractCommand {
  bool weightGradient = false, transposed = false;
  /// Of `a` and `b`: f32, bf16 or f64. The result is f32, of f64 f64.
  DType type = DType::F32;
  Ref a, b, offsets, out;
  int64_t rows = 0, k = 0, m = 0, groups = 0, ranges = 1;
  /// Elements from a row to the next, and from a matrix of `b` to the next.
  int64_t lda = 0, ldb = 0, groupStrideB = 0;
  /// Of `scratchBytes()`.
  Ref scratch;

  DType resultType() const {
    return type == DType::F64 ? DType::F64 : DType::F32;
  }
  /// The number of tiles of rows before each range of a group.
  static int64_t scratchBytes(int64_t ranges, int64_t groups) {
    return (ranges * groups + 1) * 8;
  }

  bool operator==(const GroupedContractCommand &) const = default;
};

/// Strided copy, up to 8 dimensions; strides in elements, 0 reads a value
/// repeatedly. `elementBytes` is the number of bytes of an element.
struct CopyCommand {
  Ref src, dst;
  int64_t elementBytes = 4;
  std::vector<int64_t> sizes, srcStrides, dstStrides;

  bool operator==(const CopyCommand &) const = default;
};

/// Fills `bytes` bytes with a repeated pattern of `elementBytes` bytes.
struct FillCommand {
  Ref dst;
  int64_t bytes = 0, elementBytes = 4;
  uint64_t pattern = 0;

  bool operator==(const FillCommand &) const = default;
};

/// Stops the step, before any later command runs, unless the byte at `flag` is
/// not zero. The executor reports `message` and leaves all state unchanged (the
/// code generator orders checks before the first update).
struct CheckCommand {
  Ref flag;
  std::string message;
  /// If ranks do not all run the same actions, the step continues until the
  /// next check that is not deferred, which all of them reach.
  bool deferred = false;
  /// Whether the step is skipped, without an error, if no other check fails.
  bool skips = false;
  /// Whether it fails where a buffer has too few rows.
  bool room = false;
  /// `count` 64-bit integers that the message names (CheckMessage.h).
  Ref values;
  int32_t count = 0;

  /// Of checks that have failed, the one with the largest number is reported,
  /// or else the first. What a step computes after a buffer had too few rows
  /// makes others fail.
  int severity() const { return room ? 3 : skips ? 1 : 2; }

  bool operator==(const CheckCommand &) const = default;
};

using cleave::CollectiveKind;
using cleave::ReductionKind;

/// A block that one rank sends to another, with its layout at both ends.
/// Strides and offsets are in elements.
struct CollectiveBlock {
  Ref src, dst;
  /// The shape of the block that one rank sends to another (up to 8
  /// dimensions).
  std::vector<int64_t> sizes, srcStrides, dstStrides;
  /// Reduce-scatter, all-to-all: the offset of the block for each member.
  std::vector<int64_t> srcOffsets;
  /// All-gather, all-to-all: the offset for the block of each member.
  std::vector<int64_t> dstOffsets;

  bool operator==(const CollectiveBlock &) const = default;
};

/// Begins an exchange among the ranks that differ only in `axes`; the value of
/// these digits, major to minor, is a rank's index in its group. One
/// description serves every rank: offsets and sources are given for each index.
/// A send has no `dst` and a receive no `src`; they are between two ranks, the
/// other of which has the index `root`.
struct CollectiveCommand : CollectiveBlock {
  CollectiveKind collective = CollectiveKind::AllReduce;
  ReductionKind reduction = ReductionKind::Sum;
  DType dtype = DType::F32;
  std::vector<Digit> axes;
  /// Further blocks that are exchanged together.
  std::vector<CollectiveBlock> more;
  /// Permute: the source of each member.
  std::vector<int32_t> sources;
  /// Broadcast: the member that sends; reduce: the member whose `dst` becomes
  /// the sum; `dst` of the others does not. Send, receive: the other end.
  int32_t root = 0;
  /// Rows to all: of 64-bit integers, one more than members. `sizes` are those
  /// of `src`, of which rows `sendOffsets[j]` to `sendOffsets[j + 1]` go to
  /// member j; those of member i become rows `receiveOffsets[i]` on of the
  /// `bound` rows of `dst`. Both are dense.
  Ref sendOffsets, receiveOffsets;
  int64_t bound = 0;
  /// Identifies the wait that ends it, later in the same part; if it ends
  /// later, in another action of the same micro-batch.
  int32_t token = 0;
  /// Whether its wait is in a later part, as that of a send or a receive is.
  bool spans = false;

  bool isTransfer() const {
    return collective == CollectiveKind::Send ||
           collective == CollectiveKind::Receive;
  }
  bool endsLater() const { return spans || isTransfer(); }

  /// Of all blocks.
  int64_t elements() const {
    auto of = [](const CollectiveBlock &block) {
      return std::accumulate(block.sizes.begin(), block.sizes.end(), int64_t(1),
                             std::multiplies<>());
    };
    return std::accumulate(more.begin(), more.end(), of(*this),
                           [&](int64_t sum, const CollectiveBlock &block) {
                             return sum + of(block);
                           });
  }

  bool operator==(const CollectiveCommand &) const = default;
};

/// Begins a copy between memory and the second tier: a fetch reads the tier, an
/// eviction writes it.
struct MoveCommand {
  Ref memory;
  /// In a buffer of the second tier, to which no other command refers.
  Ref tier;
  int64_t bytes = 0;
  /// Identifies the wait that ends it, later in the same part; no collective of
  /// the part has the same.
  int32_t token = 0;

  bool operator==(const MoveCommand &) const = default;
};

/// Ends the exchange, or the move, of that token: only then may its memory be
/// used.
struct WaitCommand {
  int32_t token = 0;
  /// Whether it ends a send, a receive, or another exchange of an earlier part.
  bool transfer = false;

  bool operator==(const WaitCommand &) const = default;
};

enum class CommandKind : uint8_t {
  Kernel,
  Contract,
  AttentionForward,
  AttentionBackward,
  ScatterAdd,
  TopK,
  Orthonormalize,
  SortRows,
  GroupedContract,
  Copy,
  Fill,
  Check,
  Collective,
  Wait,
  Fetch,
  Evict
};

struct Command {
  CommandKind kind;
  TimeClass timeClass = TimeClass::RowWise;
  /// Floating-point operations, for throughput figures; a multiply-add is two.
  int64_t flops = 0;
  /// For traces and errors: the op and its source line.
  std::string label;
  KernelCommand kernel;
  ContractCommand contract;
  AttentionCommand attention;
  ScatterAddCommand scatterAdd;
  TopKCommand topK;
  OrthonormalizeCommand orthonormalize;
  SortRowsCommand sortRows;
  GroupedContractCommand groupedContract;
  CopyCommand copy;
  FillCommand fill;
  CheckCommand check;
  CollectiveCommand collective;
  WaitCommand wait;
  MoveCommand move;

  /// Whether it is a fetch or an eviction.
  bool isMove() const {
    return kind == CommandKind::Fetch || kind == CommandKind::Evict;
  }

  bool operator==(const Command &) const = default;
};

/// One buffer of a part: its size, and its kind for the report.
struct Buffer {
  int64_t bytes = 0;
  /// "parameter", "gradient", "state", "activation", "saved", "scratch", ...
  std::string kind;
  /// Whether it is in the second tier; its offsets are then those in the tier.
  bool tier = false;

  bool operator==(const Buffer &) const = default;
};

/// The action of its entry's schedule that a part is, of any micro-batch, for
/// traces. The executor does not use it.
struct ScheduledAction {
  /// Its name in the schedule's text, with `*` for the micro-batch; without `*`
  /// it runs once. Empty: the part is not an action.
  std::string name;
  /// "forward", "backward", "communication", ...
  std::string kind;
  int64_t stage = 0;
  /// Floating-point operations of a run of forward or backward, by which a
  /// trace identifies its model; 0 for others.
  int64_t flops = 0;

  bool operator==(const ScheduledAction &) const = default;
};

struct Part {
  std::string name;
  ScheduledAction scheduled;
  std::vector<Buffer> buffers;
  std::vector<Command> commands;
  /// If this flag, an i1, is set before a run, the run is skipped.
  Ref unless = {};
  /// Whether it runs only if an earlier check has stopped the step.
  bool whenStopped = false;

  bool operator==(const Part &) const = default;
};

struct Action {
  int32_t part = 0;
  int32_t microBatch = 0;

  bool operator==(const Action &) const = default;
};

/// The offsets of one buffer of a part in each of its runs in an entry, in the
/// order of the actions: each of `first`, then those of `turn` in turn, each
/// time `step` bytes further, and in the last runs those of `last`.
struct Column {
  std::vector<int64_t> first, turn;
  int64_t step = 0;
  std::vector<int64_t> last;

  /// The arena offset, in bytes, in run `run` of `runs`.
  int64_t at(int64_t run, int64_t runs) const;
  /// The column with the offsets `values`.
  static Column of(const std::vector<int64_t> &values);

  bool operator==(const Column &) const = default;
};

/// The runs of one part in an entry: the offsets of each of its buffers.
struct Rows {
  int32_t part = 0;
  std::vector<Column> columns;

  bool operator==(const Rows &) const = default;
};

/// An entry: "train", "evaluate", "logits". Rows.h reads its rows.
struct Entry {
  std::vector<Action> actions;
  /// The rows of each part that runs.
  std::vector<Rows> rows;
  /// Indices into Program::tensors.
  std::vector<int32_t> inputs, scalars, outputs;

  bool operator==(const Entry &) const = default;
};

/// Constant bytes in the arena, written before anything runs.
struct Constant {
  int64_t offset = 0;
  /// The content, two hexadecimal digits for each byte.
  std::string hex;

  bool operator==(const Constant &) const = default;
};

/// A number that depends on the rank: `base` plus, for each term, `factor`
/// times the value of its digits, major to minor.
struct DeviceTerm {
  std::vector<Digit> digits;
  int64_t factor = 0;

  bool operator==(const DeviceTerm &) const = default;
};
struct DeviceValue {
  int64_t base = 0;
  std::vector<DeviceTerm> terms;

  bool operator==(const DeviceValue &) const = default;
};

/// Constant 64-bit integers in the arena, written before anything runs, that
/// differ between ranks.
struct DeviceConstant {
  int64_t offset = 0;
  std::vector<DeviceValue> values;

  bool operator==(const DeviceConstant &) const = default;
};

/// The program of one pipeline position: of the ranks with coordinate
/// `position` on the axis `pipelineAxis` of the mesh, or of all.
struct Program {
  static constexpr int kVersion = 16;
  /// Scratch memory is planned for each thread.
  static constexpr int kMaxThreads = 1024;
  int version = kVersion;
  /// What runs it: "" is the processor, "cuda" a GPU, whose architecture, such
  /// as "sm_90", the code is compiled for.
  std::string target, architecture;
  bool isForGpu() const { return TargetTraits::of(target).isGpu(); }
  /// For the processor: CPU name and vector width in bits.
  std::string cpu;
  int vectorBits = 0;
  /// The number of threads for which scratch memory was planned; a run may use
  /// fewer.
  int threads = 1;
  int64_t microBatches = 1;
  /// The axes in the order of device numbers, major to minor; empty: one
  /// device.
  std::vector<MeshAxis> mesh;
  /// An index into `mesh`, or -1 if all ranks run the same program.
  int32_t pipelineAxis = -1;
  int32_t position = 0;
  int64_t arenaBytes = 0;
  /// Bytes of the second tier: a file of each rank.
  int64_t tierBytes = 0;
  std::vector<Tensor> tensors;
  std::vector<Constant> constants;
  std::vector<DeviceConstant> deviceConstants;
  std::vector<Part> parts;
  std::map<std::string, Entry> entries;
  /// Names of the model's buffers that no entry reads; files may hold them.
  std::vector<std::string> unread;
  /// The same at all positions.
  LossScaling lossScaling;
  /// Further facts for `--report` and checkpoints ("optimizer": ...), as JSON
  /// text.
  std::string metadata;

  /// The number of updates of a parameter in one run of `train`: one, or one
  /// for each micro-batch; micro-batches are then an axis of that name.
  int64_t updatesPerStep() const;
};

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FORMAT_PROGRAM_H
