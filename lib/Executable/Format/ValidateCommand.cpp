//===- ValidateCommand.cpp - Checks of commands ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// Every extent of a command is checked against its buffer, with overflow,
// before any reference is resolved to a pointer.
//
//===----------------------------------------------------------------------===//

#include "ValidateCommand.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Support/CheckMessage.h"
#include "cleave/Support/LaunchLimits.h"
#include "cleave/Support/OrthonormalScratch.h"
#include "cleave/Support/TopKScratch.h"

#include <cmath>
#include <optional>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Twine;

namespace {

/// The number of bytes from the start of a reference that a strided access
/// reaches.
class Extent {
public:
  explicit Extent(int64_t elementBytes) : elementBytes(elementBytes) {}

  /// Adds a dimension of `size` positions, `stride` elements apart.
  Extent &dim(int64_t size, int64_t stride) {
    if (size < 0 || stride < 0) {
      negative = true;
      return *this;
    }
    if (size == 0) {
      empty = true;
      return *this;
    }
    int64_t span;
    overflow |= __builtin_mul_overflow(size - 1, stride, &span);
    overflow |= __builtin_add_overflow(last, span, &last);
    return *this;
  }

  /// Adds dimensions that are nested without gaps, outermost first.
  Extent &dense(llvm::ArrayRef<int64_t> sizes) {
    int64_t stride = 1;
    for (int64_t size : llvm::reverse(sizes)) {
      dim(size, stride);
      if (size > 0)
        overflow |= __builtin_mul_overflow(stride, size, &stride);
    }
    return *this;
  }

  /// The number of bytes, or nothing if it has no valid value.
  std::optional<int64_t> bytes() const {
    int64_t elements, result;
    if (negative)
      return std::nullopt;
    if (empty)
      return 0;
    if (overflow || __builtin_add_overflow(last, 1, &elements) ||
        __builtin_mul_overflow(elements, elementBytes, &result))
      return std::nullopt;
    return result;
  }

private:
  int64_t elementBytes;
  int64_t last = 0;
  bool empty = false, negative = false, overflow = false;
};

bool isFloat8(DType type) {
  return type == DType::F8E4M3 || type == DType::F8E5M2;
}

/// Checks the commands of one part.
class CommandChecker {
public:
  CommandChecker(const Program &program, const Part &part,
                 const Command &command, std::string where)
      : program(program), part(part), command(command),
        where(std::move(where)) {}

  Error check() {
    switch (command.kind) {
    case CommandKind::Kernel:
      kernel(command.kernel);
      break;
    case CommandKind::Contract:
      contract(command.contract);
      break;
    case CommandKind::AttentionForward:
      attention(command.attention, /*backward=*/false);
      break;
    case CommandKind::AttentionBackward:
      attention(command.attention, /*backward=*/true);
      break;
    case CommandKind::ScatterAdd:
      scatterAdd(command.scatterAdd);
      break;
    case CommandKind::TopK:
      topK(command.topK);
      break;
    case CommandKind::Orthonormalize:
      orthonormalize(command.orthonormalize);
      break;
    case CommandKind::SortRows:
      sortRows(command.sortRows);
      break;
    case CommandKind::GroupedContract:
      groupedContract(command.groupedContract);
      break;
    case CommandKind::Copy:
      copy(command.copy);
      break;
    case CommandKind::Fill:
      fill(command.fill);
      break;
    case CommandKind::Check:
      checkOf(command.check);
      break;
    case CommandKind::Collective:
      collective(command.collective);
      break;
    case CommandKind::Wait:
      break;
    case CommandKind::Fetch:
    case CommandKind::Evict:
      require(command.move.bytes >= 0, "negative size");
      ref("memory", command.move.memory, command.move.bytes);
      ref("tier", command.move.tier, command.move.bytes, /*tier=*/true);
      break;
    }
    if (problem.empty())
      return Error::success();
    return makeError(where + ": " + problem);
  }

private:
  void fail(const Twine &message) {
    if (problem.empty())
      problem = message.str();
  }

  void require(bool condition, const Twine &message) {
    if (!condition)
      fail(message);
  }

