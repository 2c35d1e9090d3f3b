//===- ReshardSearch.cpp - The search for the cheapest reshard ------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "ReshardSearch.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"
#include <queue>

using namespace cleave::spmd;
using llvm::ArrayRef;

int64_t ReshardProblem::parts(ArrayRef<uint8_t> list) const {
  int64_t product = 1;
  for (uint8_t digit : list)
    product *= digits[digit].size;
  return product;
}

double ReshardProblem::elements(const Arrangement &at) const {
  double result = 1;
  for (auto [size, list] : llvm::zip_equal(shape, at.dims))
    result *= size / parts(list);
  return result;
}

//===----------------------------------------------------------------------===//
// Lower bounds
//===----------------------------------------------------------------------===//

/// Returns the offset of a part, for the digits of one position.
static int64_t offsetOf(const ReshardProblem &problem, ArrayRef<uint8_t> list,
                        ArrayRef<int64_t> values, int64_t size) {
  int64_t index = 0;
  for (uint8_t digit : list)
    index = index * problem.digits[digit].size + values[digit];
  return index * (size / problem.parts(list));
}

/// Each element needs a message for each summand but one, and one for each
/// position that is to hold it but one. On average over the devices.
static double leastReduced(const ReshardProblem &problem,
                           const Arrangement &at) {
  double devices = 1, summands = 1, splits = 1;
  for (auto [i, digit] : llvm::enumerate(problem.digits)) {
    if (!digit.sequential)
      devices *= digit.size;
    if (at.partial >> i & 1)
      summands *= digit.size;
  }
  for (ArrayRef<uint8_t> list : problem.to.dims)
    for (uint8_t digit : list)
      if (!problem.digits[digit].sequential)
        splits *= problem.digits[digit].size;
  double whole = problem.elements(problem.to) * splits;
  return whole * (summands - 1 + devices / splits - 1) / devices;
}

/// Returns the elements that the position that lacks most must receive. With
/// many positions it returns a lower bound, that of any position, to save time.
static double leastReceived(const ReshardProblem &problem,
                            const Arrangement &at, int64_t maxPositions) {
  int64_t positions = 1;
  for (const ReshardProblem::Digit &digit : problem.digits)
    positions *= digit.size;
  double target = problem.elements(problem.to);
  double least = std::max(0.0, target - problem.elements(at));
  if (positions > maxPositions)
    return least;
  llvm::SmallVector<int64_t, 8> values(problem.digits.size());
  for (int64_t position = 0; position < positions; ++position) {
    int64_t rest = position;
    for (auto [value, digit] : llvm::zip_equal(values, problem.digits)) {
      value = rest % digit.size;
      rest /= digit.size;
    }
    double held = 1;
    for (auto [size, from, to] :
         llvm::zip_equal(problem.shape, at.dims, problem.to.dims)) {
      int64_t a = offsetOf(problem, from, values, size);
      int64_t b = offsetOf(problem, to, values, size);
      int64_t end = std::min(a + size / problem.parts(from),
                             b + size / problem.parts(to));
      held *= std::max<int64_t>(0, end - std::max(a, b));
    }
    least = std::max(least, target - held);
  }
  return least;
}

double cleave::spmd::leastElements(const ReshardProblem &problem) {
  return problem.from.partial ? leastReduced(problem, problem.from)
                              : leastReceived(problem, problem.from, 4096);
}

//===----------------------------------------------------------------------===//
// Search
//===----------------------------------------------------------------------===//

namespace {

/// Whether adjacent collectives of this kind are merged into one.
bool merges(CollectiveKind kind) {
  return kind == CollectiveKind::Slice || kind == CollectiveKind::AllGather ||
         kind == CollectiveKind::ReduceScatter;
}

class Search {
public:
  Search(const ReshardProblem &problem, double bound, unsigned maxStates)
      : problem(problem), bound(bound), maxStates(maxStates) {}

  std::optional<std::vector<SearchStep>> run();

private:
  /// A state is an arrangement and the kind of the last collective.
  struct Node {
    Arrangement at;
    std::optional<CollectiveKind> last;
    double cost = 0;
    double elements = 0;
    int parent = -1;
    bool done = false;
  };

  void visit(Arrangement at, CollectiveKind kind, double elements);
  void expand();
  void slice();
  void reduce();
  void gather();
  void exchange();
  void permute();
  void permuteAll(Arrangement &to, unsigned dim, int64_t parts, uint32_t used);
  void permuteTowardsTarget();
  double remaining(const Arrangement &at,
                   std::optional<CollectiveKind> last) const;
  bool divides(unsigned dim, int64_t parts) const {
    return problem.shape[dim] % (problem.parts(now.dims[dim]) * parts) == 0;
  }
  std::vector<SearchStep> path(int node) const;

