//===- RandomGraph.cpp - Random well-typed models -------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Generator.h"
#include <cmath>

using namespace mlir;
using namespace cleave;
using namespace cleave::graph;

//===----------------------------------------------------------------------===//
// Arguments
//===----------------------------------------------------------------------===//

Value Generator::argument(StringRef name, StringRef role,
                          ArrayRef<int64_t> shape, Type type,
                          llvm::function_ref<double()> draw,
                          ArrayRef<NamedAttribute> more) {
  RefTensor tensor(shape, type);
  for (int64_t i = 0, e = tensor.size(); i < e; ++i) {
    double value = draw();
    if (tensor.isFloat())
      // Values that f32 can represent, so that all modes and targets get the
      // same.
      tensor.floats[i] = static_cast<float>(value);
    else
      tensor.ints[i] = static_cast<int64_t>(value);
  }
  Value result = block->addArgument(RankedTensorType::get(shape, type), loc);
  SmallVector<NamedAttribute> attributes(more);
  attributes.push_back(
      builder.getNamedAttr(kNameAttr, builder.getStringAttr(name)));
  attributes.push_back(
      builder.getNamedAttr(kRoleAttr, builder.getStringAttr(role)));
  argumentAttributes.push_back(builder.getDictionaryAttr(attributes));
  inputs[name.str()] = std::move(tensor);
  return result;
}

Value Generator::parameter(ArrayRef<int64_t> shape, double mean,
                           double spread) {
  SmallVector<NamedAttribute> more;
  // The first parameter is trained: a model must train one.
  if (!parameters.empty() && rng.chance(0.08))
    more.push_back(builder.getNamedAttr(kFrozenAttr, builder.getUnitAttr()));
  Value value =
      argument(("w" + Twine(names++)).str(), "parameter", shape, element,
               [&] { return mean + spread * rng.normal(); }, more);
  parameters.push_back({value, -1});
  return value;
}

Value Generator::input(ArrayRef<int64_t> shape, Type type,
                       llvm::function_ref<double()> draw) {
  return argument(
      ("x" + Twine(names++)).str(), "input", shape, type, draw,
      builder.getNamedAttr(kBatchDimAttr, builder.getI64IntegerAttr(0)));
}

Value Generator::splat(double value) {
  return ConstantOp::create(
      builder, loc,
      DenseElementsAttr::get(RankedTensorType::get({}, element),
                             builder.getFloatAttr(element, value)));
}

Value Generator::rngArgument() {
  if (!rngValue) {
    int64_t values[] = {rng.integer(0, int64_t(1) << 40), rng.integer(1, 1000)};
    unsigned next = 0;
    rngValue = argument("rng", "rng", {2}, builder.getI64Type(),
                        [&] { return double(values[next++]); });
  }
  return rngValue;
}

/// A new batched value: floats of an input, or an embedding of ids.
Item Generator::startItem() {
  int64_t positions = rng.integer(1, 5), channels = 2 * rng.integer(1, 4);
  if (rng.chance(0.5)) {
    Value x = input({options.batch, positions, channels}, element,
                    [&] { return rng.normal(); });
    return {x, 0};
  }
  int64_t classes = rng.integer(3, 9);
  Value table = weight(classes, channels);
  Value ids = input({options.batch, positions}, builder.getI64Type(),
                    [&] { return double(rng.integer(0, classes - 1)); });
  IntegerAttr padding;
  if (rng.chance(0.15)) {
    isDerivative = false;
    padding = builder.getI64IntegerAttr(rng.integer(0, classes - 1));
  }
  return {GatherOp::create(builder, loc, table, ids, /*origin=*/Value(),
                           builder.getI64IntegerAttr(0), padding, IntegerAttr(),
                           builder.getI64IntegerAttr(0)),
          0};
}

//===----------------------------------------------------------------------===//
// Choosing values and changing their shapes
//===----------------------------------------------------------------------===//

/// Any value of the pool, with a preference for recent ones.
Item Generator::pick() {
  int64_t count = pool.size();
  if (rng.chance(0.6))
    return pool[rng.integer(std::max<int64_t>(0, count - 4), count - 1)];
  return rng.pick(pool);
}

