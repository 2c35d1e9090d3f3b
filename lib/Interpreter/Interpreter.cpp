//===- Interpreter.cpp - The reference interpreter ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Interpreter/Interpreter.h"
#include "BlockRunner.h"
#include "ProgramRunner.h"
#include "Shards.h"
#include "cleave/Dialect/Graph/IR/GraphDialect.h"
#include "cleave/Dialect/Graph/IR/Messages/MessageNames.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace mlir;
using namespace cleave;

/// The name of an argument: `graph.name`, else `arg<i>`.
static std::string argumentName(FunctionOpInterface function, unsigned i) {
  if (auto name = function.getArgAttrOfType<StringAttr>(i, graph::kNameAttr))
    return name.str();
  return ("arg" + Twine(i)).str();
}

/// The name of a result: `graph.name`, else the argument it updates, else
/// `result<i>`.
static std::string resultName(FunctionOpInterface function, unsigned i) {
  for (StringRef attribute : {graph::kNameAttr, graph::kUpdatesAttr})
    if (auto name = function.getResultAttrOfType<StringAttr>(i, attribute))
      return name.str();
  return ("result" + Twine(i)).str();
}

/// The input for argument `i`, under its name or one of its aliases.
static const RefTensor *findInput(FunctionOpInterface function, unsigned i,
                                  const NamedTensors &inputs) {
  auto it = inputs.find(argumentName(function, i));
  if (it != inputs.end())
    return &it->second;
  if (auto aliases =
          function.getArgAttrOfType<ArrayAttr>(i, graph::kAliasesAttr))
    for (auto alias : aliases.getAsRange<StringAttr>())
      if (it = inputs.find(alias.str()); it != inputs.end())
        return &it->second;
  return nullptr;
}

/// The type of argument `i` as a global tensor.
static RankedTensorType wholeType(FunctionOpInterface function, unsigned i) {
  if (auto global =
          function.getArgAttrOfType<TypeAttr>(i, spmd::kGlobalTypeAttr))
    return dyn_cast<RankedTensorType>(global.getValue());
  return dyn_cast<RankedTensorType>(function.getArgumentTypes()[i]);
}

/// The valid elements of a padded tensor.
static RefTensor withoutPadding(const RefTensor &tensor, Attribute valid) {
  auto shape = dyn_cast_or_null<DenseI64ArrayAttr>(valid);
  if (!shape)
    return tensor;
  SmallVector<int64_t> start(tensor.rank(), 0);
  return cutSlice(tensor, start, shape.asArrayRef());
}

/// The elements of `graph.value`, which a buffer has where no input gives any.
static RefTensor elementsOf(DenseElementsAttr value) {
  RefTensor tensor(value.getType().getShape(), value.getElementType());
  if (tensor.isFloat())
    for (auto [i, element] : llvm::enumerate(value.getValues<APFloat>())) {
      APFloat copy = element;
      bool losesInfo;
      copy.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven,
                   &losesInfo);
      tensor.floats[i] = copy.convertToDouble();
    }
  else
    for (auto [i, element] : llvm::enumerate(value.getValues<APInt>()))
      tensor.ints[i] = element.getBitWidth() == 1
                           ? static_cast<int64_t>(element.getZExtValue())
                           : element.getSExtValue();
  return tensor;
}