  const ReshardProblem &problem;
  double bound;
  unsigned maxStates;

  std::vector<Node> nodes;
  llvm::StringMap<unsigned> known;
  using Entry = std::pair<double, unsigned>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  /// The state that is being expanded.
  unsigned current = 0;
  Arrangement now;
  uint32_t placed = 0;
  double elements = 0;
};

std::string keyOf(const Arrangement &at, std::optional<CollectiveKind> last) {
  std::string key;
  for (ArrayRef<uint8_t> list : at.dims) {
    key.append(list.begin(), list.end());
    key.push_back('\xff');
  }
  for (unsigned byte = 0; byte < 4; ++byte)
    key.push_back(static_cast<char>(at.partial >> (8 * byte)));
  key.push_back(last && merges(*last) ? static_cast<char>(*last) : '\xff');
  return key;
}

} // namespace

/// Returns a lower bound of the cost from a state to the target.
double Search::remaining(const Arrangement &at,
                         std::optional<CollectiveKind> last) const {
  double least =
      at.partial ? leastReduced(problem, at) : leastReceived(problem, at, 64);
  bool continues = last == CollectiveKind::AllGather ||
                   last == CollectiveKind::ReduceScatter;
  return least * problem.elementBytes +
         (least > 0 && !continues ? latencyOf(CollectiveKind::AllGather) : 0);
}

void Search::visit(Arrangement at, CollectiveKind kind, double sent) {
  const Node &from = nodes[current];
  double cost = from.cost + sent * problem.elementBytes;
  if (!merges(kind) || from.last != kind)
    cost += latencyOf(kind);
  if (cost >= bound)
    return;
  double estimate = cost + remaining(at, kind);
  if (estimate >= bound)
    return;
  auto [it, isNew] = known.try_emplace(keyOf(at, kind), nodes.size());
  if (isNew)
    nodes.emplace_back();
  Node &node = nodes[it->second];
  if (!isNew && node.cost <= cost)
    return;
  node = {std::move(at), kind, cost, sent, static_cast<int>(current), false};
  queue.push({estimate, it->second});
}

void Search::slice() {
  for (uint8_t digit = 0; digit < problem.digits.size(); ++digit) {
    if (placed >> digit & 1)
      continue;
    for (unsigned dim = 0; dim < now.dims.size(); ++dim) {
      if (!divides(dim, problem.digits[digit].size))
        continue;
      Arrangement next = now;
      next.dims[dim].push_back(digit);
      visit(std::move(next), CollectiveKind::Slice, 0);
    }
  }
}

void Search::reduce() {
  for (uint8_t digit = 0; digit < problem.digits.size(); ++digit) {
    if (!(now.partial >> digit & 1))
      continue;
    double size = problem.digits[digit].size;
    for (unsigned dim = 0; dim < now.dims.size(); ++dim) {
      if (!divides(dim, problem.digits[digit].size))
        continue;
      Arrangement next = now;
      next.dims[dim].push_back(digit);
      next.partial &= ~(1u << digit);
      visit(std::move(next), CollectiveKind::ReduceScatter,
            (size - 1) / size * elements);
    }
  }
  // All sets while there are few; else all together.
  bool few = llvm::popcount(now.partial) <= 4;
  for (uint32_t set = now.partial; set; set = (set - 1) & now.partial) {
    double size = 1;
    for (auto [i, digit] : llvm::enumerate(problem.digits))
      if (set >> i & 1)
        size *= digit.size;
    Arrangement next = now;
    next.partial &= ~set;
    visit(std::move(next), CollectiveKind::AllReduce,
          2 * (size - 1) / size * elements);
    if (!few)
      break;
  }
}

void Search::gather() {
  for (unsigned dim = 0; dim < now.dims.size(); ++dim) {
    if (now.dims[dim].empty() ||
        problem.digits[now.dims[dim].back()].sequential)
      continue;
    Arrangement next = now;
    uint8_t digit = next.dims[dim].pop_back_val();
    visit(std::move(next), CollectiveKind::AllGather,
          (problem.digits[digit].size - 1) * elements);
  }
}

void Search::exchange() {
  for (unsigned from = 0; from < now.dims.size(); ++from) {
    double size = 1;
    for (size_t begin = now.dims[from].size(); begin-- > 0;) {
      auto moved = ArrayRef<uint8_t>(now.dims[from]).drop_front(begin);
      if (problem.digits[moved.front()].sequential)
        break;
      size *= problem.digits[moved.front()].size;
      for (unsigned to = 0; to < now.dims.size(); ++to) {
        if (to == from || !divides(to, size))
          continue;
        Arrangement next = now;
        next.dims[from].truncate(begin);
        next.dims[to].append(moved.begin(), moved.end());
        visit(std::move(next), CollectiveKind::AllToAll,
              (size - 1) / size * elements);
      }
    }
  }
}

