//===- Weights.cpp - Tensors of a session in files ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Weights.h"
#include "cleave/Runtime/Core/Placement.h"
#include "cleave/Runtime/Core/ProgramIO.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/xxhash.h"

#include <cstring>

using namespace cleave::runtime;
using llvm::Error;
using llvm::Expected;
using llvm::Twine;
using FileTensor = SafetensorsFile::Entry;

static bool belongs(const Tensor &tensor, bool optimizer) {
  if (optimizer)
    return tensor.role == Role::State;
  return tensor.role == Role::Parameter || tensor.role == Role::Buffer;
}

/// The shape of a tensor in files.
static const std::vector<int64_t> &fileShape(const Tensor &tensor) {
  return tensor.frameworkShape.empty() ? tensor.shape : tensor.frameworkShape;
}

/// The names under which a file may hold `tensor`: tied weights have several.
static std::vector<std::string> namesOf(const Tensor &tensor) {
  std::vector<std::string> all = tensor.aliases;
  all.insert(all.begin(), tensor.name);
  return all;
}

/// The names to try if `files` have none of `tensor`'s own: a parameter may
/// start as another one.
static std::vector<std::string> namesIn(const WeightFiles &files,
                                        const Program &program,
                                        const Tensor &tensor) {
  std::vector<std::string> own = namesOf(tensor);
  auto given = [&](const std::string &name) { return files.has(name); };
  if (tensor.role != Role::Parameter || tensor.of.empty() ||
      llvm::any_of(own, given))
    return own;
  for (const Tensor &other : program.tensors)
    if (other.name == tensor.of)
      if (std::vector<std::string> names = namesOf(other);
          llvm::any_of(names, given))
        return names;
  return own;
}

bool WeightSource::equals(const WeightSource &other) const {
  if (conversion.copies && other.conversion.copies)
    return std::memcmp(entry->data, other.entry->data,
                       static_cast<size_t>(entry->bytes)) == 0;
  constexpr int64_t piece = 1 << 16;
  std::vector<char> one, two;
  int64_t count = entry->bytes / conversion.fromBytes;
  for (int64_t at = 0; at < count; at += piece) {
    int64_t size = std::min(piece, count - at);
    for (auto [source, bytes] : {std::pair(this, &one), {&other, &two}}) {
      const Conversion &how = source->conversion;
      bytes->resize(static_cast<size_t>(size * how.toBytes));
      how.run(source->entry->data + at * how.fromBytes, bytes->data(), size);
    }
    if (one != two)
      return false;
  }
  return true;
}

/// Fills `source` from what the file has under a name, or says why that does
/// not become `tensor`.
static std::string convertible(const WeightFiles::Found &found,
                               const Tensor &tensor, WeightSource &source) {
  const FileTensor &entry = *found.entry;
  std::optional<Conversion> conversion =
      Conversion::find(entry.dtype, tensor.dtype);
  if (!conversion || entry.shape != fileShape(tensor))
    return "'" + entry.name + "' is " + entry.dtype + " " +
           shapeText(entry.shape) + " in the file, but " +
           safetensorsName(tensor.dtype).str() + " " +
           shapeText(fileShape(tensor)) + " in the program";
  if (!conversion->total) {
    int64_t wrong = found.file->convert(entry, *conversion, nullptr);
    if (wrong >= 0)
      return "'" + entry.name + "' is " + entry.dtype +
             " in the file, and its element at " +
             shapeText(indexOf(entry.shape, wrong)) +
             " is out of the range of " + safetensorsName(tensor.dtype).str() +
             ", which the program takes";
  }
  source = {found.file, &entry, *conversion};
  return "";
}

/// Checks the indices of a buffer.
static Error checkIndices(const Tensor &tensor, const WeightSource &source) {
  if (tensor.upperBound <= 0 || source.conversion.copies)
    return checkIndexRange(tensor, source.entry->data);
  std::vector<char> converted(
      static_cast<size_t>(tensor.numElements() * source.conversion.toBytes));
  source.file->convert(*source.entry, source.conversion, converted.data());
  return checkIndexRange(tensor, converted.data());
}

Expected<Session::Loaded> Session::check(llvm::StringRef path,
                                         bool optimizer) const {
  Expected<WeightFiles> files = WeightFiles::open(path);
  if (!files)
    return files.takeError();
  std::vector<std::pair<const Tensor *, WeightSource>> found;
  std::vector<std::string> missing, constants, problems, extra;
  llvm::StringSet<> known;
  for (const Tensor &tensor : getProgram().tensors) {
    if (!belongs(tensor, optimizer))
      continue;
    // Any of the names is sufficient; several must agree.
    std::optional<WeightSource> source;
    bool given = false;
    for (const std::string &name : namesIn(*files, getProgram(), tensor)) {
      known.insert(name);
      WeightFiles::Found own = files->find(name);
      if (!own.entry)
        continue;
      given = true;
      WeightSource next;
      if (std::string why = convertible(own, tensor, next); !why.empty())
        problems.push_back(why);
      else if (source && !source->equals(next))
        problems.push_back("'" + source->entry->name + "' and '" + name +
                           "' are tied in the program, but differ in the file");
      else
        source = next;
    }
    if (source) {
      found.push_back({&tensor, *source});
      if (Error error = checkIndices(tensor, *source))
        problems.push_back(llvm::toString(std::move(error)));
    } else if (!given && tensor.persistent) {
      missing.push_back("'" + tensor.name + "'");
    } else if (!given && !valued.count(tensor.name)) {
      constants.push_back("'" + tensor.name + "'");
    }
  }
  if (!optimizer)
    known.insert_range(getProgram().unread);
  for (const std::string &name : files->getNames())
    if (!known.count(name))
      extra.push_back("'" + name + "'");
  if (!missing.empty())
    problems.push_back("missing in the file: " + llvm::join(missing, ", "));
  if (!constants.empty())
    problems.push_back("constants that the framework does not save, of which "
                       "only the file that tracing writes has the values: " +
                       llvm::join(constants, ", "));
  if (!extra.empty())
    problems.push_back("unknown to the program: " + llvm::join(extra, ", "));
  if (!problems.empty())
    return makeError(path + ": the file does not fit the program: " +
                     llvm::join(problems, "; "));
  return Loaded{std::move(*files), path.str(), optimizer, std::move(found)};
}

