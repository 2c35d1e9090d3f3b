//===- FakeCudnn.cpp - cuDNN's attention on the host ----------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// libcudnn.so.9 for machines without a device: the real library with only its
/// execution replaced. Descriptors are those of the real one, which checks
/// them, proposes plans, compiles their kernels and says how much workspace
/// they need; here they are noted too, and where a plan would run, its graph of
/// operations is interpreted on the host, in double, with each tensor rounded
/// to its type.
///
///   CLEAVE_FAKE_CUDNN=FILE          the real libcudnn.so.9; without it, no
///                                   handle can be created
///   CLEAVE_FAKE_CUDNN_DEVICE=FILE   the properties of the device for which it
///                                   plans, as JSON (see devices/)
///   CLEAVE_FAKE_CUDNN_BYTES=N       plans need N bytes more than they do
///
/// There are no devices for handles of the real library: what would be said of
/// a handle is said of the properties of a device instead.
///
//===----------------------------------------------------------------------===//

#include "Hooks.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cudnn.h>
#include <dlfcn.h>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

//===----------------------------------------------------------------------===//
// The real library, and the driver
//===----------------------------------------------------------------------===//

void *real() {
  static void *library = [] {
    const char *file = std::getenv("CLEAVE_FAKE_CUDNN");
    return file && *file ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : nullptr;
  }();
  return library;
}