  /// A required reference, with `bytes` bytes available, to memory or to the
  /// second tier.
  void ref(const char *name, const Ref &r, std::optional<int64_t> bytes,
           bool tier = false) {
    if (r.buffer < 0 || r.buffer >= static_cast<int64_t>(part.buffers.size()))
      return fail(Twine("'") + name + "' names buffer " + Twine(r.buffer) +
                  ", but the part has " + Twine(part.buffers.size()));
    if (!bytes)
      return fail(Twine("the extent of '") + name +
                  "' is negative or does not fit 64 bits");
    if (part.buffers[r.buffer].tier != tier)
      return fail(Twine("'") + name + "' names buffer " + Twine(r.buffer) +
                  (tier ? ", which is not in the second tier"
                        : ", which is in the second tier"));
    int64_t size = part.buffers[r.buffer].bytes;
    if (r.offset < 0 || r.offset > size || *bytes > size - r.offset)
      fail(Twine("'") + name + "' needs " + Twine(*bytes) +
           " bytes at offset " + Twine(r.offset) + " of buffer " +
           Twine(r.buffer) + ", which has " + Twine(size));
  }

  void optionalRef(const char *name, const Ref &r,
                   std::optional<int64_t> bytes) {
    if (r.buffer != -1)
      ref(name, r, bytes);
  }

  void checkOf(const CheckCommand &c) {
    ref("flag", c.flag, 1);
    require(c.count >= 0 && c.count <= cleave::kCheckValues &&
                (c.count > 0) == (c.values.buffer != -1),
            "a check has as many values as its message can name");
    optionalRef("values", c.values, int64_t(c.count) * 8);
  }

  void kernel(const KernelCommand &k) {
    require(!k.symbol.empty(), "the kernel has no symbol");
    require(k.items >= 0 && k.finishItems >= 0, "negative number of items");
    require(k.grain >= 1, "the grain must be at least 1");
    for (const Ref &arg : k.args)
      ref("argument", arg, 0);
    optionalRef("scratch", k.scratch, 0);
    require(k.uses >= 1 && k.args.size() % static_cast<size_t>(k.uses) == 0 &&
                (k.uses == 1 ||
                 (program.isForGpu() && static_cast<int64_t>(k.args.size()) <
                                            cleave::kLaunchAddresses)),
            "the number of uses does not divide the arguments, or a launch "
            "cannot have so many");
    require(k.inputs >= 0 && k.inputs <= static_cast<int64_t>(k.argsOfUse()),
            "the number of inputs is not one of arguments");
    if (!program.isForGpu())
      return;
    launch(k.launch);
    if (!k.finish.empty())
      launch(k.finishLaunch);
  }

  void launch(const LaunchShape &shape) {
    require(shape.grid >= 1 && shape.grid < (int64_t(1) << 31),
            "a grid has 1 to 2^31 - 1 blocks");
    require(shape.block >= 1 && shape.block <= 1024,
            "a block has 1 to 1024 threads");
    require(shape.sharedBytes >= 0, "negative shared memory");
  }