int64_t Generator::size(ArrayRef<int64_t> shape) {
  int64_t result = 1;
  for (int64_t dim : shape)
    result *= dim;
  return result;
}

Value Generator::reshape(Value value, ArrayRef<int64_t> shape) {
  return ReshapeOp::create(builder, loc, RankedTensorType::get(shape, element),
                           value);
}

/// The item with only samples in dimension 0.
Item Generator::batchFirst(Item item) {
  if (item.batchDim != 0) {
    Shape order{item.batchDim};
    for (int64_t dim = 0; dim < item.rank(); ++dim)
      if (dim != item.batchDim)
        order.push_back(dim);
    item = {TransposeOp::create(builder, loc, item.value, order), 0};
  }
  if (item.shape()[0] != options.batch) {
    Shape shape{options.batch, item.shape()[0] / options.batch};
    llvm::append_range(shape, item.shape().drop_front());
    item = {reshape(item.value, shape), 0};
  }
  return item;
}

/// The item as [batch, positions, channels].
Item Generator::sequence(Item item) {
  item = batchFirst(item);
  int64_t positions = item.rank() > 2 ? item.shape()[1] : 1;
  Shape shape{options.batch, positions,
              size(item.shape().drop_front()) / positions};
  return item.shape() == ArrayRef<int64_t>(shape)
             ? item
             : Item{reshape(item.value, shape), 0};
}

/// Projects a sequence to [batch, count, positions, channels].
Value Generator::heads(Item item, int64_t count, int64_t channels) {
  Value projected = LinearOp::create(
      builder, loc, item.value, weight(count * channels, item.last()), Value());
  Value split =
      reshape(projected, {options.batch, item.shape()[1], count, channels});
  return TransposeOp::create(builder, loc, split, Shape{0, 2, 1, 3});
}

/// A weight [outputs, inputs]: an existing parameter or a new one, small enough
/// to keep activations at about the same size.
Value Generator::weight(int64_t outputs, int64_t inputs) {
  if (rng.chance(0.4))
    for (const Item &known : parameters)
      if (known.shape() == ArrayRef<int64_t>({outputs, inputs}))
        return known.value;
  return parameter({outputs, inputs}, 0, 1.0 / std::sqrt(double(inputs)));
}

/// A second operand that broadcasts against `item`.
Value Generator::partner(Item item) {
  if (rng.chance(0.5))
    for (int tries = 0; tries < 4; ++tries) {
      Item other = pick();
      if (other.rank() != item.rank() || other.batchDim != item.batchDim)
        continue;
      bool fits = true;
      for (int64_t dim = 0; dim < item.rank(); ++dim) {
        int64_t a = item.shape()[dim], b = other.shape()[dim];
        fits &= a == b || (dim != item.batchDim && b == 1);
      }
      if (fits)
        return other.value;
    }
  // A parameter over the dimensions after the batch, some of them of size 1.
  Shape shape(item.shape());
  for (int64_t dim = 0; dim < item.rank(); ++dim)
    if (dim <= item.batchDim || rng.chance(0.2))
      shape[dim] = 1;
  if (rng.chance(0.7))
    shape.erase(shape.begin(), shape.begin() + item.batchDim + 1);
  for (const Item &known : parameters)
    if (known.shape() == ArrayRef<int64_t>(shape) && rng.chance(0.3))
      return known.value;
  if (rng.chance(0.15))
    return splat(rng.uniform(-1.5, 1.5));
  return parameter(shape);
}

//===----------------------------------------------------------------------===//
// The loss
//===----------------------------------------------------------------------===//

