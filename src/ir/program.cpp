#include "scoremod/program.hpp"

#include "ir/builder.hpp"
#include "ir/parse.hpp"
#include "ir/print.hpp"

namespace scoremod {
namespace {

NodeId root_of(const std::vector<Root>& roots, RootKind kind) {
  for (const Root& root : roots) {
    if (root.kind == kind) return root.node;
  }
  return kNoNode;
}

}  // namespace

const char* to_string(Type type) {
  switch (type) {
    case Type::kF32: return "f32";
    case Type::kI32: return "i32";
    case Type::kBool: return "bool";
  }
  return "unknown";
}

int OperandDecl::rank() const {
  if (is_table()) return table_rank;
  int count = 0;
  for (const bool axis : axes) count += axis ? 1 : 0;
  return count;
}

Program::Program() {
  static const Program kIdentity = [] {
    ir::Builder builder;
    return builder.finish(builder.leaf(Op::kScore));
  }();
  data_ = kIdentity.data_;
}

Program::Program(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

Program Program::parse(std::string_view text) { return ir::parse(text); }
std::string Program::to_string() const { return ir::print(*this); }

const std::vector<Node>& Program::nodes() const { return data_->nodes; }
const std::vector<OperandDecl>& Program::operands() const { return data_->operands; }
const std::vector<Root>& Program::roots() const { return data_->roots; }
NodeId Program::value() const { return root_of(data_->roots, RootKind::kValue); }
NodeId Program::keep() const { return root_of(data_->roots, RootKind::kKeep); }
std::uint64_t Program::hash() const { return data_->hash; }

bool Program::operator==(const Program& other) const {
  if (data_ == other.data_) return true;
  return data_->hash == other.data_->hash && data_->operands == other.data_->operands &&
         data_->nodes == other.data_->nodes && data_->roots == other.data_->roots;
}

}  // namespace scoremod
