#include "backend/cpu/operand_slices.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/element.hpp"
#include "ir/builder.hpp"

namespace scoremod::backend::cpu {
namespace {

using analysis::ValueRange;

constexpr std::int64_t kRun = 64;
/// Tables are read only where this few entries are in question.
constexpr std::int64_t kMaxTableEntries = 64;

constexpr auto kQ = static_cast<std::size_t>(Axis::kQuery);
constexpr auto kK = static_cast<std::size_t>(Axis::kKey);

/// Grows from nothing by values; nothing but NaN gives everything.
class RangeBuilder {
 public:
  explicit RangeBuilder(Type type) : type_(type) {}

  void add(double value) {
    if (std::isnan(value)) {
      range_.maybe_nan = true;
    } else {
      range_.lo = std::min(range_.lo, value);
      range_.hi = std::max(range_.hi, value);
    }
  }
  void add(const ValueRange& other) {
    range_.lo = std::min(range_.lo, other.lo);
    range_.hi = std::max(range_.hi, other.hi);
    range_.maybe_nan |= other.maybe_nan;
  }
  void add_element(const OperandView& view, std::int64_t index) {
    if (type_ == Type::kF32) return add(double{load_element<float>(view.data, view.dtype, index)});
    add(static_cast<double>(load_element<std::int32_t>(view.data, view.dtype, index)));
  }
  ValueRange result() const { return range_.lo <= range_.hi ? range_ : analysis::everything(type_); }

 private:
  Type type_;
  ValueRange range_{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), false};
};

/// The operands that the mask reads and that vary over keys but not over queries.
std::vector<bool> key_operands_of_mask(const Program& program) {
  std::vector<bool> found(program.operands().size(), false);
  std::vector<bool> seen(program.nodes().size(), false);
  std::vector<NodeId> pending;
  if (program.keep() != kNoNode) pending.push_back(program.keep());
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    if (seen[id]) continue;
    seen[id] = true;
    const Node& node = program.nodes()[id];
    if (node.op == Op::kOperand) {
      const OperandDecl& decl = program.operands()[node.payload];
      found[node.payload] = decl.axes[kK] && !decl.axes[kQ];
    }
    for (const NodeId arg : ir::args_of(node)) pending.push_back(arg);
  }
  return found;
}

std::int64_t offset_of(const OperandView& view, std::int64_t batch, std::int64_t head) {
  return batch * view.axis_strides[0] + head * view.axis_strides[1];
}

}  // namespace

OperandSlices::OperandSlices(const Program& program, std::span<const OperandView> operands, std::int64_t seq_kv)
    : program_(program), operands_(operands), seq_kv_(seq_kv), runs_(operands.size()) {
  const std::vector<bool> by_key = key_operands_of_mask(program);
  for (std::size_t operand = 0; operand < operands.size(); ++operand) {
    if (by_key[operand]) runs_[operand].resize(static_cast<std::size_t>((seq_kv + kRun - 1) / kRun));
  }
}

void OperandSlices::begin_head(std::int64_t batch, std::int64_t head) {
  batch_ = batch;
  head_ = head;
  for (std::size_t operand = 0; operand < runs_.size(); ++operand) {
    const OperandView& view = operands_[operand];
    const std::int64_t first = offset_of(view, batch, head);
    for (std::size_t run = 0; run < runs_[operand].size(); ++run) {
      RangeBuilder range(program_.operands()[operand].type);
      const std::int64_t begin = static_cast<std::int64_t>(run) * kRun;
      for (std::int64_t key = begin; key < std::min(begin + kRun, seq_kv_); ++key) {
        range.add_element(view, first + key * view.axis_strides[kK]);
      }
      runs_[operand][run] = range.result();
    }
  }
}

void OperandSlices::set_box(IndexSpan queries, IndexSpan keys) {
  queries_ = queries;
  keys_ = keys;
}

ValueRange OperandSlices::broadcast(std::uint32_t operand, Type type) const {
  const OperandDecl& decl = program_.operands()[operand];
  const OperandView& view = operands_[operand];
  if (decl.axes[kQ] && decl.axes[kK]) return analysis::everything(type);
  RangeBuilder range(type);
  const std::int64_t first = offset_of(view, batch_, head_);
  if (decl.axes[kQ]) {
    for (std::int64_t q = queries_.first; q < queries_.last; ++q)
      range.add_element(view, first + q * view.axis_strides[kQ]);
  } else if (decl.axes[kK]) {
    const std::vector<ValueRange>& runs = runs_[operand];
    if (runs.empty()) return analysis::everything(type);
    for (std::int64_t run = keys_.first / kRun; run * kRun < keys_.last; ++run)
      range.add(runs[static_cast<std::size_t>(run)]);
  } else {
    range.add_element(view, first);
  }
  return range.result();
}

ValueRange OperandSlices::table(std::uint32_t operand, Type type, std::span<const ValueRange> indices) const {
  const OperandView& view = operands_[operand];
  std::array<std::int64_t, kMaxTableRank> first{}, count{1, 1, 1, 1};
  std::int64_t entries = 1;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const double last = static_cast<double>(view.extents[i] - 1);
    first[i] = static_cast<std::int64_t>(std::clamp(indices[i].lo, 0.0, last));
    count[i] = static_cast<std::int64_t>(std::clamp(indices[i].hi, 0.0, last)) - first[i] + 1;
    if (count[i] > kMaxTableEntries) return analysis::everything(type);
    entries *= count[i];
  }
  if (entries > kMaxTableEntries) return analysis::everything(type);
  RangeBuilder range(type);
  for (std::int64_t entry = 0; entry < entries; ++entry) {
    std::int64_t rest = entry, offset = 0;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      offset += (first[i] + rest % count[i]) * view.table_strides[i];
      rest /= count[i];
    }
    range.add_element(view, offset);
  }
  return range.result();
}

}  // namespace scoremod::backend::cpu
