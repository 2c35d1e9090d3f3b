//===- EmitOps.cpp - The ops of a body ------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelEmitter.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/IR/Module.h"
#include <cmath>

using namespace mlir;
using namespace cleave;
using namespace cleave::cpu;
using namespace cleave::exec;
using llvm::CmpInst;
using llvm::Intrinsic::ID;
namespace intrinsics = llvm::Intrinsic;

static CmpInst::Predicate predicateOf(arith::CmpIPredicate predicate) {
  switch (predicate) {
  case arith::CmpIPredicate::eq:
    return CmpInst::ICMP_EQ;
  case arith::CmpIPredicate::ne:
    return CmpInst::ICMP_NE;
  case arith::CmpIPredicate::slt:
    return CmpInst::ICMP_SLT;
  case arith::CmpIPredicate::sle:
    return CmpInst::ICMP_SLE;
  case arith::CmpIPredicate::sgt:
    return CmpInst::ICMP_SGT;
  case arith::CmpIPredicate::sge:
    return CmpInst::ICMP_SGE;
  case arith::CmpIPredicate::ult:
    return CmpInst::ICMP_ULT;
  case arith::CmpIPredicate::ule:
    return CmpInst::ICMP_ULE;
  case arith::CmpIPredicate::ugt:
    return CmpInst::ICMP_UGT;
  case arith::CmpIPredicate::uge:
    return CmpInst::ICMP_UGE;
  }
  llvm_unreachable("unknown predicate");
}

static CmpInst::Predicate predicateOf(arith::CmpFPredicate predicate) {
  switch (predicate) {
  case arith::CmpFPredicate::AlwaysFalse:
    return CmpInst::FCMP_FALSE;
  case arith::CmpFPredicate::OEQ:
    return CmpInst::FCMP_OEQ;
  case arith::CmpFPredicate::OGT:
    return CmpInst::FCMP_OGT;
  case arith::CmpFPredicate::OGE:
    return CmpInst::FCMP_OGE;
  case arith::CmpFPredicate::OLT:
    return CmpInst::FCMP_OLT;
  case arith::CmpFPredicate::OLE:
    return CmpInst::FCMP_OLE;
  case arith::CmpFPredicate::ONE:
    return CmpInst::FCMP_ONE;
  case arith::CmpFPredicate::ORD:
    return CmpInst::FCMP_ORD;
  case arith::CmpFPredicate::UEQ:
    return CmpInst::FCMP_UEQ;
  case arith::CmpFPredicate::UGT:
    return CmpInst::FCMP_UGT;
  case arith::CmpFPredicate::UGE:
    return CmpInst::FCMP_UGE;
  case arith::CmpFPredicate::ULT:
    return CmpInst::FCMP_ULT;
  case arith::CmpFPredicate::ULE:
    return CmpInst::FCMP_ULE;
  case arith::CmpFPredicate::UNE:
    return CmpInst::FCMP_UNE;
  case arith::CmpFPredicate::UNO:
    return CmpInst::FCMP_UNO;
  case arith::CmpFPredicate::AlwaysTrue:
    return CmpInst::FCMP_TRUE;
  }
  llvm_unreachable("unknown predicate");
}

llvm::Value *KernelEmitter::emitConstant(TypedAttr constant) {
  llvm::Type *type = scalarType(constant.getType());
  if (auto real = dyn_cast<FloatAttr>(constant))
    return type->isIntegerTy()
               ? llvm::ConstantInt::get(type, real.getValue().bitcastToAPInt())
               : llvm::ConstantFP::get(type, real.getValue());
  if (auto integer = dyn_cast<IntegerAttr>(constant))
    return llvm::ConstantInt::get(
        type, integer.getValue().sextOrTrunc(type->getIntegerBitWidth()));
  return nullptr;
}

/// Narrow floats are codes here: they are converted by way of f32.
static bool isNarrow(Type type) { return type.getIntOrFloatBitWidth() < 32; }

