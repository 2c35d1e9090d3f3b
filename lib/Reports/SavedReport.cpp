//===- SavedReport.cpp - What forward saves, by block ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReportParts.h"
#include "ReportText.h"
#include "cleave/Dialect/Pipe/IR/PipeOps.h"
#include "mlir/IR/BuiltinAttributes.h"
#include <map>

using namespace mlir;
using namespace cleave;
namespace json = llvm::json;

namespace {
/// What one block saves.
struct Saved {
  int64_t bytes = 0, masks = 0;
  struct Tensor {
    int64_t bytes = 0, count = 0;
    bool operator==(const Tensor &) const = default;
  };
  /// By op and line.
  std::map<std::pair<std::string, std::string>, Tensor> tensors;

  bool operator==(const Saved &) const = default;
};
} // namespace

json::Array cleave::savedByBlock(Operation *program) {
  auto items = program->getAttrOfType<ArrayAttr>(pipe::kSavedAttr);
  if (!items)
    return {};
  std::map<int64_t, Saved> blocks;
  for (auto item : items.getAsRange<DictionaryAttr>()) {
    auto number = [&](StringRef name) {
      return cast<IntegerAttr>(item.get(name)).getInt();
    };
    StringRef op = cast<StringAttr>(item.get("op")).getValue();
    Saved &saved = blocks[number("block")];
    if (op == pipe::kMaskOp) {
      saved.masks += number("bytes");
      continue;
    }
    saved.bytes += number("bytes");
    std::string line =
        foldLayers(cast<StringAttr>(item.get("line")).getValue());
    Saved::Tensor &tensor = saved.tensors[{op.str(), line}];
    tensor.bytes += number("bytes");
    ++tensor.count;
  }
  std::vector<std::pair<std::vector<int64_t>, Saved>> groups;
  for (auto &[block, saved] : blocks) {
    auto same = llvm::find_if(groups, [&](const auto &group) {
      return !group.first.empty() && group.second == saved;
    });
    if (block >= 0 && same != groups.end())
      same->first.push_back(block);
    else
      groups.push_back(
          {block < 0 ? std::vector<int64_t>() : std::vector<int64_t>{block},
           saved});
  }
  json::Array result;
  for (const auto &[numbers, saved] : groups) {
    json::Array tensors;
    for (const auto &[key, tensor] : saved.tensors)
      tensors.push_back(json::Object{{"bytes", tensor.bytes},
                                     {"count", tensor.count},
                                     {"op", key.first},
                                     {"line", key.second}});
    result.push_back(json::Object{{"blocks", json::Array(numbers)},
                                  {"bytes", saved.bytes},
                                  {"mask_bytes", saved.masks},
                                  {"tensors", std::move(tensors)}});
  }
  return result;
}
