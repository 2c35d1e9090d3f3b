//===- PrintOps.cpp - The ops of a body as CUDA C++ -----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "KernelPrinter.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::cuda;
using namespace cleave::exec;

//===----------------------------------------------------------------------===//
// Types and names
//===----------------------------------------------------------------------===//

std::string KernelPrinter::typeName(Type type) {
  if (type.isF64())
    return "double";
  if (type.isF32())
    return "float";
  if (type.isF16())
    return "__half";
  if (type.isBF16())
    return "__nv_bfloat16";
  if (isa<Float8E4M3FNType>(type))
    return "__nv_fp8_e4m3";
  if (isa<Float8E5M2Type>(type))
    return "__nv_fp8_e5m2";
  if (type.isInteger(64) || type.isIndex())
    return "long long";
  if (type.isInteger(32))
    return "int";
  return type.isInteger(8) ? "signed char" : "bool";
}

/// The memory type of an element: i1 takes a byte.
std::string KernelPrinter::memoryName(Type type) {
  return type.isInteger(1) ? "unsigned char" : typeName(type);
}

int64_t KernelPrinter::byteSize(Type type) { return elementBytes(type); }

std::string KernelPrinter::name(Value value) { return names.lookup(value); }

void KernelPrinter::define(Value value, const std::string &text) {
  std::string id = "v" + std::to_string(counter++);
  names[value] = id;
  os << "const " << typeName(value.getType()) << " " << id << " = " << text
     << ";\n";
}

/// Whether values of the type are computed with in f32.
static bool isNarrow(Type type) {
  auto real = dyn_cast<FloatType>(type);
  return real && real.getWidth() < 32;
}

/// Whether an op takes and gives values of narrow types as they are.
static bool isExact(Operation &op) {
  return isa<arith::SelectOp, arith::ExtFOp, arith::TruncFOp, arith::FPToSIOp,
             arith::BitcastOp, arith::SIToFPOp, arith::UIToFPOp>(op);
}

/// The text of a value in f32 or f64, rounded to a narrower type.
std::string KernelPrinter::rounded(Type type, const std::string &text) {
  return (isa<Float8E5M2Type>(type) ? "toE5M2" : typeName(type)) + "(" + text +
         ")";
}

/// The text of a constant; that of a narrow type is one of f32.
static std::string realText(const APFloat &value, Type type) {
  bool single = !type.isF64();
  if (value.isNaN())
    return single ? "__int_as_float(0x7fc00000)"
                  : "__longlong_as_double(0x7ff8000000000000ll)";
  if (value.isInfinity())
    return std::string(value.isNegative() ? "-" : "") +
           (single ? "__int_as_float(0x7f800000)"
                   : "__longlong_as_double(0x7ff0000000000000ll)");
  APFloat wide = value;
  bool lost;
  wide.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &lost);
  std::string text;
  llvm::raw_string_ostream stream(text);
  stream << llvm::format(single ? "%.9g" : "%.17g", wide.convertToDouble());
  if (text.find_first_of(".e") == std::string::npos)
    text += ".0";
  return single ? text + "f" : text;
}

std::string KernelPrinter::identity(ReductionKind kind, Type type) {
  if (kind == ReductionKind::Sum && isNarrow(type))
    return rounded(type, "0.0f");
  if (kind == ReductionKind::Sum)
    return isa<FloatType>(type) ? type.isF64() ? "0.0" : "0.0f" : "0";
  bool max = kind == ReductionKind::Max;
  if (auto real = dyn_cast<FloatType>(type))
    return realText(APFloat::getInf(real.getFloatSemantics(), max), type);
  if (type.isInteger(1))
    return max ? "false" : "true";
  // The least value has no literal of its own.
  std::string largest =
      std::to_string(APInt::getSignedMaxValue(type.getIntOrFloatBitWidth())
                         .getSExtValue()) +
      (type.isInteger(64) ? "ll" : "");
  return max ? "(-" + largest + " - 1)" : largest;
}

