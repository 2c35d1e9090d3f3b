//===- KernelEvaluator.cpp - The kernel form, executed slowly -------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelEvaluator.h"
#include "cleave/Support/Philox.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include <cmath>
#include <cstring>

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;
using namespace cleave::testing;

int64_t KernelEvaluator::byteSize(Type type) {
  return std::max(1u, type.getIntOrFloatBitWidth() / 8);
}

Number KernelEvaluator::read(const Memory &memory, Type type, int64_t index) {
  Number n;
  const char *at = memory.data() + index * byteSize(type);
  auto as = [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  if (type.isF64())
    n.real = as(double());
  else if (type.isF32())
    n.real = as(float());
  else if (type.isInteger(64))
    n.integer = as(int64_t());
  else if (type.isInteger(32))
    n.integer = as(int32_t());
  else
    n.integer = as(int8_t());
  return n;
}

void KernelEvaluator::write(Memory &memory, Type type, int64_t index,
                            Number n) {
  char *at = memory.data() + index * byteSize(type);
  auto as = [&](auto value) { std::memcpy(at, &value, sizeof value); };
  if (type.isF64())
    as(n.real);
  else if (type.isF32())
    as(float(n.real));
  else if (type.isInteger(64))
    as(n.integer);
  else if (type.isInteger(32))
    as(int32_t(n.integer));
  else
    as(int8_t(n.integer));
}

Number KernelEvaluator::round(Number n, Type type) {
  if (type.isF32())
    n.real = float(n.real);
  else if (type.isInteger(32))
    n.integer = int32_t(n.integer);
  else if (type.isInteger(8))
    n.integer = int8_t(n.integer);
  else if (type.isInteger(1))
    n.integer &= 1;
  return n;
}

Number KernelEvaluator::combine(ReductionKind kind, Type type, Number a,
                                Number b) {
  bool real = isa<FloatType>(type);
  if (kind == ReductionKind::Sum)
    return {a.real + b.real, a.integer + b.integer};
  bool larger =
      real ? b.real > a.real || std::isnan(b.real) : b.integer > a.integer;
  bool smaller =
      real ? b.real < a.real || std::isnan(b.real) : b.integer < a.integer;
  return (kind == ReductionKind::Max ? larger : smaller) ? b : a;
}

Memory &KernelEvaluator::memoryOf(Value value) {
  if (auto arg = dyn_cast<BlockArgument>(value))
    return arguments[arg.getArgNumber()];
  return kept[value];
}

int64_t KernelEvaluator::offset(AffineMap map, ValueRange indices) {
  Builder b(map.getContext());
  SmallVector<Attribute> operands = {b.getIndexAttr(row), b.getIndexAttr(col)};
  for (Value index : indices)
    operands.push_back(b.getIndexAttr(values[index].integer));
  SmallVector<Attribute> results;
  if (failed(map.constantFold(operands, results))) {
    error = "a map divides by zero";
    return 0;
  }
  return cast<IntegerAttr>(results[0]).getInt();
}

void KernelEvaluator::run() {
  for (row = 0; row < int64_t(kernel.getRows()); ++row) {
    int64_t columns = kernel.getCols();
    if (auto valid = kernel.getValid())
      columns = std::min<int64_t>(columns, *valid - row * columns);
    col = 0;
    for (Operation &op : kernel.getBody().front()) {
      if (auto pass = dyn_cast<PassOp>(op))
        runPass(pass, columns);
      else
        runOp(op);
    }
  }
}

void KernelEvaluator::runPass(PassOp pass, int64_t columns) {
  Block &body = pass.getBody().front();
  running.clear();
  bool reverse = llvm::any_of(body.getOps<ScanOp>(),
                              [](ScanOp scan) { return scan.getReverse(); });
  for (int64_t i = 0; i < columns; ++i) {
    col = reverse ? columns - 1 - i : i;
    for (Operation &op : body)
      runOp(op);
  }
  col = 0;
  auto yield = cast<YieldOp>(body.getTerminator());
  for (auto [result, value] : llvm::zip(pass.getResults(), yield.getValues()))
    values[result] = round(running[value.getDefiningOp()], result.getType());
}

void KernelEvaluator::runOp(Operation &op) {
  auto accumulate = [&](ReductionKind kind, Type type, Value value) {
    auto it = running.find(&op);
    Number next = values[value];
    // Sums are kept in f64: this is what the order of additions is judged by.
    running[&op] =
        it == running.end() ? next : combine(kind, type, it->second, next);
  };
  if (auto load = dyn_cast<LoadOp>(op)) {
    Number &result = values[load.getValue()] = Number();
    if (!load.getWhere() || values[load.getWhere()].integer)
      result = read(memoryOf(load.getMemory()), load.getValue().getType(),
                    offset(load.getMap(), load.getIndices()));
  } else if (auto store = dyn_cast<StoreOp>(op)) {
    write(memoryOf(store.getMemory()), store.getValue().getType(),
          offset(store.getMap(), {}), values[store.getValue()]);
  } else if (auto accumulator = dyn_cast<AccumulateOp>(op)) {
    Memory &memory = memoryOf(accumulator.getMemory());
    Type type = accumulator.getValue().getType();
    int64_t at = offset(accumulator.getMap(), {});
    Number n = values[accumulator.getValue()];
    bool &has = started[{&op, at}];
    if (has)
      n = combine(accumulator.getKind(), type, read(memory, type, at), n);
    has = true;
    write(memory, type, at, n);
  } else if (auto reduce = dyn_cast<ReduceOp>(op)) {
    accumulate(reduce.getKind(), reduce.getType(), reduce.getValue());
  } else if (auto scan = dyn_cast<ScanOp>(op)) {
    accumulate(ReductionKind::Sum, scan.getType(), scan.getValue());
    values[scan.getResult()] = round(running[&op], scan.getType());
  } else if (auto keep = dyn_cast<KeepOp>(op)) {
    auto type = cast<RankedTensorType>(keep.getRow().getType());
    kept[keep.getRow()].assign(
        type.getNumElements() * byteSize(type.getElementType()), 0x5a);
  } else if (auto number = dyn_cast<IndexOp>(op)) {
    values[number.getValue()].integer = offset(number.getMap(), {});
  } else if (auto philox = dyn_cast<PhiloxOp>(op)) {
    int64_t i = offset(philox.getMap(), {});
    if (philox.getBase())
      i += values[philox.getBase()].integer;
    uint64_t c = uint64_t(i) / 64 * 16 + uint64_t(i) % 16;
    uint64_t seed = values[philox.getSeed()].integer;
    int64_t id = philox.getId();
    if (philox.getAdded())
      id += values[philox.getAdded()].integer;
    uint32_t counter[] = {uint32_t(c), uint32_t(c >> 32), uint32_t(id),
                          uint32_t(values[philox.getStep()].integer)};
    uint32_t key[] = {uint32_t(seed), uint32_t(seed >> 32)}, out[4];
    runtime::philox::block(counter, key, out);
    values[philox.getBits()].integer = int32_t(out[uint64_t(i) / 16 % 4]);
  } else if (!isa<YieldOp>(op)) {
    values[op.getResult(0)] = round(scalar(op), op.getResult(0).getType());
  }
}

/// An op of arith or math.
Number KernelEvaluator::scalar(Operation &op) {
  SmallVector<Number> v;
  for (Value operand : op.getOperands())
    v.push_back(values[operand]);
  auto real = [](double x) { return Number{x, 0}; };
  auto integer = [](int64_t x) { return Number{0, x}; };
  if (auto constant = dyn_cast<arith::ConstantOp>(op)) {
    if (auto f = dyn_cast<FloatAttr>(constant.getValue()))
      return real(f.getValueAsDouble());
    return integer(
        cast<IntegerAttr>(constant.getValue()).getValue().getSExtValue());
  }
  if (auto cmp = dyn_cast<arith::CmpIOp>(op)) {
    unsigned width = cmp.getLhs().getType().getIntOrFloatBitWidth();
    return integer(arith::applyCmpPredicate(
        cmp.getPredicate(), APInt(width, v[0].integer, false, true),
        APInt(width, v[1].integer, false, true)));
  }
  if (auto cmp = dyn_cast<arith::CmpFOp>(op))
    return integer(arith::applyCmpPredicate(
        cmp.getPredicate(), APFloat(v[0].real), APFloat(v[1].real)));
  return llvm::TypeSwitch<Operation *, Number>(&op)
      .Case([&](arith::AddFOp) { return real(v[0].real + v[1].real); })
      .Case([&](arith::SubFOp) { return real(v[0].real - v[1].real); })
      .Case([&](arith::MulFOp) { return real(v[0].real * v[1].real); })
      .Case([&](arith::DivFOp) { return real(v[0].real / v[1].real); })
      .Case([&](arith::NegFOp) { return real(-v[0].real); })
      .Case([&](arith::MaximumFOp) {
        return combine(ReductionKind::Max, op.getOperand(0).getType(), v[1],
                       v[0]);
      })
      .Case([&](arith::MinimumFOp) {
        return combine(ReductionKind::Min, op.getOperand(0).getType(), v[1],
                       v[0]);
      })
      .Case([&](arith::AddIOp) { return integer(v[0].integer + v[1].integer); })
      .Case([&](arith::SubIOp) { return integer(v[0].integer - v[1].integer); })
      .Case([&](arith::MulIOp) { return integer(v[0].integer * v[1].integer); })
      .Case(
          [&](arith::DivSIOp) { return integer(v[0].integer / v[1].integer); })
      .Case(
          [&](arith::RemSIOp) { return integer(v[0].integer % v[1].integer); })
      .Case([&](arith::AndIOp) { return integer(v[0].integer & v[1].integer); })
      .Case([&](arith::OrIOp) { return integer(v[0].integer | v[1].integer); })
      .Case([&](arith::XOrIOp) { return integer(v[0].integer ^ v[1].integer); })
      .Case([&](arith::MaxSIOp) {
        return integer(std::max(v[0].integer, v[1].integer));
      })
      .Case([&](arith::SelectOp) { return v[0].integer ? v[1] : v[2]; })
      .Case<arith::ExtFOp, arith::TruncFOp>([&](auto) { return v[0]; })
      .Case<arith::ExtSIOp, arith::TruncIOp>([&](auto) {
        bool boolean = op.getOperand(0).getType().isInteger(1);
        return integer(boolean ? -v[0].integer : v[0].integer);
      })
      .Case([&](arith::ExtUIOp) {
        unsigned width = op.getOperand(0).getType().getIntOrFloatBitWidth();
        return integer(v[0].integer & int64_t((uint64_t(1) << width) - 1));
      })
      .Case([&](arith::SIToFPOp) { return real(double(v[0].integer)); })
      .Case([&](arith::UIToFPOp) { return real(double(v[0].integer & 1)); })
      .Case([&](arith::FPToSIOp) { return integer(int64_t(v[0].real)); })
      .Case([&](math::ExpOp) { return real(std::exp(v[0].real)); })
      .Case([&](math::ExpM1Op) { return real(std::expm1(v[0].real)); })
      .Case([&](math::LogOp) { return real(std::log(v[0].real)); })
      .Case([&](math::Log1pOp) { return real(std::log1p(v[0].real)); })
      .Case(
          [&](arith::RemFOp) { return real(std::fmod(v[0].real, v[1].real)); })
      .Case([&](math::TanhOp) { return real(std::tanh(v[0].real)); })
      .Case([&](math::ErfOp) { return real(std::erf(v[0].real)); })
      .Case([&](math::SinOp) { return real(std::sin(v[0].real)); })
      .Case([&](math::CosOp) { return real(std::cos(v[0].real)); })
      .Case([&](math::SqrtOp) { return real(std::sqrt(v[0].real)); })
      .Case([&](math::RsqrtOp) { return real(1 / std::sqrt(v[0].real)); })
      .Case([&](math::PowFOp) { return real(std::pow(v[0].real, v[1].real)); })
      .Case([&](math::FmaOp) {
        return real(std::fma(v[0].real, v[1].real, v[2].real));
      })
      .Case([&](math::AbsFOp) { return real(std::fabs(v[0].real)); })
      .Default([&](Operation *) {
        error = "cannot evaluate " + op.getName().getStringRef().str();
        return Number();
      });
}