/// Out-of-range conversions saturate, so that they are the same on all targets.
llvm::Value *KernelEmitter::floatToInteger(llvm::Value *given, Type from,
                                           llvm::Type *result, bool isSigned) {
  if (isNarrow(from))
    given =
        extend(given, from, given->getType()->getWithNewType(b.getFloatTy()));
  // Of few bits, by way of 32: saturating conversions to 8 are not vectors on
  // most processors.
  if (unsigned bits = result->getScalarSizeInBits(); bits > 1 && bits <= 16) {
    llvm::Type *type = given->getType();
    auto constant = [&](double x) { return llvm::ConstantFP::get(type, x); };
    double most = std::ldexp(1.0, isSigned ? bits - 1 : bits) - 1;
    double least = isSigned ? -most - 1 : 0;
    llvm::Value *x = b.CreateSelect(b.CreateFCmpOLT(given, constant(most)),
                                    given, constant(most));
    x = b.CreateSelect(b.CreateFCmpOGT(x, constant(least)), x, constant(least));
    // NaN is 0.
    x = b.CreateSelect(b.CreateFCmpORD(given, given), x, constant(0));
    return b.CreateTrunc(
        b.CreateFPToSI(x, type->getWithNewType(b.getInt32Ty())), result);
  }
  return b.CreateIntrinsic(isSigned ? intrinsics::fptosi_sat
                                    : intrinsics::fptoui_sat,
                           {result, given->getType()}, {given});
}

/// By way of a type that has the integer exactly (f64 up to 2^53).
llvm::Value *KernelEmitter::integerToFloat(llvm::Value *given, Type from,
                                           Type to, llvm::Type *result,
                                           bool isSigned) {
  llvm::Type *type = result;
  if (isNarrow(to))
    type = given->getType()->getWithNewType(
        from.getIntOrFloatBitWidth() <= 16 ? b.getFloatTy() : b.getDoubleTy());
  llvm::Value *x =
      isSigned ? b.CreateSIToFP(given, type) : b.CreateUIToFP(given, type);
  return isNarrow(to) ? truncate(x, to, result) : x;
}

/// Rounds down, where a division of integers rounds to zero.
llvm::Value *KernelEmitter::floorDivide(llvm::Value *n, llvm::Value *d) {
  llvm::Value *r = b.CreateSRem(n, d);
  llvm::Value *zero = llvm::Constant::getNullValue(d->getType());
  llvm::Value *down = b.CreateAnd(b.CreateICmpNE(r, zero),
                                  b.CreateICmpSLT(b.CreateXor(n, d), zero));
  return b.CreateSub(b.CreateSDiv(n, d), b.CreateZExt(down, d->getType()));
}

