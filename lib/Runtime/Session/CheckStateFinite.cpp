//===- CheckStateFinite.cpp - Saving refuses a state that is not finite ---===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "cleave/Runtime/Session/Session.h"
#include "llvm/ADT/STLExtras.h"

#include <cstring>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;

/// The number of elements in which all bits of `exponent` are set: NaN and
/// infinities. In e4m3 it is all bits but the sign: only NaN.
template <typename Bits>
static int64_t countNonFinite(const char *data, int64_t size, Bits exponent) {
  int64_t count = size / static_cast<int64_t>(sizeof(Bits)), found = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * static_cast<int64_t>(sizeof(Bits)),
                sizeof(Bits));
    found += (bits & exponent) == exponent;
  }
  return found;
}

static int64_t countNonFinite(DType dtype, const char *data, int64_t size) {
  switch (dtype) {
  case DType::F64:
    return countNonFinite<uint64_t>(data, size, 0x7ff0000000000000);
  case DType::F32:
    return countNonFinite<uint32_t>(data, size, 0x7f800000);
  case DType::F16:
    return countNonFinite<uint16_t>(data, size, 0x7c00);
  case DType::BF16:
    return countNonFinite<uint16_t>(data, size, 0x7f80);
  case DType::F8E4M3:
    return countNonFinite<uint8_t>(data, size, 0x7f);
  case DType::F8E5M2:
    return countNonFinite<uint8_t>(data, size, 0x7c);
  default:
    return 0;
  }
}

Error Session::checkFinite() const {
  if (Error error = finishUpdate())
    return error;
  constexpr int most = 3;
  int count = 0;
  std::string own;
  std::vector<char> copy;
  for (const Tensor &tensor : getProgram().tensors) {
    // A constant of the model may be infinite.
    if (tensor.role != Role::Parameter && tensor.role != Role::State &&
        !tensor.written)
      continue;
    int64_t size = localBytes(getProgram().mesh, tensor);
    for (const std::unique_ptr<Rank> &rank : ranks) {
      if (!rank->holds(tensor))
        continue;
      Expected<const char *> data = rank->view(tensor, copy);
      if (!data)
        return data.takeError();
      int64_t found = countNonFinite(tensor.dtype, *data, size);
      if (found == 0)
        continue;
      if (++count <= most)
        own += (own.empty() ? "" : ", ") + roleName(tensor.role).str() + " '" +
               tensor.name + "' (" + std::to_string(found) + " of " +
               std::to_string(size / byteSize(tensor.dtype)) + " elements)";
      break;
    }
  }
  if (count > most)
    own += " and " + std::to_string(count - most) + " more";
  Expected<std::vector<std::string>> all = gather(own);
  if (!all)
    return all.takeError();
  for (const std::string &text : *all)
    if (!text.empty())
      return makeError("not finite: " + text);
  return Error::success();
}
