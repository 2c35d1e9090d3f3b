//===- AlikeParts.cpp - Parts with the same body --------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Dialect/Exec/Transforms/AlikeParts.h"
#include "mlir/IR/AttrTypeSubElements.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/OperationSupport.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::exec;

/// Equal for parts that are alike. Operands are left to the comparison.
static llvm::hash_code hashOf(func::FuncOp part) {
  llvm::hash_code hash = llvm::hash_combine(
      part.getFunctionType(), part.getArgAttrsAttr(), part.getResAttrsAttr());
  for (Operation &op : part.front())
    hash =
        llvm::hash_combine(hash, OperationEquivalence::computeHash(
                                     &op, OperationEquivalence::ignoreHashValue,
                                     OperationEquivalence::ignoreHashValue,
                                     OperationEquivalence::IgnoreLocations));
  return hash;
}

/// The locations of a part, in the order of arguments and ops.
static SmallVector<Attribute> locationsOf(func::FuncOp part) {
  SmallVector<Attribute> locations;
  part.getBody().walk<WalkOrder::PreOrder>([&](Block *block) {
    for (BlockArgument argument : block->getArguments())
      locations.push_back(argument.getLoc());
    for (Operation &op : *block)
      locations.push_back(op.getLoc());
  });
  return locations;
}

bool AlikeParts::areAlike(func::FuncOp other, func::FuncOp part,
                          Locations &locations) {
  if (other.getFunctionType() != part.getFunctionType() ||
      other.getArgAttrsAttr() != part.getArgAttrsAttr() ||
      other.getResAttrsAttr() != part.getResAttrsAttr() ||
      !OperationEquivalence::isRegionEquivalentTo(
          &other.getBody(), &part.getBody(),
          OperationEquivalence::IgnoreLocations))
    return false;
  locations.clear();
  Locations back;
  for (auto [from, to] : llvm::zip_equal(locationsOf(other), locationsOf(part)))
    if (locations.try_emplace(from, to).first->second != to ||
        back.try_emplace(to, from).first->second != from)
      return false;
  return true;
}

AlikeParts::AlikeParts(ArrayRef<func::FuncOp> parts) {
  llvm::DenseMap<size_t, SmallVector<func::FuncOp, 1>> known;
  for (func::FuncOp part : parts) {
    if (part.isExternal())
      continue;
    SmallVector<func::FuncOp, 1> &others = known[hashOf(part)];
    Locations locations;
    auto like = llvm::find_if(others, [&](func::FuncOp other) {
      return areAlike(other, part, locations);
    });
    if (like == others.end())
      others.push_back(part);
    else
      first[part] = {*like, std::move(locations)};
  }
}

func::FuncOp AlikeParts::firstLike(func::FuncOp part) const {
  auto like = first.find(part);
  return like == first.end() ? part : like->second.other;
}

void AlikeParts::copyBodyTo(func::FuncOp part) const {
  auto found = first.find(part);
  if (found == first.end())
    return;
  const Like &like = found->second;
  // What passes join is joined of the locations of this part.
  AttrTypeReplacer replacer;
  replacer.addReplacement(
      [&](LocationAttr location) -> std::optional<Attribute> {
        auto it = like.locations.find(location);
        if (it == like.locations.end())
          return std::nullopt;
        return it->second;
      });
  auto here = [&](Location location) {
    auto it = like.locations.find(location);
    return cast<LocationAttr>(
        it != like.locations.end() ? it->second : replacer.replace(location));
  };
  IRMapping mapping;
  Region body;
  func::FuncOp other = like.other;
  other.getBody().cloneInto(&body, mapping);
  body.walk<WalkOrder::PreOrder>([&](Block *block) {
    for (BlockArgument argument : block->getArguments())
      argument.setLoc(here(argument.getLoc()));
    for (Operation &op : *block)
      op.setLoc(here(op.getLoc()));
  });
  part.getBody().takeBody(body);
}
