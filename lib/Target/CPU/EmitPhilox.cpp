//===- EmitPhilox.cpp - Random numbers of a kernel ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelEmitter.h"
#include "cleave/Support/Philox.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::cpu;
using namespace cleave::exec;

/// True when the first of each 64 columns has an index that is a multiple of
/// 64 and the others follow it: four words of 16 counters serve them all.
bool KernelEmitter::isAligned64(PhiloxOp op) {
  LaneGeometry geometry{64, {0, 1}, {1, 64}, {}};
  std::optional<LaneStep> step = stepOf(op.getMap().getResult(0), geometry);
  return step && step->stride == 1 && step->multiple % 64 == 0 &&
         (!op.getBase() || op.getBaseMultiple() % 64 == 0);
}

/// Ten rounds on 64-bit integers whose low halves are the words: a product
/// takes the low halves of its operands and holds both words of the result,
/// so that the widening multiply instruction needs no rearrangement.
static void rounds(llvm::IRBuilder<> &b, llvm::Value *c[4], llvm::Value *key0,
                   llvm::Value *key1) {
  namespace philox = runtime::philox;
  llvm::Type *type = c[0]->getType();
  auto constant = [&](uint64_t v) { return llvm::ConstantInt::get(type, v); };
  auto product = [&](llvm::Value *x, uint32_t m) {
    return b.CreateMul(b.CreateAnd(x, constant(0xffffffffu)), constant(m));
  };
  for (int round = 0; round < philox::kRounds; ++round) {
    llvm::Value *p0 = product(c[0], philox::kMul0);
    llvm::Value *p1 = product(c[2], philox::kMul1);
    llvm::Value *k0 =
        b.CreateAdd(key0, constant(uint32_t(round) * philox::kWeyl0));
    llvm::Value *k1 =
        b.CreateAdd(key1, constant(uint32_t(round) * philox::kWeyl1));
    c[0] = b.CreateXor(b.CreateXor(b.CreateLShr(p1, 32), c[1]), k0);
    c[2] = b.CreateXor(b.CreateXor(b.CreateLShr(p0, 32), c[3]), k1);
    c[1] = p1;
    c[3] = p0;
  }
}

/// The four words of each counter; `low` and `high` are its halves, scalars
/// or vectors of i32.
SmallVector<llvm::Value *, 4> KernelEmitter::philoxBlock(llvm::Value *low,
                                                         llvm::Value *high,
                                                         llvm::Value *seed,
                                                         llvm::Value *step,
                                                         llvm::Value *id) {
  llvm::Type *type = low->getType();
  auto *vector = dyn_cast<llvm::FixedVectorType>(type);
  // Even and odd lanes go through the rounds separately.
  unsigned lanes = vector ? vector->getNumElements() / 2 : 1;
  llvm::Type *wide = b.getInt64Ty();
  if (vector)
    wide = llvm::FixedVectorType::get(wide, lanes);
  auto widen = [&](llvm::Value *scalar) {
    return vector ? b.CreateVectorSplat(lanes, scalar) : scalar;
  };
  auto half = [&](llvm::Value *words, bool odd) -> llvm::Value * {
    if (!vector)
      return b.CreateZExt(words, wide);
    llvm::Value *pairs = b.CreateBitCast(words, wide);
    return odd ? b.CreateLShr(pairs, 32) : pairs;
  };
  llvm::Value *key0 = widen(seed), *key1 = widen(b.CreateLShr(seed, 32));
  SmallVector<int> interleaved;
  for (unsigned i = 0; i < 2 * lanes; i += 2)
    interleaved.append({int(i), int(2 * lanes + i)});
  SmallVector<llvm::Value *, 4> result(4);
  for (bool odd : {false, true}) {
    llvm::Value *c[] = {half(low, odd), half(high, odd), widen(id),
                        widen(step)};
    rounds(b, c, key0, key1);
    for (unsigned k = 0; k < 4; ++k) {
      if (!vector)
        result[k] = b.CreateTrunc(c[k], type);
      else if (!odd)
        result[k] = b.CreateBitCast(c[k], type);
      else
        result[k] = b.CreateShuffleVector(
            result[k], b.CreateBitCast(c[k], type), interleaved);
    }
    if (!vector)
      break;
  }
  return result;
}

llvm::Value *KernelEmitter::emitPhilox(PhiloxOp op) {
  llvm::Value *seed = get(op.getSeed()), *step = get(op.getStep());
  llvm::Value *base = op.getBase() ? get(op.getBase()) : index(0);
  llvm::Value *id = index(op.getId());
  if (op.getAdded())
    id = b.CreateAdd(get(op.getAdded()), id);
  AffineExpr expr = op.getMap().getResult(0);
  llvm::Type *word = b.getInt32Ty();
  bool uniformKey =
      !seed->getType()->isVectorTy() && !step->getType()->isVectorTy() &&
      !id->getType()->isVectorTy() && !base->getType()->isVectorTy();

  if (copyInBlock >= 0 && uniformKey && isAligned64(op)) {
    // This is one vector of a block of 64: it uses one word of its counters.
    unsigned lanes = point.lanes, first = copyInBlock * lanes;
    unsigned half = first % 16 / lanes;
    Draws &block = draws[op];
    if (!block.words[half][0]) {
      llvm::Value *dims[] = {point.row ? point.row : index(0), point.col};
      llvm::Value *i = b.CreateAdd(evaluate(expr, dims, {}), base);
      // All 64 are in one group; the first counter of this half follows.
      llvm::Value *c =
          b.CreateAdd(b.CreateShl(b.CreateLShr(i, 6), 4), index(half * lanes));
      SmallVector<llvm::Constant *> numbers;
      for (unsigned lane = 0; lane < lanes; ++lane)
        numbers.push_back(b.getInt32(lane));
      llvm::Value *low = b.CreateAdd(spread(b.CreateTrunc(c, word), lanes),
                                     llvm::ConstantVector::get(numbers));
      llvm::Value *high =
          spread(b.CreateTrunc(b.CreateLShr(c, 32), word), lanes);
      auto words = philoxBlock(low, high, seed, step, id);
      llvm::copy(words, block.words[half]);
    }
    return block.words[half][first / 16 % 4];
  }

  // Any index: each lane takes its word from its own counter.
  llvm::Value *i;
  if (flat)
    expr = flatten(expr, cols);
  llvm::Value *dims[] = {point.row ? point.row : index(0),
                         point.col ? point.col : index(0)};
  if (point.lanes == 1) {
    i = evaluate(expr, dims, {});
  } else {
    i = evaluateLanes(expr, {});
    base = spread(base, point.lanes);
    i = b.CreateSExt(i, base->getType());
  }
  i = b.CreateAdd(i, base);
  auto constant = [&](uint64_t v) {
    return llvm::ConstantInt::get(i->getType(), v);
  };
  llvm::Value *c = b.CreateOr(b.CreateShl(b.CreateLShr(i, 6), 4),
                              b.CreateAnd(i, constant(15)));
  llvm::Type *words = lanesOf(word, point.lanes);
  auto four =
      philoxBlock(b.CreateTrunc(c, words),
                  b.CreateTrunc(b.CreateLShr(c, 32), words), seed, step, id);
  llvm::Value *which =
      b.CreateTrunc(b.CreateAnd(b.CreateLShr(i, 4), constant(3)), words);
  llvm::Value *result = four[0];
  for (unsigned k = 1; k < 4; ++k)
    result =
        b.CreateSelect(b.CreateICmpEQ(which, llvm::ConstantInt::get(words, k)),
                       four[k], result);
  return result;
}
