//===- Streams.cpp - Streams and events -----------------------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Driver.h"

using namespace fake;

EXPORT CUresult cuStreamCreateWithPriority(CUstream *result, unsigned flags,
                                           int priority) {
  ENTER();
  CHECK(result && flags <= CU_STREAM_NON_BLOCKING);
  auto *stream = new Stream;
  stream->id = ++s.streamCount;
  stream->device = currentContext()->device;
  stream->priority = std::min(0, std::max(-5, priority));
  stream->flags = flags;
  s.streams.insert(stream);
  *result = reinterpret_cast<CUstream>(stream);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *result, unsigned flags) {
  return cuStreamCreateWithPriority(result, flags, 0);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
  ENTER_STREAM(handle);
  CHECK(stream->id != 0);
  if (stream->capture)
    stream->capture->streams.erase(stream), stream->capture->invalid = true;
  s.streams.erase(stream);
  delete stream;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetPriority(CUstream handle, int *priority) {
  ENTER_STREAM(handle);
  CHECK(priority);
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
  ENTER_STREAM(handle);
  CHECK(flags);
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

/// Waiting for a stream, or asking it, ends its capture.
static bool capturing(Stream *stream) {
  if (stream->capture)
    stream->capture->invalid = true;
  return stream->capture != nullptr;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  ENTER_STREAM(handle);
  if (capturing(stream))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  UNSAFE();
  if (legacyForbidden(stream))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  for (const OpPtr &op : lastOps(stream))
    waitFor(op, lock);
  return s.lost;
}

EXPORT CUresult cuStreamQuery(CUstream handle) {
  ENTER_STREAM(handle);
  if (capturing(stream))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (!stream->last || stream->last->state == Op::Done)
    return CUDA_SUCCESS;
  runOneNeeded(stream->last, lock);
  return s.lost != CUDA_SUCCESS ? s.lost : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent eventHandle,
                                  unsigned) {
  ENTER_STREAM(handle);
  auto *event = checked<Event>(s.events, eventHandle);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (isFault("drop-wait", countCall("wait")))
    return CUDA_SUCCESS;
  if (event->capture) {
    if (event->capture->ended)
      return CUDA_ERROR_CAPTURED_EVENT;
    if (stream->capture && stream->capture != event->capture) {
      stream->capture->invalid = event->capture->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (!stream->capture) {
      if (stream->id == 0)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      stream->capture = event->capture;
      stream->capture->streams.insert(stream);
      stream->tails.clear();
    }
    for (Node *node : event->nodes)
      if (std::find(stream->tails.begin(), stream->tails.end(), node) ==
          stream->tails.end())
        stream->tails.push_back(node);
    return CUDA_SUCCESS;
  }
  if (stream->capture) {
    if (!event->op)
      return CUDA_SUCCESS;
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (!event->op)
    return CUDA_SUCCESS;
  Action action;
  action.text = "kind=wait";
  return submit(stream, lock, std::move(action), nullptr, {event->op});
}

EXPORT CUresult cuEventCreate(CUevent *result, unsigned flags) {
  ENTER();
  CHECK(result);
  auto *event = new Event;
  event->flags = flags;
  s.events.insert(event);
  *result = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
  ENTER();
  auto *event = checked<Event>(s.events, handle);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  s.events.erase(event);
  delete event;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent handle, CUstream streamHandle) {
  ENTER_STREAM(streamHandle);
  auto *event = checked<Event>(s.events, handle);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) {
    if (stream->capture->invalid)
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->capture = stream->capture;
    event->nodes = stream->tails;
    event->op.reset();
    return CUDA_SUCCESS;
  }
  event->capture.reset();
  event->nodes.clear();
  Action action;
  action.text = "kind=event";
  OpPtr op;
  CUresult result = submit(stream, lock, std::move(action), &op);
  if (op)
    event->op = op;
  return result;
}

EXPORT CUresult cuEventSynchronize(CUevent handle) {
  ENTER();
  auto *event = checked<Event>(s.events, handle);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture)
    return CUDA_ERROR_CAPTURED_EVENT;
  UNSAFE();
  waitFor(event->op, lock);
  return s.lost;
}

EXPORT CUresult cuEventQuery(CUevent handle) {
  ENTER();
  auto *event = checked<Event>(s.events, handle);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture)
    return CUDA_ERROR_CAPTURED_EVENT;
  if (!event->op || event->op->state == Op::Done)
    return CUDA_SUCCESS;
  runOneNeeded(OpPtr(event->op), lock);
  return s.lost != CUDA_SUCCESS ? s.lost : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventElapsedTime_v2(float *time, CUevent from, CUevent to) {
  ENTER();
  CHECK(time);
  auto *first = checked<Event>(s.events, from);
  auto *second = checked<Event>(s.events, to);
  if (!first || !second || !first->op || !second->op ||
      (first->flags | second->flags) & CU_EVENT_DISABLE_TIMING)
    return CUDA_ERROR_INVALID_HANDLE;
  if (first->op->state != Op::Done || second->op->state != Op::Done)
    return CUDA_ERROR_NOT_READY;
  *time = std::chrono::duration<float, std::milli>(second->op->time -
                                                   first->op->time)
              .count();
  return CUDA_SUCCESS;
}