std::string KernelPrinter::combine(ReductionKind kind, Type type,
                                   const std::string &a, const std::string &b) {
  if (kind == ReductionKind::Sum)
    return a + " + " + b;
  return (kind == ReductionKind::Max ? "Max()(" : "Min()(") + a + ", " + b +
         ")";
}

//===----------------------------------------------------------------------===//
// Offsets
//===----------------------------------------------------------------------===//

std::string KernelPrinter::affine(AffineExpr expr,
                                  ArrayRef<std::string> symbols,
                                  StringRef column) {
  if (auto dim = dyn_cast<AffineDimExpr>(expr))
    return dim.getPosition() == 0 ? "row" : column.str();
  if (auto symbol = dyn_cast<AffineSymbolExpr>(expr))
    return symbols[symbol.getPosition()];
  if (auto constant = dyn_cast<AffineConstantExpr>(expr)) {
    int64_t v = constant.getValue();
    bool wide = v != int32_t(v);
    return std::to_string(v) + (wide ? "ll" : "");
  }
  auto binary = cast<AffineBinaryOpExpr>(expr);
  std::string a = affine(binary.getLHS(), symbols, column);
  std::string b = affine(binary.getRHS(), symbols, column);
  auto range = rangeOf(binary.getLHS(), {rows, cols});
  bool natural = range && range->first >= 0;
  switch (expr.getKind()) {
  case AffineExprKind::Add:
    return "(" + a + " + " + b + ")";
  case AffineExprKind::Mul: {
    // Products may need more than 32 bits.
    auto product = rangeOf(expr, {rows, cols});
    bool narrow = product && product->first > -(int64_t(1) << 30) &&
                  product->second < (int64_t(1) << 30);
    return narrow ? a + " * " + b : "(long long)" + a + " * " + b;
  }
  case AffineExprKind::Mod:
    return natural ? "(" + a + " % " + b + ")"
                   : "floorModulo<long long>(" + a + ", " + b + ")";
  case AffineExprKind::FloorDiv:
    return natural ? "(" + a + " / " + b + ")"
                   : "floorDivide<long long>(" + a + ", " + b + ")";
  default:
    return "(-floorDivide<long long>(-(" + a + "), " + b + "))";
  }
}

std::string KernelPrinter::offset(AffineMap map, ValueRange indices,
                                  StringRef column) {
  SmallVector<std::string> symbols;
  for (Value index : indices)
    symbols.push_back(name(index));
  std::string text = affine(map.getResult(0), symbols, column);
  if (text.size() > 2 && text.front() == '(' && text.back() == ')' &&
      map.getResult(0).getKind() == AffineExprKind::Add)
    text = text.substr(1, text.size() - 2);
  return text;
}

int64_t KernelPrinter::accessBytes(Value memory, AffineMap map,
                                   ValueRange indices) {
  auto arg = dyn_cast<BlockArgument>(memory);
  if (vector == 1 || !inPass || !arg)
    return 0;
  // An index that is loaded in this pass differs between neighbours.
  for (Value index : indices)
    if (Operation *def = index.getDefiningOp();
        def && isa<PassOp>(def->getParentOp()))
      return 0;
  auto alignments = kernel.getAlignment();
  int64_t element =
      byteSize(cast<RankedTensorType>(memory.getType()).getElementType());
  int64_t alignment = alignments ? (*alignments)[arg.getArgNumber()] : element;
  LaneGeometry geometry{unsigned(vector), {0, 1}, {1, vector}, {}};
  auto step = stepOf(map.getResult(0), geometry);
  if (!step || step->stride != 1)
    return 0;
  // The base of the lanes may be known to be aligned less than all of them are.
  int64_t bytes = std::min<int64_t>(16, vector * element);
  while (bytes > element &&
         (alignment % bytes != 0 || step->multiple * element % bytes != 0))
    bytes /= 2;
  return bytes > element ? bytes : 0;
}

KernelPrinter::Held *KernelPrinter::findHeld(Value memory, AffineMap map,
                                             ValueRange indices) {
  auto row = llvm::find_if(held, [&](Held &row) {
    return row.memory == memory && row.map == map &&
           ValueRange(row.indices) == indices;
  });
  return row == held.end() ? nullptr : row;
}