  void contract(const ContractCommand &c) {
    require(c.m >= 0 && c.n >= 0 && c.k >= 0 && c.batch >= 0,
            "negative extent");
    require(c.lda >= std::max<int64_t>(1, c.transA ? c.m : c.k) &&
                c.ldb >= std::max<int64_t>(1, c.transB ? c.k : c.n) &&
                c.ldc >= std::max<int64_t>(1, c.n),
            "a leading dimension is smaller than its row");
    bool device = program.isForGpu();
    bool eight = device && byteSize(c.type) == 1 && byteSize(c.typeB) == 1;
    if (eight)
      require((isFloat8(c.type) && isFloat8(c.typeB)) &&
                  !(c.type == DType::F8E5M2 && c.typeB == DType::F8E5M2) &&
                  !c.transA && c.transB && c.k % 16 == 0 && c.n % 16 == 0 &&
                  c.lda % 16 == 0 && c.ldb % 16 == 0,
              "factors of 8 bits are rows and columns of multiples of 16 "
              "elements, and not both f8E5M2");
    else
      require(c.typeB == c.type &&
                  (c.type == DType::F32 || c.type == DType::BF16 ||
                   (device && c.type == DType::F16)),
              device ? "only f32, bf16 and f16 are multiplied"
                     : "only f32 and bf16 are multiplied");
    require(c.resultType == DType::F32 ||
                (device && !eight && c.resultType == c.type),
            device ? "a product is f32 or of the type of its factors"
                   : "a product is f32");
    bool plain = c.bias.buffer < 0 && c.epilogue == Epilogue::None;
    require(device || plain, "a product with a bias or an epilogue");
    require(plain || (c.batch == 1 && c.k > 0),
            "a batch or no products with a bias or an epilogue");
    require(c.beside.buffer < 0 ? c.epilogue != Epilogue::GeluGradient
                                : c.epilogue != Epilogue::None,
            "an epilogue without the matrix beside it, or that without one");
    require(c.epilogue == Epilogue::None || c.beta == 0,
            "an epilogue of a product that accumulates");
    require(c.beside.buffer < 0 || c.ldBeside >= std::max<int64_t>(1, c.n),
            "rows of the matrix beside a product overlap");
    require(c.batch <= 1 || c.batchStrideC > 0, "results of the batch overlap");
    require(std::isfinite(c.alpha) && std::isfinite(c.beta),
            "alpha and beta must be finite");
    if (!problem.empty())
      return;
    auto matrix = [&](DType type, int64_t rows, int64_t cols, int64_t ld,
                      int64_t stride) {
      return Extent(byteSize(type))
          .dim(rows, ld)
          .dim(cols, 1)
          .dim(c.batch, stride)
          .bytes();
    };
    ref("a", c.a,
        matrix(c.type, c.transA ? c.k : c.m, c.transA ? c.m : c.k, c.lda,
               c.batchStrideA));
    ref("b", c.b,
        matrix(c.typeB, c.transB ? c.n : c.k, c.transB ? c.k : c.n, c.ldb,
               c.batchStrideB));
    ref("c", c.c, matrix(c.resultType, c.m, c.n, c.ldc, c.batchStrideC));
    optionalRef("bias", c.bias,
                Extent(byteSize(c.resultType)).dim(c.n, 1).bytes());
    optionalRef("beside", c.beside,
                matrix(c.resultType, c.m, c.n, c.ldBeside, 0));
  }

  void headView(const char *name, const HeadView &v, int64_t batch,
                int64_t heads, int64_t positions, int64_t channels,
                DType type) {
    ref(name, v.ref,
        Extent(byteSize(type))
            .dim(batch, v.strideBatch)
            .dim(heads, v.strideHead)
            .dim(positions, v.stridePosition)
            .dim(channels, 1)
            .bytes());
    require(positions <= 1 || v.stridePosition >= channels,
            Twine("rows of '") + name + "' overlap");
  }

