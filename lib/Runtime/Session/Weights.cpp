//===- Weights.cpp - Tensors of a session in files ------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Weights.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/xxhash.h"

#include <cstring>
#include <set>

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

namespace {

/// Reads elements of a source, in ascending order, as the program has them.
class WeightReader {
public:
  explicit WeightReader(const WeightSource &source)
      : source(source), how(source.conversion),
        elements(source.entry->bytes / how.fromBytes) {}

  int64_t size() const { return elements; }

  /// Reads `count` elements from `at` on.
  Error read(int64_t at, int64_t count, char *to) {
    if (source.slice)
      return convert(source.slice->bytes.data() + at * how.fromBytes, count,
                     to);
    if (how.copies && count * how.fromBytes >= kDirect)
      return source.file->read(*source.entry, at * how.fromBytes,
                               count * how.fromBytes, to);
    while (count > 0) {
      if (at < begin || at >= end)
        if (Error error = fill(at))
          return error;
      int64_t some = std::min(count, end - at);
      if (Error error =
              convert(window.data() + (at - begin) * how.fromBytes, some, to))
        return error;
      at += some;
      count -= some;
      to += some * how.toBytes;
    }
    return Error::success();
  }

private:
  /// Longer runs are read to where they belong; of shorter ones, as the rows of
  /// a shard may be, many are read at once.
  static constexpr int64_t kDirect = 1 << 12, kWindow = 1 << 16;

  Error fill(int64_t at) {
    int64_t count = std::min(kWindow / how.fromBytes, elements - at);
    window.resize(static_cast<size_t>(count * how.fromBytes));
    begin = end = 0;
    if (Error error = source.file->read(*source.entry, at * how.fromBytes,
                                        count * how.fromBytes, window.data()))
      return error;
    begin = at;
    end = at + count;
    return Error::success();
  }

  Error convert(const char *from, int64_t count, char *to) {
    if (how.run(from, to, count) < 0)
      return Error::success();
    return makeError("tensor '" + source.entry->name +
                     "': the file was changed while it was read: it has values "
                     "that are out of range");
  }

  const WeightSource &source;
  const Conversion &how;
  int64_t elements;
  /// What was read of the file: the elements from `begin` to `end`.
  std::vector<char> window;
  int64_t begin = 0, end = 0;
};

} // namespace

Expected<bool> WeightSource::equals(const WeightSource &other) const {
  constexpr int64_t piece = 1 << 16;
  WeightReader mine(*this), its(other);
  std::vector<char> one, two;
  for (int64_t at = 0; at < mine.size(); at += piece) {
    int64_t size = std::min(piece, mine.size() - at);
    one.resize(static_cast<size_t>(size * conversion.toBytes));
    two.resize(one.size());
    if (Error error = mine.read(at, size, one.data()))
      return std::move(error);
    if (Error error = its.read(at, size, two.data()))
      return std::move(error);
    if (one != two)
      return false;
  }
  return true;
}

/// Adds up the first `elements` of each of the equal `slices` of `from`, and
/// writes the share that each of `count` takes of it.
template <typename T>
static void shareOfSum(const std::vector<char> &from, int64_t slices,
                       int64_t elements, int64_t count, char *to) {
  size_t size = from.size() / static_cast<size_t>(slices);
  for (size_t at = 0, end = static_cast<size_t>(elements) * sizeof(T); at < end;
       at += sizeof(T)) {
    double sum = 0;
    for (size_t slice = at; slice < from.size(); slice += size) {
      T value;
      std::memcpy(&value, &from[slice], sizeof(T));
      sum += static_cast<double>(value);
    }
    T own = static_cast<T>(sum / static_cast<double>(count));
    std::memcpy(to + at, &own, sizeof(T));
  }
}

/// The number of elements in order that count.
static int64_t sliceSize(llvm::ArrayRef<int64_t> shape, bool summed) {
  int64_t size = 1;
  for (int64_t dim : shape.drop_front(summed ? 1 : 0))
    size *= dim;
  return size;
}

