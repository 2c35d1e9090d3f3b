//===- Unroller.h - The list of one position's actions ----------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_UNROLLER_H
#define CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_UNROLLER_H

#include "PartForms.h"
#include "RunList.h"
#include "Transfers.h"
#include "Versions.h"

namespace cleave::exec {

/// Whether a part changes what its program is given, for good.
bool updates(pipe::InvokeOp invoke);
/// Whether it changes that, and another part may do so again.
bool updatesFirst(pipe::InvokeOp invoke);

/// Parts of a program, by invocation.
using Parts = llvm::DenseMap<mlir::Operation *, PartForms>;

/// Unrolls what one position of the pipeline runs.
class Unroller {
public:
  Unroller(pipe::ProgramOp source, int64_t position, const pipe::StageMap &map,
           Parts &parts, Transfers &transfers, mlir::SymbolTable &symbols)
      : source(source), position(position), map(map), parts(parts),
        transfers(transfers), symbols(symbols), whole(source.getMicroBatches()),
        builder(source), versions(source) {}

  /// Unrolls the position's actions in `list`, of which the program repeats
  /// some; before what updates anything, or in the end where updates come
  /// first, the position agrees with the others `stops` times whether a step
  /// goes on. Returns a null program where what is to be repeated is not
  /// regular in the end: nothing is left of it then.
  mlir::FailureOr<ProgramOp> run(const pipe::ShortSchedule &list,
                                 int64_t stops);

private:
  using Place = pipe::ShortSchedule::Place;

  bool holds(mlir::BlockArgument argument);
  ProgramOp createProgram();
  mlir::LogicalResult createReturn();
  void transfer(const pipe::Action &action);
  void finishSends();
  void finishReceives(size_t number);
  void finishReceivesOf(pipe::InvokeOp invoke, int64_t microBatch);
  void stop();
  void stopAll(int64_t stops);
  llvm::SmallVector<std::pair<mlir::Value, mlir::Value>>
  keepOld(pipe::InvokeOp invoke);
  void restore();
  mlir::func::FuncOp createPart(const llvm::Twine &name,
                                mlir::TypeRange arguments);
  mlir::Operation *runPlain(mlir::func::FuncOp part, mlir::ValueRange operands);
  void runPart(pipe::InvokeOp invoke, int64_t microBatch);
  mlir::Value valueOf(mlir::Value value, int64_t dim, int64_t microBatch);
  mlir::Value constantRow(mlir::Attribute value, mlir::RankedTensorType type,
                          mlir::RankedTensorType row, int64_t index,
                          mlir::Location loc);
  mlir::LogicalResult runActions(llvm::ArrayRef<pipe::Action> actions,
                                 llvm::ArrayRef<Place> places, int64_t stops);
  void updatesLast(llvm::SmallVector<pipe::Action> &actions,
                   llvm::SmallVector<Place> &places);
  void noteRuns(const Place &place);
  bool needsAgreement(pipe::InvokeOp invoke) const;
  mlir::LogicalResult planVersions(llvm::ArrayRef<pipe::Action> actions);

  mlir::DictionaryAttr attributesOr(mlir::DictionaryAttr known) {
    return known ? known : builder.getDictionaryAttr({});
  }
  /// Whether `invoke` is of this position.
  bool isHere(pipe::InvokeOp invoke) const {
    return map.device(invoke.getStage()) == position;
  }

  pipe::ProgramOp source;
  int64_t position;
  const pipe::StageMap &map;
  Parts &parts;
  Transfers &transfers;
  mlir::SymbolTable &symbols;
  /// The micro-batches of a step, and those of the list.
  int64_t whole, count = 0;
  mlir::OpBuilder builder;
  ProgramOp program;
  /// What each value of the source is: one value, or one for each micro-batch.
  llvm::DenseMap<mlir::Value, llvm::SmallVector<mlir::Value>> values;
  /// Of parts whose results accumulate: how often each has run, and the sums
  /// there are, each of one result for each of `PartForms::sums`.
  llvm::DenseMap<mlir::Operation *, int64_t> done;
  llvm::DenseMap<mlir::Operation *,
                 llvm::SmallVector<llvm::SmallVector<mlir::Value>>>
      open;
  llvm::DenseMap<mlir::Attribute, mlir::Value> constants;
  /// A transfer that nothing has waited for yet.
  struct UnderWay {
    pipe::Action action;
    llvm::SmallVector<mlir::OpResult> results;
    llvm::SmallVector<mlir::Value> values;
    Place place;
  };
  std::optional<UnderWay> sent;
  /// In the order of the schedule; how many stand before `sent`.
  llvm::SmallVector<UnderWay> receiving;
  size_t receivingBeforeSent = 0;
  /// The places of runs, and those whose place is not known yet.
  struct Noted : mlir::OpBuilder::Listener {
    void notifyOperationInserted(mlir::Operation *op,
                                 mlir::OpBuilder::InsertPoint) override {
      if (auto run = llvm::dyn_cast<RunOp>(op))
        fresh.push_back(run);
    }
    llvm::SmallVector<RunOp> fresh;
    RunPlaces places;
  } noted;
  /// The place of what is unrolled now.
  Place here;
  Versions versions;
  /// What updates have been made that may be taken back: the value of the
  /// source, and what was there before.
  struct Kept {
    mlir::Value source, old;
  };
  llvm::SmallVector<Kept> kept;
  /// The latest run of a part.
  mlir::Operation *latest = nullptr;
};

} // namespace cleave::exec

#endif // CLEAVE_LIB_DIALECT_EXEC_TRANSFORMS_UNROLLER_H