std::string KernelPrinter::heldElement(const Held &row) const {
  return row.name + (!row.sharedAt ? "[k][j]"
                     : vector == 1 ? "[c]"
                                   : "[c + j]");
}

KernelPrinter::Held *KernelPrinter::beginsHeld(Operation *op) {
  auto load = dyn_cast<LoadOp>(op);
  if (load && load.getWhere())
    return nullptr;
  auto store = dyn_cast<StoreOp>(op);
  Held *row = load
                  ? findHeld(load.getMemory(), load.getMap(), load.getIndices())
              : store ? findHeld(store.getMemory(), store.getMap(), {})
                      : nullptr;
  return row && row->firstPass == op->getParentOp() ? row : nullptr;
}

KernelPrinter::Held *KernelPrinter::readsHeld(LoadOp load) {
  if (load.getWhere())
    return nullptr;
  Held *row = findHeld(load.getMemory(), load.getMap(), load.getIndices());
  return row && isa<PassOp>(load->getParentOp()) &&
                 row->firstPass != load->getParentOp()
             ? row
             : nullptr;
}

//===----------------------------------------------------------------------===//
// Random numbers
//===----------------------------------------------------------------------===//

/// True if neighbouring threads of one warp have 64 neighbours from a multiple
/// of 64 on: they share the counters.
bool KernelPrinter::isCooperative(PhiloxOp op) {
  if (vector < 4 || cols % 64 != 0 || ragged || threads % (64 / vector) != 0 ||
      !inPass)
    return false;
  LaneGeometry geometry{64, {0, 1}, {1, 64}, {}};
  auto step = stepOf(op.getMap().getResult(0), geometry);
  return step && step->stride == 1 && step->multiple % 64 == 0 &&
         (!op.getBase() || op.getBaseMultiple() % 64 == 0);
}

/// The number of the sequence that `op` draws from.
std::string KernelPrinter::drawId(PhiloxOp op) {
  std::string number = std::to_string(op.getId());
  if (!op.getAdded())
    return number;
  std::string added = "unsigned(" + name(op.getAdded()) + ")";
  return op.getId() == 0 ? added : added + " + " + number;
}

/// The draws of a piece, before the loop over its elements.
void KernelPrinter::printDraws(PhiloxOp op) {
  std::string id = "v" + std::to_string(counter++);
  names[op.getBits()] = id + "[j]";
  std::string i = offset(op.getMap(), {}, "c");
  if (op.getBase())
    i = name(op.getBase()) + " + " + i;
  os << "int " << id << "[" << vector << "];\n";
  os << "philoxShared(" << id << ", " << i << ", " << name(op.getSeed()) << ", "
     << drawId(op) << ", " << name(op.getStep()) << ");\n";
}

//===----------------------------------------------------------------------===//
// Scalars
//===----------------------------------------------------------------------===//

static StringRef comparison(arith::CmpIPredicate predicate, bool &isUnsigned) {
  using P = arith::CmpIPredicate;
  isUnsigned = predicate == P::ult || predicate == P::ule ||
               predicate == P::ugt || predicate == P::uge;
  switch (predicate) {
  case P::eq:
    return "==";
  case P::ne:
    return "!=";
  case P::slt:
  case P::ult:
    return "<";
  case P::sle:
  case P::ule:
    return "<=";
  case P::sgt:
  case P::ugt:
    return ">";
  case P::sge:
  case P::uge:
    return ">=";
  }
  llvm_unreachable("unknown predicate");
}

