//===- ProgramFields.h - The fields of a program ----------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Each structure lists its fields once, as pointers to members. The reader and
/// the writer both iterate over that list, so that they stay consistent.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_EXECUTABLE_FORMAT_PROGRAMFIELDS_H
#define CLEAVE_EXECUTABLE_FORMAT_PROGRAMFIELDS_H

#include "cleave/Executable/Format/Program.h"

namespace cleave::runtime {

template <typename F> void fields(F &f, const LossScaling *) {
  f("used", &LossScaling::used);
  f("dynamic", &LossScaling::dynamic);
  f("initial", &LossScaling::initial);
  f("minimum", &LossScaling::minimum);
  f("window", &LossScaling::window);
  f("hysteresis", &LossScaling::hysteresis);
}

template <typename F> void fields(F &f, const MeshAxis *) {
  f("name", &MeshAxis::name);
  f("size", &MeshAxis::size);
  f("sequential", &MeshAxis::sequential);
}

template <typename F> void fields(F &f, const Digit *) {
  f("axis", &Digit::axis);
  f("pre", &Digit::pre);
  f("size", &Digit::size);
}

template <typename F> void fields(F &f, const Tensor *) {
  f("name", &Tensor::name);
  f("role", &Tensor::role);
  f("dtype", &Tensor::dtype);
  f("shape", &Tensor::shape);
  f("padded", &Tensor::padded);
  f("sharding", &Tensor::sharding);
  f("offset", &Tensor::offset);
  f("tier", &Tensor::tier);
  f("aliases", &Tensor::aliases);
  f("frozen", &Tensor::frozen);
  f("additive", &Tensor::additive);
  f("of", &Tensor::of);
  f("slot", &Tensor::slot);
  f("optional", &Tensor::optional);
  f("summed", &Tensor::summed);
  f("elements", &Tensor::elements);
  f("batchDim", &Tensor::batchDim);
  f("upperBound", &Tensor::upperBound);
  f("hasIgnoreIndex", &Tensor::hasIgnoreIndex);
  f("ignoreIndex", &Tensor::ignoreIndex);
  f("persistent", &Tensor::persistent);
  f("written", &Tensor::written);
  f("value", &Tensor::value);
  f("frameworkShape", &Tensor::frameworkShape);
}

template <typename F> void fields(F &f, const LaunchShape *) {
  f("grid", &LaunchShape::grid);
  f("block", &LaunchShape::block);
  f("sharedBytes", &LaunchShape::sharedBytes);
}

template <typename F> void fields(F &f, const KernelCommand *) {
  f("symbol", &KernelCommand::symbol);
  f("uses", &KernelCommand::uses);
  f("args", &KernelCommand::args);
  f("inputs", &KernelCommand::inputs);
  f("items", &KernelCommand::items);
  f("grain", &KernelCommand::grain);
  f("finish", &KernelCommand::finish);
  f("finishItems", &KernelCommand::finishItems);
  f("scratch", &KernelCommand::scratch);
  f("launch", &KernelCommand::launch);
  f("finishLaunch", &KernelCommand::finishLaunch);
}

template <typename F> void fields(F &f, const ContractCommand *) {
  using C = ContractCommand;
  f("type", &C::type);
  f("typeB", &C::typeB);
  f("resultType", &C::resultType);
  f("m", &C::m);
  f("n", &C::n);
  f("k", &C::k);
  f("batch", &C::batch);
  f("a", &C::a);
  f("b", &C::b);
  f("c", &C::c);
  f("transA", &C::transA);
  f("transB", &C::transB);
  f("lda", &C::lda);
  f("ldb", &C::ldb);
  f("ldc", &C::ldc);
  f("batchStrideA", &C::batchStrideA);
  f("batchStrideB", &C::batchStrideB);
  f("batchStrideC", &C::batchStrideC);
  f("alpha", &C::alpha);
  f("beta", &C::beta);
  f("bias", &C::bias);
  f("epilogue", &C::epilogue);
  f("beside", &C::beside);
  f("ldBeside", &C::ldBeside);
}

template <typename F> void fields(F &f, const HeadView *) {
  f("ref", &HeadView::ref);
  f("strideBatch", &HeadView::strideBatch);
  f("strideHead", &HeadView::strideHead);
  f("stridePosition", &HeadView::stridePosition);
}

template <typename F> void fields(F &f, const AttentionCommand *) {
  using A = AttentionCommand;
  f("type", &A::type);
  f("resultType", &A::resultType);
  f("batch", &A::batch);
  f("heads", &A::heads);
  f("kvHeads", &A::kvHeads);
  f("queries", &A::queries);
  f("keys", &A::keys);
  f("headSize", &A::headSize);
  f("valueSize", &A::valueSize);
  f("scale", &A::scale);
  f("causal", &A::causal);
  f("window", &A::window);
  f("q", &A::q);
  f("k", &A::k);
  f("v", &A::v);
  f("o", &A::o);
  f("lse", &A::lse);
  f("bias", &A::bias);
  f("biasStrides", &A::biasStrides);
  f("mask", &A::mask);
  f("maskStrides", &A::maskStrides);
  f("querySegments", &A::querySegments);
  f("keySegments", &A::keySegments);
  f("dropout", &A::dropout);
  f("dropoutId", &A::dropoutId);
  f("rng", &A::rng);
  f("origin", &A::origin);
  f("globalHeads", &A::globalHeads);
  f("globalQueries", &A::globalQueries);
  f("globalKeys", &A::globalKeys);
  f("queryStarts", &A::queryStarts);
  f("keyStarts", &A::keyStarts);
  f("queryPieces", &A::queryPieces);
  f("keyPieces", &A::keyPieces);
  f("blocks", &A::blocks);
  f("onto", &A::onto);
  f("dO", &A::dO);
  f("dQ", &A::dQ);
  f("dK", &A::dK);
  f("dV", &A::dV);
  f("dBias", &A::dBias);
  f("scratch", &A::scratch);
  f("scratchBytesPerThread", &A::scratchBytesPerThread);
  f("queryBlock", &A::queryBlock);
  f("libraryBytes", &A::libraryBytes);
  f("fixedOrder", &A::fixedOrder);
}

template <typename F> void fields(F &f, const ScatterAddCommand *) {
  using S = ScatterAddCommand;
  f("rows", &S::rows);
  f("ids", &S::ids);
  f("out", &S::out);
  f("count", &S::count);
  f("columns", &S::columns);
  f("outRows", &S::outRows);
  f("idType", &S::idType);
  f("accumulate", &S::accumulate);
  f("hasSkip", &S::hasSkip);
  f("skipIndex", &S::skipIndex);
}

template <typename F> void fields(F &f, const TopKCommand *) {
  using T = TopKCommand;
  f("in", &T::in);
  f("values", &T::values);
  f("indices", &T::indices);
  f("rows", &T::rows);
  f("columns", &T::columns);
  f("k", &T::k);
  f("scratch", &T::scratch);
}

template <typename F> void fields(F &f, const OrthonormalizeCommand *) {
  using O = OrthonormalizeCommand;
  f("in", &O::in);
  f("out", &O::out);
  f("batch", &O::batch);
  f("rows", &O::rows);
  f("columns", &O::columns);
  f("scratch", &O::scratch);
}

template <typename F> void fields(F &f, const SortRowsCommand *) {
  using S = SortRowsCommand;
  f("groups", &S::groups);
  f("origin", &S::origin);
  f("order", &S::order);
  f("inverse", &S::inverse);
  f("offsets", &S::offsets);
  f("rows", &S::rows);
  f("size", &S::size);
  f("groupType", &S::groupType);
}

template <typename F> void fields(F &f, const GroupedContractCommand *) {
  using G = GroupedContractCommand;
  f("weightGradient", &G::weightGradient);
  f("transposed", &G::transposed);
  f("type", &G::type);
  f("a", &G::a);
  f("b", &G::b);
  f("offsets", &G::offsets);
  f("out", &G::out);
  f("rows", &G::rows);
  f("k", &G::k);
  f("m", &G::m);
  f("groups", &G::groups);
  f("ranges", &G::ranges);
  f("lda", &G::lda);
  f("ldb", &G::ldb);
  f("groupStrideB", &G::groupStrideB);
  f("scratch", &G::scratch);
}

template <typename F> void fields(F &f, const CopyCommand *) {
  f("src", &CopyCommand::src);
  f("dst", &CopyCommand::dst);
  f("elementBytes", &CopyCommand::elementBytes);
  f("sizes", &CopyCommand::sizes);
  f("srcStrides", &CopyCommand::srcStrides);
  f("dstStrides", &CopyCommand::dstStrides);
}

template <typename F> void fields(F &f, const FillCommand *) {
  f("dst", &FillCommand::dst);
  f("bytes", &FillCommand::bytes);
  f("elementBytes", &FillCommand::elementBytes);
  f("pattern", &FillCommand::pattern);
}

template <typename F> void fields(F &f, const CheckCommand *) {
  f("flag", &CheckCommand::flag);
  f("message", &CheckCommand::message);
  f("deferred", &CheckCommand::deferred);
  f("skips", &CheckCommand::skips);
  f("room", &CheckCommand::room);
  f("values", &CheckCommand::values);
  f("count", &CheckCommand::count);
}

/// The fields of an exchange's block in `T`, which is a block or has one as its
/// base.
template <typename T, typename F> void blockFields(F &f) {
  using List = std::vector<int64_t>;
  f("src", static_cast<Ref T::*>(&T::src));
  f("dst", static_cast<Ref T::*>(&T::dst));
  f("sizes", static_cast<List T::*>(&T::sizes));
  f("srcStrides", static_cast<List T::*>(&T::srcStrides));
  f("dstStrides", static_cast<List T::*>(&T::dstStrides));
  f("srcOffsets", static_cast<List T::*>(&T::srcOffsets));
  f("dstOffsets", static_cast<List T::*>(&T::dstOffsets));
}

template <typename F> void fields(F &f, const CollectiveBlock *) {
  blockFields<CollectiveBlock>(f);
}

template <typename F> void fields(F &f, const CollectiveCommand *) {
  using C = CollectiveCommand;
  blockFields<C>(f);
  f("collective", &C::collective);
  f("reduction", &C::reduction);
  f("dtype", &C::dtype);
  f("axes", &C::axes);
  f("more", &C::more);
  f("sources", &C::sources);
  f("root", &C::root);
  f("sendOffsets", &C::sendOffsets);
  f("receiveOffsets", &C::receiveOffsets);
  f("bound", &C::bound);
  f("token", &C::token);
  f("spans", &C::spans);
}

template <typename F> void fields(F &f, const WaitCommand *) {
  f("token", &WaitCommand::token);
  f("transfer", &WaitCommand::transfer);
}

template <typename F> void fields(F &f, const MoveCommand *) {
  f("memory", &MoveCommand::memory);
  f("tier", &MoveCommand::tier);
  f("bytes", &MoveCommand::bytes);
  f("token", &MoveCommand::token);
}

template <typename F> void fields(F &f, const Command *) {
  f("kind", &Command::kind);
  f("timeClass", &Command::timeClass);
  f("flops", &Command::flops);
  f("label", &Command::label);
  f("kernel", &Command::kernel);
  f("contract", &Command::contract);
  f("attention", &Command::attention);
  f("scatterAdd", &Command::scatterAdd);
  f("topK", &Command::topK);
  f("orthonormalize", &Command::orthonormalize);
  f("sortRows", &Command::sortRows);
  f("groupedContract", &Command::groupedContract);
  f("copy", &Command::copy);
  f("fill", &Command::fill);
  f("check", &Command::check);
  f("collective", &Command::collective);
  f("wait", &Command::wait);
  f("move", &Command::move);
}

template <typename F> void fields(F &f, const Buffer *) {
  f("bytes", &Buffer::bytes);
  f("kind", &Buffer::kind);
  f("tier", &Buffer::tier);
}

template <typename F> void fields(F &f, const ScheduledAction *) {
  f("name", &ScheduledAction::name);
  f("kind", &ScheduledAction::kind);
  f("stage", &ScheduledAction::stage);
  f("flops", &ScheduledAction::flops);
}

template <typename F> void fields(F &f, const Part *) {
  f("name", &Part::name);
  f("scheduled", &Part::scheduled);
  f("buffers", &Part::buffers);
  f("commands", &Part::commands);
  f("unless", &Part::unless);
  f("whenStopped", &Part::whenStopped);
}

template <typename F> void fields(F &f, const Action *) {
  f("part", &Action::part);
  f("microBatch", &Action::microBatch);
}

template <typename F> void fields(F &f, const Rows *) {
  f("part", &Rows::part);
  f("columns", &Rows::columns);
}

template <typename F> void fields(F &f, const Entry *) {
  f("actions", &Entry::actions);
  f("rows", &Entry::rows);
  f("inputs", &Entry::inputs);
  f("scalars", &Entry::scalars);
  f("outputs", &Entry::outputs);
}

template <typename F> void fields(F &f, const Constant *) {
  f("offset", &Constant::offset);
  f("hex", &Constant::hex);
}

template <typename F> void fields(F &f, const DeviceTerm *) {
  f("digits", &DeviceTerm::digits);
  f("factor", &DeviceTerm::factor);
}

template <typename F> void fields(F &f, const DeviceValue *) {
  f("base", &DeviceValue::base);
  f("terms", &DeviceValue::terms);
}

template <typename F> void fields(F &f, const DeviceConstant *) {
  f("offset", &DeviceConstant::offset);
  f("values", &DeviceConstant::values);
}

template <typename F> void fields(F &f, const Program *) {
  f("version", &Program::version);
  f("target", &Program::target);
  f("architecture", &Program::architecture);
  f("cpu", &Program::cpu);
  f("vectorBits", &Program::vectorBits);
  f("threads", &Program::threads);
  f("microBatches", &Program::microBatches);
  f("mesh", &Program::mesh);
  f("pipelineAxis", &Program::pipelineAxis);
  f("position", &Program::position);
  f("arenaBytes", &Program::arenaBytes);
  f("tierBytes", &Program::tierBytes);
  f("tensors", &Program::tensors);
  f("constants", &Program::constants);
  f("deviceConstants", &Program::deviceConstants);
  f("parts", &Program::parts);
  f("entries", &Program::entries);
  f("unread", &Program::unread);
  f("lossScaling", &Program::lossScaling);
  f("metadata", &Program::metadata);
}

} // namespace cleave::runtime

#endif // CLEAVE_EXECUTABLE_FORMAT_PROGRAMFIELDS_H
