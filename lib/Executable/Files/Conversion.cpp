//===- Conversion.cpp - Element types of files ----------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Files/Conversion.h"
#include "cleave/Support/NarrowFloat.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

using namespace cleave::runtime;
using cleave::BFloat, cleave::Float8E4M3, cleave::Float8E5M2, cleave::Half;

//===----------------------------------------------------------------------===//
// Floats
//===----------------------------------------------------------------------===//

static double widen(double value) { return value; }
static float widen(float value) { return value; }

template <typename T> static void narrow(T value, double &to) { to = value; }
template <typename T> static void narrow(T value, float &to) {
  to = static_cast<float>(value);
}
template <typename T> static void narrow(T value, BFloat &to) {
  to = cleave::toBFloat(static_cast<float>(value));
}
template <typename T> static void narrow(T value, Half &to) {
  to = cleave::toHalf(static_cast<float>(value));
}

static bool isInfinite(double value) { return std::isinf(value); }
static bool isInfinite(float value) { return std::isinf(value); }
static bool isInfinite(BFloat value) { return (value.bits & 0x7fff) == 0x7f80; }
static bool isInfinite(Half value) { return (value.bits & 0x7fff) == 0x7c00; }

//===----------------------------------------------------------------------===//
// All types
//===----------------------------------------------------------------------===//

namespace {

/// One byte: zero is false.
struct Boolean {
  uint8_t byte;
};

template <typename T>
inline constexpr bool isFloat =
    std::is_floating_point_v<T> || std::is_same_v<T, Half> ||
    std::is_same_v<T, BFloat>;

/// Floats of 8 bits have scales, which are other tensors: they are copied, and
/// never become floats of another type.
template <typename T>
inline constexpr bool isScaled =
    std::is_same_v<T, Float8E4M3> || std::is_same_v<T, Float8E5M2>;

/// The number of significant bits and the largest exponent.
template <typename T> struct Range;
template <> struct Range<double> {
  static constexpr int bits = 53, exponent = 1023;
};
template <> struct Range<float> {
  static constexpr int bits = 24, exponent = 127;
};
template <> struct Range<BFloat> {
  static constexpr int bits = 8, exponent = 127;
};
template <> struct Range<Half> {
  static constexpr int bits = 11, exponent = 15;
};

} // namespace

template <typename T> static T valueOf(T value) { return value; }
static uint8_t valueOf(Boolean value) { return value.byte != 0; }

/// Whether `value` is one of type `To`.
template <typename To, typename From> static bool fits(From value) {
  if constexpr (std::is_same_v<To, Boolean>)
    return value == 0 || value == 1;
  else if constexpr (std::is_same_v<From, uint64_t>)
    return value <= static_cast<uint64_t>(std::numeric_limits<To>::max());
  else
    return static_cast<int64_t>(value) >= std::numeric_limits<To>::min() &&
           static_cast<int64_t>(value) <= std::numeric_limits<To>::max();
}

template <typename From, typename To>
static int64_t convertAll(const char *from, char *to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From before;
    To after;
    std::memcpy(&before, from + i * int64_t(sizeof(From)), sizeof(From));
    if constexpr (isFloat<From>) {
      narrow(widen(before), after);
      if (isInfinite(after) && !isInfinite(before))
        return i;
    } else {
      auto value = valueOf(before);
      if (!fits<To>(value))
        return i;
      if constexpr (std::is_same_v<To, Boolean>)
        after.byte = static_cast<uint8_t>(value);
      else
        after = static_cast<To>(value);
    }
    if (to)
      std::memcpy(to + i * int64_t(sizeof(To)), &after, sizeof(To));
  }
  return -1;
}

template <typename T>
static int64_t copyAll(const char *from, char *to, int64_t count) {
  if (to)
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
  return -1;
}

/// Whether each value of `From` has one in `To`, rounded or not.
template <typename From, typename To> static constexpr bool isTotal() {
  if constexpr (isFloat<From>)
    return Range<From>::exponent < Range<To>::exponent ||
           (Range<From>::exponent == Range<To>::exponent &&
            Range<From>::bits <= Range<To>::bits);
  else if constexpr (std::is_same_v<From, Boolean>)
    return true;
  else if constexpr (std::is_same_v<To, Boolean>)
    return false;
  else
    return sizeof(From) < sizeof(To) ||
           (sizeof(From) == sizeof(To) && std::is_signed_v<From>);
}

template <typename From, typename To>
static std::optional<Conversion> between() {
  if constexpr (std::is_same_v<From, To>)
    return Conversion{sizeof(From), sizeof(To), true, true, copyAll<From>};
  else if constexpr (isScaled<From> || isScaled<To>)
    return std::nullopt;
  else if constexpr (isFloat<From> == isFloat<To>)
    return Conversion{sizeof(From), sizeof(To), false, isTotal<From, To>(),
                      convertAll<From, To>};
  else
    return std::nullopt;
}

template <typename From> static std::optional<Conversion> to(DType type) {
  switch (type) {
  case DType::F64:
    return between<From, double>();
  case DType::F32:
    return between<From, float>();
  case DType::F16:
    return between<From, Half>();
  case DType::BF16:
    return between<From, BFloat>();
  case DType::F8E4M3:
    return between<From, Float8E4M3>();
  case DType::F8E5M2:
    return between<From, Float8E5M2>();
  case DType::I64:
    return between<From, int64_t>();
  case DType::I32:
    return between<From, int32_t>();
  case DType::I8:
    return between<From, int8_t>();
  case DType::I1:
    return between<From, Boolean>();
  }
  return std::nullopt;
}

std::optional<Conversion> Conversion::find(llvm::StringRef dtype, DType type) {
  struct Row {
    llvm::StringLiteral name;
    std::optional<Conversion> (*find)(DType);
  };
  static constexpr Row rows[] = {
      {"F64", to<double>},         {"F32", to<float>},
      {"F16", to<Half>},           {"BF16", to<BFloat>},
      {"F8_E4M3", to<Float8E4M3>}, {"F8_E5M2", to<Float8E5M2>},
      {"I64", to<int64_t>},        {"U64", to<uint64_t>},
      {"I32", to<int32_t>},        {"U32", to<uint32_t>},
      {"I16", to<int16_t>},        {"U16", to<uint16_t>},
      {"I8", to<int8_t>},          {"U8", to<uint8_t>},
      {"BOOL", to<Boolean>}};
  for (const Row &row : rows)
    if (row.name == dtype)
      return row.find(type);
  return std::nullopt;
}
