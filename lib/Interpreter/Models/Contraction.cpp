//===- Contraction.cpp - Contractions -------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Models.h"
#include "cleave/Dialect/Graph/IR/Einsum.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

/// The elements of `tensor`, whose dimensions are named by `letters`, in
/// row-major order of the dimensions `wanted`; other letters are summed over.
static std::vector<double> arrange(const RefTensor &tensor, StringRef letters,
                                   StringRef wanted) {
  SmallVector<int64_t, 4> own = tensor.strides(), sizes, strides;
  std::string absent;
  for (char letter : letters)
    if (!wanted.contains(letter))
      absent += letter;
  int64_t count = 1;
  for (char letter : (wanted + absent).str()) {
    size_t dim = letters.find(letter);
    sizes.push_back(tensor.shape[dim]);
    strides.push_back(own[dim]);
    if (wanted.contains(letter))
      count *= sizes.back();
  }
  std::vector<double> result(count, 0.0);
  int64_t summed = 1;
  for (int64_t size : ArrayRef(sizes).drop_front(wanted.size()))
    summed *= size;
  forEachIndex<1>(sizes, {strides},
                  [&](int64_t i, const std::array<int64_t, 1> &at) {
                    result[i / summed] += tensor.floats[at[0]];
                  });
  return result;
}

/// Every product of two batched matrices, with sums of type `Accumulator`.
template <typename Accumulator>
static std::vector<double>
multiplyAll(const std::vector<double> &lhs, const std::vector<double> &rhs,
            int64_t batch, int64_t m, int64_t n, int64_t k) {
  std::vector<Accumulator> sums(batch * m * n, 0);
  for (int64_t b = 0; b < batch; ++b)
    multiply(lhs.data() + b * m * k, rhs.data() + b * k * n,
             sums.data() + b * m * n, m, n, k);
  return std::vector<double>(sums.begin(), sums.end());
}

RefTensor cleave::contract(StringRef equation, const RefTensor &lhs,
                           const RefTensor &rhs, Precision precision,
                           Type element) {
  std::string error;
  Einsum einsum = *Einsum::parse(equation, error);
  StringRef left = einsum.lhs, right = einsum.rhs, out = einsum.output;
  auto sizeOf = [&](char letter) {
    size_t dim = left.find(letter);
    return dim != StringRef::npos ? lhs.shape[dim]
                                  : rhs.shape[right.find(letter)];
  };
  // Each letter is a batch, a row, a column or a contracted index.
  std::string batches, rows, columns, inner;
  int64_t batch = 1, m = 1, n = 1, k = 1;
  SmallVector<int64_t, 4> shape;
  for (char letter : out) {
    int64_t size = sizeOf(letter);
    shape.push_back(size);
    if (!right.contains(letter)) {
      rows += letter;
      m *= size;
    } else if (!left.contains(letter)) {
      columns += letter;
      n *= size;
    } else {
      batches += letter;
      batch *= size;
    }
  }
  for (char letter : left)
    if (right.contains(letter) && !out.contains(letter)) {
      inner += letter;
      k *= sizeOf(letter);
    }

  std::vector<double> a = arrange(lhs, left, batches + rows + inner);
  std::vector<double> b = arrange(rhs, right, batches + inner + columns);
  RefTensor product;
  product.element = element ? element : lhs.element;
  for (char letter : batches + rows + columns)
    product.shape.push_back(sizeOf(letter));
  product.floats = accumulatesInF32(lhs.element, precision)
                       ? multiplyAll<float>(a, b, batch, m, n, k)
                       : multiplyAll<double>(a, b, batch, m, n, k);

  RefTensor result;
  result.element = product.element;
  result.shape = shape;
  result.floats = arrange(product, batches + rows + columns, out);
  return result;
}

static LogicalResult evaluateContract(ContractOp op, const RefArgs &args,
                                      Results results,
                                      ReferenceContext &context) {
  results[0] = contract(op.getEquation(), args[0], args[1], context.precision,
                        results[0].element);
  return success();
}

/// `input` with all dimensions but the last merged.
static RefTensor flattenRows(const RefTensor &input) {
  RefTensor result = input;
  int64_t columns = input.rowSize(), rows = 1;
  for (int64_t size : ArrayRef(input.shape).drop_back())
    rows *= size;
  result.shape = {rows, columns};
  return result;
}

RefTensor cleave::linear(const RefTensor &input, const RefTensor &weight,
                         const RefTensor *bias, Precision precision,
                         Type element) {
  RefTensor result =
      contract("ri,oi->ro", flattenRows(input), weight, precision, element);
  int64_t outputs = weight.shape[0];
  if (bias)
    for (int64_t i = 0, e = result.size(); i < e; ++i)
      result.floats[i] += bias->floats[i % outputs];
  result.shape = input.shape;
  result.shape.back() = outputs;
  return result;
}

static LogicalResult evaluateLinear(LinearOp op, const RefArgs &args,
                                    Results results,
                                    ReferenceContext &context) {
  results[0] =
      linear(args[op.getInput()], args[op.getWeight()],
             args.lookup(op.getBias()), context.precision, results[0].element);
  return success();
}

void cleave::attachContractionModels(MLIRContext *c) {
  ReferenceModel<ContractOp, evaluateContract>::attach(c);
  ReferenceModel<LinearOp, evaluateLinear>::attach(c);
}