/// Whether a file's tensor, of another shape, is what other workers have of
/// `tensor`: but for the size of the first dimension, of which only the sum
/// counts, and for the number of zeros behind the elements.
static bool isOfOtherWorkers(const FileTensor &entry, const Tensor &tensor) {
  llvm::ArrayRef<int64_t> there = entry.shape, here = fileShape(tensor);
  bool isFloat = tensor.dtype == DType::F32 || tensor.dtype == DType::F64;
  if (!isFloat || (!tensor.summed && tensor.elements == 0) || there == here ||
      (tensor.summed && (there.empty() || there[0] <= 0)))
    return false;
  return tensor.elements > 0
             ? sliceSize(there, tensor.summed) >= tensor.elements
             : there.drop_front() == here.drop_front();
}

/// Replaces a source of other workers by what `tensor` has of it: the whole, or
/// the slice that each worker has of the sum.
static Error share(const Tensor &tensor, WeightSource &source) {
  const FileTensor &entry = *source.entry;
  const std::vector<int64_t> &shape = fileShape(tensor);
  std::vector<char> whole(static_cast<size_t>(
      entry.bytes / source.conversion.fromBytes * source.conversion.toBytes));
  if (Error error = source.file->convert(entry, source.conversion, whole.data())
                        .takeError())
    return error;
  auto slice = std::make_shared<WeightSource::Slice>();
  int64_t slices = tensor.summed ? entry.shape[0] : 1,
          count = tensor.summed ? shape[0] : 1,
          size = sliceSize(shape, tensor.summed),
          elements = tensor.elements > 0 ? tensor.elements : size;
  slice->bytes.resize(static_cast<size_t>(size * source.conversion.toBytes));
  (tensor.dtype == DType::F64 ? shareOfSum<double>
                              : shareOfSum<float>)(whole, slices, elements,
                                                   count, slice->bytes.data());
  slice->entry = {entry.name, safetensorsName(tensor.dtype).str(), shape,
                  /*offset=*/0, static_cast<int64_t>(slice->bytes.size())};
  source.entry = &slice->entry;
  source.conversion = *Conversion::find(slice->entry.dtype, tensor.dtype);
  source.slice = std::move(slice);
  return Error::success();
}

/// Fills `source` from what the file has under a name, or says why that does
/// not become `tensor`.
static std::string convertible(const WeightFiles::Found &found,
                               const Tensor &tensor, WeightSource &source) {
  const FileTensor &entry = *found.entry;
  std::optional<Conversion> conversion =
      Conversion::find(entry.dtype, tensor.dtype);
  bool shares = isOfOtherWorkers(entry, tensor);
  if (!conversion || (entry.shape != fileShape(tensor) && !shares))
    return "'" + entry.name + "' is " + entry.dtype + " " +
           shapeText(entry.shape) + " in the file, but " +
           safetensorsName(tensor.dtype).str() + " " +
           shapeText(fileShape(tensor)) + " in the program";
  if (!conversion->total) {
    Expected<int64_t> wrong = found.file->convert(entry, *conversion, nullptr);
    if (!wrong)
      return llvm::toString(wrong.takeError());
    if (*wrong >= 0)
      return "'" + entry.name + "' is " + entry.dtype +
             " in the file, and its element at " +
             shapeText(indexOf(entry.shape, *wrong)) +
             " is out of the range of " + safetensorsName(tensor.dtype).str() +
             ", which the program takes";
  }
  source = {found.file, &entry, *conversion, nullptr};
  if (shares)
    if (Error error = share(tensor, source))
      return llvm::toString(std::move(error));
  return "";
}

