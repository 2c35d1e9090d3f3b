//===- Compressors.cpp - The table of compressors -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Compressor.h"
#include "cleave/Dialect/Spmd/Transforms/Compression.h"
#include <cmath>

using namespace cleave;
using namespace cleave::spmd;
using llvm::StringRef;

static llvm::ArrayRef<const CompressorKind *> compressors() {
  static const CompressorKind *const all[] = {
      &powerSgdCompressor(), &topKCompressor(), &thresholdCompressor(),
      &int8Compressor(), &oneBitCompressor()};
  return all;
}

CompressorSetting cleave::spmd::smallestSetting() {
  return {"smallest", 256.0, "an integer that is not negative",
          [](double x) { return x >= 0 && x == static_cast<int64_t>(x); }};
}

CompressorSetting cleave::spmd::unitSetting() {
  return {"unit", 0.0, "tensor or shard", nullptr, {"tensor", "shard"}};
}

std::string cleave::spmd::splitUnit(llvm::ArrayRef<int64_t> shape,
                                    llvm::ArrayRef<int64_t> shard) {
  if (shape == shard)
    return "";
  return "its elements are chosen from the whole tensor, of which a rank holds "
         "a shard: use unit=shard, which chooses from each shard on its own";
}

std::string cleave::spmd::compressorNames() {
  std::string names;
  for (const CompressorKind *kind : compressors())
    names += (names.empty() ? "" : ", ") + kind->name.str();
  return names;
}

std::string cleave::spmd::tooSmall(llvm::ArrayRef<int64_t> shape,
                                   int64_t smallest) {
  return mlir::ShapedType::getNumElements(shape) >= smallest
             ? ""
             : "of fewer than " + std::to_string(smallest) + " elements";
}

/// The settings of `kind`, as text: "rank=<number>, min_rate=2".
static std::string settingsOf(const CompressorKind &kind) {
  std::string text;
  for (const CompressorSetting &setting : kind.settings)
    text += (text.empty() ? "" : ", ") + setting.name.str();
  return text;
}

/// Reads "name=number" into `settings`; returns what is wrong, or "".
static std::string readSetting(const CompressorKind &kind, StringRef text,
                               CompressorSettings &settings) {
  auto [name, number] = text.split('=');
  const CompressorSetting *setting =
      llvm::find_if(kind.settings, [name = name](const auto &known) {
        return known.name == name;
      });
  if (setting == kind.settings.end())
    return ("compression '" + kind.name + "' has no setting '" + name +
            "'; it has " + settingsOf(kind))
        .str();
  double value = 0;
  auto named = llvm::find(setting->names, number);
  if (named != setting->names.end())
    value = named - setting->names.begin();
  else if (!setting->names.empty() || number.getAsDouble(value) ||
           !std::isfinite(value) || !setting->isValid(value))
    return (name + " of compression '" + kind.name + "' must be " +
            setting->must + ", got '" + number + "'")
        .str();
  if (!settings.try_emplace(name, value).second)
    return (name + " of compression '" + kind.name + "' is given twice").str();
  return "";
}

std::unique_ptr<Compressor> cleave::spmd::createCompressor(StringRef text,
                                                           std::string &error) {
  llvm::SmallVector<StringRef> parts;
  text.split(parts, ',');
  auto found = llvm::find_if(compressors(), [&](const CompressorKind *kind) {
    return kind->name == parts[0];
  });
  if (found == compressors().end()) {
    error = ("unknown compression '" + parts[0] + "'; there are " +
             compressorNames())
                .str();
    return nullptr;
  }
  CompressorSettings settings;
  for (StringRef part : llvm::drop_begin(parts))
    if (error = readSetting(**found, part, settings); !error.empty())
      return nullptr;
  for (const CompressorSetting &setting : (*found)->settings) {
    if (settings.contains(setting.name))
      continue;
    if (!setting.value) {
      error = ("compression '" + (*found)->name + "' needs " + setting.name +
               ", which must be " + setting.must)
                  .str();
      return nullptr;
    }
    settings[setting.name] = *setting.value;
  }
  return (*found)->create(settings);
}

std::string cleave::spmd::compressionProblem(StringRef text) {
  std::string error;
  createCompressor(text, error);
  return error;
}