/// The text of a comparison of floats; unordered ones negate their opposite.
static std::string compare(arith::CmpFPredicate predicate, const std::string &a,
                           const std::string &b) {
  using P = arith::CmpFPredicate;
  auto plain = [&](const char *op) { return a + " " + op + " " + b; };
  auto negated = [&](const char *op) { return "!(" + plain(op) + ")"; };
  switch (predicate) {
  case P::AlwaysFalse:
    return "false";
  case P::OEQ:
    return plain("==");
  case P::OGT:
    return plain(">");
  case P::OGE:
    return plain(">=");
  case P::OLT:
    return plain("<");
  case P::OLE:
    return plain("<=");
  case P::ONE:
    return "(" + plain("<") + " || " + plain(">") + ")";
  case P::ORD:
    return "(" + a + " == " + a + " && " + b + " == " + b + ")";
  case P::UEQ:
    return "!(" + plain("<") + " || " + plain(">") + ")";
  case P::UGT:
    return negated("<=");
  case P::UGE:
    return negated("<");
  case P::ULT:
    return negated(">=");
  case P::ULE:
    return negated(">");
  case P::UNE:
    return plain("!=");
  case P::UNO:
    return "(" + a + " != " + a + " || " + b + " != " + b + ")";
  case P::AlwaysTrue:
    return "true";
  }
  llvm_unreachable("unknown predicate");
}

/// The names of the operands of an op, those of narrow types as f32.
SmallVector<std::string> KernelPrinter::wideOperands(Operation &op) {
  SmallVector<std::string> texts;
  for (Value operand : op.getOperands())
    texts.push_back((isNarrow(operand.getType()) ? "(float)" : "") +
                    name(operand));
  return texts;
}

/// The text of a conversion of `given`, or nothing if `op` is none.
std::string KernelPrinter::conversion(Operation &op, const std::string &given) {
  Type type = op.getResult(0).getType();
  std::string target = typeName(type);
  auto cast = [&] { return "(" + target + ")" + given; };
  // An integer, rounded once.
  auto convert = [&](const std::string &text) {
    return isa<Float8E5M2Type>(type) ? "toE5M2((float)" + text + ")"
                                     : "(" + target + ")" + text;
  };
  using S = std::string;
  return llvm::TypeSwitch<Operation *, S>(&op)
      .Case<arith::ExtUIOp>([&](auto) -> S {
        Type from = op.getOperand(0).getType();
        return from.isInteger(32)  ? "(" + target + ")(unsigned)" + given
               : from.isInteger(8) ? "(" + target + ")(unsigned char)" + given
                                   : cast();
      })
      .Case<arith::ExtSIOp>([&](auto) -> S {
        bool boolean = op.getOperand(0).getType().isInteger(1);
        return boolean ? "-(" + target + ")" + given : cast();
      })
      .Case<arith::TruncIOp>([&](auto) -> S {
        return type.isInteger(1) ? "(" + given + " & 1) != 0" : cast();
      })
      .Case<arith::UIToFPOp>([&](auto) -> S {
        Type from = op.getOperand(0).getType();
        S u = from.isInteger(64)   ? "(unsigned long long)"
              : from.isInteger(32) ? "(unsigned)"
              : from.isInteger(8)  ? "(unsigned char)"
                                   : "";
        return convert(u + given);
      })
      .Case<arith::SIToFPOp>([&](auto) -> S {
        bool boolean = op.getOperand(0).getType().isInteger(1);
        return convert(boolean ? "(" + given + " ? -1 : 0)" : given);
      })
      .Case<arith::ExtFOp, arith::FPToSIOp, arith::IndexCastOp>(
          [&](auto) { return cast(); })
      .Case([&](arith::TruncFOp) -> S {
        return isa<Float8E5M2Type>(type) ? "toE5M2(" + given + ")" : cast();
      })
      .Case([&](arith::BitcastOp bitcast) -> S {
        Type from = bitcast.getIn().getType();
        if (from.isF32() && type.isInteger(32))
          return "__float_as_int(" + given + ")";
        if (from.isInteger(32) && type.isF32())
          return "__int_as_float(" + given + ")";
        return "";
      })
      .Default([](Operation *) { return S(); });
}