/// Checks the indices of a buffer.
static Error checkIndices(const Tensor &tensor, const WeightSource &source) {
  if (tensor.upperBound <= 0)
    return Error::success();
  WeightReader reader(source);
  std::vector<char> converted(
      static_cast<size_t>(reader.size() * source.conversion.toBytes));
  if (Error error = reader.read(0, reader.size(), converted.data()))
    return error;
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
  // Of each technique, the state that the file lacks.
  std::map<std::string, std::vector<const Tensor *>> absent;
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
      else if (!source)
        source = next;
      else if (Expected<bool> same = source->equals(next); !same)
        problems.push_back(llvm::toString(same.takeError()));
      else if (!*same)
        problems.push_back("'" + source->entry->name + "' and '" + name +
                           "' are tied in the program, but differ in the file");
    }
    if (source) {
      found.push_back({&tensor, *source});
      if (Error error = checkIndices(tensor, *source))
        problems.push_back(llvm::toString(std::move(error)));
    } else if (!given && !tensor.optional.empty()) {
      absent[tensor.optional].push_back(&tensor);
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
  std::vector<const Tensor *> zeros;
  for (auto &[technique, tensors] : absent) {
    bool some = llvm::any_of(found, [&, &of = technique](const auto &pair) {
      return pair.first->optional == of;
    });
    for (const Tensor *tensor : tensors)
      if (some)
        missing.push_back("'" + tensor->name + "'");
      else
        zeros.push_back(tensor);
  }
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
  return Loaded{std::move(*files), path.str(), optimizer, std::move(found),
                std::move(zeros)};
}

Error Session::take(llvm::MutableArrayRef<Loaded> files) {
  if (Error error = finishUpdate())
    return error;
  for (Loaded &loaded : files) {
    std::string hashes;
    Error error = take(loaded, hashes);
    std::string text = error ? llvm::toString(std::move(error)) : "";
    // Over all tensors that were read: an outdated file of one machine would
    // not be noticed later.
    Error differs = agree(
        {{"what went wrong with the files", text.empty() ? "nothing" : text},
         {loaded.optimizer ? "the optimizer state that was read (hash)"
                           : "the weights that were read (hash)",
          llvm::utohexstr(llvm::xxh3_64bits(hashes), /*LowerCase=*/true)}});
    if (text.empty() && !differs)
      continue;
    if (text.empty())
      text = llvm::toString(std::move(differs));
    else
      llvm::consumeError(std::move(differs)); // says the same
    text = loaded.path + ": " + text;
    // Some tensors are those of the file, and others are not: nothing may be
    // computed with them.
    fail("was loaded in part: " + text);
    return makeError(text);
  }
  return Error::success();
}

Error Session::take(Loaded &loaded, std::string &hashes) {
  for (const auto &[tensor, source] : loaded.found) {
    const auto &[file, entry, conversion, slice] = source;
    if (!alone()) {
      Expected<std::string> hash =
          slice ? Expected<std::string>(hashOf(llvm::StringRef(
                      slice->bytes.data(), slice->bytes.size())))
                : file->hash(*entry);
      if (!hash)
        return hash.takeError();
      hashes += tensor->name + '\n' + *hash + '\n';
    }
    if (tensor->role == Role::Buffer)
      valued.insert(tensor->name);
    WeightReader reader(source);
    if (isEverywhere(*tensor) && !slice) {
      Error wrong = Error::success();
      auto fill = [&, &what = *tensor](char *own) {
        if (!wrong)
          wrong = reader.read(0, reader.size(), own);
        for (int rank = 1; !wrong && rank < getLocalRanks(); ++rank)
          wrong = ranks[static_cast<size_t>(rank)]->write(what, own);
      };
      if (Error error = first().change(*tensor, fill))
        return llvm::joinErrors(std::move(error), std::move(wrong));
      if (wrong)
        return wrong;
      continue;
    }
    // Of what is one slice, all others are copies.
    int64_t size = reader.size(), width = conversion.toBytes;
    for (const std::unique_ptr<Rank> &rank : ranks) {
      if (!rank->holds(*tensor))
        continue;
      Error wrong = Error::success();
      auto fill = [&, &of = *tensor, &from = *rank](char *part) {
        cutPart(getProgram().mesh, of, from.number(), part,
                [&](int64_t at, int64_t to, int64_t count) {
                  for (int64_t some; count > 0 && !wrong;
                       at += some, to += some, count -= some) {
                    some = std::min(count, size - at % size);
                    if (!wrong)
                      wrong = reader.read(at % size, some, part + to * width);
                  }
                });
      };
      if (Error error = rank->change(*tensor, fill))
        return llvm::joinErrors(std::move(error), std::move(wrong));
      if (wrong)
        return wrong;
    }
  }
  for (const Tensor *tensor : loaded.absent)
    for (const std::unique_ptr<Rank> &rank : ranks)
      if (rank->holds(*tensor))
        if (Error error = rank->change(*tensor, [&](char *part) {
              std::memset(
                  part, 0,
                  static_cast<size_t>(localBytes(getProgram().mesh, *tensor)));
            }))
          return error;
  return Error::success();
}