/// The value of an op of `arith`, or null if it has no translation. All lanes
/// of an op whose operands are the same for all lanes are one scalar.
llvm::Value *KernelEmitter::emitArith(Operation &op) {
  if (auto constant = dyn_cast<arith::ConstantOp>(op))
    return emitConstant(constant.getValue());
  SmallVector<llvm::Value *> v;
  bool vector = false;
  for (Value operand : op.getOperands()) {
    v.push_back(get(operand));
    vector |= v.back()->getType()->isVectorTy();
  }
  unsigned lanes = vector ? point.lanes : 1;
  for (llvm::Value *&operand : v)
    operand = spread(operand, lanes);
  llvm::Type *result = lanesOf(scalarType(op.getResult(0).getType()), lanes);
  // Inactive lanes must not divide by zero.
  auto divisor = [&](llvm::Value *d) -> llvm::Value * {
    if (!vector || !point.mask || isa<llvm::Constant>(d))
      return d;
    return b.CreateSelect(point.mask, d,
                          llvm::ConstantInt::get(d->getType(), 1));
  };
  auto binary = [&](ID id) { return b.CreateBinaryIntrinsic(id, v[0], v[1]); };
  using R = llvm::Value *;
  return llvm::TypeSwitch<Operation *, R>(&op)
      .Case([&](arith::AddFOp) -> R { return b.CreateFAdd(v[0], v[1]); })
      .Case([&](arith::SubFOp) -> R { return b.CreateFSub(v[0], v[1]); })
      .Case([&](arith::MulFOp) -> R { return b.CreateFMul(v[0], v[1]); })
      .Case([&](arith::DivFOp) -> R { return b.CreateFDiv(v[0], v[1]); })
      .Case([&](arith::RemFOp) -> R { return b.CreateFRem(v[0], v[1]); })
      .Case([&](arith::NegFOp) -> R { return b.CreateFNeg(v[0]); })
      .Case([&](arith::MaximumFOp) -> R { return math.maximum(v[0], v[1]); })
      .Case([&](arith::MinimumFOp) -> R { return math.minimum(v[0], v[1]); })
      .Case([&](arith::MaxNumFOp) -> R { return binary(intrinsics::maxnum); })
      .Case([&](arith::MinNumFOp) -> R { return binary(intrinsics::minnum); })
      .Case([&](arith::AddIOp) -> R { return b.CreateAdd(v[0], v[1]); })
      .Case([&](arith::SubIOp) -> R { return b.CreateSub(v[0], v[1]); })
      .Case([&](arith::MulIOp) -> R { return b.CreateMul(v[0], v[1]); })
      .Case([&](arith::DivSIOp) -> R {
        return b.CreateSDiv(v[0], divisor(v[1]));
      })
      .Case([&](arith::DivUIOp) -> R {
        return b.CreateUDiv(v[0], divisor(v[1]));
      })
      .Case([&](arith::RemSIOp) -> R {
        return b.CreateSRem(v[0], divisor(v[1]));
      })
      .Case([&](arith::RemUIOp) -> R {
        return b.CreateURem(v[0], divisor(v[1]));
      })
      .Case([&](arith::FloorDivSIOp) -> R {
        return floorDivide(v[0], divisor(v[1]));
      })
      .Case([&](arith::AndIOp) -> R { return b.CreateAnd(v[0], v[1]); })
      .Case([&](arith::OrIOp) -> R { return b.CreateOr(v[0], v[1]); })
      .Case([&](arith::XOrIOp) -> R { return b.CreateXor(v[0], v[1]); })
      .Case([&](arith::ShLIOp) -> R { return b.CreateShl(v[0], v[1]); })
      .Case([&](arith::ShRUIOp) -> R { return b.CreateLShr(v[0], v[1]); })
      .Case([&](arith::ShRSIOp) -> R { return b.CreateAShr(v[0], v[1]); })
      .Case([&](arith::MaxSIOp) -> R { return binary(intrinsics::smax); })
      .Case([&](arith::MinSIOp) -> R { return binary(intrinsics::smin); })
      .Case([&](arith::MaxUIOp) -> R { return binary(intrinsics::umax); })
      .Case([&](arith::MinUIOp) -> R { return binary(intrinsics::umin); })
      .Case([&](arith::CmpIOp cmp) -> R {
        return b.CreateICmp(predicateOf(cmp.getPredicate()), v[0], v[1]);
      })
      .Case([&](arith::CmpFOp cmp) -> R {
        return b.CreateFCmp(predicateOf(cmp.getPredicate()), v[0], v[1]);
      })
      .Case([&](arith::SelectOp) -> R {
        return b.CreateSelect(v[0], v[1], v[2]);
      })
      .Case([&](arith::ExtFOp cast) -> R {
        return extend(v[0], cast.getIn().getType(), result);
      })
      .Case([&](arith::TruncFOp cast) -> R {
        // From 16 to 8 bits: f32 has all numbers of 16.
        llvm::Value *from = v[0];
        if (cast.getIn().getType().getIntOrFloatBitWidth() < 32)
          from = extend(from, cast.getIn().getType(),
                        from->getType()->getWithNewType(b.getFloatTy()));
        return truncate(from, cast.getType(), result);
      })
      .Case([&](arith::ExtSIOp) -> R { return b.CreateSExt(v[0], result); })
      .Case([&](arith::ExtUIOp) -> R { return b.CreateZExt(v[0], result); })
      .Case([&](arith::TruncIOp) -> R { return b.CreateTrunc(v[0], result); })
      .Case([&](arith::SIToFPOp cast) -> R {
        return integerToFloat(v[0], cast.getIn().getType(), cast.getType(),
                              result, /*isSigned=*/true);
      })
      .Case([&](arith::UIToFPOp cast) -> R {
        return integerToFloat(v[0], cast.getIn().getType(), cast.getType(),
                              result, /*isSigned=*/false);
      })
      .Case([&](arith::FPToSIOp cast) -> R {
        return floatToInteger(v[0], cast.getIn().getType(), result,
                              /*isSigned=*/true);
      })
      .Case([&](arith::FPToUIOp cast) -> R {
        return floatToInteger(v[0], cast.getIn().getType(), result,
                              /*isSigned=*/false);
      })
      .Case(
          [&](arith::BitcastOp) -> R { return b.CreateBitCast(v[0], result); })
      .Case<arith::IndexCastOp, arith::IndexCastUIOp>(
          [&](auto) -> R { return b.CreateSExtOrTrunc(v[0], result); })
      .Default([](Operation *) -> R { return nullptr; });
}

