//===- CollectivePlaces.cpp - Where and why collectives are ---------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CollectivePlaces.h"
#include "ReportText.h"
#include "llvm/Support/FormatVariadic.h"
#include <map>
#include <tuple>

using namespace cleave;
using llvm::StringRef;
namespace json = llvm::json;

/// Puts the number of layers in front of a name in which they are folded:
/// `"h.*.w" is sharded` becomes `4 x "h.*.w" is sharded`.
static std::string countLayers(StringRef text, size_t layers) {
  size_t star = text.find(".*.");
  if (star == StringRef::npos)
    return text.str();
  size_t begin = text.rfind(' ', star) + 1; // 0 if there is none
  return (text.take_front(begin) + llvm::Twine(layers) + " x " +
          text.drop_front(begin))
      .str();
}

std::string CollectivePlace::describe() const {
  std::string at = line, why = cause;
  // A parameter stands for the line, and may be in the cause already.
  if (StringRef(cause).contains("\"" + line + "\""))
    at.clear();
  if (layers.size() > 1) {
    at = countLayers(foldLayers(at), layers.size());
    why = countLayers(foldLayers(why), layers.size());
  }
  return llvm::formatv("{0} {1} over {2}, {3}{4}{5}", count, kind, axes,
                       formatBytes(bytes), at.empty() ? at : " at " + at,
                       why.empty() ? why : ", because " + why);
}

std::vector<CollectivePlace> cleave::collectivePlaces(const json::Object &sent,
                                                      bool fold) {
  std::vector<CollectivePlace> places;
  std::map<std::tuple<std::string, std::string, std::string, std::string>,
           size_t>
      known;
  const json::Array *collectives = sent.getArray("collectives");
  if (!collectives)
    return places;
  for (const json::Value &value : *collectives) {
    const json::Object &own = *value.getAsObject();
    CollectivePlace place{textOf(own, "kind"),
                          textOf(own, "axes"),
                          textOf(own, "line"),
                          textOf(own, "cause"),
                          own.getInteger("count").value_or(0),
                          number(own, "bytes"),
                          {}};
    std::string layer = layerOf(place.line + " " + place.cause);
    if (fold && !layer.empty())
      place.layers.insert(layer);
    auto [it, fresh] = known.try_emplace(
        {place.kind, place.axes, fold ? foldLayers(place.line) : place.line,
         fold ? foldLayers(place.cause) : place.cause},
        places.size());
    if (fresh) {
      places.push_back(std::move(place));
      continue;
    }
    CollectivePlace &first = places[it->second];
    first.count += place.count;
    first.bytes += place.bytes;
    first.layers.insert(place.layers.begin(), place.layers.end());
  }
  return places;
}