Error Session::load(llvm::StringRef path, bool optimizer) {
  Busy busy = this->busy();
  Expected<Loaded> loaded = check(path, optimizer);
  // If one process alone could not read its files, the others must not go on.
  std::string wrong = loaded ? "nothing" : llvm::toString(loaded.takeError());
  if (Error error = agree({{"what is wrong with the files", wrong}}))
    return makeError(path + ": " + llvm::toString(std::move(error)));
  if (wrong != "nothing")
    return makeError(wrong);
  return take(llvm::MutableArrayRef<Loaded>(*loaded));
}

Error Session::save(llvm::StringRef path, bool optimizer,
                    FileFacts *facts) const {
  if (Error error = finishUpdate())
    return error;
  // A step that has ended within its updates has left nothing to save.
  std::string failed;
  for (const std::unique_ptr<Rank> &rank : ranks)
    if (failed.empty())
      failed = rank->offloadFailure();
  Expected<bool> anyFailed = any(!failed.empty());
  if (!anyFailed)
    return anyFailed.takeError();
  if (*anyFailed)
    return makeError(
        llvm::Twine(path.empty() ? llvm::StringRef("cannot save") : path) +
        ": " + (failed.empty() ? "another rank has failed" : failed));
  // Shards that others still send to the process that writes.
  std::set<const Tensor *> unread;
  std::vector<SafetensorsItem> items;
  llvm::json::Object aliases;
  // What a framework's model may not have.
  llvm::json::Array added;
  for (const Tensor &tensor : getProgram().tensors) {
    if (!belongs(tensor, optimizer))
      continue;
    if (!isLeader() || path.empty()) {
      // The process that writes needs the shards of this one.
      if (Error error = read(tensor, nullptr))
        return error;
      continue;
    }
    bool split = !isEverywhere(tensor);
    if (split)
      unread.insert(&tensor);
    items.push_back({tensor.name, tensor.dtype, fileShape(tensor),
                     split ? nullptr : data(tensor), [&, this](void *to) {
                       unread.erase(&tensor);
                       return read(tensor, to);
                     }});
    if (!tensor.persistent ||
        (tensor.role == Role::Parameter && !tensor.of.empty()))
      added.push_back(tensor.name);
    if (!tensor.aliases.empty())
      aliases[tensor.name] = llvm::json::Array(tensor.aliases);
  }
  if (!isLeader() || path.empty())
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
  Error error = writeSafetensors(path, items, metadata, facts);
  // Where it could not be written, others wait to send the rest.
  for (const Tensor &tensor : getProgram().tensors)
    if (unread.count(&tensor))
      if (Error lost = read(tensor, nullptr))
        return llvm::joinErrors(std::move(error), std::move(lost));
  return error;
}

Error Session::loadWeights(llvm::StringRef path) {
  return load(path, /*optimizer=*/false);
}
Error Session::saveWeights(llvm::StringRef path) const {
  return ofLeader(save(path, false));
}
Error Session::loadOptimizer(llvm::StringRef path) {
  return load(path, /*optimizer=*/true);
}
Error Session::saveOptimizer(llvm::StringRef path) const {
  return ofLeader(save(path, true));
}