  void attention(const AttentionCommand &a, bool backward) {
    for (int64_t n : {a.batch, a.heads, a.kvHeads, a.queries, a.keys,
                      a.headSize, a.valueSize, a.window})
      require(n >= 0, "negative extent");
    require(a.queryBlock >= 1, "the query block must be at least 1");
    require(a.libraryBytes >= -1, "negative memory of a library");
    require(a.kvHeads == 0 ? a.heads == 0 : a.heads % a.kvHeads == 0,
            "the number of heads is not a multiple of that of key heads");
    require(a.dropout >= 0.0f && a.dropout < 1.0f, "dropout must be in [0, 1)");
    require(std::isfinite(a.scale), "the scale must be finite");
    require(a.type == DType::F32 || a.type == DType::F16 ||
                a.type == DType::BF16,
            "attention is of f32, f16 or bf16");
    require(a.resultType == a.type || a.resultType == DType::F32,
            "results of attention are of its type or f32");
    if (!problem.empty())
      return;
    headView("q", a.q, a.batch, a.heads, a.queries, a.headSize, a.type);
    headView("k", a.k, a.batch, a.kvHeads, a.keys, a.headSize, a.type);
    headView("v", a.v, a.batch, a.kvHeads, a.keys, a.valueSize, a.type);
    headView("o", a.o, a.batch, a.heads, a.queries, a.valueSize,
             backward ? a.type : a.resultType);
    // With a bias it is two numbers.
    int64_t numbers = a.bias.buffer >= 0 ? 2 : 1;
    ref("lse", a.lse,
        Extent(4).dense({a.batch, a.heads, a.queries, numbers}).bytes());
    require(a.blocks >= 1 && a.queries % a.blocks == 0 &&
                a.keys % a.blocks == 0,
            "queries and keys are not divisible into blocks");
    if (!problem.empty())
      return;
    auto broadcast = [&](int64_t bytes, const int64_t (&s)[4]) {
      return Extent(bytes)
          .dim(a.batch, s[0])
          .dim(a.heads, s[1])
          .dim(a.queries, s[2])
          .dim(a.keysOf(s), s[3])
          .bytes();
    };
    optionalRef("bias", a.bias, broadcast(4, a.biasStrides));
    optionalRef("mask", a.mask, broadcast(1, a.maskStrides));
    require((a.querySegments.buffer < 0) == (a.keySegments.buffer < 0),
            "segments must be given for queries and keys");
    optionalRef("querySegments", a.querySegments,
                Extent(8).dim(a.batch, a.queries).dim(a.queries, 1).bytes());
    optionalRef("keySegments", a.keySegments,
                Extent(8).dim(a.batch, a.keys).dim(a.keys, 1).bytes());
    if (a.dropout > 0.0f)
      ref("rng", a.rng, 16);
    if (a.dropout > 0.0f || a.causal || a.window > 0) {
      optionalRef("origin", a.origin, 32);
      // It only numbers positions: a padded shard has more than the global
      // tensor.
      require(a.globalHeads > 0 && a.globalQueries > 0 && a.globalKeys > 0,
              "the global shape is not positive");
    }
    auto starts = [&](const char *name, const Ref &values, int64_t pieces,
                      int64_t places) {
      require((values.buffer < 0) == (pieces == 0) && pieces >= 0,
              Twine("'") + name + "' must be given only with pieces");
      require(pieces <= 0 || places % pieces == 0,
              Twine("'") + name + "' does not divide the positions");
      if (pieces > 0)
        optionalRef(name, values, Extent(8).dim(pieces, 1).bytes());
    };
    starts("queryStarts", a.queryStarts, a.queryPieces, a.queries);
    starts("keyStarts", a.keyStarts, a.keyPieces, a.keys);
    require(a.blocks >= 1 && a.queries % std::max<int64_t>(a.blocks, 1) == 0 &&
                a.keys % std::max<int64_t>(a.blocks, 1) == 0,
            "queries and keys are not divisible into blocks");
    require(!a.onto || !backward, "backward must not have 'onto'");
    int64_t threadBytes;
    if (__builtin_mul_overflow(a.scratchBytesPerThread,
                               static_cast<int64_t>(program.threads),
                               &threadBytes))
      threadBytes = -1;
    require(threadBytes >= 0, "negative scratch size");
    if (a.scratchBytesPerThread > 0)
      ref("scratch", a.scratch, threadBytes);
    if (!backward)
      return;
    DType sums = a.resultType;
    headView("dO", a.dO, a.batch, a.heads, a.queries, a.valueSize, a.type);
    headView("dQ", a.dQ, a.batch, a.heads, a.queries, a.headSize, sums);
    headView("dK", a.dK, a.batch, a.kvHeads, a.keys, a.headSize, sums);
    headView("dV", a.dV, a.batch, a.kvHeads, a.keys, a.valueSize, sums);
    if (a.dBias.buffer != -1) {
      require(a.bias.buffer != -1, "'dBias' without a bias");
      int64_t sizes[4] = {a.batch, a.heads, a.queries, a.keysOf(a.biasStrides)};
      for (int i = 0; i < 4; ++i)
        sizes[i] = a.biasStrides[i] ? sizes[i] : 1;
      ref("dBias", a.dBias, Extent(4).dense(sizes).bytes());
    }
  }

  void scatterAdd(const ScatterAddCommand &s) {
    require(s.idType == DType::I64 || s.idType == DType::I32,
            "ids must be i64 or i32");
    require(s.count >= 0 && s.columns >= 0 && s.outRows >= 0,
            "negative extent");
    if (!problem.empty())
      return;
    ref("rows", s.rows,
        Extent(4).dim(s.count, s.columns).dim(s.columns, 1).bytes());
    ref("ids", s.ids, Extent(byteSize(s.idType)).dim(s.count, 1).bytes());
    ref("out", s.out,
        Extent(4).dim(s.outRows, s.columns).dim(s.columns, 1).bytes());
  }

