//===- Rows.cpp - Buffer offsets of actions -------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/Rows.h"
#include "llvm/ADT/SmallVector.h"

using namespace cleave::runtime;

/// Longer turns are not searched.
static constexpr size_t kMaxTurn = 128;

int64_t Column::at(int64_t run, int64_t runs) const {
  auto begin = static_cast<int64_t>(first.size()),
       end = runs - static_cast<int64_t>(last.size());
  if (run < begin)
    return first[static_cast<size_t>(run)];
  if (run >= end)
    return last[static_cast<size_t>(run - end)];
  run -= begin;
  return turn[static_cast<size_t>(run) % turn.size()] + step * run;
}

Column Column::of(const std::vector<int64_t> &values) {
  size_t count = values.size();
  Column best;
  best.first = values;
  size_t cost = count;
  // A turn takes its own length at least.
  for (size_t length = 1; length <= kMaxTurn && length < std::min(count, cost);
       ++length) {
    // Extends from the middle in both directions.
    auto difference = [&](size_t i) { return values[i + length] - values[i]; };
    size_t middle = (count - length) / 2, begin = middle,
           end = middle; // of the differences
    int64_t each = difference(middle);
    if (each % static_cast<int64_t>(length))
      continue;
    while (begin > 0 && difference(begin - 1) == each)
      --begin;
    while (end + length < count && difference(end) == each)
      ++end;
    size_t own = begin + length + (count - end - length);
    if (own >= cost)
      continue;
    cost = own;
    best.step = each / static_cast<int64_t>(length);
    best.first.assign(values.begin(), values.begin() + begin);
    best.turn.clear();
    for (size_t i = 0; i < length; ++i)
      best.turn.push_back(values[begin + i] -
                          best.step * static_cast<int64_t>(i));
    best.last.assign(values.begin() + end + length, values.end());
  }
  // One offset for each of the other runs.
  if (best.turn.empty() && count) {
    best.turn.push_back(best.first.back());
    best.first.pop_back();
  }
  return best;
}

RowReader::RowReader(const Entry &entry, size_t parts) : runs(parts) {
  for (const Rows &rows : entry.rows)
    runs[static_cast<size_t>(rows.part)].rows = &rows;
  for (const Action &action : entry.actions)
    ++runs[static_cast<size_t>(action.part)].count;
}

llvm::ArrayRef<int64_t> RowReader::next(const Action &action) {
  Runs &own = runs[static_cast<size_t>(action.part)];
  row.clear();
  for (const Column &column : own.rows->columns)
    row.push_back(column.at(own.done, own.count));
  ++own.done;
  return row;
}

Rows cleave::runtime::rowsOf(int32_t part,
                             llvm::ArrayRef<llvm::ArrayRef<int64_t>> runs) {
  Rows rows;
  rows.part = part;
  std::vector<int64_t> values(runs.size());
  for (size_t b = 0; b < runs.front().size(); ++b) {
    for (size_t i = 0; i < runs.size(); ++i)
      values[i] = runs[i][b];
    rows.columns.push_back(Column::of(values));
  }
  return rows;
}

void cleave::runtime::setActions(Entry &entry,
                                 llvm::ArrayRef<PlacedAction> actions) {
  entry.actions.clear();
  entry.rows.clear();
  std::map<int32_t, llvm::SmallVector<llvm::ArrayRef<int64_t>>> runs;
  for (const PlacedAction &placed : actions) {
    entry.actions.push_back(placed.action);
    runs[placed.action.part].push_back(placed.offsets);
  }
  for (const auto &[part, own] : runs)
    entry.rows.push_back(rowsOf(part, own));
}