/// The text of an op of arith, or nothing if it has none. Its value is one of
/// f32 if the result is narrow, unless the op is one of `isExact`.
std::string KernelPrinter::expression(Operation &op) {
  SmallVector<std::string> v;
  if (isExact(op))
    for (Value operand : op.getOperands())
      v.push_back(name(operand));
  else
    v = wideOperands(op);
  Type type = op.getResult(0).getType();
  std::string target = typeName(type);
  auto infix = [&](const char *text) { return v[0] + " " + text + " " + v[1]; };
  // Integers wrap around: unsigned arithmetic is defined to.
  std::string natural = type.isInteger(64)   ? "unsigned long long"
                        : type.isInteger(32) ? "unsigned"
                                             : "";
  auto wrapped = [&](const char *text) {
    if (natural.empty())
      return target + "(" + infix(text) + ")";
    return "(" + target + ")((" + natural + ")" + v[0] + " " + text + " (" +
           natural + ")" + v[1] + ")";
  };
  auto call = [&](const char *text) {
    return std::string(text) + "(" + v[0] + ", " + v[1] + ")";
  };
  using S = std::string;
  return llvm::TypeSwitch<Operation *, S>(&op)
      .Case([&](arith::ConstantOp constant) -> S {
        if (auto real = dyn_cast<FloatAttr>(constant.getValue()))
          return realText(real.getValue(), type);
        auto integer = dyn_cast<IntegerAttr>(constant.getValue());
        if (!integer)
          return "";
        if (type.isInteger(1))
          return integer.getValue().isZero() ? "false" : "true";
        return std::to_string(integer.getValue().getSExtValue()) +
               (type.isInteger(64) ? "ll" : "");
      })
      .Case<arith::AddFOp>([&](auto) { return infix("+"); })
      .Case<arith::SubFOp>([&](auto) { return infix("-"); })
      .Case<arith::MulFOp>([&](auto) { return infix("*"); })
      .Case<arith::DivFOp>(
          [&](auto) { return isFast(type) ? call("fastDivide") : infix("/"); })
      .Case<arith::DivSIOp>([&](auto) { return infix("/"); })
      .Case<arith::RemFOp>(
          [&](auto) { return call(type.isF64() ? "fmod" : "fmodf"); })
      .Case<arith::RemSIOp>([&](auto) { return infix("%"); })
      .Case<arith::FloorDivSIOp>([&](auto) { return call("floorDivide"); })
      .Case<arith::AddIOp>([&](auto) { return wrapped("+"); })
      .Case<arith::SubIOp>([&](auto) { return wrapped("-"); })
      .Case<arith::MulIOp>([&](auto) { return wrapped("*"); })
      .Case<arith::ShLIOp>([&](auto) { return wrapped("<<"); })
      .Case<arith::DivUIOp>([&](auto) { return wrapped("/"); })
      .Case<arith::RemUIOp>([&](auto) { return wrapped("%"); })
      .Case<arith::ShRUIOp>([&](auto) { return wrapped(">>"); })
      .Case<arith::ShRSIOp>([&](auto) { return infix(">>"); })
      .Case<arith::AndIOp>([&](auto) { return infix("&"); })
      .Case<arith::OrIOp>([&](auto) { return infix("|"); })
      .Case<arith::XOrIOp>([&](auto) { return infix("^"); })
      .Case<arith::MaximumFOp, arith::MaxSIOp>(
          [&](auto) { return call("Max()"); })
      .Case<arith::MinimumFOp, arith::MinSIOp>(
          [&](auto) { return call("Min()"); })
      .Case<arith::MaxNumFOp>(
          [&](auto) { return call(type.isF64() ? "fmax" : "fmaxf"); })
      .Case<arith::MinNumFOp>(
          [&](auto) { return call(type.isF64() ? "fmin" : "fminf"); })
      .Case<arith::NegFOp>([&](auto) { return "-" + v[0]; })
      .Case([&](arith::CmpIOp cmp) -> S {
        if (std::string text = columnComparison(cmp); !text.empty())
          return text;
        bool isUnsigned;
        StringRef text = comparison(cmp.getPredicate(), isUnsigned);
        if (!isUnsigned)
          return v[0] + " " + text.str() + " " + v[1];
        S u = cmp.getLhs().getType().isInteger(64) ? "(unsigned long long)"
                                                   : "(unsigned)";
        return u + v[0] + " " + text.str() + " " + u + v[1];
      })
      .Case([&](arith::CmpFOp cmp) {
        return compare(cmp.getPredicate(), v[0], v[1]);
      })
      .Case<arith::SelectOp>(
          [&](auto) { return v[0] + " ? " + v[1] + " : " + v[2]; })
      .Default([&](Operation *) { return conversion(op, v[0]); });
}

