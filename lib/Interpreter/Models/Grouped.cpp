//===- Grouped.cpp - Rows sorted by group ---------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Models.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

static LogicalResult evaluateSortRows(SortRowsOp op, const RefArgs &args,
                                      Results results, ReferenceContext &) {
  ArrayRef<int64_t> groups = args[0].ints;
  int64_t size = op.getSize(),
          bound = static_cast<int64_t>(op.getGlobalSize().value_or(size)),
          origin = op.getOrigin() ? args[op.getOrigin()].ints[0] : 0, place = 0;
  for (auto [row, group] : llvm::enumerate(groups))
    if (group < 0 || group >= bound)
      return op->emitOpError("group ") << group << " of row " << row
                                       << " is outside [0, " << bound << ")";
  // The last turn is that of the rows of other groups.
  for (int64_t turn = 0; turn <= size; ++turn) {
    results[2].ints[turn] = place;
    for (auto [row, global] : llvm::enumerate(groups)) {
      int64_t group = global - origin;
      if ((group < 0 || group >= size ? size : group) != turn)
        continue;
      results[0].ints[place] = static_cast<int64_t>(row);
      results[1].ints[row] = place++;
    }
  }
  return success();
}

/// Calls `fn(group, begin, end)` for each range of rows; reports one that is
/// none of `rows` rows.
template <typename Fn>
static LogicalResult forEachRange(Operation *op, const RefTensor &offsets,
                                  int64_t rows, Fn fn) {
  int64_t bounds = offsets.shape[1];
  for (int64_t i = 0; i < offsets.size(); ++i) {
    if (i % bounds == bounds - 1)
      continue;
    int64_t begin = offsets.ints[i], end = offsets.ints[i + 1];
    if (begin < 0 || begin > end || end > rows)
      return op->emitOpError("offsets ")
             << begin << " and " << end << " are no range of " << rows
             << " rows";
    fn(i % bounds, begin, end);
  }
  return success();
}

/// The matrix [rows, columns] from element `first` on of `tensor`.
static RefTensor part(const RefTensor &tensor, int64_t first, int64_t rows,
                      int64_t columns) {
  RefTensor result;
  result.element = tensor.element;
  result.shape = {rows, columns};
  const double *from = tensor.floats.data() + first;
  result.floats.assign(from, from + rows * columns);
  return result;
}

static LogicalResult evaluateGroupedContract(GroupedContractOp op,
                                             const RefArgs &args,
                                             Results results,
                                             ReferenceContext &context) {
  const RefTensor &rows = args[0], &weight = args[1];
  int64_t k = rows.shape[1], m = results[0].shape[1];
  return forEachRange(
      op, args[2], rows.shape[0],
      [&](int64_t group, int64_t begin, int64_t end) {
        RefTensor product =
            contract(op.getTranspose() ? "rk,mk->rm" : "rk,km->rm",
                     part(rows, begin * k, end - begin, k),
                     part(weight, group * k * m, op.getTranspose() ? m : k,
                          op.getTranspose() ? k : m),
                     context.precision, results[0].element);
        llvm::copy(product.floats, results[0].floats.begin() + begin * m);
      });
}

static LogicalResult
evaluateGroupedContractWeightGrad(GroupedContractWeightGradOp op,
                                  const RefArgs &args, Results results,
                                  ReferenceContext &context) {
  const RefTensor &rows = args[0], &grads = args[1];
  int64_t k = rows.shape[1], m = grads.shape[1], groups = results[0].shape[0];
  // The rows of a group, of all its ranges.
  std::vector<RefTensor> left(groups), right(groups);
  for (int64_t group = 0; group < groups; ++group) {
    left[group] = part(rows, 0, 0, k);
    right[group] = part(grads, 0, 0, m);
  }
  auto append = [](RefTensor &to, const RefTensor &from, int64_t begin,
                   int64_t end, int64_t columns) {
    to.shape[0] += end - begin;
    to.floats.insert(to.floats.end(), from.floats.begin() + begin * columns,
                     from.floats.begin() + end * columns);
  };
  if (failed(forEachRange(op, args[2], rows.shape[0],
                          [&](int64_t group, int64_t begin, int64_t end) {
                            append(left[group], rows, begin, end, k);
                            append(right[group], grads, begin, end, m);
                          })))
    return failure();
  for (int64_t group = 0; group < groups; ++group) {
    RefTensor product =
        contract(op.getTranspose() ? "rk,rm->mk" : "rk,rm->km", left[group],
                 right[group], context.precision, results[0].element);
    llvm::copy(product.floats, results[0].floats.begin() + group * k * m);
  }
  return success();
}

void cleave::attachGroupedModels(MLIRContext *c) {
  ReferenceModel<SortRowsOp, evaluateSortRows>::attach(c);
  ReferenceModel<GroupedContractOp, evaluateGroupedContract>::attach(c);
  ReferenceModel<GroupedContractWeightGradOp,
                 evaluateGroupedContractWeightGrad>::attach(c);
}