Value Generator::buildLoss() {
  // Values that are not read yet contribute one number per sample.
  Value collected;
  SmallVector<Item> unused;
  for (const Item &item : pool)
    if (item.value.use_empty() && item.batchDim >= 0)
      unused.push_back(item);
  Item main = unused.empty() ? pool.back() : unused.pop_back_val();
  for (Item item : unused) {
    item = batchFirst(item);
    Shape dims;
    for (int64_t dim = 1; dim < item.rank(); ++dim)
      dims.push_back(dim);
    Value one = item.value;
    if (!dims.empty())
      one = MulOp::create(
          builder, loc,
          ReduceOp::create(builder, loc, ReductionKind::Sum, one, dims),
          splat(double(options.batch) / double(size(item.shape()))));
    one = TanhOp::create(builder, loc, one);
    collected = collected ? AddOp::create(builder, loc, collected, one) : one;
  }
  main = sequence(main);
  Value hidden = main.value;
  if (collected)
    hidden = AddOp::create(builder, loc, hidden,
                           reshape(collected, {options.batch, 1, 1}));
  int64_t classes = rng.integer(2, 7), rows = main.shape()[1];
  // A head that uses the embedding's weight, if its shape fits, is tied.
  Value head = weight(classes, main.last());
  Value bias = rng.chance(0.3) ? parameter({classes}) : Value();
  Value logits = LinearOp::create(builder, loc, hidden, head, bias);
  Shape shape{options.batch, rows};
  if (rng.chance(0.4)) {
    logits = reshape(logits, {options.batch * rows, classes});
    shape = {options.batch * rows};
  }
  // One row is always valid: a batch without a valid row is an error.
  bool first = true;
  Value targets = input(shape, builder.getI64Type(), [&] {
    bool ignored = !first && rng.chance(0.25);
    first = false;
    return ignored ? -100.0 : double(rng.integer(0, classes - 1));
  });
  // A head that is split into ops has the weights of classes as constants,
  // which f32 holds exactly here.
  auto loss = CrossEntropyOp::create(
      builder, loc, logits, targets, builder.getI64IntegerAttr(-100),
      builder.getF64FloatAttr(rng.chance(0.3) ? classes / 64.0 : 0.0));
  SmallVector<int64_t> all =
      llvm::to_vector(llvm::seq<int64_t>(0, shape.size()));
  Type statistic =
      cast<RankedTensorType>(loss.getLoss().getType()).getElementType();
  Value sum =
      ReduceOp::create(builder, loc, ReductionKind::Sum, loss.getLoss(), all);
  Value ignore = ConstantOp::create(
      builder, loc,
      DenseElementsAttr::get(RankedTensorType::get({}, builder.getI64Type()),
                             builder.getI64IntegerAttr(-100)));
  Value valid = CompareOp::create(builder, loc, Predicate::ne, targets, ignore);
  Value count = ReduceOp::create(
      builder, loc, ReductionKind::Sum,
      CastOp::create(builder, loc, RankedTensorType::get(shape, statistic),
                     valid),
      all);
  return DivOp::create(builder, loc, sum, count);
}

/// Two parameters that have one gradient, as in parallel layers: two weights
/// that read one value, and biases, all added to one sum.
void Generator::addTwins() {
  Item item = pick();
  if (item.batchDim == item.rank() - 1)
    return;
  int64_t outputs = rng.integer(1, 6);
  bool bias = rng.chance(0.5);
  auto product = [&]() -> Value {
    return LinearOp::create(
        builder, loc, item.value,
        parameter({outputs, item.last()}, 0, 1.0 / std::sqrt(item.last())),
        bias ? parameter({outputs}) : Value());
  };
  Value first = product(), second = product();
  keep(AddOp::create(builder, loc, first, second), item.batchDim);
}

/// Three products of one value, of which the first gates the second.
void Generator::addProjections() {
  Item item = pick();
  if (item.batchDim == item.rank() - 1)
    return;
  int64_t inner = rng.integer(1, 6), own = rng.integer(1, 6);
  bool bias = rng.chance(0.5);
  auto product = [&](int64_t outputs) -> Value {
    return LinearOp::create(
        builder, loc, item.value,
        parameter({outputs, item.last()}, 0, 1.0 / std::sqrt(item.last())),
        bias ? parameter({outputs}) : Value());
  };
  Value gate = product(inner), gated = product(inner), other = product(own);
  keep(MulOp::create(builder, loc,
                     GeluOp::create(builder, loc, gate, rng.chance(0.5)),
                     gated),
       item.batchDim);
  keep(other, item.batchDim);
}