/// In 32 bits, of which a row's number is narrowed once: whether a column is
/// the one of the row. Nothing if `cmp` is no such comparison.
std::string KernelPrinter::columnComparison(arith::CmpIOp cmp) {
  if (!inPass || cmp.getPredicate() != arith::CmpIPredicate::eq)
    return "";
  auto inLoop = [](Value value) {
    Operation *from = value.getDefiningOp();
    return from && isa<PassOp>(from->getParentOp());
  };
  Value column = cmp.getLhs(), row = cmp.getRhs();
  if (!column.getDefiningOp<IndexOp>())
    std::swap(column, row);
  auto index = column.getDefiningOp<IndexOp>();
  if (!index || inLoop(row) || !row.getType().isInteger(64))
    return "";
  auto range = rangeOf(index.getMap().getResult(0), {rows, cols});
  if (!range || range->first < 0 || range->second > (int64_t(1) << 30))
    return "";
  return offset(index.getMap(), {}, vector == 1 ? "c" : "(c + j)") +
         " == asColumn(" + name(row) + ")";
}

/// The text of an op of math, or nothing if it has none.
std::string KernelPrinter::mathExpression(Operation &op) {
  Type type = op.getResult(0).getType();
  if (isa<math::ExpOp>(op) && isFast(type))
    return "fastExp(" + wideOperands(op).front() + ")";
  const char *function = llvm::TypeSwitch<Operation *, const char *>(&op)
                             .Case([](math::ExpOp) { return "exp"; })
                             .Case([](math::Exp2Op) { return "exp2"; })
                             .Case([](math::ExpM1Op) { return "expm1"; })
                             .Case([](math::LogOp) { return "log"; })
                             .Case([](math::Log2Op) { return "log2"; })
                             .Case([](math::Log1pOp) { return "log1p"; })
                             .Case([](math::TanhOp) { return "tanh"; })
                             .Case([](math::ErfOp) { return "erf"; })
                             .Case([](math::SinOp) { return "sin"; })
                             .Case([](math::CosOp) { return "cos"; })
                             .Case([](math::SqrtOp) { return "sqrt"; })
                             .Case([](math::RsqrtOp) { return "rsqrt"; })
                             .Case([](math::PowFOp) { return "pow"; })
                             .Case([](math::FmaOp) { return "fma"; })
                             .Case([](math::AbsFOp) { return "fabs"; })
                             .Case([](math::CopySignOp) { return "copysign"; })
                             .Case([](math::FloorOp) { return "floor"; })
                             .Case([](math::CeilOp) { return "ceil"; })
                             .Case([](math::TruncOp) { return "trunc"; })
                             .Case([](math::RoundOp) { return "round"; })
                             .Case([](math::RoundEvenOp) { return "rint"; })
                             .Case([](math::AbsIOp) { return "abs"; })
                             .Default([](Operation *) { return nullptr; });
  if (!function)
    return "";
  std::string text = function;
  if (type.isF32() || isNarrow(type))
    text += "f";
  return text + "(" + llvm::join(wideOperands(op), ", ") + ")";
}

