//===- TensorFile.cpp - Named tensors in a file ---------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Interpreter/TensorFile.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Executable/Files/WeightFiles.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/MLIRContext.h"
#include <cstring>

using namespace mlir;
using namespace cleave;
using runtime::DType;

/// The element type of the dtype `name` of a file, or null.
static Type elementType(StringRef name, MLIRContext *context) {
  auto integer = [&](unsigned bits) -> Type {
    return IntegerType::get(context, bits);
  };
  return llvm::StringSwitch<Type>(name)
      .Case("F64", Float64Type::get(context))
      .Case("F32", Float32Type::get(context))
      .Case("F16", Float16Type::get(context))
      .Case("BF16", BFloat16Type::get(context))
      .Case("F8_E4M3", Float8E4M3FNType::get(context))
      .Case("F8_E5M2", Float8E5M2Type::get(context))
      .Case("I64", integer(64))
      .Case("I32", integer(32))
      .Cases({"U64", "U32", "U16", "I16", "U8"}, integer(64))
      .Case("I8", integer(8))
      .Case("BOOL", integer(1))
      .Default(Type());
}

static DType fileType(Type element) {
  if (element.isF64())
    return DType::F64;
  if (element.isF32())
    return DType::F32;
  if (element.isF16())
    return DType::F16;
  if (element.isBF16())
    return DType::BF16;
  if (isa<Float8E4M3FNType>(element))
    return DType::F8E4M3;
  if (isa<Float8E5M2Type>(element))
    return DType::F8E5M2;
  switch (element.getIntOrFloatBitWidth()) {
  case 64:
    return DType::I64;
  case 32:
    return DType::I32;
  case 8:
    return DType::I8;
  default:
    return DType::I1;
  }
}

/// The low `width` bytes at `bytes`, little-endian.
static uint64_t readBits(const char *bytes, int64_t width) {
  uint64_t bits = 0;
  for (int64_t i = 0; i < width; ++i)
    bits |= uint64_t(uint8_t(bytes[i])) << (8 * i);
  return bits;
}

static double readFloat(const char *bytes, Type type) {
  unsigned width = type.getIntOrFloatBitWidth();
  APFloat value(cast<FloatType>(type).getFloatSemantics(),
                APInt(width, readBits(bytes, width / 8)));
  bool losesInfo;
  value.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven,
                &losesInfo);
  return value.convertToDouble();
}

static int64_t readInt(const char *bytes, Type type) {
  if (type.isInteger(1))
    return *bytes != 0;
  int shift = 64 - type.getIntOrFloatBitWidth();
  return int64_t(readBits(bytes, 8 - shift / 8) << shift) >> shift;
}

std::optional<NamedTensors> cleave::readTensorFile(StringRef path,
                                                   MLIRContext *context,
                                                   std::string &error) {
  auto files = runtime::WeightFiles::open(path);
  if (!files) {
    error = llvm::toString(files.takeError());
    return std::nullopt;
  }
  auto fail = [&](StringRef name, const Twine &what) {
    error = (path + ": tensor '" + name + "' " + what).str();
    return std::nullopt;
  };
  NamedTensors tensors;
  for (const std::string &name : files->getNames()) {
    auto [file, entry] = files->find(name);
    Type type = elementType(entry->dtype, context);
    if (!type)
      return fail(name,
                  "has dtype " + entry->dtype + ", which is not supported");
    // Integers that no program has become those of 64 bits.
    RefTensor tensor(entry->shape, type);
    runtime::Conversion conversion =
        *runtime::Conversion::find(entry->dtype, fileType(type));
    std::vector<char> data(tensor.size() * conversion.toBytes);
    llvm::Expected<int64_t> wrong =
        file->convert(*entry, conversion, data.data());
    if (!wrong) {
      error = (path + ": " + llvm::toString(wrong.takeError())).str();
      return std::nullopt;
    }
    if (*wrong >= 0)
      return fail(name, "holds values that 64 bits with a sign cannot");
    for (int64_t i = 0, e = tensor.size(); i < e; ++i) {
      const char *bytes = data.data() + i * conversion.toBytes;
      if (tensor.isFloat())
        tensor.floats[i] = readFloat(bytes, type);
      else
        tensor.ints[i] = readInt(bytes, type);
    }
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

/// The elements of `tensor` as bytes of elements of `type`.
static std::vector<char> encode(const RefTensor &tensor, Type type) {
  int64_t width = elementBytes(type);
  std::vector<char> bytes;
  bytes.reserve(tensor.size() * width);
  auto append = [&](uint64_t bits) {
    for (int64_t i = 0; i < width; ++i)
      bytes.push_back(static_cast<char>(bits >> (8 * i)));
  };
  for (double value : tensor.floats) {
    // APFloat converts what is too large for f8E4M3FN to NaN.
    APFloat converted(roundTo(type, value));
    bool losesInfo;
    converted.convert(cast<FloatType>(type).getFloatSemantics(),
                      APFloat::rmNearestTiesToEven, &losesInfo);
    append(converted.bitcastToAPInt().getZExtValue());
  }
  for (int64_t value : tensor.ints)
    append(uint64_t(value));
  return bytes;
}

std::string cleave::writeTensorFile(StringRef path, const NamedTensors &tensors,
                                    Precision precision) {
  std::vector<std::vector<char>> data;
  std::vector<runtime::SafetensorsItem> items;
  for (auto &[name, tensor] : tensors) {
    Type type = tensor.element;
    if (tensor.isFloat() && precision == Precision::Exact)
      type = Float64Type::get(type.getContext());
    data.push_back(encode(tensor, type));
    items.push_back(
        {name, fileType(type),
         std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end()),
         data.back().data()});
  }
  return llvm::toString(runtime::writeSafetensors(path, items));
}