/// Converts the input for argument `i` to the argument's type.
static FailureOr<TensorRef> bindInput(FunctionOpInterface function, unsigned i,
                                      const NamedTensors &inputs,
                                      Precision precision) {
  Location loc = function.getArgument(i).getLoc();
  std::string name = argumentName(function, i);
  RankedTensorType type = wholeType(function, i);
  if (!type || !type.hasStaticShape())
    return emitError(loc) << "argument '" << name
                          << "' is not a tensor of static shape";
  const RefTensor *input = findInput(function, i, inputs);
  std::optional<RefTensor> known;
  if (!input)
    if (auto value =
            function.getArgAttrOfType<DenseElementsAttr>(i, graph::kValueAttr))
      input = &known.emplace(elementsOf(value));
  if (!input)
    return emitError(loc) << "no input is named '" << name
                          << "': " << graph::nameArgument(function, i)
                          << " of '" << function.getName() << "' needs it ("
                          << type << ")";
  auto valid =
      function.getArgAttrOfType<DenseI64ArrayAttr>(i, graph::kValidShapeAttr);
  RankedTensorType padded = type;
  if (valid)
    type = type.clone(valid.asArrayRef());
  RefTensor tensor(type.getShape(), type.getElementType());
  if (ArrayRef<int64_t>(input->shape) != type.getShape()) {
    // A parameter in factored shape is given in the framework's shape.
    auto framework = function.getArgAttrOfType<DenseI64ArrayAttr>(
        i, graph::kFrameworkShapeAttr);
    if (!framework || framework.asArrayRef() != ArrayRef<int64_t>(input->shape))
      return emitError(loc)
             << "input '" << name << "' has type " << input->type() << ", but "
             << graph::nameArgument(function, i) << " of '"
             << function.getName() << "' is " << type;
  }
  if (input->isFloat() != tensor.isFloat())
    return emitError(loc) << "input '" << name << "' has elements of type "
                          << input->element << ", but "
                          << graph::nameArgument(function, i) << " of '"
                          << function.getName() << "' is " << type;
  tensor.floats = input->floats;
  tensor.ints = input->ints;
  for (int64_t value : tensor.ints)
    if (wrapTo(tensor.element, value) != value)
      return emitError(loc) << "input '" << name << "' holds " << value
                            << ", which " << tensor.element << " cannot";
  settle(tensor, precision);
  if (valid) {
    RefTensor larger(padded.getShape(), padded.getElementType());
    pasteSlice(larger, SmallVector<int64_t>(padded.getRank(), 0), tensor);
    tensor = std::move(larger);
  }
  return TensorRef(std::make_shared<RefTensor>(std::move(tensor)));
}

//===----------------------------------------------------------------------===//
// Functions
//===----------------------------------------------------------------------===//

static FailureOr<std::vector<TensorRef>>
runWhole(FunctionOpInterface function, const std::vector<TensorRef> &arguments,
         ReferenceContext &context) {
  FailureOr<RankTensors> outputs =
      runBlock(function.getFunctionBody().front(), {arguments}, {0}, context);
  if (failed(outputs))
    return failure();
  return std::move(outputs->front());
}

/// Whether the function computes on shards: partitioning has recorded the
/// global types on it.
static bool isLocal(FunctionOpInterface function) {
  for (unsigned i = 0, e = function.getNumArguments(); i < e; ++i)
    if (function.getArgAttr(i, spmd::kGlobalTypeAttr))
      return true;
  for (unsigned i = 0, e = function.getNumResults(); i < e; ++i)
    if (function.getResultAttr(i, spmd::kGlobalTypeAttr))
      return true;
  return false;
}

/// Runs the function on each mesh position, and joins the results.
static FailureOr<std::vector<TensorRef>>
runShards(FunctionOpInterface function, const spmd::Mesh &mesh,
          const std::vector<TensorRef> &arguments, ReferenceContext &context) {
  RankTensors shards(mesh.size());
  for (auto [i, whole] : llvm::enumerate(arguments)) {
    auto sharding =
        function.getArgAttrOfType<spmd::ShardingAttr>(i, spmd::kShardingAttr);
    for (auto [rank, own] : llvm::enumerate(shards))
      own.push_back(sharding ? std::make_shared<RefTensor>(cutShard(
                                   mesh, sharding.getSharding(), *whole, rank))
                             : whole);
  }
  SmallVector<int64_t> ranks =
      llvm::to_vector(llvm::seq<int64_t>(0, mesh.size()));
  FailureOr<RankTensors> outputs =
      runBlock(function.getFunctionBody().front(), shards, ranks, context);
  if (failed(outputs))
    return failure();
  std::vector<TensorRef> results;
  for (unsigned i = 0, e = function.getNumResults(); i < e; ++i) {
    auto sharding = function.getResultAttrOfType<spmd::ShardingAttr>(
        i, spmd::kShardingAttr);
    auto global =
        function.getResultAttrOfType<TypeAttr>(i, spmd::kGlobalTypeAttr);
    if (!sharding || !global)
      return graph::emitResultError(function, i)
             << " has no '" << spmd::kShardingAttr << "' and '"
             << spmd::kGlobalTypeAttr << "', though others have";
    SmallVector<const RefTensor *> parts;
    for (const std::vector<TensorRef> &own : *outputs)
      parts.push_back(own[i].get());
    std::optional<RefTensor> whole =
        joinShards(mesh, sharding.getSharding(),
                   cast<RankedTensorType>(global.getValue()).getShape(), parts);
    if (!whole)
      return function.emitError("ranks disagree on ")
             << graph::nameResult(function, i)
             << ": a partial value left the function";
    results.push_back(std::make_shared<RefTensor>(std::move(*whole)));
  }
  return results;
}

