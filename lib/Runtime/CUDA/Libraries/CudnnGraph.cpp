//===- CudnnGraph.cpp - Attention as a graph of cuDNN ---------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CudnnGraph.h"

#include <cudnn_frontend.h>

#include <exception>
#include <unordered_map>

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
namespace fe = cudnn_frontend;

/// Where cudnn-frontend looks for functions.
void *cudnn_frontend::cudnn_dlhandle = nullptr;

void CudnnGraph::use(void *library) { fe::cudnn_dlhandle = library; }

namespace {

enum Operand : int64_t { Q = 1, K, V, O, Lse, DO, DQ, DK, DV };

struct Shape {
  int64_t batch, heads, positions, channels;
};

class Graph : public CudnnGraph {
public:
  Graph(const AttentionCommand &command, int64_t samples)
      : a(command), samples(samples) {}

  /// Returns what is wrong, or "".
  std::string build(cudnnHandle_t handle, int capability, bool backward,
                    int64_t limit);
  std::string run(void *handle, const CudnnOperands &operands,
                  void *workspace) const override;

private:
  using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

  fe::DataType_t type() const {
    return a.type == DType::BF16 ? fe::DataType_t::BFLOAT16
                                 : fe::DataType_t::HALF;
  }
  Shape queries(int64_t channels) const {
    return {samples, a.heads, a.queries, channels};
  }
  Shape keys(int64_t channels) const {
    return {samples, a.kvHeads, a.keys, channels};
  }
  Tensor describe(Tensor tensor, Operand operand, const HeadView &view,
                  const Shape &shape) const;
  Tensor input(Operand operand, const HeadView &view, const Shape &shape) {
    return describe(graph.tensor(fe::graph::Tensor_attributes()), operand, view,
                    shape);
  }
  void output(const Tensor &tensor, Operand operand, const HeadView &view,
              const Shape &shape) const {
    describe(tensor, operand, view, shape)->set_output(true);
  }
  Tensor describeLse(Tensor tensor) const;
  template <typename Attributes> Attributes attributes() const;

  AttentionCommand a;
  int64_t samples;
  /// Not changed by a run, which is not declared so.
  mutable fe::graph::Graph graph;
  int64_t plan = 0;
};

} // namespace

/// A stride that is not used may be any; here it is one that fits.
Graph::Tensor Graph::describe(Tensor tensor, Operand operand,
                              const HeadView &view, const Shape &shape) const {
  int64_t position = shape.positions > 1 ? view.stridePosition : shape.channels;
  int64_t head = shape.heads > 1 ? view.strideHead : shape.positions * position;
  int64_t batch = shape.batch > 1 ? view.strideBatch : shape.heads * head;
  tensor->set_uid(operand)
      .set_data_type(type())
      .set_dim({shape.batch, shape.heads, shape.positions, shape.channels})
      .set_stride({batch, head, position, 1});
  return tensor;
}

/// The logarithm of the sum of exponentials, which cuDNN calls statistics.
Graph::Tensor Graph::describeLse(Tensor tensor) const {
  tensor->set_uid(Lse)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({samples, a.heads, a.queries, 1})
      .set_stride({a.heads * a.queries, a.queries, 1, 1});
  return tensor;
}

template <typename Attributes> Attributes Graph::attributes() const {
  Attributes result;
  result.set_name("attention").set_attn_scale(a.scale);
  if (!a.causal)
    return result;
  result.set_diagonal_alignment(a.queries == a.keys
                                    ? fe::DiagonalAlignment_t::TOP_LEFT
                                    : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
  result.set_diagonal_band_right_bound(0);
  if (a.window > 0)
    result.set_diagonal_band_left_bound(a.window);
  return result;
}

std::string Graph::build(cudnnHandle_t handle, int capability, bool backward,
                         int64_t limit) {
  // Else both are asked of a CUDA runtime library, which it opens. Graphs of
  // CUDA do not outlive this one.
  graph.set_sm_version(capability)
      .set_cuda_graph_retention(fe::CudaGraphRetention_t::NONE);
  graph.set_io_data_type(type())
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  Tensor q = input(Q, a.q, queries(a.headSize)),
         k = input(K, a.k, keys(a.headSize)),
         v = input(V, a.v, keys(a.valueSize));
  if (backward) {
    Tensor o = input(O, a.o, queries(a.valueSize)),
           dO = input(DO, a.dO, queries(a.valueSize)),
           lse = describeLse(graph.tensor(fe::graph::Tensor_attributes()));
    auto options = attributes<fe::graph::SDPA_backward_attributes>();
    options.set_deterministic_algorithm(a.fixedOrder);
    auto [dQ, dK, dV] =
        graph.sdpa_backward(q, k, v, o, dO, lse, std::move(options));
    output(dQ, DQ, a.dQ, queries(a.headSize));
    output(dK, DK, a.dK, keys(a.headSize));
    output(dV, DV, a.dV, keys(a.valueSize));
  } else {
    auto options = attributes<fe::graph::SDPA_attributes>();
    options.set_generate_stats(true);
    auto [o, lse] = graph.sdpa(q, k, v, std::move(options));
    output(o, O, a.o, queries(a.valueSize));
    describeLse(lse)->set_output(true);
  }
  fe::error_t error = graph.validate();
  if (error.is_good())
    error = graph.build_operation_graph(handle);
  if (error.is_good())
    error = graph.create_execution_plans({fe::HeurMode_t::A});
  if (error.is_bad())
    return error.get_message();
  std::string first = "it proposes no plan";
  for (int64_t i = 0; i < graph.get_execution_plan_count(); ++i) {
    error = graph.build_plan_at_index(handle, i);
    if (error.is_good()) {
      bytes = graph.get_workspace_size_plan_at_index(i);
      plan = i;
      if (bytes <= limit)
        return "";
    }
    if (i == 0)
      first = error.is_bad() ? error.get_message()
                             : "it needs " + std::to_string(bytes) +
                                   " bytes of workspace, and " +
                                   std::to_string(limit) + " are planned";
  }
  return first;
}

std::string Graph::run(void *handle, const CudnnOperands &operands,
                       void *workspace) const {
  std::unordered_map<int64_t, void *> pack = {{Q, operands.q},
                                              {K, operands.k},
                                              {V, operands.v},
                                              {O, operands.o},
                                              {Lse, operands.lse}};
  if (operands.dQ)
    pack.insert({{DO, operands.dO},
                 {DQ, operands.dQ},
                 {DK, operands.dK},
                 {DV, operands.dV}});
  try {
    fe::error_t error = graph.execute_plan_at_index(
        static_cast<cudnnHandle_t>(handle), pack, workspace, plan);
    return error.is_bad() ? error.get_message() : "";
  } catch (const std::exception &error) {
    return error.what();
  }
}

std::unique_ptr<CudnnGraph> CudnnGraph::make(void *handle, int capability,
                                             const AttentionCommand &command,
                                             bool backward, int64_t samples,
                                             int64_t bytes,
                                             std::string &problem) {
  try {
    auto graph = std::make_unique<Graph>(command, samples);
    problem = graph->build(static_cast<cudnnHandle_t>(handle), capability,
                           backward, bytes);
    if (problem.empty())
      return graph;
  } catch (const std::exception &error) {
    problem = error.what();
  }
  return nullptr;
}
