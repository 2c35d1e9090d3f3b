//===- SavedCut.cpp - Saved values between two parts ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// The saved values are a minimum cut, for each pair of parts of which the
/// first (the producer) saves values for the second (the consumer). The
/// vertices are the values of the producer; their costs are their bytes.
/// Results of heavy ops are sources; values that the consumer reads are sinks;
/// operands that both parts can read cost nothing.
///
//===----------------------------------------------------------------------===//

#include "SavedCut.h"
#include "MinimumCut.h"
#include "ValueViews.h"
#include "cleave/Dialect/Graph/IR/Attributes/Clones.h"
#include "cleave/Dialect/Graph/IR/GraphOps.h"
#include "cleave/Dialect/Graph/IR/Messages/SourceLine.h"
#include "cleave/Dialect/Graph/IR/TensorBytes.h"
#include "cleave/Dialect/Pipe/Transforms/Costs.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::pipe;

RecomputeTally::Group &RecomputeTally::groupOf(Operation *op) {
  return groups[{op->getName().getStringRef().str(), sourceLine(op->getLoc())}];
}

static void
writeWork(ProgramOp program,
          const std::map<std::pair<int64_t, int64_t>, machines::Work> &work) {
  Builder b(program.getContext());
  SmallVector<Attribute> stages;
  for (const auto &[place, own] : work)
    if (own.flops + own.bytes + own.sentBytes > 0) {
      NamedAttrList item;
      item.set("block", b.getI64IntegerAttr(place.second));
      item.set("stage", b.getI64IntegerAttr(place.first));
      for (auto [name, amount] : {std::pair("attention", own.attention),
                                  {"bytes", own.bytes},
                                  {"contraction", own.contraction},
                                  {"contraction_16bit", own.contraction16},
                                  {"contraction_8bit", own.contraction8},
                                  {"flops", own.flops},
                                  {"sent", own.sentBytes},
                                  {"streamed", own.streamed}})
        item.set(name, b.getF64FloatAttr(amount));
      stages.push_back(item.getDictionary(program.getContext()));
    }
  if (!stages.empty())
    program->setAttr(kRecomputeWorkAttr, b.getArrayAttr(stages));
}

void RecomputeTally::write(ProgramOp program) const {
  if (groups.empty())
    return;
  writeWork(program, work);
  Builder b(program.getContext());
  SmallVector<Attribute> all;
  for (auto &[key, group] : groups)
    all.push_back(b.getDictionaryAttr(
        {b.getNamedAttr("bytes", b.getI64IntegerAttr(group.bytes)),
         b.getNamedAttr("line", b.getStringAttr(key.second)),
         b.getNamedAttr("op", b.getStringAttr(key.first)),
         b.getNamedAttr("ops", b.getI64IntegerAttr(group.ops))}));
  program->setAttr(kRecomputedAttr, b.getArrayAttr(all));
  program->setAttr(kUnsavedBytesAttr, b.getI64IntegerAttr(unsaved));
}

namespace {
/// The saved values between two parts of one program.
class SavedCut {
public:
  SavedCut(InvokeOp producer, InvokeOp consumer, const RecomputeRules &rules,
           RecomputeTally &tally)
      : producer(producer), consumer(consumer),
        from(producer.getPartFunction()), to(consumer.getPartFunction()),
        rules(rules), tally(tally) {}

