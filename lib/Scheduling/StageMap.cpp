//===- StageMap.cpp - The pipeline position of each stage -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Scheduling/StageMap.h"
#include "llvm/ADT/Twine.h"

using namespace cleave::scheduling;

static constexpr std::pair<llvm::StringLiteral, StageMap::Kind> kNames[] = {
    {"modular", StageMap::Kind::Modular},
    {"v", StageMap::Kind::V},
    {"bidirectional", StageMap::Kind::Bidirectional}};

std::optional<StageMap> StageMap::parse(llvm::StringRef name, int64_t devices,
                                        std::string &error) {
  if (devices < 1) {
    error = "the number of pipeline positions must be positive, got " +
            std::to_string(devices);
    return std::nullopt;
  }
  for (auto [known, kind] : kNames)
    if (name == known)
      return StageMap{kind, devices};
  error =
      ("unknown stage map '" + name + "'; write modular, v or bidirectional")
          .str();
  return std::nullopt;
}

llvm::StringRef StageMap::name() const {
  for (auto [name, known] : kNames)
    if (kind == known)
      return name;
  return "";
}

std::optional<std::string> StageMap::check(int64_t stages) const {
  bool fits = kind == Kind::Bidirectional
                  ? stages == devices
                  : stages >= devices && stages % devices == 0;
  if (devices >= 1 && fits)
    return std::nullopt;
  return std::to_string(stages) + " stages at " + std::to_string(devices) +
         " pipeline positions: the number of stages must be " +
         (kind == Kind::Bidirectional ? "equal to" : "divisible by") +
         " the number of positions; cut the model accordingly";
}

int64_t StageMap::device(int64_t stage, int64_t microBatch) const {
  int64_t position = stage % devices;
  bool reversed = kind == Kind::V ? stage / devices % 2 == 1
                                  : kind == Kind::Bidirectional &&
                                        microBatch >= 0 && microBatch % 2 == 1;
  return reversed ? devices - 1 - position : position;
}

llvm::SmallVector<int64_t, 2> StageMap::devicesOf(int64_t stage) const {
  llvm::SmallVector<int64_t, 2> result{device(stage)};
  if (kind == Kind::Bidirectional && device(stage, 1) != result.front())
    result.push_back(device(stage, 1));
  return result;
}
