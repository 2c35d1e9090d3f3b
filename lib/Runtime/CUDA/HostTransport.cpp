//===- HostTransport.cpp - Collectives through the host
//--------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "HostTransport.h"
#include "cleave/Executable/Format/ShardLayout.h"
#include "llvm/ADT/STLExtras.h"

using namespace cleave::runtime;
using namespace cleave::runtime::cuda;
using llvm::Error;

/// Calls `take` for each piece of a strided block without gaps.
static void forEachPiece(llvm::ArrayRef<int64_t> sizes,
                         llvm::ArrayRef<int64_t> strides, int64_t offset,
                         int64_t elementBytes,
                         llvm::function_ref<void(int64_t, int64_t)> take) {
  if (llvm::is_contained(sizes, 0))
    return;
  // The inner dimensions that have no gaps are one piece.
  int64_t run = 1;
  size_t outer = sizes.size();
  while (outer > 0 && (strides[outer - 1] == run || sizes[outer - 1] == 1)) {
    run *= sizes[outer - 1];
    --outer;
  }
  std::vector<int64_t> index(outer, 0);
  while (true) {
    int64_t at = offset;
    for (size_t i = 0; i < outer; ++i)
      at += index[i] * strides[i];
    take(at * elementBytes, run * elementBytes);
    size_t i = outer;
    while (i > 0 && ++index[i - 1] == sizes[i - 1])
      index[--i] = 0;
    if (i == 0)
      return;
  }
}

HostTransport::HostTransport(const CollectiveCommand &command,
                             llvm::function_ref<int64_t(Ref)> at,
                             bool receives) {
  int64_t elementBytes = byteSize(command.dtype);
  if (command.collective == CollectiveKind::AllToAllRows) {
    int64_t row = elementBytes, offsets = 8 * (partCount(command.axes) + 1);
    for (int64_t size : llvm::ArrayRef(command.sizes).drop_front())
      row *= size;
    sent = {{at(command.src), command.sizes[0] * row},
            {at(command.sendOffsets), offsets},
            {at(command.receiveOffsets), offsets}};
    received = {{at(command.dst), command.bound * row}};
    return;
  }
  auto add = [&](const CollectiveBlock &block) {
    auto pieces = [&](std::vector<Piece> &to, const Ref &ref,
                      const std::vector<int64_t> &strides,
                      const std::vector<int64_t> &offsets) {
      if (ref.buffer < 0)
        return;
      for (int64_t offset : offsets.empty() ? std::vector<int64_t>{0} : offsets)
        forEachPiece(block.sizes, strides, offset, elementBytes,
                     [&](int64_t from, int64_t bytes) {
                       to.push_back({at(ref) + from, bytes});
                     });
    };
    pieces(sent, block.src, block.srcStrides, block.srcOffsets);
    if (receives)
      pieces(received, block.dst, block.dstStrides, block.dstOffsets);
  };
  add(command);
  llvm::for_each(command.more, add);
}

Error HostTransport::fetch(const Gpu &gpu, CUdeviceptr arena,
                           char *mirror) const {
  for (const Piece &piece : sent)
    if (Error error =
            gpu.check(gpu.driver.cuMemcpyDtoHAsync(
                          mirror + piece.offset,
                          arena + static_cast<CUdeviceptr>(piece.offset),
                          static_cast<size_t>(piece.bytes), gpu.compute),
                      "copying what is sent"))
      return error;
  return gpu.finish();
}

Error HostTransport::store(const Gpu &gpu, CUdeviceptr arena,
                           const char *mirror) const {
  for (const Piece &piece : received)
    if (Error error =
            gpu.check(gpu.driver.cuMemcpyHtoDAsync(
                          arena + static_cast<CUdeviceptr>(piece.offset),
                          mirror + piece.offset,
                          static_cast<size_t>(piece.bytes), gpu.compute),
                      "copying what was received"))
      return error;
  return gpu.finish();
}