#define REAL(NAME)                                                             \
  reinterpret_cast<decltype(&NAME)>(real() ? dlsym(real(), #NAME) : nullptr)

struct Driver {
  decltype(&cleave_fake_enqueue_op) enqueue = nullptr;
  decltype(&cleave_fake_host) host = nullptr;
  decltype(&cleave_fake_room) room = nullptr;
};

/// That of the folder of this library.
const Driver &driver() {
  static const Driver found = [] {
    Driver result;
    Dl_info info;
    dladdr(reinterpret_cast<void *>(&driver), &info);
    std::string path = info.dli_fname;
    path = path.substr(0, path.rfind('/') + 1) + "libcuda.so.1";
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    auto load = [&](auto &function, const char *name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          library ? dlsym(library, name) : nullptr);
    };
    load(result.enqueue, "cleave_fake_enqueue_op");
    load(result.host, "cleave_fake_host");
    load(result.room, "cleave_fake_room");
    return result;
  }();
  return found;
}

//===----------------------------------------------------------------------===//
// Descriptors
//===----------------------------------------------------------------------===//

/// What was said to a descriptor.
struct Note;
using NotePtr = std::shared_ptr<Note>;
struct Note {
  int type = 0;
  std::map<int, std::vector<char>> values;
  std::map<int, std::vector<NotePtr>> links;
  /// Engine configurations that the library proposes: of this graph.
  NotePtr graph;

  bool has(int attribute) const {
    return values.count(attribute) || links.count(attribute);
  }
  template <typename T> std::vector<T> all(int attribute) const {
    auto it = values.find(attribute);
    std::vector<T> result;
    if (it != values.end()) {
      result.resize(it->second.size() / sizeof(T));
      std::memcpy(result.data(), it->second.data(), result.size() * sizeof(T));
    }
    return result;
  }
  template <typename T> T get(int attribute, T otherwise = {}) const {
    std::vector<T> found = all<T>(attribute);
    return found.empty() ? otherwise : found.front();
  }
  NotePtr link(int attribute) const {
    auto it = links.find(attribute);
    return it == links.end() || it->second.empty() ? nullptr
                                                   : it->second.front();
  }
};

std::mutex mutex;
std::map<void *, NotePtr> notes;

NotePtr noteOf(void *descriptor) {
  std::lock_guard<std::mutex> lock(mutex);
  auto it = notes.find(descriptor);
  return it == notes.end() ? nullptr : it->second;
}

struct Handle {
  cudaStream_t stream = nullptr;
};

/// The properties of the device, finalized; null if they are not given, or not
/// valid.
cudnnBackendDescriptor_t properties() {
  static cudnnBackendDescriptor_t made = []() -> cudnnBackendDescriptor_t {
    const char *name = std::getenv("CLEAVE_FAKE_CUDNN_DEVICE");
    std::FILE *file = name ? std::fopen(name, "r") : nullptr;
    if (!file || !real())
      return nullptr;
    std::string text;
    char buffer[4096];
    while (size_t bytes = std::fread(buffer, 1, sizeof buffer, file))
      text.append(buffer, bytes);
    std::fclose(file);
    cudnnBackendDescriptor_t result = nullptr;
    if (REAL(cudnnBackendCreateDescriptor)(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
                                           &result) ||
        REAL(cudnnBackendSetAttribute)(
            result, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
            static_cast<int64_t>(text.size()), text.data()) ||
        REAL(cudnnBackendFinalize)(result)) {
      char why[1024] = "";
      REAL(cudnnGetLastErrorString)(why, sizeof why);
      std::fprintf(stderr, "fake cuDNN: %s: %s\n", name, why);
      return nullptr;
    }
    return result;
  }();
  return made;
}

size_t bytesOf(cudnnBackendAttributeType_t type) {
  switch (type) {
  case CUDNN_TYPE_BOOLEAN:
    return sizeof(bool);
  case CUDNN_TYPE_CHAR:
    return 1;
  case CUDNN_TYPE_INT64:
  case CUDNN_TYPE_DOUBLE:
  case CUDNN_TYPE_VOID_PTR:
  case CUDNN_TYPE_HANDLE:
  case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    return 8;
  default:
    return 4;
  }
}

//===----------------------------------------------------------------------===//
// Tensors
//===----------------------------------------------------------------------===//

double round(double value, int type) {
  auto single = static_cast<float>(value);
  if (type == CUDNN_DATA_BFLOAT16) {
    uint32_t bits;
    std::memcpy(&bits, &single, 4);
    if (!std::isnan(single))
      bits += 0x7fff + (bits >> 16 & 1);
    bits &= 0xffff0000u;
    std::memcpy(&single, &bits, 4);
  } else if (type == CUDNN_DATA_HALF) {
    single = static_cast<float>(static_cast<_Float16>(single));
  }
  return single;
}

size_t bytesOfType(int type) {
  return type == CUDNN_DATA_BFLOAT16 || type == CUDNN_DATA_HALF ? 2 : 4;
}

double load(const char *from, int type) {
  if (type == CUDNN_DATA_BFLOAT16) {
    uint16_t half;
    std::memcpy(&half, from, 2);
    uint32_t bits = uint32_t(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  if (type == CUDNN_DATA_HALF) {
    _Float16 value;
    std::memcpy(&value, from, 2);
    return static_cast<double>(value);
  }
  if (type == CUDNN_DATA_INT32) {
    int32_t value;
    std::memcpy(&value, from, 4);
    return value;
  }
  float value;
  std::memcpy(&value, from, 4);
  return value;
}

void store(char *to, double value, int type) {
  auto single = static_cast<float>(round(value, type));
  if (type == CUDNN_DATA_BFLOAT16) {
    std::memcpy(to, reinterpret_cast<char *>(&single) + 2, 2);
  } else if (type == CUDNN_DATA_HALF) {
    auto half = static_cast<_Float16>(single);
    std::memcpy(to, &half, 2);
  } else {
    std::memcpy(to, &single, 4);
  }
}

struct Tensor {
  int64_t id = 0;
  int type = 0;
  std::vector<int64_t> sizes, strides;
  bool isVirtual = false, byValue = false;

  explicit Tensor(const Note &note)
      : id(note.get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
        type(note.get<int>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
        sizes(note.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)),
        strides(note.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES)),
        isVirtual(note.get<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL)),
        byValue(note.get<char>(CUDNN_ATTR_TENSOR_IS_BY_VALUE)) {}

  int64_t count() const {
    int64_t n = 1;
    for (int64_t size : sizes)
      n *= size;
    return n;
  }
  /// The element in memory of the element `i` in order.
  int64_t place(int64_t i) const {
    int64_t at = 0;
    for (size_t d = sizes.size(); d-- > 0;) {
      at += i % sizes[d] * strides[d];
      i /= sizes[d];
    }
    return at;
  }
  int64_t extent() const {
    int64_t last = 0;
    for (size_t d = 0; d < sizes.size(); ++d)
      last += (sizes[d] - 1) * strides[d];
    return last + 1;
  }
};

/// Elements in order, rounded to the tensor's type.
using Values = std::vector<double>;

[[noreturn]] void die(const std::string &what) {
  std::fprintf(stderr, "fake cuDNN: %s\n", what.c_str());
  std::abort();
}

//===----------------------------------------------------------------------===//
// Graphs
//===----------------------------------------------------------------------===//

/// One execution of a graph of operations.
class Evaluation {
public:
  Evaluation(const Note &graph, std::map<int64_t, char *> memory)
      : memory(std::move(memory)) {
    add(graph);
  }

  /// Writes every tensor that is not virtual.
  void run() {
    for (const auto &[id, op] : producers)
      if (!tensors.at(id).isVirtual)
        valueOf(id);
  }

private:
  struct Producer {
    NotePtr op;
    int output = 0;
  };

  static bool isInput(int attribute) {
    switch (attribute) {
    case CUDNN_ATTR_OPERATION_POINTWISE_YDESC:
    case CUDNN_ATTR_OPERATION_REDUCTION_YDESC:
    case CUDNN_ATTR_OPERATION_MATMUL_CDESC:
    case CUDNN_ATTR_OPERATION_RESHAPE_YDESC:
    case CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC:
    case CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC:
      return false;
    default:
      return true;
    }
  }

  void add(const Note &graph) {
    auto it = graph.links.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    if (it == graph.links.end())
      die("a graph without operations");
    for (const NotePtr &op : it->second) {
      for (const auto &[attribute, links] : op->links)
        for (const NotePtr &link : links) {
          if (link->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR)
            continue;
          Tensor tensor(*link);
          tensors.emplace(tensor.id, tensor);
          if (!isInput(attribute))
            producers[tensor.id] = {op, attribute};
        }
      NotePtr softmax = op->link(CUDNN_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC);
      if (softmax)
        for (const auto &[attribute, links] : softmax->links) {
          Tensor tensor(*links.front());
          tensors.emplace(tensor.id, tensor);
          if (attribute == CUDNN_ATTR_OPERATION_SOFTMAX_STATS_DESC)
            producers[tensor.id] = {op, attribute};
        }
      if (NotePtr inner = op->link(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH))
        add(*inner);
    }
  }

  const Tensor &tensor(const Note &op, int attribute) const {
    NotePtr link = op.link(attribute);
    if (!link)
      die("an operation lacks the tensor " + std::to_string(attribute));
    return tensors.at(link->get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID));
  }
  const Values &input(const Note &op, int attribute) {
    return valueOf(tensor(op, attribute).id);
  }

  const Values &valueOf(int64_t id) {
    if (auto it = values.find(id); it != values.end())
      return it->second;
    const Tensor &t = tensors.at(id);
    auto producer = producers.find(id);
    if (producer == producers.end()) {
      auto at = memory.find(id);
      if (at == memory.end())
        die("tensor " + std::to_string(id) + " has no memory");
      Values read(static_cast<size_t>(t.count()));
      for (int64_t i = 0; i < t.count(); ++i)
        read[i] = load(at->second + t.place(i) * bytesOfType(t.type), t.type);
      return values[id] = std::move(read);
    }
    Values result = compute(*producer->second.op, producer->second.output, t);
    return put(t, std::move(result));
  }

  const Values &put(const Tensor &t, Values result) {
    for (double &value : result)
      value = round(value, t.type);
    if (!t.isVirtual) {
      auto at = memory.find(t.id);
      if (at == memory.end())
        die("tensor " + std::to_string(t.id) + " has no memory");
      for (int64_t i = 0; i < t.count(); ++i)
        store(at->second + t.place(i) * bytesOfType(t.type), result[i], t.type);
    }
    return values[t.id] = std::move(result);
  }

  Values compute(const Note &op, int output, const Tensor &y) {
    switch (op.type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      return pointwise(op, y);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      return reduction(op, y);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      return product(tensor(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                     input(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                     tensor(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC),
                     input(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      return view(op, y);
    case CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR:
      return mask(op, y);
    case CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR:
      return attention(op, output);
    default:
      die("operation " + std::to_string(op.type) + " is not interpreted");
    }
  }

  /// The index of an element of `y` in a tensor that is broadcast to it.
  static int64_t broadcast(const Tensor &x, const Tensor &y, int64_t i) {
    int64_t at = 0, step = 1;
    for (size_t d = y.sizes.size(); d-- > 0;) {
      if (x.sizes[d] != 1 && x.sizes[d] != y.sizes[d])
        die("sizes of operands differ");
      at += x.sizes[d] == 1 ? 0 : i % y.sizes[d] * step;
      i /= y.sizes[d];
      step *= x.sizes[d];
    }
    return at;
  }

  Values pointwise(const Note &op, const Tensor &y) {
    NotePtr kind = op.link(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    int mode = kind->get<int>(CUDNN_ATTR_POINTWISE_MODE);
    const Tensor &x = tensor(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const Values &a = input(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const Values *b = nullptr;
    if (op.has(CUDNN_ATTR_OPERATION_POINTWISE_BDESC))
      b = &input(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    Values result(static_cast<size_t>(y.count()));
    for (int64_t i = 0; i < y.count(); ++i) {
      double p = a[broadcast(x, y, i)], q = 0;
      if (b)
        q = (*b)[broadcast(tensor(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC), y,
                           i)];
      switch (mode) {
      case CUDNN_POINTWISE_ADD:
        result[i] = p + q;
        break;
      case CUDNN_POINTWISE_MUL:
        result[i] = p * q;
        break;
      case CUDNN_POINTWISE_SUB:
        result[i] = p - q;
        break;
      case CUDNN_POINTWISE_EXP:
        result[i] = std::exp(p);
        break;
      case CUDNN_POINTWISE_IDENTITY:
        result[i] = p;
        break;
      default:
        die("pointwise mode " + std::to_string(mode) + " is not interpreted");
      }
    }
    return result;
  }

  /// A sum over what each dimension of the result has fewer elements of:
  /// neighbours are summed.
  Values reduction(const Note &op, const Tensor &y) {
    NotePtr kind = op.link(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    if (kind->get<int>(CUDNN_ATTR_REDUCTION_OPERATOR) !=
        CUDNN_REDUCE_TENSOR_ADD)
      die("a reduction other than a sum");
    const Tensor &x = tensor(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    const Values &a = input(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    Values result(static_cast<size_t>(y.count()), 0.0);
    for (int64_t i = 0; i < x.count(); ++i) {
      int64_t rest = i, at = 0, step = 1;
      for (size_t d = x.sizes.size(); d-- > 0;) {
        at += rest % x.sizes[d] / (x.sizes[d] / y.sizes[d]) * step;
        rest /= x.sizes[d];
        step *= y.sizes[d];
      }
      result[at] += a[i];
    }
    return result;
  }

  /// Of the last two dimensions; where B has fewer heads than A, neighbours
  /// share one.
  static Values product(const Tensor &x, const Values &a, const Tensor &y,
                        const Values &b) {
    int64_t batches = x.sizes[0], heads = x.sizes[1], m = x.sizes[2],
            k = x.sizes[3], n = y.sizes[3], others = y.sizes[1];
    if (y.sizes[0] != batches || heads % others || y.sizes[2] != k)
      die("factors of different sizes");
    Values result(static_cast<size_t>(batches * heads * m * n));
    for (int64_t h = 0; h < batches * heads; ++h) {
      int64_t other = h / heads * others + h % heads / (heads / others);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (int64_t l = 0; l < k; ++l)
            sum += a[(h * m + i) * k + l] * b[(other * k + l) * n + j];
          result[(h * m + i) * n + j] = sum;
        }
    }
    return result;
  }

  /// The same memory with other sizes and strides.
  Values view(const Note &op, const Tensor &y) {
    const Tensor &x = tensor(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    const Values &a = input(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    std::map<int64_t, double> at;
    for (int64_t i = 0; i < x.count(); ++i)
      at[x.place(i)] = a[i];
    Values result(static_cast<size_t>(y.count()));
    for (int64_t i = 0; i < y.count(); ++i)
      result[i] = at.at(y.place(i));
    return result;
  }

  /// As cudnn-frontend describes it with simple operations for versions without
  /// this one (node/diagonal_band_mask.h).
  Values mask(const Note &op, const Tensor &y) {
    auto number = [&](int attribute) {
      return op.has(attribute) ? input(op, attribute).front() : 0.0;
    };
    double left =
        number(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC);
    double right =
        number(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC);
    double shift =
        number(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_KVDESC) -
        number(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_QDESC);
    bool isLeft =
        op.has(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC);
    double hidden = number(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC);
    int mode =
        op.get<int>(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE);
    if (mode != CUDNN_POINTWISE_CMP_GE && mode != CUDNN_POINTWISE_CMP_GT)
      die("a comparison that is not interpreted");
    Values result = input(op, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC);
    int64_t rows = y.sizes[2], columns = y.sizes[3];
    for (int64_t i = 0; i < y.count(); ++i) {
      auto row = static_cast<double>(i / columns % rows),
           column = static_cast<double>(i % columns);
      double p = isLeft ? column + left - shift : row + shift + right;
      double q = isLeft ? row : column;
      if (!(mode == CUDNN_POINTWISE_CMP_GE ? p >= q : p > q))
        result[i] = hidden;
    }
    return result;
  }

  /// All results of an attention; returns that of the attribute `output`.
  Values attention(const Note &op, int output) {
    const Tensor &q = tensor(op, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC),
                 &k = tensor(op, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC),
                 &v = tensor(op, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC);
    Tensor transposed = k;
    std::swap(transposed.sizes[2], transposed.sizes[3]);
    const Values &keys = input(op, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC);
    Values turned(keys.size());
    int64_t positions = k.sizes[2], channels = k.sizes[3];
    for (int64_t h = 0; h < k.sizes[0] * k.sizes[1]; ++h)
      for (int64_t i = 0; i < positions; ++i)
        for (int64_t c = 0; c < channels; ++c)
          turned[(h * channels + c) * positions + i] =
              keys[(h * positions + i) * channels + c];
    Values scores = product(q, input(op, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC),
                            transposed, turned);
    double scale = input(op, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC).front();
    for (double &score : scores)
      score *= scale;
    if (op.has(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH)) {
      values[op.get<int64_t>(
          CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID)] = scores;
      scores = valueOf(
          op.get<int64_t>(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID));
    }
    int64_t rows = static_cast<int64_t>(scores.size()) / positions;
    Values statistics(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) {
      double *row = scores.data() + i * positions, sum = 0;
      double most = *std::max_element(row, row + positions);
      for (int64_t j = 0; j < positions; ++j)
        sum += row[j] = std::exp(row[j] - most);
      for (int64_t j = 0; j < positions; ++j)
        row[j] = round(row[j] / sum, v.type);
      statistics[i] = most + std::log(sum);
    }
    if (output == CUDNN_ATTR_OPERATION_SOFTMAX_STATS_DESC)
      return statistics;
    Tensor p = q;
    p.sizes[3] = positions;
    return product(p, scores, v,
                   input(op, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC));
  }

  std::map<int64_t, char *> memory;
  std::map<int64_t, Tensor> tensors;
  std::map<int64_t, Producer> producers;
  std::map<int64_t, Values> values;
};

/// What is enqueued: the graph, and where its tensors are. Those by value are
/// read when it is.
struct Execution {
  NotePtr graph;
  std::map<int64_t, uint64_t> addresses;
  std::map<int64_t, std::vector<char>> byValue;
  uint64_t workspace = 0, workspaceBytes = 0;
};

/// All tensors of a graph and of those inside.
void forEachTensor(const Note &note,
                   const std::function<void(const Tensor &)> &f) {
  for (const auto &[attribute, links] : note.links)
    for (const NotePtr &link : links) {
      if (link->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR)
        f(Tensor(*link));
      else
        forEachTensor(*link, f);
    }
}

void execute(void *data) {
  auto &own = *static_cast<Execution *>(data);
  std::map<int64_t, char *> memory;
  for (auto &[id, bytes] : own.byValue)
    memory[id] = bytes.data();
  for (auto [id, address] : own.addresses)
    memory[id] = static_cast<char *>(driver().host(address));
  // What was in the workspace is lost, unless it is a tensor of the graph.
  Evaluation(*own.graph, memory).run();
  if (own.workspaceBytes)
    std::memset(driver().host(own.workspace), 0xff, own.workspaceBytes);
}

} // namespace

//===----------------------------------------------------------------------===//
// The interface
//===----------------------------------------------------------------------===//

EXPORT size_t cudnnGetVersion() {
  return real() ? REAL(cudnnGetVersion)() : CUDNN_VERSION;
}
EXPORT const char *cudnnGetErrorString(cudnnStatus_t status) {
  return real() ? REAL(cudnnGetErrorString)(status) : "no cuDNN behind it";
}
EXPORT void cudnnGetLastErrorString(char *text, size_t bytes) {
  if (real())
    REAL(cudnnGetLastErrorString)(text, bytes);
}

EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  if (!real() || !properties())
    return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete reinterpret_cast<Handle *>(handle);
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<Handle *>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnGetStream(cudnnHandle_t handle,
                                    cudaStream_t *stream) {
  *stream = reinterpret_cast<Handle *>(handle)->stream;
  return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(
    cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor) {
  cudnnStatus_t status = REAL(cudnnBackendCreateDescriptor)(type, descriptor);
  if (status == CUDNN_STATUS_SUCCESS) {
    auto note = std::make_shared<Note>();
    note->type = type;
    std::lock_guard<std::mutex> lock(mutex);
    notes[*descriptor] = note;
  }
  return status;
}
EXPORT cudnnStatus_t
cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    notes.erase(descriptor);
  }
  return REAL(cudnnBackendDestroyDescriptor)(descriptor);
}
EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return REAL(cudnnBackendFinalize)(descriptor);
}

EXPORT cudnnStatus_t cudnnBackendSetAttribute(
    cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, int64_t count, const void *elements) {
  NotePtr note = noteOf(descriptor);
  if (note && count > 0 && elements) {
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
      std::vector<NotePtr> links;
      for (int64_t i = 0; i < count; ++i)
        if (NotePtr link = noteOf(static_cast<void *const *>(elements)[i]))
          links.push_back(link);
      note->links[name] = links;
    } else {
      auto *bytes = static_cast<const char *>(elements);
      note->values[name].assign(bytes, bytes + count * bytesOf(type));
    }
  }
  auto set = REAL(cudnnBackendSetAttribute);
  cudnnBackendDescriptor_t device = properties();
  auto describe = [&](cudnnBackendAttributeName_t attribute) {
    return set(descriptor, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
               &device);
  };
  if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE)
    return CUDNN_STATUS_SUCCESS;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_HANDLE)
    return describe(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
  cudnnStatus_t status = set(descriptor, name, type, count, elements);
  if (status == CUDNN_STATUS_SUCCESS &&
      name == CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)
    return describe(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  if (status == CUDNN_STATUS_SUCCESS &&
      name == CUDNN_ATTR_ENGINE_OPERATION_GRAPH)
    return describe(CUDNN_ATTR_ENGINE_DEVICEPROP);
  return status;
}

EXPORT cudnnStatus_t cudnnBackendGetAttribute(
    cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, int64_t requested, int64_t *count,
    void *elements) {
  cudnnStatus_t status = REAL(cudnnBackendGetAttribute)(
      descriptor, name, type, requested, count, elements);
  NotePtr note = noteOf(descriptor);
  if (status != CUDNN_STATUS_SUCCESS || !note || !elements)
    return status;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS)
    for (int64_t i = 0; i < std::min(requested, count ? *count : requested);
         ++i)
      if (NotePtr config = noteOf(static_cast<void **>(elements)[i]))
        config->graph = note->link(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)
    if (const char *more = std::getenv("CLEAVE_FAKE_CUDNN_BYTES"))
      *static_cast<int64_t *>(elements) += std::atoll(more);
  return status;
}

EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle,
                                         cudnnBackendDescriptor_t plan,
                                         cudnnBackendDescriptor_t pack) {
  NotePtr ofPlan = noteOf(plan), ofPack = noteOf(pack);
  NotePtr config =
      ofPlan ? ofPlan->link(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) : nullptr;
  NotePtr graph = config ? config->graph : nullptr;
  if (config && !graph)
    if (NotePtr engine = config->link(CUDNN_ATTR_ENGINECFG_ENGINE))
      graph = engine->link(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  if (!graph || !ofPack)
    return CUDNN_STATUS_BAD_PARAM;
  auto *execution = new Execution;
  execution->graph = graph;
  auto ids = ofPack->all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  auto pointers = ofPack->all<uint64_t>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<int64_t, uint64_t> given;
  for (size_t i = 0; i < std::min(ids.size(), pointers.size()); ++i)
    given[ids[i]] = pointers[i];
  bool valid = true;
  auto refuse = [&](const std::string &what) {
    std::fprintf(stderr, "fake cuDNN: %s\n", what.c_str());
    valid = false;
  };
  forEachTensor(*graph, [&](const Tensor &tensor) {
    if (tensor.isVirtual)
      return;
    std::string name = "tensor " + std::to_string(tensor.id);
    auto it = given.find(tensor.id);
    if (it == given.end())
      return refuse(name + " is not given");
    if (tensor.byValue) {
      auto *value = reinterpret_cast<const char *>(it->second);
      execution->byValue[tensor.id].assign(value, value + 4);
      return;
    }
    execution->addresses[tensor.id] = it->second;
    if (it->second % 16 && bytesOfType(tensor.type) == 2)
      refuse(name + " is not aligned");
    if (driver().room(it->second) < tensor.extent() * bytesOfType(tensor.type))
      refuse(name + " leaves its buffer");
  });
  int64_t bytes = 0, count = 0;
  REAL(cudnnBackendGetAttribute)(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                 CUDNN_TYPE_INT64, 1, &count, &bytes);
  execution->workspace =
      ofPack->get<uint64_t>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  execution->workspaceBytes = static_cast<uint64_t>(bytes);
  if (bytes && driver().room(execution->workspace) < execution->workspaceBytes)
    refuse("the workspace leaves its buffer");
  bool backward = true;
  for (const NotePtr &op : graph->links[CUDNN_ATTR_OPERATIONGRAPH_OPS])
    backward &= op->type != CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR;
  auto drop = [](void *data) { delete static_cast<Execution *>(data); };
  if (!valid) {
    drop(execution);
    return CUDNN_STATUS_BAD_PARAM;
  }
  std::string text = backward ? "cudnn-backward" : "cudnn-forward";
  text += " workspace=" + std::to_string(bytes);
  int failed =
      driver().enqueue(reinterpret_cast<Handle *>(handle)->stream, text.c_str(),
                       nullptr, execute, execution, drop);
  return failed ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}