  /// Replaces both invocations by new ones, and returns these.
  std::pair<InvokeOp, InvokeOp> run() {
    Operation *terminator = from.getBody().front().getTerminator();
    for (auto [i, input] : llvm::enumerate(consumer.getInputs()))
      if (auto result = dyn_cast<OpResult>(input);
          result && result.getOwner() == producer &&
          producer.isSaved(result.getResultNumber()))
        read.push_back({terminator->getOperand(result.getResultNumber()),
                        to.getArgument(i)});
    // The result of an update is in the buffer of its argument, and is not
    // recomputed.
    auto program = cast<ProgramOp>(producer->getParentOp());
    bool early =
        program->hasAttr(kEarlyUpdateAttr) && program.getMicroBatches() == 1;
    for (auto [i, value] : llvm::enumerate(terminator->getOperands()))
      if (early && producer.getKind(i) == kValue)
        given.try_emplace(value, i);
    if (!read.empty()) {
      chooseSaved();
      rebuildConsumerBody();
    }
    return rebuild();
  }

private:
  /// Sets `saved` to the values of the minimum cut.
  void chooseSaved() {
    llvm::MapVector<Value, unsigned> vertices;
    SmallVector<Value> stack;
    auto add = [&](Value value) {
      if (vertices.try_emplace(value, vertices.size()).second)
        stack.push_back(value);
    };
    for (auto [value, argument] : read)
      add(value);
    while (!stack.empty()) {
      auto result = dyn_cast<OpResult>(stack.pop_back_val());
      if (result && rules.may(result) && !given.contains(result))
        for (Value operand : result.getOwner()->getOperands())
          add(operand);
    }
    MinimumCut graph(vertices.size());
    for (auto [value, vertex] : vertices) {
      auto result = dyn_cast<OpResult>(value);
      if (!result || given.contains(value))
        continue; // An operand of the part: the consumer can read it too.
      // What has been cut into parts is saved whole if it has no more bytes
      // than they have: each of them would be copied.
      graph.setCost(vertex,
                    std::max<int64_t>(bytesOf(value), 1) + isPart(result));
      if (!rules.may(result)) {
        graph.addSource(vertex);
        continue;
      }
      if (int64_t price = rules.price(result.getOwner()))
        graph.setMakingCost(vertex, price);
      for (Value operand : result.getOwner()->getOperands())
        graph.connect(vertices.lookup(operand), vertex);
    }
    for (auto [value, argument] : read)
      graph.addSink(vertices.lookup(value));
    std::vector<bool> cut = graph.solve();
    for (auto [value, vertex] : vertices)
      if (cut[vertex])
        saved.insert(value);
  }

  /// Returns the consumer's value for the producer's `value`: an argument, or a
  /// recomputed value at the insertion point.
  Value materialize(Value value, OpBuilder &builder) {
    // In the order of the producer, without recursion.
    SmallVector<Value> stack{value};
    while (!stack.empty()) {
      Value next = stack.back();
      if (mapping.contains(next)) {
        stack.pop_back();
        continue;
      }
      auto argument = dyn_cast<BlockArgument>(next);
      if (argument || saved.contains(next) || given.contains(next)) {
        mapping.map(next, addConsumerArgument(next));
        stack.pop_back();
        continue;
      }
      Operation *op = next.getDefiningOp();
      size_t before = stack.size();
      for (Value operand : op->getOperands())
        if (!mapping.contains(operand))
          stack.push_back(operand);
      if (stack.size() > before)
        continue;
      Operation *clone = builder.clone(*op, mapping);
      markTwins(op, clone);
      ++tally.groupOf(op).ops;
      tally.work[{static_cast<int64_t>(producer.getStage()),
                  rules.blockOf(op)}] += workOf(op, rules.mesh);
      // Other results of the op stay saved.
      for (auto [old, fresh] : llvm::zip(op->getResults(), clone->getResults()))
        mapping.map(old, lookupSaved(old, fresh));
      stack.pop_back();
    }
    return mapping.lookup(value);
  }

  /// Lets contractions be computed in the same form.
  void markTwins(Operation *op, Operation *clone) {
    auto costed = dyn_cast<graph::CostOpInterface>(op);
    if (!costed || costed.getCost().work != graph::WorkClass::Contraction)
      return;
    Builder b(op->getContext());
    if (!op->hasAttr(graph::kTwinAttr))
      op->setAttr(graph::kTwinAttr, b.getI64IntegerAttr(tally.twins++));
    clone->setAttr(graph::kTwinAttr, op->getAttr(graph::kTwinAttr));
    clone->setAttr(graph::kCloneAttr, b.getUnitAttr());
  }

  Value lookupSaved(Value old, Value fresh) {
    auto it = arguments.find(old);
    return it == arguments.end() ? fresh : it->second;
  }