  void topK(const TopKCommand &t) {
    require(t.rows >= 0 && t.k >= 1 && t.k <= t.columns,
            "k must be 1 to the number of columns");
    // Sizes of scratch memory are computed without overflow.
    require(t.rows < (int64_t(1) << 31) && t.columns < (int64_t(1) << 31),
            "too many rows or columns");
    if (!problem.empty())
      return;
    int64_t rows[] = {t.rows, t.columns}, selected[] = {t.rows, t.k};
    ref("in", t.in, Extent(4).dense(rows).bytes());
    ref("values", t.values, Extent(4).dense(selected).bytes());
    ref("indices", t.indices, Extent(8).dense(selected).bytes());
    ref("scratch", t.scratch,
        cleave::TopKScratch(t.rows, t.columns, t.k).bytes);
  }

  void orthonormalize(const OrthonormalizeCommand &o) {
    require(o.batch >= 0 && o.rows >= 0 && o.columns >= 0, "negative extent");
    require(o.columns <= o.rows, "a matrix has more columns than rows");
    // Sizes of scratch memory are computed without overflow.
    require(o.rows < (int64_t(1) << 31) && o.columns < (int64_t(1) << 24) &&
                o.batch < (int64_t(1) << 31),
            "too many matrices, rows or columns");
    if (!problem.empty())
      return;
    int64_t sizes[] = {o.batch, o.rows, o.columns};
    ref("in", o.in, Extent(4).dense(sizes).bytes());
    ref("out", o.out, Extent(4).dense(sizes).bytes());
    int64_t own =
        cleave::OrthonormalScratch(o.rows, o.columns).bytes(/*batch=*/1);
    ref("scratch", o.scratch, Extent(own).dim(o.batch, 1).bytes());
  }

  void sortRows(const SortRowsCommand &s) {
    require(s.rows >= 0 && s.rows < (int64_t(1) << 31) && s.size >= 1 &&
                s.size < (int64_t(1) << 31),
            "too many rows or groups, or none");
    require(s.groupType == DType::I64 || s.groupType == DType::I32 ||
                s.groupType == DType::I8,
            "groups are integers");
    if (!problem.empty())
      return;
    ref("groups", s.groups,
        Extent(byteSize(s.groupType)).dim(s.rows, 1).bytes());
    optionalRef("origin", s.origin, 8);
    ref("order", s.order, Extent(8).dim(s.rows, 1).bytes());
    ref("inverse", s.inverse, Extent(8).dim(s.rows, 1).bytes());
    ref("offsets", s.offsets, Extent(8).dim(s.size + 1, 1).bytes());
  }

  void groupedContract(const GroupedContractCommand &g) {
    constexpr int64_t limit = int64_t(1) << 31;
    for (int64_t n : {g.rows, g.k, g.m})
      require(n >= 0 && n < limit, "too many rows or columns");
    require(g.groups >= 1 && g.groups < limit && g.ranges >= 1 &&
                g.ranges < limit,
            "too many groups or ranges, or none");
    require(g.type == DType::F32 || g.type == DType::BF16 ||
                g.type == DType::F64,
            "only f32, bf16 and f64 are multiplied");
    int64_t columns = g.weightGradient || !g.transposed ? g.m : g.k,
            depth = g.transposed ? g.m : g.k;
    require(g.lda >= g.k && g.ldb >= columns,
            "a leading dimension is smaller than its row");
    if (!problem.empty())
      return;
    ref("a", g.a,
        Extent(byteSize(g.type)).dim(g.rows, g.lda).dim(g.k, 1).bytes());
    Extent b(byteSize(g.type));
    if (g.weightGradient)
      b.dim(g.rows, g.ldb).dim(g.m, 1);
    else
      b.dim(g.groups, g.groupStrideB).dim(depth, g.ldb).dim(columns, 1);
    ref("b", g.b, b.bytes());
    ref("offsets", g.offsets,
        Extent(8).dense({g.ranges, g.groups + 1}).bytes());
    Extent out(byteSize(g.resultType()));
    if (g.weightGradient)
      out.dense({g.groups, g.k, g.m});
    else
      out.dense({g.rows, g.m});
    ref("out", g.out, out.bytes());
    ref("scratch", g.scratch, Extent(8).dense({g.ranges, g.groups}).bytes());
  }

