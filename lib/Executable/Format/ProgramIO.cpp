//===- ProgramIO.cpp - Programs as JSON -----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
//
// The reader and the writer both use the lists of ProgramFields.h.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Format/ProgramIO.h"
#include "cleave/Executable/Format/FileIO.h"
#include "cleave/Executable/Format/ProgramFields.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"
#include <optional>

using namespace cleave::runtime;
namespace json = llvm::json;

llvm::Error cleave::runtime::makeError(const llvm::Twine &message) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), message);
}

//===----------------------------------------------------------------------===//
// Names of enumerators
//===----------------------------------------------------------------------===//

static constexpr llvm::StringLiteral dtypeNames[] = {
    "f64", "f32", "f16", "bf16",     "i64",
    "i32", "i8",  "i1",  "f8E4M3FN", "f8E5M2"};
static constexpr int64_t dtypeBytes[] = {8, 4, 2, 2, 8, 4, 1, 1, 1, 1};
static constexpr llvm::StringLiteral roleNames[] = {
    "parameter", "buffer", "state", "gradient", "input", "scalar", "output"};
static constexpr llvm::StringLiteral timeClassNames[] = {
    "contraction", "attention",     "row-wise",
    "optimizer",   "communication", "offload"};
static constexpr llvm::StringLiteral kindNames[] = {
    "kernel",           "contract", "attention",      "attention-backward",
    "scatter-add",      "top-k",    "orthonormalize", "sort-rows",
    "grouped-contract", "copy",     "fill",           "check",
    "collective",       "wait",     "fetch",          "evict"};
static constexpr llvm::StringLiteral collectiveNames[] = {
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all",
    "permute",    "broadcast",  "reduce",         "send",
    "receive",    "slice",      "rotate",         "all-to-all-rows"};
static_assert(std::size(collectiveNames) ==
              std::size(cleave::kCollectiveNames));
static constexpr llvm::StringLiteral reductionNames[] = {"sum", "max", "min"};
static constexpr llvm::StringLiteral epilogueNames[] = {"none", "gelu",
                                                        "gelu-gradient"};

int64_t cleave::runtime::byteSize(DType type) {
  return dtypeBytes[static_cast<size_t>(type)];
}
llvm::StringRef cleave::runtime::dtypeName(DType type) {
  return dtypeNames[static_cast<size_t>(type)];
}
llvm::StringRef cleave::runtime::roleName(Role role) {
  return roleNames[static_cast<size_t>(role)];
}
llvm::StringRef cleave::runtime::timeClassName(TimeClass timeClass) {
  return timeClassNames[static_cast<size_t>(timeClass)];
}

llvm::StringRef cleave::runtime::collectiveName(CollectiveKind kind) {
  return collectiveNames[static_cast<size_t>(kind)];
}

std::string cleave::runtime::shapeText(const std::vector<int64_t> &shape) {
  std::string text = "[";
  llvm::raw_string_ostream os(text);
  llvm::interleaveComma(shape, os);
  os << "]";
  return text;
}