/// A running mean over the samples and other dimensions, which the model may
/// also read, and a number of steps.
void Generator::addWritten() {
  Item item = pick();
  if (item.batchDim < 0)
    return;
  Shape dims, shape;
  int64_t count = 1;
  for (auto [dim, extent] : llvm::enumerate(item.shape())) {
    if (int64_t(dim) == item.batchDim || rng.chance(0.4)) {
      dims.push_back(dim);
      count *= extent;
    } else {
      shape.push_back(extent);
    }
  }
  auto name = [&] { return ("m" + Twine(names++)).str(); };
  std::string mean = name();
  Value old = argument(mean, "buffer", shape, element,
                       [&] { return rng.uniform(-1, 1); });
  Value sum =
      ReduceOp::create(builder, loc, ReductionKind::Sum, item.value, dims);
  double momentum = rng.uniform(0, 1);
  Value next = AddOp::create(
      builder, loc, MulOp::create(builder, loc, old, splat(1 - momentum)),
      MulOp::create(builder, loc, sum, splat(momentum / double(count))));
  written.push_back({next, mean});
  if (rng.chance(0.5) && dims.size() == 1 && dims.front() == 0)
    keep(MulOp::create(builder, loc, item.value,
                       SigmoidOp::create(builder, loc, old)),
         item.batchDim);
  if (!rng.chance(0.5))
    return;
  std::string steps = name();
  Value number =
      argument(steps, "buffer", {}, builder.getI64Type(), [] { return 3.0; });
  Value one = ConstantOp::create(
      builder, loc,
      DenseElementsAttr::get(RankedTensorType::get({}, builder.getI64Type()),
                             builder.getI64IntegerAttr(1)));
  written.push_back({AddOp::create(builder, loc, number, one), steps});
}

/// A mixture of experts: tokens are sent to the slots of experts, those of one
/// slot are added, and each reads its slot again, with a weight.
void Generator::addMixture() {
  Item item = sequence(pick());
  int64_t tokens = item.shape()[1], channels = item.last();
  int64_t experts = 2 * rng.integer(1, 2), capacity = rng.integer(1, 3),
          inner = rng.integer(1, 6), slots = experts * capacity;
  if (options.batch * slots * std::max(channels, inner) > kLargest)
    return;
  Value places = input({options.batch, tokens}, builder.getI64Type(),
                       [&] { return double(rng.integer(0, slots - 1)); });
  auto dim = builder.getI64IntegerAttr(1), batch = builder.getI64IntegerAttr(1);
  Value sent = ScatterAddOp::create(
      builder, loc, item.value, places, /*origin=*/Value(), dim,
      builder.getI64IntegerAttr(slots), IntegerAttr(), IntegerAttr(), batch);
  Value held = reshape(sent, {options.batch, experts, capacity, channels});
  Value up = ContractOp::create(
      builder, loc, "geci,eoi->geco", held,
      parameter({experts, inner, channels}, 0, 1.0 / std::sqrt(channels)));
  Value down = ContractOp::create(
      builder, loc, "geco,eio->geci",
      GeluOp::create(builder, loc, up, rng.chance(0.5)),
      parameter({experts, channels, inner}, 0, 1.0 / std::sqrt(inner)));
  Value found = GatherOp::create(
      builder, loc, reshape(down, {options.batch, slots, channels}), places,
      /*origin=*/Value(), dim, IntegerAttr(), IntegerAttr(), batch);
  Value gate = SigmoidOp::create(
      builder, loc,
      LinearOp::create(builder, loc, item.value, weight(1, channels), Value()));
  keep(AddOp::create(builder, loc, item.value,
                     MulOp::create(builder, loc, found, gate)),
       0);
}

