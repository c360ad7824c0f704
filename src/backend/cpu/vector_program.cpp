#include "backend/cpu/vector_program.hpp"

#include <algorithm>

#include "ir/builder.hpp"

namespace scoremod::backend::cpu {
namespace {

Place join(Place x, Place y) {
  if (x == y || y == Place::kUniform) return x;
  return x == Place::kUniform ? y : Place::kTile;
}

/// The place of a value computed from one at `place`.
Place computed_from(Place place) { return place > Place::kTile ? Place::kTile : place; }

Place place_of_operand(const OperandDecl& decl) {
  const bool row = decl.axes[static_cast<std::size_t>(Axis::kQuery)];
  const bool column = decl.axes[static_cast<std::size_t>(Axis::kKey)];
  return row ? (column ? Place::kTile : Place::kRow) : (column ? Place::kColumn : Place::kUniform);
}

/// The instruction lists in the order in which they run.
enum class Stage : std::uint8_t { kNone, kUniform, kRow, kColumn, kValue, kKeep, kAdjoint };

class Vectorizer {
 public:
  explicit Vectorizer(const Program& program) : program_(program), nodes_(program.nodes()), facts_(nodes_.size()) {}

  VectorProgram run() {
    for (NodeId id = 0; id < nodes_.size(); ++id) classify(id);
    for (const Root& root : program_.roots()) mark_needed(root);
    for (NodeId id = 0; id < nodes_.size(); ++id) assign_stage(id);
    find_last_uses();
    for (const Stage stage :
         {Stage::kNone, Stage::kUniform, Stage::kRow, Stage::kColumn, Stage::kValue, Stage::kKeep, Stage::kAdjoint}) {
      for (NodeId id = 0; id < nodes_.size(); ++id) {
        if (facts_[id].stage == stage) emit(id);
      }
    }
    for (const Root& root : program_.roots()) set_root(root);
    for (std::size_t place = 0; place < kPlaceCount; ++place) out_.registers[place] = registers_[place].count;
    return std::move(out_);
  }

 private:
  struct Facts {
    Place place = Place::kUniform;
    Stage stage = Stage::kNone;
    bool from_upstream = false;
    bool for_value = false;  ///< reached from a root other than keep
    bool pinned = false;     ///< read after its own stage has ended: by a later stage or as a root
    NodeId last_use = 0;     ///< the last reader in its own stage
    Slot slot;
  };

  struct Registers {
    std::uint32_t count = 0;
    std::vector<std::uint32_t> free;
  };

  void classify(NodeId id) {
    const Node& node = nodes_[id];
    Facts& facts = facts_[id];
    switch (node.op) {
      case Op::kScore: facts.place = Place::kScore; return;
      case Op::kUpstream:
        facts.place = Place::kUpstream;
        facts.from_upstream = true;
        return;
      case Op::kQueryIdx: facts.place = Place::kRow; return;
      case Op::kKeyIdx: facts.place = Place::kColumn; return;
      case Op::kOperand: facts.place = place_of_operand(program_.operands()[node.payload]); return;
      default: break;
    }
    for (const NodeId arg : ir::args_of(node)) {
      facts.place = join(facts.place, computed_from(facts_[arg].place));
      facts.from_upstream |= facts_[arg].from_upstream;
    }
  }

  void mark_needed(const Root& root) {
    if (root.kind == RootKind::kKeep) return;
    std::vector<NodeId> pending{root.node};
    if (root.kind == RootKind::kOperandAdjoint) {
      for (const NodeId index : ir::indices_of(program_, root)) pending.push_back(index);
    }
    while (!pending.empty()) {
      const NodeId id = pending.back();
      pending.pop_back();
      if (facts_[id].for_value) continue;
      facts_[id].for_value = true;
      for (const NodeId arg : ir::args_of(nodes_[id])) pending.push_back(arg);
    }
  }

  void assign_stage(NodeId id) {
    Facts& facts = facts_[id];
    switch (facts.place) {
      case Place::kScore:
      case Place::kUpstream: return;
      case Place::kUniform: facts.stage = nodes_[id].op == Op::kConstant ? Stage::kNone : Stage::kUniform; return;
      case Place::kRow: facts.stage = Stage::kRow; return;
      case Place::kColumn: facts.stage = Stage::kColumn; return;
      case Place::kTile:
        facts.stage = facts.from_upstream ? Stage::kAdjoint : facts.for_value ? Stage::kValue : Stage::kKeep;
        return;
    }
  }