template <typename E> static llvm::ArrayRef<llvm::StringLiteral> namesOf();
template <> llvm::ArrayRef<llvm::StringLiteral> namesOf<DType>() {
  return dtypeNames;
}
template <> llvm::ArrayRef<llvm::StringLiteral> namesOf<Role>() {
  return roleNames;
}
template <> llvm::ArrayRef<llvm::StringLiteral> namesOf<TimeClass>() {
  return timeClassNames;
}
template <> llvm::ArrayRef<llvm::StringLiteral> namesOf<CommandKind>() {
  return kindNames;
}
template <> llvm::ArrayRef<llvm::StringLiteral> namesOf<CollectiveKind>() {
  return collectiveNames;
}
template <> llvm::ArrayRef<llvm::StringLiteral> namesOf<ReductionKind>() {
  return reductionNames;
}
template <> llvm::ArrayRef<llvm::StringLiteral> namesOf<Epilogue>() {
  return epilogueNames;
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

namespace {

struct ToValue {
  static json::Value get(const std::string &v) { return json::fixUTF8(v); }
  static json::Value get(bool v) { return v; }
  static json::Value get(int32_t v) { return v; }
  static json::Value get(int64_t v) { return v; }
  static json::Value get(uint64_t v) { return v; }
  static json::Value get(float v) { return static_cast<double>(v); }
  /// A reference is [buffer, offset], or [buffer] at its start.
  static json::Value get(const Ref &v) {
    if (v.offset == 0)
      return json::Array{v.buffer};
    return json::Array{v.buffer, v.offset};
  }
  /// One offset, or [first, turn, step, last].
  static json::Value get(const Column &v) {
    if (v.first.empty() && v.turn.size() == 1 && v.step == 0 && v.last.empty())
      return v.turn.front();
    return json::Array{get(v.first), get(v.turn), v.step, get(v.last)};
  }
  static json::Value get(const int64_t (&v)[4]) {
    return json::Array{v[0], v[1], v[2], v[3]};
  }
  template <typename T> static json::Value get(const std::vector<T> &v) {
    json::Array array;
    array.reserve(v.size());
    for (const T &element : v)
      array.push_back(get(element));
    return array;
  }
  template <typename T>
  static json::Value get(const std::map<std::string, T> &v) {
    json::Object object;
    for (const auto &[key, element] : v)
      object[json::fixUTF8(key)] = get(element);
    return object;
  }
  template <typename T>
    requires std::is_enum_v<T>
  static json::Value get(T v) {
    return namesOf<T>()[static_cast<size_t>(v)];
  }
  template <typename T>
    requires std::is_class_v<T>
  static json::Value get(const T &v);
};

template <typename T> struct FieldWriter {
  const T &object;
  json::Object result;
  /// The value of a field that is not in the text.
  const T defaults{};

  template <typename M> void operator()(llvm::StringLiteral name, M T::*field) {
    // Enumerators without a default are always written.
    if constexpr (std::is_array_v<M>) {
      if (llvm::equal(object.*field, defaults.*field))
        return;
    } else if constexpr (!std::is_enum_v<M>) {
      if (object.*field == defaults.*field && name != "version")
        return;
    }
    result[name] = ToValue::get(object.*field);
  }
};

template <typename T>
  requires std::is_class_v<T>
json::Value ToValue::get(const T &v) {
  FieldWriter<T> writer{v, {}, {}};
  fields(writer, static_cast<const T *>(nullptr));
  return std::move(writer.result);
}

} // namespace

std::string cleave::runtime::toJSON(const Program &program) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << ToValue::get(program);
  return text;
}