LogicalResult KernelPrinter::printOp(Operation &op) {
  StringRef dialect = op.getName().getDialectNamespace();
  if (dialect == "arith" || dialect == "math") {
    std::string text = dialect == "arith" ? expression(op) : mathExpression(op);
    if (text.empty())
      return op.emitError("has no CUDA code");
    Type type = op.getResult(0).getType();
    if (isNarrow(type) && !isExact(op))
      text = rounded(type, text);
    define(op.getResult(0), text);
    return success();
  }
  std::string column = inPass ? vector == 1 ? "c" : "(c + j)" : "0";
  if (auto load = dyn_cast<LoadOp>(op)) {
    Type type = load.getValue().getType();
    std::string text;
    if (auto slot = kept.find(load.getMemory());
        slot != kept.end() && slot->second.registers)
      text = slot->second.name + element();
    else if (Held *row = readsHeld(load))
      text = heldElement(*row);
    else
      text = name(load.getMemory()) + "[" +
             offset(load.getMap(), load.getIndices(), column) + "]";
    if (load.getWhere())
      text = name(load.getWhere()) + " ? " + text +
             (type.isInteger(1) ? " != 0 : " : " : ") +
             identity(ReductionKind::Sum, type);
    if (Held *row = beginsHeld(load)) {
      std::string element = heldElement(*row);
      if (row->sharedAt) {
        std::string id = "v" + std::to_string(counter++);
        os << "const " << memoryName(type) << " " << id << " = " << text
           << ";\n";
        text = id;
      }
      os << element << " = " << text << ";\n";
      text = row->sharedAt ? text : element;
    }
    if (type.isInteger(1) && !load.getWhere())
      text += " != 0";
    define(load.getValue(), text);
    return success();
  }
  if (auto store = dyn_cast<StoreOp>(op)) {
    std::string value = name(store.getValue());
    if (auto slot = kept.find(store.getMemory());
        slot != kept.end() && slot->second.registers) {
      os << slot->second.name << element() << " = " << value << ";\n";
      return success();
    }
    if (Held *row = beginsHeld(store))
      os << heldElement(*row) << " = " << value << ";\n";
    os << (inPass ? ifOwn()
           : flat ? "if (c == 0)\n  "
                  : "if (" + thread() + " == 0" + (idle ? " && own" : "") +
                        ")\n  ")
       << name(store.getMemory()) << "[" << offset(store.getMap(), {}, column)
       << "] = " << value << ";\n";
    return success();
  }
  if (auto number = dyn_cast<IndexOp>(op)) {
    // Comparisons with it may have no use of the name.
    os << "[[maybe_unused]] ";
    define(number.getValue(), offset(number.getMap(), {}, column));
    return success();
  }
  if (auto philox = dyn_cast<PhiloxOp>(op)) {
    std::string i = offset(philox.getMap(), {}, column);
    if (philox.getBase())
      i = name(philox.getBase()) + " + " + i;
    define(philox.getBits(), "philox(" + i + ", " + name(philox.getSeed()) +
                                 ", " + drawId(philox) + ", " +
                                 name(philox.getStep()) + ")");
    return success();
  }
  // Kernels accumulate in f32 at least.
  if (isa<ReduceOp, ScanOp, AccumulateOp>(op) &&
      isNarrow(op.getOperand(0).getType()))
    return op.emitError("has no CUDA code for ") << op.getOperand(0).getType();
  if (auto reduce = dyn_cast<ReduceOp>(op)) {
    std::string sum = name(reduce.getResult());
    if (!softmaxSum.empty()) {
      os << softmaxTerms << "[j] = " << name(reduce.getValue()) << ";\n";
      return success();
    }
    os << sum << " = "
       << combine(reduce.getKind(), reduce.getType(), sum,
                  name(reduce.getValue()))
       << ";\n";
    return success();
  }
  if (auto accumulate = dyn_cast<AccumulateOp>(op)) {
    const Slot &slot = sums[accumulate];
    std::string sum = !slot.registers ? sumPlace(accumulate, column)
                      : inPass        ? slot.name + element()
                                      : slot.name + "[0][0]";
    os << ifOwn() << sum << " = "
       << combine(accumulate.getKind(), accumulate.getValue().getType(), sum,
                  name(accumulate.getValue()))
       << ";\n";
    return success();
  }
  if (isa<KeepOp, YieldOp>(op))
    return success();
  return op.emitError("has no CUDA code");
}
