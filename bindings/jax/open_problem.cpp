#include "open_problem.hpp"

#include <utility>

#include "scoremod/error.hpp"

namespace scoremod::jax {
namespace {

namespace ffi = xla::ffi;
using nlohmann::json;

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

OpenProblem::OpenProblem(const std::string& problem, std::size_t first_operand) {
  try {
    problem_ = json::parse(problem);
    find_sizes();
    find_extents(first_operand);
  } catch (const json::exception& error) {
    fail(std::string("problem: expected the JSON of a problem with open sizes, found: ") + error.what());
  }
  refuse_other_nulls();
}

void OpenProblem::find_sizes() {
  const auto layout = problem_.at("layout").get<std::string>();
  const std::size_t batch = layout.find('B'), sequence = layout.find('S');
  if (batch == std::string::npos || sequence == std::string::npos) {
    fail("layout: expected B and S in it, whose sizes calls bring, found '" + layout + "'");
  }
  const std::vector<Dimension> batches = {{kQuery, batch, "query"}, {kKey, batch, "key"}, {kValue, batch, "value"}};
  const std::vector<Dimension> queries = {{kQuery, sequence, "query"}};
  const std::vector<Dimension> keys = {{kKey, sequence, "key"}, {kValue, sequence, "value"}};
  for (const auto& [name, said_by] : {std::pair{"batch", batches}, {"seq_q", queries}, {"seq_kv", keys}}) {
    if (problem_.at(name).is_null()) open_.push_back({json::json_pointer("/" + std::string(name)), name, said_by});
  }
}

void OpenProblem::find_extents(std::size_t first_operand) {
  const json& operands = problem_.at("operands");
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto name = "operand '" + operands[i].at("name").get<std::string>() + "'";
    const json& shape = operands[i].at("shape");
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (!shape[d].is_null()) continue;
      const auto place = json::json_pointer("/operands/" + std::to_string(i) + "/shape/" + std::to_string(d));
      open_.push_back({place, "dimension " + std::to_string(d) + " of " + name, {{first_operand + i, d, name}}});
    }
  }
}

void OpenProblem::refuse_other_nulls() const {
  const json filled = json::parse(with_sizes(std::vector<std::int64_t>(open_.size(), 1)));
  const json flat = filled.flatten();
  for (const auto& [place, value] : flat.items()) {
    // An empty list or dict is flattened to null, too.
    if (!value.is_null() || !filled.at(json::json_pointer(place)).is_null()) continue;
    fail("problem: expected batch, seq_q, seq_kv or extents of operands where calls bring a size, found null at " +
         place);
  }
}

std::vector<std::int64_t> OpenProblem::sizes_of(const ffi::RemainingArgs& arguments) const {
  std::vector<std::int64_t> sizes;
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
    sizes.push_back(size);
  }
  return sizes;
}

std::string OpenProblem::with_sizes(const std::vector<std::int64_t>& sizes) const {
  json filled = problem_;
  for (std::size_t i = 0; i < open_.size(); ++i) filled[open_[i].place] = sizes[i];
  return filled.dump();
}

AnySizeState::AnySizeState(const std::string& problem, CompileOptions options, std::size_t first_operand)
    : problem_(problem, first_operand), options_(std::move(options)) {}

std::shared_ptr<const AttentionState> AnySizeState::prepared(const ffi::RemainingArgs& arguments, int device) {
  std::vector<std::int64_t> sizes = problem_.sizes_of(arguments);
  const std::lock_guard lock(mutex_);
  if (state_ == nullptr || sizes != sizes_) {
    state_ = std::make_shared<AttentionState>(problem_.with_sizes(sizes), options_);
    sizes_ = std::move(sizes);
  }
  state_->prepare(device);
  return state_;
}

}  // namespace scoremod::jax