std::string cleave::runtime::toJSON(llvm::ArrayRef<Program> positions) {
  if (positions.size() == 1)
    return toJSON(positions.front());
  return "[" +
         llvm::join(llvm::map_range(
                        positions,
                        [](const Program &program) { return toJSON(program); }),
                    ",\n") +
         "]";
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

namespace {

struct FromValue {
  static bool get(const json::Value &v, std::string &out, json::Path p) {
    if (auto s = v.getAsString()) {
      out = s->str();
      return true;
    }
    p.report("expected a string");
    return false;
  }
  static bool get(const json::Value &v, bool &out, json::Path p) {
    if (auto b = v.getAsBoolean()) {
      out = *b;
      return true;
    }
    p.report("expected true or false");
    return false;
  }
  static bool get(const json::Value &v, int64_t &out, json::Path p) {
    if (auto i = v.getAsInteger()) {
      out = *i;
      return true;
    }
    p.report("expected an integer");
    return false;
  }
  static bool get(const json::Value &v, uint64_t &out, json::Path p) {
    if (auto i = v.getAsUINT64()) {
      out = *i;
      return true;
    }
    p.report("expected an integer that is not negative");
    return false;
  }
  static bool get(const json::Value &v, int32_t &out, json::Path p) {
    auto i = v.getAsInteger();
    if (i && *i >= INT32_MIN && *i <= INT32_MAX) {
      out = static_cast<int32_t>(*i);
      return true;
    }
    p.report("expected a 32-bit integer");
    return false;
  }
  static bool get(const json::Value &v, float &out, json::Path p) {
    if (auto d = v.getAsNumber()) {
      out = static_cast<float>(*d);
      return true;
    }
    p.report("expected a number");
    return false;
  }
  static bool get(const json::Value &v, Ref &out, json::Path p) {
    const json::Array *array = v.getAsArray();
    if (!array || array->empty() || array->size() > 2) {
      p.report("expected [buffer, offset]");
      return false;
    }
    out.offset = 0;
    if (!get((*array)[0], out.buffer, p.index(0)))
      return false;
    return array->size() == 1 || get((*array)[1], out.offset, p.index(1));
  }
  static bool get(const json::Value &v, Column &out, json::Path p) {
    out = {};
    const json::Array *array = v.getAsArray();
    if (!array)
      return get(v, out.turn.emplace_back(), p);
    if (array->size() != 4) {
      p.report("expected [first, turn, step, last]");
      return false;
    }
    return get((*array)[0], out.first, p.index(0)) &&
           get((*array)[1], out.turn, p.index(1)) &&
           get((*array)[2], out.step, p.index(2)) &&
           get((*array)[3], out.last, p.index(3));
  }
  static bool get(const json::Value &v, int64_t (&out)[4], json::Path p) {
    const json::Array *array = v.getAsArray();
    if (!array || array->size() != 4) {
      p.report("expected four integers");
      return false;
    }
    for (unsigned i = 0; i < 4; ++i)
      if (!get((*array)[i], out[i], p.index(i)))
        return false;
    return true;
  }
  template <typename T>
  static bool get(const json::Value &v, std::vector<T> &out, json::Path p) {
    const json::Array *array = v.getAsArray();
    if (!array) {
      p.report("expected an array");
      return false;
    }
    out.clear();
    out.resize(array->size());
    for (size_t i = 0; i < array->size(); ++i)
      if (!get((*array)[i], out[i], p.index(i)))
        return false;
    return true;
  }
  template <typename T>
  static bool get(const json::Value &v, std::map<std::string, T> &out,
                  json::Path p) {
    const json::Object *object = v.getAsObject();
    if (!object) {
      p.report("expected an object");
      return false;
    }
    for (const auto &[key, element] : *object)
      if (!get(element, out[key.str()], p.field(key)))
        return false;
    return true;
  }
  template <typename T>
    requires std::is_enum_v<T>
  static bool get(const json::Value &v, T &out, json::Path p) {
    if (auto s = v.getAsString()) {
      auto names = namesOf<T>();
      auto *it = llvm::find(names, *s);
      if (it != names.end()) {
        out = static_cast<T>(it - names.begin());
        return true;
      }
    }
    p.report("unknown name in an enumeration");
    return false;
  }
  template <typename T>
    requires std::is_class_v<T>
  static bool get(const json::Value &v, T &out, json::Path p);
};

template <typename T> struct FieldReader {
  const json::Object &source;
  T &object;
  json::Path path;
  bool ok = true;
  size_t seen = 0;

  template <typename M> void operator()(llvm::StringLiteral name, M T::*field) {
    if (!ok)
      return;
    const json::Value *value = source.get(name);
    if (!value) {
      if constexpr (std::is_enum_v<M>) {
        path.field(name).report("missing");
        ok = false;
      }
      return;
    }
    ++seen;
    ok = FromValue::get(*value, object.*field, path.field(name));
  }
};

/// Names the first key of `source` that is not a field of `T`.
template <typename T> struct FieldNames {
  llvm::SmallVector<llvm::StringRef> names;
  template <typename M> void operator()(llvm::StringLiteral name, M T::*) {
    names.push_back(name);
  }
};

template <typename T>
  requires std::is_class_v<T>
bool FromValue::get(const json::Value &v, T &out, json::Path p) {
  const json::Object *object = v.getAsObject();
  if (!object) {
    p.report("expected an object");
    return false;
  }
  FieldReader<T> reader{*object, out, p};
  fields(reader, static_cast<const T *>(nullptr));
  if (!reader.ok)
    return false;
  if (reader.seen != object->size()) {
    FieldNames<T> known;
    fields(known, static_cast<const T *>(nullptr));
    for (const auto &[key, element] : *object)
      if (!llvm::is_contained(known.names, key.str())) {
        p.field(key).report("unknown field");
        return false;
      }
  }
  return true;
}

} // namespace

/// One program.
static llvm::Expected<Program> readProgram(const json::Value &value) {
  // The version is checked first: another version may have other fields.
  if (const json::Object *object = value.getAsObject()) {
    std::optional<int64_t> version = object->getInteger("version");
    if (!version)
      return makeError("the program has no version; compile the model again");
    if (*version != Program::kVersion)
      return makeError("the program has version " + llvm::Twine(*version) +
                       ", but this runtime reads version " +
                       llvm::Twine(Program::kVersion) +
                       "; compile the model again");
  }
  Program program;
  json::Path::Root root("program");
  if (!FromValue::get(value, program, root))
    return root.getError();
  return program;
}

llvm::Expected<Program> cleave::runtime::parseProgram(llvm::StringRef text) {
  llvm::Expected<std::vector<Program>> positions = parsePrograms(text);
  if (!positions)
    return positions.takeError();
  if (positions->size() != 1)
    return makeError("expected one program, not those of " +
                     llvm::Twine(positions->size()) + " positions");
  return std::move(positions->front());
}

llvm::Expected<std::vector<Program>>
cleave::runtime::parsePrograms(llvm::StringRef text) {
  llvm::Expected<json::Value> value = parseJson(text);
  if (!value)
    return makeError("the program is not valid JSON: " +
                     llvm::toString(value.takeError()));
  std::vector<Program> programs;
  json::Array one;
  const json::Array *positions = value->getAsArray();
  if (!positions) {
    one.push_back(std::move(*value));
    positions = &one;
  }
  for (const json::Value &position : *positions) {
    llvm::Expected<Program> program = readProgram(position);
    if (!program)
      return program.takeError();
    programs.push_back(std::move(*program));
  }
  return programs;
}