  void copy(const CopyCommand &c) {
    require(c.sizes.size() <= 8, "more than 8 dimensions");
    require(c.sizes.size() == c.srcStrides.size() &&
                c.sizes.size() == c.dstStrides.size(),
            "sizes and strides differ in length");
    require(c.elementBytes == 1 || c.elementBytes == 2 || c.elementBytes == 4 ||
                c.elementBytes == 8,
            "elements must have 1, 2, 4 or 8 bytes");
    if (!problem.empty())
      return;
    Extent src(c.elementBytes), dst(c.elementBytes);
    for (size_t i = 0; i < c.sizes.size(); ++i) {
      src.dim(c.sizes[i], c.srcStrides[i]);
      dst.dim(c.sizes[i], c.dstStrides[i]);
    }
    ref("src", c.src, src.bytes());
    ref("dst", c.dst, dst.bytes());
  }

  void fill(const FillCommand &f) {
    require(f.elementBytes == 1 || f.elementBytes == 2 || f.elementBytes == 4 ||
                f.elementBytes == 8,
            "elements must have 1, 2, 4 or 8 bytes");
    require(f.bytes >= 0 &&
                (f.elementBytes <= 0 || f.bytes % f.elementBytes == 0),
            "the size is not a multiple of the element");
    ref("dst", f.dst, f.bytes);
  }

  void collective(const CollectiveCommand &c) {
    if (std::string why = digitsProblem(program, {c.axes}); !why.empty())
      return fail(why);
    for (const Digit &digit : c.axes)
      require(!program.mesh[static_cast<size_t>(digit.axis)].sequential,
              "a collective runs along a sequential axis");
    using Kind = CollectiveKind;
    Kind kind = c.collective;
    require(kind != Kind::Slice && kind != Kind::Rotate,
            "a step of a reshard is no collective");
    size_t members = static_cast<size_t>(partCount(c.axes));
    auto list = [&](const char *name, size_t size, bool wanted) {
      require(size == (wanted ? members : 0),
              Twine("'") + name + "' has " + Twine(size) + " entries, not " +
                  Twine(wanted ? members : 0));
    };
    bool reduces = kind == Kind::AllReduce || kind == Kind::ReduceScatter ||
                   kind == Kind::Reduce;
    list("sources", c.sources.size(), kind == Kind::Permute);
    for (int32_t source : c.sources)
      require(source >= 0 && static_cast<size_t>(source) < members,
              "a source is not a member of the group");
    require(c.root >= 0 && static_cast<size_t>(c.root) < members,
            "the root is not a member of the group");
    bool bytes = c.dtype == DType::I8 || c.dtype == DType::I1;
    require(!reduces || !bytes || c.reduction != ReductionKind::Sum,
            Twine("this reduction does not support ") + dtypeName(c.dtype));
    if (c.isTransfer()) {
      require(program.pipelineAxis >= 0 && c.axes.size() == 1 &&
                  c.axes[0].axis == program.pipelineAxis &&
                  static_cast<int64_t>(members) ==
                      program.mesh[program.pipelineAxis].size,
              "a transfer must be between pipeline positions");
      require(c.root != program.position, "a transfer is to its own position");
    }
    auto block = [&](const CollectiveBlock &b) {
      require(b.sizes.size() <= 8, "more than 8 dimensions");
      bool gives = kind != Kind::Receive, takes = kind != Kind::Send;
      require(b.srcStrides.size() == (gives ? b.sizes.size() : 0) &&
                  b.dstStrides.size() == (takes ? b.sizes.size() : 0),
              "sizes and strides differ in length");
      list("srcOffsets", b.srcOffsets.size(),
           kind == Kind::ReduceScatter || kind == Kind::AllToAll);
      list("dstOffsets", b.dstOffsets.size(),
           kind == Kind::AllGather || kind == Kind::AllToAll);
      if (!problem.empty())
        return;
      auto extent = [&](const std::vector<int64_t> &strides,
                        const std::vector<int64_t> &offsets) {
        Extent result(byteSize(c.dtype));
        for (size_t i = 0; i < b.sizes.size(); ++i)
          result.dim(b.sizes[i], strides[i]);
        for (int64_t offset : offsets)
          if (offset < 0)
            return std::optional<int64_t>();
        if (!offsets.empty())
          result.dim(2, *llvm::max_element(offsets));
        return result.bytes();
      };
      if (gives)
        ref("src", b.src, extent(b.srcStrides, b.srcOffsets));
      if (takes)
        ref("dst", b.dst, extent(b.dstStrides, b.dstOffsets));
      if (gives && takes && b.src.buffer == b.dst.buffer)
        require(kind == Kind::AllReduce && b.src.offset == b.dst.offset &&
                    b.srcStrides == b.dstStrides,
                "only an all-reduce works in place, and on one layout");
    };
    if (kind == Kind::AllToAllRows)
      return allToAllRows(c, members);
    require(c.sendOffsets.buffer < 0 && c.receiveOffsets.buffer < 0 &&
                c.bound == 0,
            "only rows that go to all members have offsets and a bound");
    block(c);
    llvm::for_each(c.more, block);
  }

