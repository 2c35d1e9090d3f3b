//===- ScoreExtras.cpp - Masks and biases in the steps of a ring ----------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ScoreExtras.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;
using graph::tensorTypeOf;
using Shape = SmallVector<int64_t>;

ScoreExtra cleave::spmd::scoreExtra(Value value) {
  if (!value)
    return ScoreExtra::None;
  ArrayRef<int64_t> shape = tensorTypeOf(value).getShape();
  if (shape.empty() || shape.back() == 1)
    return ScoreExtra::Same;
  bool pairs = shape.size() > 1 && shape[shape.size() - 2] != 1;
  return pairs ? ScoreExtra::Pairs : ScoreExtra::Keys;
}

/// Gathers, for each block m of dimension `lead.size()` of `blocks`, of shape
/// [lead.., parts, rows, parts, columns], the blocks (m - `others`) mod parts
/// along the second last dimension. With `drop`, there is one, and its
/// dimension is dropped.
static Value gatherBlocks(graph::Formula &f, Value blocks, int64_t parts,
                          ArrayRef<int64_t> others, bool drop) {
  Shape lead(tensorTypeOf(blocks).getShape().drop_back(4));
  SmallVector<int64_t> indices;
  for (int64_t m = 0; m < parts; ++m)
    for (int64_t other : others)
      indices.push_back((m + parts - other) % parts);
  // A batch dimension of the gather is one of both operands.
  Shape shape(lead.size(), 1);
  shape.push_back(parts);
  if (!drop)
    shape.push_back(others.size());
  auto type = RankedTensorType::get(shape, f.builder.getI64Type());
  Value table = graph::ConstantOp::create(
      f.builder, f.loc, DenseElementsAttr::get(type, ArrayRef(indices)));
  llvm::copy(lead, shape.begin());
  int64_t batch = lead.size() + 1;
  return graph::GatherOp::create(
      f.builder, f.loc, blocks, f.broadcast(table, shape), /*origin=*/Value(),
      f.builder.getI64IntegerAttr(batch + 1), /*padding_index=*/nullptr,
      /*global_size=*/nullptr, f.builder.getI64IntegerAttr(batch));
}

Value cleave::spmd::columnsOfStep(graph::Formula &f, Value value, int64_t parts,
                                  int64_t step) {
  ArrayRef<int64_t> shape = tensorTypeOf(value).getShape();
  Shape lead(shape.drop_back(2)), blocks(lead), result(shape);
  int64_t queries = shape[lead.size()], keys = shape.back();
  blocks.append({parts, queries / parts, parts, keys / parts});
  result.back() = keys / parts;
  return f.reshape(gatherBlocks(f, f.reshape(value, blocks), parts, {step},
                                /*drop=*/true),
                   result);
}

Value cleave::spmd::rowsOfSteps(graph::Formula &f, ArrayRef<Value> steps) {
  int64_t parts = steps.size();
  Shape result(tensorTypeOf(steps.front()).getShape());
  Shape block(result);
  int64_t columns = block.pop_back_val(), queries = block.pop_back_val();
  block.append({parts, queries / parts, 1, columns});
  result.back() = columns * parts;
  SmallVector<Value> blocks;
  for (Value step : steps)
    blocks.push_back(f.reshape(step, block));
  Value joined = graph::ConcatOp::create(f.builder, f.loc, ValueRange(blocks),
                                         int64_t(block.size()) - 2);
  // Block n of the keys was read in step (m - n) mod parts.
  Shape all(llvm::to_vector(llvm::seq<int64_t>(0, parts)));
  return f.reshape(gatherBlocks(f, joined, parts, all, /*drop=*/false), result);
}
