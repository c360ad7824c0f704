#include "open_problem.hpp"

#include <algorithm>
#include <utility>

#include "scoremod/error.hpp"

namespace scoremod::jax {
namespace {

namespace ffi = xla::ffi;

/// The positions of the buffers whose shapes give the sizes.
enum ArgumentNumber : std::size_t { kQuery, kKey, kValue };

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::kInvalidArgument, what); }

std::int64_t size_in(const ffi::RemainingArgs& arguments, std::size_t argument, std::size_t dimension,
                     const std::string& name) {
  const auto buffer = arguments.get<ffi::AnyBuffer>(argument);
  if (!buffer) fail(name + ": expected it as argument " + std::to_string(argument) + ", found no such argument");
  const ffi::AnyBuffer::Dimensions dimensions = buffer->dimensions();
  if (dimension < dimensions.size()) return dimensions[dimension];
  fail(name + ": expected more than " + std::to_string(dimension) + " dimensions, found " +
       std::to_string(dimensions.size()));
}

}  // namespace

OpenProblem::OpenProblem(const std::string& problem, std::size_t first_operand) : problem_(parse_problem(problem)) {
  find_sizes();
  find_operands(first_operand);
}

void OpenProblem::find_sizes() {
  const std::string layout = to_string(problem_.q.layout);
  const std::size_t batch = layout.find('B'), sequence = layout.find('S');
  if (batch == std::string::npos || sequence == std::string::npos || problem_.paged) {
    fail("layout: expected B and S in it and no pages, so that calls bring their sizes, found '" + layout + "'" +
         (problem_.paged ? " and paged keys" : ""));
  }
  if (problem_.heads_q == kOpenSize || problem_.heads_kv == kOpenSize) {
    fail("heads_q, heads_kv: expected numbers, since heads decide which code runs, found null; give the numbers");
  }
  const std::vector<Dimension> batches = {{kQuery, batch, "query"}, {kKey, batch, "key"}, {kValue, batch, "value"}};
  const std::vector<Dimension> keys = {{kKey, sequence, "key"}, {kValue, sequence, "value"}};
  if (problem_.batch == kOpenSize) open_.push_back({&Sizes::batch, "batch", batches});
  if (problem_.seq_q == kOpenSize) open_.push_back({&Sizes::seq_q, "seq_q", {{kQuery, sequence, "query"}}});
  if (problem_.seq_kv == kOpenSize) open_.push_back({&Sizes::seq_kv, "seq_kv", keys});
}

void OpenProblem::find_operands(std::size_t first_operand) {
  for (std::size_t i = 0; i < problem_.operands.size(); ++i) {
    const OperandSpec& spec = problem_.operands[i];
    if (std::ranges::find(spec.shape, kOpenSize) == spec.shape.end()) continue;
    operands_.push_back({first_operand + i, spec.name, spec.shape.size()});
  }
}

Sizes OpenProblem::sizes_of(const ffi::RemainingArgs& arguments) const {
  Sizes sizes;
  for (const OpenSize& open : open_) {
    const Dimension& first = open.said_by.front();
    const std::int64_t size = size_in(arguments, first.argument, first.dimension, first.name);
    for (const Dimension& other : open.said_by) {
      const std::int64_t found = size_in(arguments, other.argument, other.dimension, other.name);
      if (found == size) continue;
      fail(open.name + ": expected " + std::to_string(size) + ", as " + first.name + " has, found " +
           std::to_string(found) + " in dimension " + std::to_string(other.dimension) + " of " + other.name);
    }
    if (size < 1) {
      fail(open.name + ": expected at least 1, found " + std::to_string(size) +
           ": a program with open sizes runs no empty attention; leave the call out");
    }
    sizes.*open.size = size;
  }
  for (const OpenOperand& open : operands_) {
    OperandSizes own{.name = open.name, .shape = {}, .strides = {}};
    for (std::size_t d = 0; d < open.rank; ++d)
      own.shape.push_back(size_in(arguments, open.argument, d, "operand '" + open.name + "'"));
    sizes.operands.push_back(std::move(own));
  }
  return sizes;
}

AnySizeState::AnySizeState(const std::string& problem, CompileOptions options, std::size_t first_operand)
    : problem_(problem, first_operand), options_(std::move(options)) {}

const OpenAttention& AnySizeState::on_device(const CompileOptions& options) {
  const int device = options.device.value_or(0);
  const auto found = by_device_.find(device);
  if (found != by_device_.end()) return found->second;
  return by_device_.emplace(device, OpenAttention::compile(problem_.problem(), options)).first->second;
}

std::shared_ptr<const AttentionState> AnySizeState::prepared(const ffi::RemainingArgs& arguments, int device) {
  Sizes sizes = problem_.sizes_of(arguments);
  const std::lock_guard lock(mutex_);
  if (state_ == nullptr || sizes != sizes_) {
    const auto make = [this, sizes](const CompileOptions& options) { return on_device(options).at(sizes); };
    state_ = std::make_shared<AttentionState>(problem_at(problem_.problem(), sizes), options_, make);
    sizes_ = std::move(sizes);
  }
  state_->prepare(device);
  return state_;
}

}  // namespace scoremod::jax
