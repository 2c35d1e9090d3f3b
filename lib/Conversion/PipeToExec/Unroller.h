//===- Unroller.h - The list of actions of one position ---------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_LIB_CONVERSION_PIPETOEXEC_UNROLLER_H
#define CLEAVE_LIB_CONVERSION_PIPETOEXEC_UNROLLER_H

#include "PartForms.h"
#include "RunList.h"
#include "TransferParts.h"
#include "Versions.h"

namespace cleave::exec {

/// Whether a part updates a value of the program for good.
bool updates(pipe::InvokeOp invoke);
/// Whether it updates a value that another part may update again.
bool updatesFirst(pipe::InvokeOp invoke);

/// Facts that programs of all positions have in common.
struct Parts {
  /// By invocation.
  llvm::DenseMap<mlir::Operation *, PartForms> forms;
  /// The invocations that update a value of the program for good.
  llvm::DenseSet<mlir::Operation *> updating;
  /// Arguments of the source that any position uses, and those that each one
  /// uses.
  llvm::DenseSet<mlir::Value> used;
  std::vector<llvm::DenseSet<mlir::Value>> usedAt;
  /// Arguments that are values of the previous step, each with the one it is
  /// of.
  llvm::SmallVector<std::pair<mlir::Value, mlir::Value>> previous;
};

/// Finds which parts update and which arguments are used where.
void findUses(pipe::ProgramOp source, const scheduling::StageMap &map,
              Parts &parts);

/// Unrolls what one position of the pipeline runs.
class Unroller {
public:
  Unroller(pipe::ProgramOp source, int64_t position,
           const scheduling::StageMap &map, Parts &parts, Transfers &transfers,
           mlir::SymbolTable &symbols)
      : source(source), position(position), map(map), parts(parts),
        transfers(transfers), symbols(symbols), whole(source.getMicroBatches()),
        builder(source), versions(source) {}

  /// Unrolls the position's actions in `list`, of which the program repeats
  /// some. Before the first update, or at the end if updates come first, the
  /// position agrees with the others `stops` times whether a step continues.
  /// Returns a null program, and leaves nothing of it, if the runs to be
  /// repeated are not regular.
  mlir::FailureOr<ProgramOp> run(const scheduling::ReducedSchedule &list,
                                 int64_t stops);

private:
  using Place = scheduling::ReducedSchedule::Place;

  void findHeld();
  ProgramOp createProgram();
  mlir::LogicalResult createReturn();
  void transfer(const scheduling::Action &action);
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
  mlir::LogicalResult runActions(llvm::ArrayRef<scheduling::Action> actions,
                                 llvm::ArrayRef<Place> places, int64_t stops);
  void updatesLast(llvm::SmallVector<scheduling::Action> &actions,
                   llvm::SmallVector<Place> &places);
  void noteRuns(const Place &place);
  bool needsAgreement(pipe::InvokeOp invoke) const;
  bool mayStop(pipe::InvokeOp invoke) const;
  mlir::LogicalResult planVersions(llvm::ArrayRef<scheduling::Action> actions);

  mlir::DictionaryAttr attributesOr(mlir::DictionaryAttr known) {
    return known ? known : builder.getDictionaryAttr({});
  }
  /// Whether `invoke` belongs to this position.
  bool isHere(pipe::InvokeOp invoke) const {
    return map.device(invoke.getStage()) == position;
  }

  pipe::ProgramOp source;
  int64_t position;
  const scheduling::StageMap &map;
  Parts &parts;
  Transfers &transfers;
  mlir::SymbolTable &symbols;
  /// The number of micro-batches of a step, and of the list.
  int64_t whole, count = 0;
  mlir::OpBuilder builder;
  ProgramOp program;
  /// The arguments of the source that the position holds.
  llvm::DenseSet<mlir::Value> held;
  /// The values of each value of the source: one, or one for each micro-batch.
  llvm::DenseMap<mlir::Value, llvm::SmallVector<mlir::Value>> values;
  /// For parts whose results accumulate: the number of runs so far, and the
  /// pending sums, each of one result for each of `PartForms::sums`.
  llvm::DenseMap<mlir::Operation *, int64_t> done;
  llvm::DenseMap<mlir::Operation *,
                 llvm::SmallVector<llvm::SmallVector<mlir::Value>>>
      open;
  llvm::DenseMap<mlir::Attribute, mlir::Value> constants;
  /// A transfer that has not been awaited yet.
  struct UnderWay {
    scheduling::Action action;
    llvm::SmallVector<mlir::OpResult> results;
    llvm::SmallVector<mlir::Value> values;
    Place place;
  };
  std::optional<UnderWay> sent;
  /// Transfers in flight, in the order of the schedule; the number of those
  /// before `sent`.
  llvm::SmallVector<UnderWay> receiving;
  size_t receivingBeforeSent = 0;
  /// The places of runs, and the runs whose place is not known yet.
  struct Noted : mlir::OpBuilder::Listener {
    void notifyOperationInserted(mlir::Operation *op,
                                 mlir::OpBuilder::InsertPoint) override {
      if (auto run = llvm::dyn_cast<RunOp>(op))
        fresh.push_back(run);
    }
    llvm::SmallVector<RunOp> fresh;
    RunPlaces places;
  } noted;
  /// The place of the runs that are unrolled now.
  Place here;
  Versions versions;
  /// Updates that may be undone: the value of the source, and its previous
  /// value.
  struct Kept {
    mlir::Value source, old;
  };
  llvm::SmallVector<Kept> kept;
  /// The latest run of each part.
  mlir::Operation *latest = nullptr;
};

} // namespace cleave::exec

#endif // CLEAVE_LIB_CONVERSION_PIPETOEXEC_UNROLLER_H
