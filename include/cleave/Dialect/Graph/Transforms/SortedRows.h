//===- SortedRows.h - Rows sorted by group ----------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// Ops on rows of groups (`graph.grouped_linear` and its gradient) become ops
/// on rows that are sorted by group. The sorted rows may be sent
/// to other ranks before the ops, and back after them. Tokens that have several
/// rows may be sent before, once to each node that holds groups of theirs.
///
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_DIALECT_GRAPH_TRANSFORMS_SORTEDROWS_H
#define CLEAVE_DIALECT_GRAPH_TRANSFORMS_SORTEDROWS_H

#include "cleave/Dialect/Graph/IR/GraphOps.h"

#include <string>
#include <variant>

namespace cleave::graph {

/// The groups of rows.
struct RowGroups {
  /// The integers `[i...]`, before reshapes, and the first group that is held,
  /// or null.
  mlir::Value root, origin;
  /// The groups that are held, and all of them.
  int64_t size, globalSize;

  bool operator==(const RowGroups &other) const;
  int64_t rows() const;
};

/// Ops on rows of the same groups, in the order of their block.
struct GroupedOps {
  RowGroups groups;
  llvm::SmallVector<mlir::Operation *> ops;
};

/// The ops of `block` on rows of groups.
llvm::SmallVector<GroupedOps> findGroupedOps(mlir::Block &block);

/// The way of sorted rows to the ranks that hold their groups, and back. All
/// builders stand where the values that they are given are known.
class RowTravel {
public:
  virtual ~RowTravel() = default;

  /// The rows that there is room for where groups are held.
  virtual int64_t room() const = 0;
  /// The rows that are received where all ranks receive as many.
  virtual int64_t even() const = 0;
  /// Rows `offsets[0, e]` to `offsets[0, e + 1]` are those of group e. Returns
  /// the offsets `[p, e' + 1]` of what is received, as
  /// `graph.grouped_contract` reads them.
  virtual mlir::Value begin(mlir::OpBuilder &builder, mlir::Location loc,
                            mlir::Value offsets) = 0;
  /// Rows `[rows, ...]` as `[room, ...]`.
  virtual mlir::Value send(mlir::OpBuilder &builder, mlir::Location loc,
                           mlir::Value rows) = 0;
  /// The inverse of `send`.
  virtual mlir::Value sendBack(mlir::OpBuilder &builder, mlir::Location loc,
                               mlir::Value rows) = 0;
  /// Whether ranks between which rows travel have other values of it, so that
  /// one row that several rows repeat is not that of received ones.
  virtual bool differs(mlir::Value value) const = 0;
  /// The weight `[e', ...]` of the groups that are held, of the op's `[e,
  /// ...]`.
  virtual mlir::Value weightOf(GroupedLinearOp op) = 0;
  /// Rounds `value` to the type in which it is sent back, after it was
  /// computed. Returns the result, and `value` as readers have it then; null
  /// where it is sent as it is.
  virtual std::pair<mlir::Value, mlir::Value> round(mlir::OpBuilder &builder,
                                                    mlir::Value value) = 0;
  /// Is told that `back` is read in the place of `value`.
  virtual void putBack(mlir::Value back, mlir::Value value) = 0;
  /// Replaces the op by the gradient `[e', ...]` of what is held.
  virtual void replaceGradient(GroupedLinearWeightGradOp op,
                               mlir::Value held) = 0;
  /// The first group that is held, `[1]`.
  virtual mlir::Value origin(mlir::OpBuilder &builder, mlir::Location loc) = 0;
  /// Is told that `built` has rows up to its dimension `to`, and then the
  /// dimensions of `like` from `from` on.
  virtual void annotateLike(mlir::Value built, mlir::Value like, int64_t from,
                            int64_t to) = 0;
};

/// Sorts the rows that ops of the same groups read, with the ops on single rows
/// between these, and puts rows back for readers in their own order. With
/// `travel`, all of these ops are computed where groups are held. Ops that made
/// rows which are now read elsewhere stay.
void sortRows(const GroupedOps &grouped, RowTravel *travel = nullptr);

/// Groups `[i..., c]` are the c choices of a token, which is the unit that is
/// sent.
struct Choices {
  /// On this rank, and of one.
  int64_t tokens, perToken;
  static Choices of(const RowGroups &groups);
};

/// Moves ops of the same groups, with those on the rows of single tokens around
/// them, to `nodes` nodes, which hold as many groups each. A token is sent once
/// to each node that holds a group of its choices; a node sums the outputs of
/// its groups for the token and sends back one row, and nodes are summed.
/// `travel` is between nodes, and its rows are the pairs of a token and a node.
/// The ops that are left are of the same kind, on the tokens that a rank of a
/// node received and on the groups of its node; other choices have no group
/// there. Returns those groups, or why nothing was moved. Values of all choices
/// are only sent if `always`.
std::variant<RowGroups, std::string> relayTokens(const GroupedOps &grouped,
                                                 int64_t nodes,
                                                 RowTravel &travel,
                                                 bool always);

} // namespace cleave::graph

#endif // CLEAVE_DIALECT_GRAPH_TRANSFORMS_SORTEDROWS_H