/// Joins the published values of the ranks to one value of the whole program.
static FailureOr<RefTensor> joinPublished(const PublishedValue &value,
                                          spmd::Mesh mesh) {
  SmallVector<const RefTensor *> parts;
  for (auto &[rank, tensor] : value.ranks)
    parts.push_back(&tensor);
  // From one stage and micro-batch of a program; if several micro-batches have
  // a value, from the last.
  size_t all = mesh.size();
  if (spmd::Mesh fewer = mesh.together();
      parts.size() != all && parts.size() % fewer.size() == 0) {
    parts.erase(parts.begin(), parts.end() - fewer.size());
    mesh = std::move(fewer);
  }
  auto shardings = value.op->getAttrOfType<ArrayAttr>(spmd::kShardingsAttr);
  auto globals = value.op->getAttrOfType<ArrayAttr>(spmd::kGlobalTypesAttr);
  std::optional<RefTensor> whole;
  if (shardings && globals && mesh.size() == int64_t(parts.size())) {
    auto global = cast<TypeAttr>(globals[0]).getValue();
    whole =
        joinShards(mesh, cast<spmd::ShardingAttr>(shardings[0]).getSharding(),
                   cast<RankedTensorType>(global).getShape(), parts);
  } else if (llvm::all_of(parts, [&](const RefTensor *part) {
               return sameElements(*part, *parts.front());
             })) {
    whole = *parts.front();
  }
  if (!whole)
    return value.op->emitOpError("ranks disagree on its value: it is partial");
  return withoutPadding(*whole, value.op->getAttr(graph::kValidShapeAttr));
}

FailureOr<ReferenceResult> Interpreter::run(StringRef entry,
                                            const NamedTensors &inputs) {
  auto function = dyn_cast_or_null<FunctionOpInterface>(
      SymbolTable::lookupSymbolIn(module, entry));
  if (!function || function.isExternal()) {
    InFlightDiagnostic error = module.emitError()
                               << "the module has no entry '" << entry << "'";
    for (auto candidate : module.getOps<FunctionOpInterface>())
      if (!candidate.isExternal())
        error.attachNote(candidate.getLoc())
            << "'" << candidate.getName() << "' is one";
    return error;
  }
  Region &body = function.getFunctionBody();
  if (!body.hasOneBlock())
    return function.emitError("has control flow; an entry is one block");

  std::vector<TensorRef> wholes;
  for (unsigned i = 0, e = function.getNumArguments(); i < e; ++i) {
    FailureOr<TensorRef> tensor = bindInput(function, i, inputs, precision);
    if (failed(tensor))
      return failure();
    wholes.push_back(*tensor);
  }
  ReferenceContext context;
  context.precision = precision;
  context.observer = observer;
  context.disturbance = disturbance;
  FailureOr<std::vector<TensorRef>> outputs;
  spmd::MeshOp meshOp = spmd::findMesh(module);
  spmd::Mesh mesh;
  if (meshOp)
    mesh = meshOp.getMesh();
  if (auto program = dyn_cast<pipe::ProgramOp>(*function))
    outputs = runProgram(program, wholes, context);
  else if (isLocal(function))
    outputs = runShards(function, mesh, wholes, context);
  else
    outputs = runWhole(function, wholes, context);
  if (failed(outputs))
    return failure();

  ReferenceResult result;
  for (auto [i, tensor] : llvm::enumerate(*outputs)) {
    // Another stage has the same value.
    if (function.getResultAttr(i, pipe::kCopyAttr))
      continue;
    std::string name = resultName(function, i);
    RefTensor output = withoutPadding(
        *tensor, function.getResultAttr(i, graph::kValidShapeAttr));
    if (!result.outputs.try_emplace(name, std::move(output)).second)
      return function.emitError("two results are named '") << name << "'";
  }
  for (auto &[name, value] : context.published) {
    FailureOr<RefTensor> tensor = joinPublished(value, mesh);
    if (failed(tensor))
      return failure();
    result.published.emplace(name, std::move(*tensor));
  }
  return result;
}