/// The value of an op of `math`, or null if it has no translation.
llvm::Value *KernelEmitter::emitMath(Operation &op) {
  SmallVector<llvm::Value *> v;
  bool vector = false;
  for (Value operand : op.getOperands()) {
    v.push_back(get(operand));
    vector |= v.back()->getType()->isVectorTy();
  }
  for (llvm::Value *&operand : v)
    operand = spread(operand, vector ? point.lanes : 1);
  auto call = [&](ID id) { return math.intrinsic(id, v); };
  using R = llvm::Value *;
  return llvm::TypeSwitch<Operation *, R>(&op)
      .Case([&](math::ExpOp) { return math.exp(v[0]); })
      .Case([&](math::Exp2Op) { return math.exp2(v[0]); })
      .Case([&](math::ExpM1Op) { return math.expm1(v[0]); })
      .Case([&](math::LogOp) { return math.log(v[0]); })
      .Case([&](math::Log2Op) { return math.log2(v[0]); })
      .Case([&](math::Log1pOp) { return math.log1p(v[0]); })
      .Case([&](math::TanhOp) { return math.tanh(v[0]); })
      .Case([&](math::ErfOp) { return math.erf(v[0]); })
      .Case([&](math::SinOp) { return math.sin(v[0]); })
      .Case([&](math::CosOp) { return math.cos(v[0]); })
      .Case([&](math::RsqrtOp) { return math.rsqrt(v[0]); })
      .Case([&](math::PowFOp) { return math.pow(v[0], v[1]); })
      .Case([&](math::SqrtOp) { return call(intrinsics::sqrt); })
      .Case([&](math::FmaOp) { return call(intrinsics::fma); })
      .Case([&](math::AbsFOp) { return call(intrinsics::fabs); })
      .Case([&](math::CopySignOp) { return call(intrinsics::copysign); })
      .Case([&](math::FloorOp) { return call(intrinsics::floor); })
      .Case([&](math::CeilOp) { return call(intrinsics::ceil); })
      .Case([&](math::TruncOp) { return call(intrinsics::trunc); })
      .Case([&](math::RoundOp) { return call(intrinsics::round); })
      .Case([&](math::RoundEvenOp) { return call(intrinsics::roundeven); })
      .Case([&](math::AbsIOp) -> R {
        return b.CreateBinaryIntrinsic(intrinsics::abs, v[0], b.getFalse());
      })
      .Case([&](math::IsNaNOp) -> R { return b.CreateFCmpUNO(v[0], v[0]); })
      .Default([](Operation *) -> R { return nullptr; });
}

LogicalResult KernelEmitter::emitOp(Operation &op) {
  StringRef dialect = op.getName().getDialectNamespace();
  if (dialect == "arith" || dialect == "math") {
    llvm::Value *result = dialect == "arith" ? emitArith(op) : emitMath(op);
    if (!result)
      return op.emitError("has no native code");
    values[op.getResult(0)] = result;
    return success();
  }
  return llvm::TypeSwitch<Operation *, LogicalResult>(&op)
      .Case([&](LoadOp load) {
        values[load.getValue()] =
            loadFrom(load.getMemory(), load.getValue().getType(),
                     placeOf(load.getMap(), load.getIndices()),
                     load.getWhere() ? get(load.getWhere()) : nullptr);
        return success();
      })
      .Case([&](StoreOp store) {
        storeTo(store.getMemory(), store.getValue().getType(),
                placeOf(store.getMap(), {}), get(store.getValue()));
        return success();
      })
      .Case([&](IndexOp number) {
        Place place = placeOf(number.getMap(), {});
        llvm::Value *value = place.offset;
        if (place.kind != Place::Uniform) {
          AffineExpr expr = number.getMap().getResult(0);
          value = evaluateLanes(flat ? flatten(expr, cols) : expr, {});
          value = b.CreateSExt(value, lanesOf(b.getInt64Ty(), point.lanes));
        }
        values[number.getValue()] = value;
        return success();
      })
      .Case([&](ReduceOp reduce) {
        llvm::Value *&sum = running[reduce];
        llvm::Value *value = spread(get(reduce.getValue()), point.lanes);
        if (point.mask)
          value = b.CreateSelect(
              point.mask, value,
              identity(reduce.getKind(), reduce.getType(), value->getType()));
        sum = combine(reduce.getKind(), reduce.getType(), sum, value);
        return success();
      })
      .Case([&](ScanOp scan) {
        llvm::Value *&sum = running[scan];
        if (Value factor = scan.getFactor())
          sum = b.CreateFMul(get(factor), sum);
        sum = combine(ReductionKind::Sum, scan.getType(), sum,
                      get(scan.getValue()));
        values[scan.getResult()] = sum;
        return success();
      })
      .Case([&](AccumulateOp accumulate) {
        emitAccumulate(accumulate);
        return success();
      })
      .Case([&](PhiloxOp philox) {
        values[philox.getBits()] = emitPhilox(philox);
        return success();
      })
      .Case([&](PassOp pass) { return emitPass(pass); })
      .Case<KeepOp, YieldOp>([](auto) { return success(); })
      .Default([](Operation *other) {
        return other->emitError("has no native code");
      });
}
