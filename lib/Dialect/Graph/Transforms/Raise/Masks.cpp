//===- Masks.cpp - The keys that attention sees ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Masks.h"
#include "Matching.h"
#include "cleave/Dialect/Graph/IR/TensorType.h"
#include "mlir/IR/TypeUtilities.h"
#include <cmath>
#include <limits>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

/// A finite number at or below this masks a key in a row with a visible key:
/// exp of the difference is 0, since scores are much smaller in magnitude.
static constexpr double masked = -1e30;

static constexpr double minusInfinity =
    -std::numeric_limits<double>::infinity();

static bool isFloat(Value value) {
  return isa<FloatType>(getElementTypeOrSelf(value));
}

static Elements complement(const Elements &condition) {
  return condition.where([](double truth) { return truth == 0; });
}

std::optional<double> cleave::graph::maskingNumber(Value value, double factor) {
  std::optional<double> number =
      isFloat(value) ? scalarOf(value) : std::nullopt;
  if (number && *number * factor <= masked)
    return *number * factor;
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Boolean masks
//===----------------------------------------------------------------------===//

void MaskAnalysis::causal() {
  result.causal = true;
  seesOwnKey();
}

void MaskAnalysis::window(int64_t window) {
  narrow(window);
  seesOwnKey();
}

void MaskAnalysis::segments(Value ids) {
  result.segments = ids;
  seesOwnKey();
}

void MaskAnalysis::seesOwnKey() {
  if (shape[2] == shape[3])
    ownKey = true;
  else
    unknown = true;
}

void MaskAnalysis::narrow(int64_t window) {
  result.window = result.window ? std::min(*result.window, window) : window;
}

void MaskAnalysis::mask(Value value, bool negated) {
  Operation *op = value.getDefiningOp();
  if (isa_and_nonnull<NotOp>(op)) {
    mask(op->getOperand(0), !negated);
  } else if (negated ? isa_and_nonnull<OrOp>(op) : isa_and_nonnull<AndOp>(op)) {
    for (Value operand : op->getOperands())
      mask(operand, negated);
  } else if (isa_and_nonnull<BroadcastOp>(op)) {
    mask(op->getOperand(0), negated);
  } else if (!addKnown(value, negated) && !addSegments(value, negated)) {
    unknown = true;
    addMask(value, negated);
  }
}

void MaskAnalysis::addMask(Value value, bool negated) {
  result.masks.push_back(negated ? b.negated(value) : value);
}

/// Adds a condition if its elements are known; returns whether they are.
bool MaskAnalysis::addKnown(Value value, bool negated) {
  const Elements *elements = known.of(value);
  if (!elements)
    return false;
  Elements visible = negated ? complement(*elements) : *elements;
  if (!addPattern(visible))
    addMask(value, negated);
  conditions.push_back(std::move(visible));
  return true;
}

/// The pairs of queries and keys of which elements are true.
struct MaskAnalysis::Pairs {
  const Elements &elements;
  int64_t queries, keys;

  /// How many matrices of pairs are stored.
  int64_t matrices() const {
    int64_t size = storedQueries() * storedKeys();
    return size ? elements.size() / size : 0;
  }
  bool at(int64_t matrix, int64_t query, int64_t key) const {
    int64_t own = matrix * storedQueries() + (storedQueries() == 1 ? 0 : query);
    return elements.truth(own * storedKeys() + (storedKeys() == 1 ? 0 : key));
  }

private:
  int64_t storedQueries() const {
    return elements.getStored()[elements.getStored().size() - 2];
  }
  int64_t storedKeys() const { return elements.getStored().back(); }
};

/// Adds `visible` if it is all true, causal, a window or chunks; returns
/// whether it is one of these.
bool MaskAnalysis::addPattern(const Elements &visible) {
  if (visible.all())
    return true;
  int64_t queries = shape[2], keys = shape[3];
  Elements matrix = visible.withRank(2);
  ArrayRef<int64_t> own = matrix.getShape();
  if (own.back() != keys || own[own.size() - 2] != queries)
    return false;
  Pairs pairs{matrix, queries, keys};
  return addBand(pairs) || addChunks(pairs);
}

/// Adds causal pairs, a window, or both.
bool MaskAnalysis::addBand(const Pairs &pairs) {
  // The last query sees a window before it, or all keys.
  int64_t width = 0;
  for (int64_t key = 0; key < pairs.keys; ++key)
    width += pairs.at(0, pairs.queries - 1, key);
  bool causal = true, window = width > 0, both = width > 0;
  int64_t offset = pairs.keys - pairs.queries;
  for (int64_t m = 0; m < pairs.matrices(); ++m)
    for (int64_t query = 0; query < pairs.queries; ++query)
      for (int64_t key = 0; key < pairs.keys; ++key) {
        bool seen = pairs.at(m, query, key);
        bool early = key <= query + offset;
        bool near = key > query + offset - width;
        causal &= seen == early;
        window &= seen == near;
        both &= seen == (early && near);
        if (!causal && !window && !both)
          return false;
      }
  if (causal || both)
    result.causal = true;
  if (!causal)
    narrow(width);
  return true;
}

/// Adds chunks of positions that see each other, or the earlier ones of them,
/// as segments: attention then computes nothing else.
bool MaskAnalysis::addChunks(const Pairs &pairs) {
  if (result.segments || pairs.queries != pairs.keys)
    return false;
  SmallVector<int64_t> chunks{0};
  for (int64_t i = 1; i < pairs.keys; ++i)
    chunks.push_back(chunks.back() + !pairs.at(0, i, i - 1));
  bool all = true, causal = true;
  for (int64_t m = 0; m < pairs.matrices(); ++m)
    for (int64_t query = 0; query < pairs.queries; ++query)
      for (int64_t key = 0; key < pairs.keys; ++key) {
        bool seen = pairs.at(m, query, key);
        bool same = chunks[query] == chunks[key];
        all &= seen == same;
        causal &= seen == (same && key <= query);
        if (!all && !causal)
          return false;
      }
  result.causal |= !all;
  OpBuilder &builder = b.getBuilder();
  auto type = RankedTensorType::get(pairs.keys, builder.getI64Type());
  Value ids = ConstantOp::create(
      builder, b.getLoc(), DenseElementsAttr::get(type, ArrayRef(chunks)));
  result.segments = b.broadcast(ids, {shape[0], pairs.keys});
  return true;
}

/// Adds the condition id[q] == id[k] for one tensor of segment ids; returns
/// whether `value` is such a condition.
bool MaskAnalysis::addSegments(Value value, bool negated) {
  auto compare = value.getDefiningOp<CompareOp>();
  if (!compare ||
      compare.getPredicate() != (negated ? Predicate::ne : Predicate::eq) ||
      result.segments || shape[2] != shape[3])
    return false;
  Value lhs = compare.getLhs(), rhs = compare.getRhs();
  Value rows = positions(lhs, 2), columns = positions(rhs, 3);
  if (!rows || !columns) {
    rows = positions(rhs, 2);
    columns = positions(lhs, 3);
  }
  if (!rows || rows != columns || isFloat(rows) ||
      getElementTypeOrSelf(rows).isInteger(1))
    return false;
  ArrayRef<int64_t> own = tensorTypeOf(rows).getShape();
  int64_t batch = shape[0], size = shape[2];
  if (own != ArrayRef<int64_t>{size} && own != ArrayRef<int64_t>{1, size} &&
      own != ArrayRef<int64_t>{batch, size})
    return false;
  segments(b.broadcast(rows, {batch, size}));
  return true;
}

/// The tensor that `value` broadcasts along dimension 2 or 3 of the scores, or
/// null.
Value MaskAnalysis::positions(Value value, size_t dim) {
  while (auto op = value.getDefiningOp<BroadcastOp>())
    value = op.getInput();
  ArrayRef<int64_t> own = tensorTypeOf(value).getShape();
  if (own.size() > 4)
    return {};
  SmallVector<int64_t> whole(4 - own.size(), 1);
  llvm::append_range(whole, own);
  for (size_t i = 1; i < 4; ++i)
    if (whole[i] != (i == dim ? shape[dim] : 1))
      return {};
  while (Operation *op = value.getDefiningOp()) {
    if (!isa<ReshapeOp, BroadcastOp>(op))
      break;
    value = op->getOperand(0);
  }
  return value;
}

//===----------------------------------------------------------------------===//
// Additive masks
//===----------------------------------------------------------------------===//

void MaskAnalysis::bias(Value value, double factor) {
  Operation *op = value.getDefiningOp();
  if (isa_and_nonnull<BroadcastOp>(op) ||
      (isa_and_nonnull<CastOp>(op) && isFloat(op->getOperand(0))))
    if (Value inner = op->getOperand(0); containsMask(inner))
      return bias(b.cast(inner, getElementTypeOrSelf(value)), factor);
  if (factor > 0 && isa_and_nonnull<AddOp>(op) &&
      llvm::any_of(op->getOperands(),
                   [&](Value operand) { return containsMask(operand); })) {
    for (Value operand : op->getOperands())
      bias(operand, factor);
    return;
  }
  if (factor > 0 && (addKnownBias(value, factor) || addSelect(value, factor)))
    return;
  addBias(value, factor);
}

/// Whether the bias `value` contains numbers that may mask keys.
bool MaskAnalysis::containsMask(Value value) {
  if (Operation *op = value.getDefiningOp()) {
    if (isa<BroadcastOp, CastOp>(op))
      return containsMask(op->getOperand(0));
    if (isa<AddOp>(op))
      return llvm::any_of(op->getOperands(),
                          [&](Value operand) { return containsMask(operand); });
    if (auto select = dyn_cast<SelectOp>(op))
      return maskingNumber(select.getOnTrue()) ||
             maskingNumber(select.getOnFalse());
  }
  const Elements *elements = known.of(value);
  if (!elements)
    return false;
  for (size_t i = 0; i < elements->size(); ++i)
    if (elements->number(i) <= masked)
      return true;
  return false;
}

/// Adds a bias without a mask.
void MaskAnalysis::addBias(Value value, double factor) {
  if (!known.isTrained(value) && !known.of(value))
    unknown = true;
  result.biases.push_back(b.scaled(value, factor));
}

/// Adds a bias as a mask and a bias if its elements are known; returns whether
/// they are.
bool MaskAnalysis::addKnownBias(Value value, double factor) {
  const Elements *elements = known.of(value);
  if (!elements)
    return false;
  bool all = true, infinite = true, plain = true;
  for (size_t i = 0; i < elements->size(); ++i) {
    double number = elements->number(i);
    if (std::isnan(number))
      return false;
    if (number * factor > masked)
      plain &= number == 0;
    else
      all = false, infinite &= number == minusInfinity;
  }
  if (all) {
    if (!plain)
      addBias(value, factor);
    return true;
  }
  Elements kept =
      elements->where([&](double number) { return number * factor > masked; });
  Value condition = b.greater(value, masked / factor);
  std::optional<Scaled> rest;
  if (!plain)
    rest = Scaled{b.where(condition, value), factor};
  if (infinite) {
    maskKeys(kept, condition, false, rest);
    conditions.push_back(std::move(kept));
  } else {
    finite.push_back(
        {std::move(kept), condition, false, rest, Scaled{value, factor}});
  }
  return true;
}

/// Masks all keys but `kept`, and adds the bias `rest` to the scores of these.
void MaskAnalysis::maskKeys(const Elements &kept, Value condition, bool negated,
                            std::optional<Scaled> rest) {
  if (!addPattern(kept))
    addMask(condition, negated);
  if (rest)
    addBias(rest->value, rest->factor);
}

/// Adds select(c, x, -inf) or select(not c, -inf, x) as the mask c and the bias
/// x; returns whether `value` is such a select.
bool MaskAnalysis::addSelect(Value value, double factor) {
  auto select = value.getDefiningOp<SelectOp>();
  if (!select)
    return false;
  auto onTrue = maskingNumber(select.getOnTrue(), factor),
       onFalse = maskingNumber(select.getOnFalse(), factor);
  if (onTrue.has_value() == onFalse.has_value())
    return false;
  bool negated = onTrue.has_value();
  Value rest = negated ? select.getOnFalse() : select.getOnTrue();
  if ((negated ? *onTrue : *onFalse) == minusInfinity) {
    mask(select.getCondition(), negated);
    if (scalarOf(rest) != 0.0)
      bias(rest, factor);
    return true;
  }
  if (!known.isTrained(rest) && !known.of(rest))
    return false;
  return addFinite(select.getCondition(), negated, Scaled{rest, factor},
                   Scaled{value, factor});
}

bool MaskAnalysis::replaced(Value condition, bool negated, double number) {
  if (number == minusInfinity) {
    mask(condition, negated);
    return true;
  }
  return number <= masked &&
         addFinite(condition, negated, std::nullopt, std::nullopt);
}

bool MaskAnalysis::addFinite(Value condition, bool negated,
                             std::optional<Scaled> rest,
                             std::optional<Scaled> whole) {
  const Elements *elements = known.of(condition);
  if (!elements)
    return false;
  if (rest && scalarOf(rest->value) == 0.0)
    rest.reset();
  finite.push_back({negated ? complement(*elements) : *elements, condition,
                    negated, rest, whole});
  return true;
}

//===----------------------------------------------------------------------===//
// Finite numbers
//===----------------------------------------------------------------------===//

const Visibility *MaskAnalysis::finish() {
  bool rowsKeep = !finite.empty() && everyRowKeepsAKey();
  for (const Finite &term : finite) {
    if (rowsKeep)
      maskKeys(term.kept, term.condition, term.negated, term.rest);
    else if (!term.whole)
      return nullptr;
    else
      addBias(term.whole->value, term.whole->factor);
  }
  return &result;
}

bool MaskAnalysis::everyRowKeepsAKey() {
  if (unknown)
    return false;
  Elements kept({1, 1}, {1, 1},
                IntegerType::get(b.getBuilder().getContext(), 1));
  kept.set(0, int64_t(1));
  for (const Elements &condition : conditions)
    kept = bothOf(kept, condition);
  for (const Finite &term : finite)
    kept = bothOf(kept, term.kept);
  Pairs pairs{kept, shape[2], shape[3]};
  for (int64_t m = 0; m < pairs.matrices(); ++m)
    for (int64_t query = 0; query < pairs.queries; ++query) {
      bool sees = false;
      if (ownKey)
        sees = pairs.at(m, query, query);
      else
        for (int64_t key = 0; key < pairs.keys && !sees; ++key)
          sees = pairs.at(m, query, key);
      if (!sees)
        return false;
    }
  return true;
}