Error Session::take(llvm::MutableArrayRef<Loaded> files) {
  if (Error error = finishUpdate())
    return error;
  for (Loaded &loaded : files)
    if (Error error = take(loaded))
      return makeError(loaded.path + ": " + llvm::toString(std::move(error)));
  return Error::success();
}

Error Session::take(Loaded &loaded) {
  // Over all tensors that were read: an outdated file of one machine would not
  // be noticed later.
  std::string hashes;
  for (const auto &[tensor, source] : loaded.found) {
    const auto &[file, entry, conversion] = source;
    if (!alone())
      hashes += tensor->name + '\n' +
                llvm::utohexstr(llvm::xxh3_64bits(llvm::StringRef(
                    entry->data, static_cast<size_t>(entry->bytes)))) +
                '\n';
    if (tensor->role == Role::Buffer)
      valued.insert(tensor->name);
    if (isEverywhere(*tensor)) {
      Error wrong = Error::success();
      auto fill = [&, &what = *tensor, &from = *entry, &how = conversion,
                   &in = *file](char *own) {
        in.convert(from, how, own);
        for (int rank = 1; !wrong && rank < getLocalRanks(); ++rank)
          wrong = ranks[static_cast<size_t>(rank)]->write(what, own);
      };
      if (Error error = first().change(*tensor, fill))
        return llvm::joinErrors(std::move(error), std::move(wrong));
      if (wrong)
        return wrong;
      continue;
    }
    const char *from = entry->data;
    for (const std::unique_ptr<Rank> &rank : ranks)
      if (rank->holds(*tensor))
        if (Error error = rank->change(
                *tensor, [&, &how = conversion, &of = *tensor](char *part) {
                  cutPart(getProgram().mesh, of, rank->number(), part,
                          [&](int64_t at, int64_t to, int64_t count) {
                            how.run(from + at * how.fromBytes,
                                    part + to * how.toBytes, count);
                          });
                }))
          return error;
    file->forget(*entry);
  }
  return agree(
      {{loaded.optimizer ? "the optimizer state that was read (hash)"
                         : "the weights that were read (hash)",
        llvm::utohexstr(llvm::xxh3_64bits(hashes), /*LowerCase=*/true)}});
}

Error Session::load(llvm::StringRef path, bool optimizer) {
  Expected<Loaded> loaded = check(path, optimizer);
  if (!loaded)
    return loaded.takeError();
  return take(llvm::MutableArrayRef<Loaded>(*loaded));
}

Error Session::save(llvm::StringRef path, bool optimizer) const {
  if (Error error = finishUpdate())
    return error;
  // A step that has ended within its updates has left nothing to save.
  for (const std::unique_ptr<Rank> &rank : ranks)
    if (std::string why = rank->offloadFailure(); !why.empty())
      return makeError(path + ": " + why);
  std::vector<SafetensorsItem> items;
  llvm::json::Object aliases;
  // What a framework's model may not have.
  llvm::json::Array added;
  for (const Tensor &tensor : getProgram().tensors) {
    if (!belongs(tensor, optimizer))
      continue;
    if (!isLeader()) {
      // The process that writes needs the shards of this one.
      if (Error error = read(tensor, nullptr))
        return error;
      continue;
    }
    bool split = !isEverywhere(tensor);
    items.push_back({tensor.name, tensor.dtype, fileShape(tensor),
                     split ? nullptr : data(tensor),
                     [this, &tensor](void *to) { return read(tensor, to); }});
    if (!tensor.persistent ||
        (tensor.role == Role::Parameter && !tensor.of.empty()))
      added.push_back(tensor.name);
    if (!tensor.aliases.empty())
      aliases[tensor.name] = llvm::json::Array(tensor.aliases);
  }
  if (!isLeader())
    return Error::success();
  std::map<std::string, std::string> metadata;
  // The names that transformers and others expect.
  metadata["format"] = "pt";
  auto add = [&](const char *key, bool empty, llvm::json::Value value) {
    if (!empty)
      llvm::raw_string_ostream(metadata[key]) << value;
  };
  bool noAliases = aliases.empty(), noneAdded = added.empty();
  add("tied", noAliases, std::move(aliases));
  add("added", noneAdded, std::move(added));
  return writeSafetensors(path, items, metadata);
}

Error Session::loadWeights(llvm::StringRef path) {
  return load(path, /*optimizer=*/false);
}
Error Session::saveWeights(llvm::StringRef path) const {
  return save(path, false);
}
Error Session::loadOptimizer(llvm::StringRef path) {
  return load(path, /*optimizer=*/true);
}
Error Session::saveOptimizer(llvm::StringRef path) const {
  return save(path, true);
}