/// All arrangements with as many parts in each dimension. `to` is complete
/// before dimension `dim`, which needs `parts` more.
void Search::permuteAll(Arrangement &to, unsigned dim, int64_t parts,
                        uint32_t used) {
  if (parts == 1) {
    if (++dim < to.dims.size())
      return permuteAll(
          to, dim, problem.parts(now.dims[dim]) / problem.parts(to.dims[dim]),
          used);
    if (to != now)
      visit(to, CollectiveKind::Permute, elements);
    return;
  }
  for (uint8_t digit = 0; digit < problem.digits.size(); ++digit) {
    const ReshardProblem::Digit &data = problem.digits[digit];
    if ((used >> digit & 1) || data.sequential || parts % data.size != 0)
      continue;
    to.dims[dim].push_back(digit);
    permuteAll(to, dim, parts / data.size, used | 1u << digit);
    to.dims[dim].pop_back();
  }
}

/// The arrangement with as many parts that has most of the target.
void Search::permuteTowardsTarget() {
  Arrangement next = now;
  uint32_t used = now.partial;
  llvm::SmallVector<int64_t, 4> rest;
  for (auto [dim, list] : llvm::enumerate(next.dims)) {
    int64_t parts = problem.parts(list);
    list.clear();
    for (uint8_t digit : problem.to.dims[dim]) {
      if ((used >> digit & 1) || parts % problem.digits[digit].size != 0)
        break;
      list.push_back(digit);
      used |= 1u << digit;
      parts /= problem.digits[digit].size;
    }
    rest.push_back(parts);
  }
  for (auto [dim, list] : llvm::enumerate(next.dims)) {
    auto take = [&](uint8_t digit) {
      int64_t size = problem.digits[digit].size;
      if ((used >> digit & 1) || rest[dim] % size != 0 || size == 1)
        return;
      list.push_back(digit);
      used |= 1u << digit;
      rest[dim] /= size;
    };
    for (uint8_t digit : now.dims[dim])
      take(digit);
    for (uint8_t digit = 0; digit < problem.digits.size(); ++digit)
      take(digit);
    if (rest[dim] != 1)
      return;
  }
  if (next != now)
    visit(std::move(next), CollectiveKind::Permute, elements);
}

void Search::permute() {
  if (nodes[current].cost + elements * problem.elementBytes >= bound)
    return;
  // Digits minor to a sequential one are skipped: the sequential digit is
  // sliced last.
  for (ArrayRef<uint8_t> list : now.dims)
    for (uint8_t digit : list)
      if (problem.digits[digit].sequential)
        return;
  constexpr unsigned kFewDigits = 5;
  if (problem.digits.size() > kFewDigits)
    return permuteTowardsTarget();
  if (now.dims.empty())
    return;
  Arrangement to;
  to.dims.resize(now.dims.size());
  to.partial = now.partial;
  permuteAll(to, 0, problem.parts(now.dims[0]), now.partial);
}

void Search::expand() {
  now = nodes[current].at;
  elements = problem.elements(now);
  placed = now.partial;
  for (ArrayRef<uint8_t> list : now.dims)
    for (uint8_t digit : list)
      placed |= 1u << digit;
  slice();
  reduce();
  gather();
  exchange();
  permute();
}

std::optional<std::vector<SearchStep>> Search::run() {
  nodes.emplace_back().at = problem.from;
  known[keyOf(problem.from, std::nullopt)] = 0;
  queue.push({remaining(problem.from, std::nullopt), 0});
  unsigned expanded = 0;
  while (!queue.empty()) {
    auto [estimate, index] = queue.top();
    queue.pop();
    if (nodes[index].done)
      continue;
    nodes[index].done = true;
    if (nodes[index].at == problem.to)
      return path(index);
    if (++expanded > maxStates)
      return std::nullopt;
    current = index;
    expand();
  }
  return std::nullopt;
}

std::vector<SearchStep> Search::path(int node) const {
  std::vector<SearchStep> steps;
  for (; nodes[node].parent >= 0; node = nodes[node].parent) {
    const Node &end = nodes[node];
    if (!steps.empty() && steps.back().kind == *end.last && merges(*end.last)) {
      steps.back().elements += end.elements;
      continue;
    }
    steps.push_back({*end.last, end.at, end.elements});
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

std::optional<std::vector<SearchStep>>
cleave::spmd::searchReshard(const ReshardProblem &problem, double bound,
                            unsigned maxStates) {
  return Search(problem, bound, maxStates).run();
}