  /// Adds an argument of the consumer for a value of the producer.
  Value addConsumerArgument(Value value) {
    if (Value known = arguments.lookup(value))
      return known;
    Value argument =
        to.getBody().front().addArgument(value.getType(), value.getLoc());
    arguments[value] = argument;
    added.push_back(value);
    return argument;
  }

  void rebuildConsumerBody() {
    Block &body = to.getBody().front();
    // Operands that both parts read already, and values that stay saved.
    for (auto [i, input] : llvm::enumerate(consumer.getInputs()))
      for (auto [j, other] : llvm::enumerate(producer.getInputs()))
        if (input == other && consumer.getSplit()[i] == producer.getSplit()[j])
          arguments[from.getArgument(j)] = to.getArgument(i);
    for (auto [value, argument] : read)
      if (saved.contains(value))
        arguments.try_emplace(value, argument);
    for (auto [value, result] : given)
      for (auto [i, input] : llvm::enumerate(consumer.getInputs()))
        if (input == producer.getResult(result))
          arguments.try_emplace(value, to.getArgument(i));
    for (auto [value, argument] : arguments)
      mapping.map(value, argument);

    // Values are recomputed just before the consumer first reads them.
    struct Use {
      Operation *first;
      Value value;
      BlockArgument argument;
    };
    SmallVector<Use> uses;
    for (auto [value, argument] : read) {
      if (saved.contains(value))
        continue;
      Operation *first = nullptr;
      for (Operation *user : argument.getUsers()) {
        Operation *inBody = body.findAncestorOpInBlock(*user);
        if (!first || inBody->isBeforeInBlock(first))
          first = inBody;
      }
      if (first)
        uses.push_back({first, value, argument});
    }
    llvm::sort(uses, [](const Use &a, const Use &b) {
      if (a.first != b.first)
        return a.first->isBeforeInBlock(b.first);
      return a.argument.getArgNumber() < b.argument.getArgNumber();
    });
    for (Use &use : uses) {
      OpBuilder builder(use.first);
      use.argument.replaceAllUsesWith(materialize(use.value, builder));
      if (Operation *op = use.value.getDefiningOp())
        tally.groupOf(op).bytes += bytesOf(use.value);
    }
  }

  //===--- Signatures
  //------------------------------------------------------------===//

  /// Removes ops of `function` whose results nothing reads.
  static void removeDeadOps(func::FuncOp function) {
    for (Operation &op :
         llvm::make_early_inc_range(llvm::reverse(function.getBody().front())))
      if (op.use_empty() && isPure(&op) &&
          !op.hasTrait<OpTrait::IsTerminator>())
        op.erase();
  }

  /// Drops arguments of `function` that nothing reads, in `operands` and
  /// `split` too, and updates its type.
  static void dropUnusedArguments(func::FuncOp function,
                                  SmallVector<Value> &operands,
                                  SmallVector<int64_t> &split) {
    Block &body = function.getBody().front();
    for (unsigned i = body.getNumArguments(); i-- > 0;) {
      if (!body.getArgument(i).use_empty())
        continue;
      body.eraseArgument(i);
      operands.erase(operands.begin() + i);
      split.erase(split.begin() + i);
    }
    function.setFunctionType(
        FunctionType::get(function.getContext(), body.getArgumentTypes(),
                          body.getTerminator()->getOperandTypes()));
  }