/// A mixture of experts that drops nothing: each choice of a token is a row.
void Generator::addRowsOfExperts() {
  Item item = sequence(pick());
  int64_t tokens = item.shape()[1], channels = item.last();
  int64_t experts = rng.integer(1, 4), choices = rng.integer(1, 3),
          inner = rng.integer(1, 6);
  int64_t rows = options.batch * tokens * choices;
  if (rows * std::max(channels, inner) > kLargest)
    return;
  // Some experts may have no rows, or one of them all.
  int64_t least = rng.chance(0.2) ? experts - 1 : 0;
  Value groups = input({options.batch, tokens, choices}, builder.getI64Type(),
                       [&] { return double(rng.integer(least, experts - 1)); });
  auto multiply = [&](Value x, int64_t from, int64_t to) -> Value {
    bool transpose = rng.chance(0.5);
    Shape shape =
        transpose ? Shape{experts, to, from} : Shape{experts, from, to};
    return GroupedLinearOp::create(
        builder, loc, x, parameter(shape, 0, 1.0 / std::sqrt(from)), groups,
        /*origin=*/Value(), transpose, IntegerAttr(), TypeAttr());
  };
  Value row = reshape(item.value, {options.batch, tokens, 1, channels});
  row = BroadcastOp::create(
      builder, loc,
      cast<RankedTensorType>(row.getType())
          .clone(ArrayRef({options.batch, tokens, choices, channels})),
      row);
  Value up = multiply(row, channels, inner);
  if (rng.chance(0.5))
    up = AddOp::create(
        builder, loc, up,
        GatherOp::create(builder, loc, parameter({experts, inner}, 0, 0.5),
                         groups, /*origin=*/Value(),
                         builder.getI64IntegerAttr(0), IntegerAttr(),
                         IntegerAttr(), builder.getI64IntegerAttr(0)));
  up = GeluOp::create(builder, loc, up, rng.chance(0.5));
  if (rng.chance(0.3))
    up = MulOp::create(builder, loc, up, multiply(row, channels, inner));
  Value down =
      ReduceOp::create(builder, loc, ReductionKind::Sum,
                       multiply(up, inner, channels), ArrayRef<int64_t>(2));
  keep(AddOp::create(builder, loc, item.value, down), 0);
}

RandomGraph Generator::run() {
  auto module = ModuleOp::create(loc);
  builder.setInsertionPointToEnd(module.getBody());
  auto function = func::FuncOp::create(builder, loc, "loss",
                                       builder.getFunctionType({}, {}));
  block = function.addEntryBlock();
  builder.setInsertionPointToEnd(block);

  pool.push_back(startItem());
  using Step = void (Generator::*)();
  static constexpr Step steps[] = {
      &Generator::addUnary,      &Generator::addUnary,
      &Generator::addGuarded,    &Generator::addBinary,
      &Generator::addBinary,     &Generator::addBinary,
      &Generator::addSkip,       &Generator::addLinear,
      &Generator::addLinear,     &Generator::addContract,
      &Generator::addNorm,       &Generator::addNorm,
      &Generator::addSoftmax,    &Generator::addReshape,
      &Generator::addTranspose,  &Generator::addReduce,
      &Generator::addSliceOrPad, &Generator::addConcat,
      &Generator::addGather,     &Generator::addCumulativeSum,
      &Generator::addEmbedding,  &Generator::addSelect,
      &Generator::addDropout,    &Generator::addAttention,
      &Generator::addAttention,  &Generator::addPatches,
      &Generator::addCast,       &Generator::addParameterOnly};
  for (int64_t target = rng.integer(options.minOps, options.maxOps);
       countOps() < target;)
    (this->*rng.pick(steps))();
  if (hasTwins)
    addTwins();
  if (hasProjections)
    addProjections();
  if (hasWritten)
    addWritten();
  if (hasMixture)
    addMixture();
  if (hasRows)
    addRowsOfExperts();
  SmallVector<Value> results{buildLoss()};
  llvm::append_range(results, llvm::make_first_range(written));
  func::ReturnOp::create(builder, loc, results);

  function.setType(builder.getFunctionType(block->getArgumentTypes(),
                                           ValueRange(results).getTypes()));
  function.setAllArgAttrs(argumentAttributes);
  function.setResultAttr(0, kNameAttr, builder.getStringAttr("loss"));
  for (auto [i, buffer] : llvm::enumerate(llvm::make_second_range(written)))
    function.setResultAttr(i + 1, kUpdatesAttr, builder.getStringAttr(buffer));
  return {module, std::move(inputs), isDerivative};
}

RandomGraph cleave::drawRandomGraph(MLIRContext *context, uint64_t seed,
                                    const RandomGraphOptions &options) {
  context->loadDialect<func::FuncDialect, GraphDialect>();
  RandomGraph graph = Generator(context, seed, options).run();
  graph.seed = seed;
  return graph;
}