  void find_last_uses() {
    for (NodeId id = 0; id < nodes_.size(); ++id) {
      for (const NodeId arg : ir::args_of(nodes_[id])) {
        facts_[arg].last_use = id;
        if (facts_[arg].stage != facts_[id].stage) facts_[arg].pinned = true;
      }
    }
    for (const Root& root : program_.roots()) {
      facts_[root.node].pinned = true;
      if (root.kind != RootKind::kOperandAdjoint) continue;
      for (const NodeId index : ir::indices_of(program_, root)) facts_[index].pinned = true;
    }
  }

  void emit(NodeId id) {
    const Node& node = nodes_[id];
    Facts& facts = facts_[id];
    facts.slot.place = facts.place;
    if (facts.place == Place::kScore || facts.place == Place::kUpstream) return;

    Registers& registers = registers_[static_cast<std::size_t>(facts.place)];
    if (registers.free.empty()) {
      facts.slot.index = registers.count++;
    } else {
      facts.slot.index = registers.free.back();
      registers.free.pop_back();
    }
    if (node.op == Op::kConstant) {
      const std::uint32_t bits = node.type == Type::kBool ? (node.payload != 0 ? ~0u : 0u) : node.payload;
      out_.constants.push_back({facts.slot.index, bits});
      return;
    }
    Instruction instruction;
    instruction.op = node.op;
    instruction.type = node.type;
    instruction.arg_count = node.arg_count;
    instruction.out = facts.slot;
    instruction.operand = node.op == Op::kOperand || node.op == Op::kGather ? node.payload : 0;
    for (std::size_t i = 0; i < node.arg_count; ++i) instruction.args[i] = facts_[node.args[i]].slot;
    if (node.arg_count > 0) instruction.arg_type = nodes_[node.args[0]].type;
    list_of(facts.stage).push_back(instruction);
    release_arguments(id);
  }

  // Releases arguments after the result has its register, so that no kernel overwrites its own input.
  void release_arguments(NodeId id) {
    const auto args = ir::args_of(nodes_[id]);
    for (std::size_t i = 0; i < args.size(); ++i) {
      const Facts& facts = facts_[args[i]];
      const bool seen = std::find(args.begin(), args.begin() + static_cast<std::ptrdiff_t>(i), args[i]) !=
                        args.begin() + static_cast<std::ptrdiff_t>(i);
      const bool is_register = facts.place <= Place::kTile && nodes_[args[i]].op != Op::kConstant;
      if (seen || !is_register || facts.pinned || facts.last_use != id) continue;
      registers_[static_cast<std::size_t>(facts.place)].free.push_back(facts.slot.index);
    }
  }

  std::vector<Instruction>& list_of(Stage stage) {
    switch (stage) {
      case Stage::kRow: return out_.row;
      case Stage::kColumn: return out_.column;
      case Stage::kValue: return out_.value;
      case Stage::kKeep: return out_.keep;
      case Stage::kAdjoint: return out_.adjoint;
      default: return out_.uniform;
    }
  }

  void set_root(const Root& root) {
    const Slot slot = facts_[root.node].slot;
    switch (root.kind) {
      case RootKind::kValue: out_.value_root = slot; return;
      case RootKind::kKeep: out_.keep_root = slot; return;
      case RootKind::kScoreAdjoint: out_.score_adjoint = slot; return;
      case RootKind::kOperandAdjoint: break;
    }
    OperandContribution contribution{root.operand, slot, {}};
    const auto indices = ir::indices_of(program_, root);
    for (std::size_t i = 0; i < indices.size(); ++i) contribution.indices[i] = facts_[indices[i]].slot;
    out_.contributions.push_back(contribution);
  }

  const Program& program_;
  const std::vector<Node>& nodes_;
  std::vector<Facts> facts_;
  std::array<Registers, kPlaceCount> registers_;
  VectorProgram out_;
};

}  // namespace

VectorProgram vectorize(const Program& program) { return Vectorizer(program).run(); }

}  // namespace scoremod::backend::cpu