  std::pair<InvokeOp, InvokeOp> rebuild() {
    OpBuilder builder(producer);
    Block &body = from.getBody().front();
    auto terminator = cast<func::ReturnOp>(body.getTerminator());

    // 1. The producer's results: those others read, then the saved ones.
    SmallVector<Value> values;
    SmallVector<Type> types;
    SmallVector<Attribute> kinds;
    llvm::DenseMap<Value, unsigned> savedResult;
    SmallVector<std::pair<unsigned, unsigned>> kept; // (old, new)
    auto addResult = [&](Value value, Type type, Attribute kind) {
      values.push_back(value);
      types.push_back(type);
      kinds.push_back(kind);
      return values.size() - 1;
    };
    llvm::DenseSet<Value> wanted(saved);
    for (auto [i, result] : llvm::enumerate(producer.getOutputs())) {
      Value value = terminator.getOperand(i);
      bool elsewhere = llvm::any_of(
          result.getUsers(), [&](Operation *user) { return user != consumer; });
      bool stays = elsewhere || (producer.isSaved(i) && wanted.contains(value));
      if (!stays) {
        tally.unsaved += bytesOf(value);
        continue;
      }
      unsigned index =
          addResult(value, result.getType(), producer.getResultKinds()[i]);
      kept.push_back({i, index});
      if (producer.isSaved(i) || given.contains(value))
        savedResult[value] = index;
    }
    for (Value value : added)
      if (!isa<BlockArgument>(value) && !savedResult.contains(value)) {
        savedResult[value] =
            addResult(value, value.getType(), builder.getStringAttr(kSaved));
        tally.unsaved -= bytesOf(value);
      }
    terminator.getOperandsMutable().assign(values);
    removeDeadOps(from);

    SmallVector<Value> operands(producer.getInputs());
    SmallVector<int64_t> split(producer.getSplit());
    // What new arguments of the consumer will read: an operand of the producer,
    // or a saved result (none of which may be looked at once it is erased).
    struct Addition {
      Value operand;
      int64_t split = -1;
      unsigned result = 0;
    };
    SmallVector<Addition> additions;
    for (Value value : added) {
      if (auto argument = dyn_cast<BlockArgument>(value))
        additions.push_back({operands[argument.getArgNumber()],
                             split[argument.getArgNumber()]});
      else
        additions.push_back({Value(), -1, savedResult.lookup(value)});
    }
    dropUnusedArguments(from, operands, split);
    auto newProducer = InvokeOp::create(
        builder, producer.getLoc(), types, producer.getCallee(), operands,
        producer.getPart(), producer.getOnce(), split,
        builder.getArrayAttr(kinds), producer.getStage());

    // 2. The consumer's operands: the old ones, then those of new arguments.
    operands.assign(consumer.getInputs().begin(), consumer.getInputs().end());
    split.assign(consumer.getSplit().begin(), consumer.getSplit().end());
    for (Value &operand : operands)
      if (auto result = dyn_cast<OpResult>(operand);
          result && result.getOwner() == producer)
        for (auto [old, fresh] : kept)
          if (result.getResultNumber() == old)
            operand = newProducer.getResult(fresh);
    for (const Addition &addition : additions) {
      operands.push_back(addition.operand
                             ? addition.operand
                             : newProducer.getResult(addition.result));
      split.push_back(addition.split);
    }
    removeDeadOps(to);
    dropUnusedArguments(to, operands, split);
    builder.setInsertionPoint(consumer);
    auto newConsumer = InvokeOp::create(
        builder, consumer.getLoc(), consumer.getResultTypes(),
        consumer.getCallee(), operands, consumer.getPart(), consumer.getOnce(),
        split, consumer.getResultKinds(), consumer.getStage());
    consumer.replaceAllUsesWith(newConsumer);
    consumer.erase();
    for (auto [old, fresh] : kept)
      producer.getResult(old).replaceAllUsesWith(newProducer.getResult(fresh));
    producer.erase();
    return {newProducer, newConsumer};
  }

  InvokeOp producer, consumer;
  func::FuncOp from, to;
  const RecomputeRules &rules;
  RecomputeTally &tally;
  /// The values of the producer that the consumer reads, each with its
  /// argument.
  SmallVector<std::pair<Value, BlockArgument>> read;
  llvm::DenseSet<Value> saved;
  /// The values of the producer that are results of its invocation, each with
  /// the number of the result.
  llvm::DenseMap<Value, unsigned> given;
  /// Arguments of the consumer for values of the producer.
  llvm::DenseMap<Value, Value> arguments;
  /// Values of the producer that became new arguments, in order.
  SmallVector<Value> added;
  IRMapping mapping;
};
} // namespace

std::pair<InvokeOp, InvokeOp>
cleave::pipe::saveLess(InvokeOp producer, InvokeOp consumer,
                       const RecomputeRules &rules, RecomputeTally &tally) {
  return SavedCut(producer, consumer, rules, tally).run();
}
