//===- Placements.cpp - Shardings that users give to arguments ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Applies placements, which give shardings of arguments by name. The
/// dimensions of a placement are those of the framework's shape. Where a
/// dimension is stored as several factors (heads and their size), the first
/// factor that is divisible by the axis is sharded.
///
//===----------------------------------------------------------------------===//

#include "Annotator.h"
#include "cleave/Dialect/Graph/IR/Entry.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "llvm/ADT/edit_distance.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::spmd;

namespace {
class Placing {
public:
  Placing(Annotator &annotator, ArrayRef<Placement> placements)
      : annotator(annotator), mesh(annotator.getMesh()),
        placements(placements) {}

  LogicalResult run();

private:
  LogicalResult checkAxes(const Placement &placement);
  LogicalResult place(const Placement &placement, func::FuncOp function,
                      BlockArgument argument);
  /// Reads the shardings of `placement` for a tensor of framework shape
  /// `shape`. Returns false, and sets `why`, where they do not fit it.
  bool readDims(const Placement &placement, BlockArgument argument,
                ArrayRef<int64_t> shape, Sharding &sharding, std::string &why);
  std::string closestName(StringRef pattern);

  Annotator &annotator;
  const Mesh &mesh;
  ArrayRef<Placement> placements;
  /// The placement of each argument, by the name of the argument.
  llvm::StringMap<const Placement *> given;
};
} // namespace

static StringRef nameOf(func::FuncOp function, BlockArgument argument) {
  return graph::getArgString(function, argument.getArgNumber(),
                             graph::kNameAttr);
}

/// Whether `placement` matches the name of `argument`, or an alias of it (the
/// other names of a tied parameter).
static bool names(const Placement &placement, func::FuncOp function,
                  BlockArgument argument) {
  // Optimizer state follows its parameter.
  if (graph::hasRole(function, argument.getArgNumber(), "state"))
    return false;
  if (placement.fits(nameOf(function, argument)))
    return true;
  auto aliases = function.getArgAttrOfType<ArrayAttr>(argument.getArgNumber(),
                                                      graph::kAliasesAttr);
  return aliases &&
         llvm::any_of(aliases.getAsValueRange<StringAttr>(),
                      [&](StringRef alias) { return placement.fits(alias); });
}

LogicalResult Placing::checkAxes(const Placement &placement) {
  for (const auto &axes : placement.dims)
    for (const std::string &axis : axes) {
      if (axis == kPipelineAxis)
        return annotator.getModule().emitError("placement '")
               << placement.str() << "' names axis \"" << axis
               << "\", whose positions are stages of a pipeline: shard over "
               << "another axis";
      if (!mesh.find(axis)) {
        std::string known;
        for (const MeshAxis &other : mesh.axes)
          known += (known.empty() ? "\"" : ", \"") + other.name + "\"";
        return annotator.getModule().emitError("placement '")
               << placement.str() << "' names axis \"" << axis
               << "\", which the mesh does not have: it has " << known;
      }
    }
  return success();
}

std::string Placing::closestName(StringRef pattern) {
  std::string best;
  unsigned least = ~0u;
  for (func::FuncOp function : annotator.entries())
    for (BlockArgument argument : function.getArguments()) {
      if (graph::hasRole(function, argument.getArgNumber(), "state"))
        continue;
      StringRef name = nameOf(function, argument);
      // A pattern may match the end of a name after a dot.
      for (StringRef end = name; !end.empty(); end = end.split('.').second) {
        unsigned distance = pattern.edit_distance(end);
        if (distance < least) {
          least = distance;
          best = name.str();
        }
      }
    }
  return best;
}

bool Placing::readDims(const Placement &placement, BlockArgument argument,
                       ArrayRef<int64_t> shape, Sharding &sharding,
                       std::string &why) {
  ArrayRef<int64_t> stored =
      cast<RankedTensorType>(argument.getType()).getShape();
  if (placement.dims.size() != shape.size()) {
    why = llvm::formatv("it has {0} dimensions, not {1}", shape.size(),
                        placement.dims.size());
    return false;
  }
  size_t next = 0;
  for (auto [dim, axes] : llvm::enumerate(placement.dims)) {
    // The stored dimensions that are factors of this one.
    size_t first = next;
    int64_t elements = 1;
    while (next < stored.size() && (next == first || elements < shape[dim]))
      elements *= stored[next++];
    for (const std::string &axis : axes) {
      int64_t parts = mesh.find(axis)->size;
      auto fits = [&](size_t i) {
        return stored[i] / mesh.size(sharding.dims[i]) % parts == 0;
      };
      size_t factor = first;
      while (factor < next && !fits(factor))
        ++factor;
      if (factor == next) {
        // The message reports the major one of several factors.
        int64_t rest = stored[first] / mesh.size(sharding.dims[first]);
        why = llvm::formatv("dimension {0} has size {1}, not divisible by the "
                            "{2} positions of axis \"{3}\"",
                            dim, next - first > 1 ? stored[first] : shape[dim],
                            parts, axis);
        why += ": ";
        if (rest > 1)
          why += "use " + partsThatFit(rest) + ", or ";
        why += "replicate the dimension ('-')";
        return false;
      }
      sharding.dims[factor].push_back({mesh.find(axis)->name});
    }
  }
  return true;
}

LogicalResult Placing::place(const Placement &placement, func::FuncOp function,
                             BlockArgument argument) {
  StringRef name = nameOf(function, argument);
  auto [known, isNew] = given.try_emplace(name, &placement);
  if (!isNew) {
    if (known->second->dims == placement.dims)
      return success();
    return emitError(argument.getLoc())
           << "\"" << name << "\" matches two placements, '"
           << known->second->str() << "' and '" << placement.str()
           << "': change one of the patterns";
  }
  SmallVector<int64_t> shape(
      cast<RankedTensorType>(argument.getType()).getShape());
  if (auto framework = function.getArgAttrOfType<DenseI64ArrayAttr>(
          argument.getArgNumber(), graph::kFrameworkShapeAttr))
    shape.assign(framework.asArrayRef().begin(), framework.asArrayRef().end());
  Sharding sharding = Sharding::replicated(
      cast<RankedTensorType>(argument.getType()).getRank());
  std::string why;
  if (!readDims(placement, argument, shape, sharding, why)) {
    if (placement.hint) {
      mlir::emitRemark(argument.getLoc())
          << "\"" << name << "\" is not placed as '" << placement.str()
          << "': " << why;
      given.erase(known);
      return success();
    }
    return emitError(argument.getLoc())
           << "\"" << name << "\" cannot be placed as '" << placement.str()
           << "': " << why;
  }
  annotator.place(argument, sharding);
  return success();
}

LogicalResult Placing::run() {
  for (const Placement &placement : placements) {
    if (failed(checkAxes(placement)))
      return failure();
    bool found = false;
    for (func::FuncOp function : annotator.entries())
      for (BlockArgument argument : function.getArguments())
        if (names(placement, function, argument)) {
          found = true;
          if (failed(place(placement, function, argument)))
            return failure();
        }
    if (!found && !placement.hint)
      return annotator.getModule().emitError("placement '")
             << placement.str() << "' matches no parameter and no input; the "
             << "closest name is \"" << closestName(placement.pattern) << "\"";
  }
  return success();
}

LogicalResult cleave::spmd::applyPlacements(Annotator &annotator,
                                            ArrayRef<Placement> placements) {
  return Placing(annotator, placements).run();
}
