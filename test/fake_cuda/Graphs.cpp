//===- Graphs.cpp - Capture and graphs ------------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Driver.h"

using namespace fake;

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  CHECK(mode);
  std::swap(*mode, threadMode);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle,
                                        CUstreamCaptureMode mode) {
  ENTER_STREAM(handle);
  if (stream->id == 0)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture)
    return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->streams = {stream};
  capture->mode = mode;
  capture->thread = &threadMark;
  stream->capture = capture;
  stream->tails.clear();
  s.captures.insert(capture.get());
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *result) {
  ENTER_STREAM(handle);
  CHECK(result);
  *result = nullptr;
  CapturePtr capture = stream->capture;
  if (!capture)
    return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture->thread != &threadMark)
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  std::set<Node *> reached;
  std::vector<Node *> open = stream->tails;
  while (!open.empty()) {
    Node *node = open.back();
    open.pop_back();
    if (reached.insert(node).second)
      open.insert(open.end(), node->after.begin(), node->after.end());
  }
  bool joined = true;
  for (Stream *other : capture->streams) {
    for (Node *node : other->tails)
      joined &= reached.count(node) > 0;
    other->capture.reset();
    other->tails.clear();
  }
  capture->ended = true;
  s.captures.erase(capture.get());
  if (capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!joined)
    return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  auto *graph = new Graph{capture->nodes};
  s.graphs.insert(graph);
  *result = reinterpret_cast<CUgraph>(graph);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle,
                                    CUstreamCaptureStatus *status) {
  ENTER_STREAM(handle);
  CHECK(status);
  *status = !stream->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes,
                                size_t *count) {
  ENTER();
  CHECK(count);
  auto *graph = checked<Graph>(s.graphs, handle);
  if (!graph)
    return CUDA_ERROR_INVALID_HANDLE;
  size_t all = graph->nodes->size();
  if (nodes)
    for (size_t i = 0; i < *count; ++i)
      nodes[i] = i < all
                     ? reinterpret_cast<CUgraphNode>((*graph->nodes)[i].get())
                     : nullptr;
  *count = nodes ? std::min(*count, all) : all;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *result, CUgraph handle,
                                            unsigned long long) {
  ENTER();
  CHECK(result);
  auto *graph = checked<Graph>(s.graphs, handle);
  if (!graph)
    return CUDA_ERROR_INVALID_HANDLE;
  auto *exec = new GraphExec{graph->nodes, nullptr};
  s.execs.insert(exec);
  *result = reinterpret_cast<CUgraphExec>(exec);
  return CUDA_SUCCESS;
}
/// The name in the library has two parameters more, of messages.
#undef cuGraphInstantiate
EXPORT CUresult fakeGraphInstantiate(CUgraphExec *result, CUgraph graph,
                                     CUgraphNode *, char *,
                                     size_t) __asm__("cuGraphInstantiate");
EXPORT CUresult fakeGraphInstantiate(CUgraphExec *result, CUgraph graph,
                                     CUgraphNode *, char *, size_t) {
  return cuGraphInstantiateWithFlags(result, graph, 0);
}

EXPORT CUresult cuGraphUpload(CUgraphExec handle, CUstream) {
  ENTER();
  return checked<GraphExec>(s.execs, handle) ? CUDA_SUCCESS
                                             : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream streamHandle) {
  ENTER_STREAM(streamHandle);
  auto *exec = checked<GraphExec>(s.execs, handle);
  if (!exec)
    return CUDA_ERROR_INVALID_HANDLE;
  if (legacyForbidden(stream))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  std::set<Node *> ends;
  for (const auto &node : *exec->nodes) {
    ends.insert(node.get());
    for (Node *other : node->after)
      ends.erase(other);
  }
  if (stream->capture) {
    std::map<Node *, Node *> copies;
    std::vector<Node *> tails;
    for (const auto &node : *exec->nodes) {
      auto copy = std::make_unique<Node>();
      copy->action = node->action;
      for (Node *other : node->after)
        copy->after.push_back(copies[other]);
      if (node->after.empty())
        copy->after = stream->tails;
      copies[node.get()] = copy.get();
      if (ends.count(node.get()))
        tails.push_back(copy.get());
      stream->capture->nodes->push_back(std::move(copy));
    }
    if (!tails.empty())
      stream->tails = tails;
    return CUDA_SUCCESS;
  }
  std::vector<OpPtr> after = lastOps(stream);
  after.push_back(exec->last);
  OpPtr start = makeOp(stream->device, nullptr, after);
  std::map<Node *, OpPtr> ops;
  std::vector<OpPtr> last{start};
  for (const auto &node : *exec->nodes) {
    std::vector<OpPtr> before;
    for (Node *other : node->after)
      before.push_back(ops[other]);
    if (before.empty())
      before.push_back(start);
    OpPtr op = makeOp(stream->device, node->action, before);
    ops[node.get()] = op;
    if (ends.count(node.get()))
      last.push_back(op);
  }
  auto action = std::make_shared<Action>();
  action->stream = stream->id;
  action->text = "kind=graph";
  // Actions refer to nothing of the graph, but the record may be of one that
  // was destroyed.
  stream->last = exec->last = makeOp(stream->device, action, last);
  runSome(lock);
  return s.lost;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
  ENTER();
  auto *exec = checked<GraphExec>(s.execs, handle);
  if (!exec)
    return CUDA_ERROR_INVALID_HANDLE;
  s.execs.erase(exec);
  delete exec;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph handle) {
  ENTER();
  auto *graph = checked<Graph>(s.graphs, handle);
  if (!graph)
    return CUDA_ERROR_INVALID_HANDLE;
  s.graphs.erase(graph);
  delete graph;
  return CUDA_SUCCESS;
}

#undef cuEventElapsedTime
EXPORT CUresult cuEventElapsedTime(float *time, CUevent from, CUevent to) {
  return cuEventElapsedTime_v2(time, from, to);
}