  void allToAllRows(const CollectiveCommand &c, size_t members) {
    require(!c.sizes.empty() && c.sizes.size() <= 8,
            "rows have 1 to 8 dimensions");
    require(c.more.empty() && c.srcOffsets.empty() && c.dstOffsets.empty(),
            "rows that go to all members are one block without offsets");
    require(c.bound >= 0, "negative number of rows");
    require(c.sizes.size() == c.srcStrides.size() &&
                c.sizes.size() == c.dstStrides.size(),
            "sizes and strides differ in length");
    if (!problem.empty())
      return;
    int64_t stride = 1;
    for (size_t i = c.sizes.size(); i-- > 0;) {
      require(c.sizes[i] >= 0, "negative extent");
      require(c.srcStrides[i] == stride && c.dstStrides[i] == stride,
              "rows must be dense");
      if (i > 0 && __builtin_mul_overflow(stride, c.sizes[i], &stride))
        fail("the extent of a row does not fit 64 bits");
    }
    if (!problem.empty())
      return;
    std::vector<int64_t> received = c.sizes;
    received[0] = c.bound;
    int64_t bytes = byteSize(c.dtype);
    ref("src", c.src, Extent(bytes).dense(c.sizes).bytes());
    ref("dst", c.dst, Extent(bytes).dense(received).bytes());
    auto offsets = [&](const char *name, const Ref &list) {
      ref(name, list,
          Extent(8).dim(static_cast<int64_t>(members) + 1, 1).bytes());
      require(list.offset % 8 == 0, "offsets are not aligned");
      require(list.buffer != c.dst.buffer, "rows replace their offsets");
    };
    offsets("sendOffsets", c.sendOffsets);
    offsets("receiveOffsets", c.receiveOffsets);
    require(c.src.buffer != c.dst.buffer, "rows are sent in place");
  }

  const Program &program;
  const Part &part;
  const Command &command;
  std::string where;
  std::string problem;
};

} // namespace

std::string
cleave::runtime::digitsProblem(const Program &program,
                               const std::vector<std::vector<Digit>> &lists) {
  // By axis, the intervals [pre, pre * size) of the digits seen.
  std::vector<std::vector<std::pair<int64_t, int64_t>>> seen(
      program.mesh.size());
  for (const std::vector<Digit> &digits : lists)
    for (const Digit &digit : digits) {
      if (digit.axis < 0 ||
          digit.axis >= static_cast<int64_t>(program.mesh.size()))
        return ("axis " + Twine(digit.axis) + " does not exist").str();
      const MeshAxis &axis = program.mesh[static_cast<size_t>(digit.axis)];
      if (digit.pre < 1 || digit.size < 1 || axis.size % digit.pre != 0 ||
          axis.size / digit.pre % digit.size != 0)
        return ("axis '" + axis.name + "' of size " + Twine(axis.size) +
                " has no digit (" + Twine(digit.pre) + ")" + Twine(digit.size))
            .str();
      std::pair<int64_t, int64_t> range(digit.pre, digit.pre * digit.size);
      for (auto [low, high] : seen[static_cast<size_t>(digit.axis)])
        if (std::max(low, range.first) < std::min(high, range.second))
          return "axis '" + axis.name + "' is used twice";
      seen[static_cast<size_t>(digit.axis)].push_back(range);
    }
  return "";
}

Error cleave::runtime::validateCommand(const Program &program, const Part &part,
                                       const Command &command,
                                       const std::string &where) {
  return CommandChecker(program, part, command, where).check();
}
