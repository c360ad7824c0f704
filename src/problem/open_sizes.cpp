#include "problem/open_sizes.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "scoremod/sizes.hpp"

#include "base/fail.hpp"
#include "problem/empty_sizes.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "problem/validate_sizes.hpp"

namespace scoremod {
namespace problem {
namespace {

/// The size that a call has where the problem says `own`.
void fill(const std::string& field, std::int64_t& own, std::int64_t given, bool takes_zeros) {
  if (own != kOpenSize) {
    if (given == 0 || given == own) return;
    fail_argument("sizes.", field, ": expected ", own, ", which the problem fixes, or 0; found ", given);
  }
  if (given == kOpenSize) fail_argument("sizes.", field, ": expected a size from 1 to ", kMaxSize, ", found ", given);
  if (given == 0 && !takes_zeros) {
    fail_argument("sizes.", field, ": expected a size of at least 1, since the problem leaves '", field,
                  "' open; found none");
  }
  // validate() refuses the others by the same name.
  own = given;
}

/// Refuses a size of something that the problem does not have.
void refuse_absent(const char* field, std::int64_t given, const char* of) {
  if (given == 0) return;
  fail_argument("sizes.", field, ": expected 0 in a problem without ", of, ", found ", given);
}

void fill_tokens(const char* field, std::optional<std::int64_t>& own, std::int64_t given, bool takes_zeros) {
  if (own) return fill(field, *own, given, takes_zeros);
  refuse_absent(field, given, field);
}

void fill_strides(TensorLayout& layout, const std::optional<Strides>& given) {
  if (given) layout.strides = given;
}

/// Strides of a gradient: where the problem gives it no layout of its own, it gets that of its tensor.
void fill_strides(std::optional<TensorLayout>& gradient, const TensorLayout& tensor,
                  const std::optional<Strides>& given) {
  if (!given) return;
  if (!gradient) gradient = TensorLayout{tensor.layout, {}};
  gradient->strides = given;
}

void fill_operand(const AttentionProblem& problem, OperandSpec& spec, const OperandDecl& decl,
                  const OperandSizes* given, bool takes_zeros) {
  if (given != nullptr && !given->strides.empty()) spec.strides = given->strides;
  const bool has_shape = given != nullptr && !given->shape.empty();
  if (!decl.is_table()) {
    spec.shape = has_shape ? given->shape : default_spec(problem, decl).shape;  // validate() refuses another one
  } else if (std::vector<std::int64_t> implied = implied_table_shape(problem, spec.name); !implied.empty()) {
    spec.shape = std::move(implied);
  } else {
    if (has_shape && given->shape.size() != spec.shape.size())
      fail_argument("sizes.operands: expected ", spec.shape.size(), " sizes for table '", spec.name, "', found ",
                    given->shape.size());
    for (std::size_t i = 0; i < spec.shape.size(); ++i)
      fill(concat("operands['", spec.name, "'].shape[", i, "]"), spec.shape[i], has_shape ? given->shape[i] : 0,
           has_shape && takes_zeros);
    return;
  }
  if (has_shape && given->shape != spec.shape)
    fail_argument("sizes.operands: expected no shape for table '", spec.name,
                  "', which has the problem's sizes, or these; found another");
}

void fill_operands(AttentionProblem& problem, const std::vector<OperandSizes>& given, bool takes_zeros) {
  const std::vector<OperandDecl>& decls = problem.program.operands();
  for (const OperandSizes& sizes : given) {
    if (std::ranges::find(problem.operands, sizes.name, &OperandSpec::name) == problem.operands.end())
      fail_argument("sizes.operands: expected an operand of the problem, found '", sizes.name, "'");
  }
  const std::vector<OperandDecl> implied = implied_operands(problem);
  const auto declared = [&](const std::string& name) -> const OperandDecl* {
    for (const std::vector<OperandDecl>* some : {&decls, &implied}) {
      const auto found = std::ranges::find(*some, name, &OperandDecl::name);
      if (found != some->end()) return &*found;
    }
    return nullptr;
  };
  for (OperandSpec& spec : problem.operands) {
    const OperandDecl* decl = declared(spec.name);
    if (decl == nullptr) continue;  // validate() names it
    const auto found = std::ranges::find(given, spec.name, &OperandSizes::name);
    fill_operand(problem, spec, *decl, found == given.end() ? nullptr : &*found, takes_zeros);
  }
}

/// All but strides and operands.
void fill_sizes(AttentionProblem& problem, const Sizes& sizes) {
  const bool zeros = sizes.takes_zeros;
  fill("batch", problem.batch, sizes.batch, zeros);
  fill("heads_q", problem.heads_q, sizes.heads_q, zeros);
  fill("heads_kv", problem.heads_kv, sizes.heads_kv, zeros);
  fill("seq_q", problem.seq_q, sizes.seq_q, zeros);
  fill("seq_kv", problem.seq_kv, sizes.seq_kv, zeros);
  fill_tokens("tokens_q", problem.tokens_q, sizes.tokens_q, zeros);
  fill_tokens("tokens_kv", problem.tokens_kv, sizes.tokens_kv, zeros);
  if (problem.paged) {
    fill("blocks", problem.paged->blocks, sizes.blocks, zeros);
    fill("blocks_per_sequence", problem.paged->blocks_per_sequence, sizes.blocks_per_sequence, zeros);
  } else {
    refuse_absent("blocks", sizes.blocks, "paged");
    refuse_absent("blocks_per_sequence", sizes.blocks_per_sequence, "paged");
  }
}

bool is_open(std::span<const std::int64_t> sizes) { return std::ranges::find(sizes, kOpenSize) != sizes.end(); }

}  // namespace

Sizes any_sizes(const AttentionProblem& problem, std::int64_t about) {
  const auto any = [](std::int64_t own, std::int64_t size) { return own == kOpenSize ? size : 0; };
  const auto either = [](std::int64_t own, std::int64_t size) { return size == 0 ? own : size; };
  Sizes sizes;
  sizes.batch = any(problem.batch, about);
  // A number of heads has to be a multiple of the other.
  if (problem.heads_q == kOpenSize) sizes.heads_q = problem.heads_kv == kOpenSize ? about : problem.heads_kv;
  sizes.heads_kv = any(problem.heads_kv, problem.heads_q == kOpenSize ? about : problem.heads_q);
  sizes.seq_q = any(problem.seq_q, about);
  sizes.seq_kv = any(problem.seq_kv, 3 * about - 2);
  const std::int64_t batch = either(problem.batch, sizes.batch), keys = either(problem.seq_kv, sizes.seq_kv);
  // A token for each sequence is never more than their longest allow.
  if (problem.tokens_q) sizes.tokens_q = any(*problem.tokens_q, batch);
  if (problem.tokens_kv) sizes.tokens_kv = any(*problem.tokens_kv, batch);
  if (problem.paged) {
    // Nobody has validated these two.
    const std::int64_t block = std::max<std::int64_t>(problem.paged->block_size, 1);
    const std::int64_t whole = std::clamp<std::int64_t>(keys, 1, std::int64_t{1} << 30);
    sizes.blocks = any(problem.paged->blocks, about);
    sizes.blocks_per_sequence = any(problem.paged->blocks_per_sequence, (whole - 1) / block + 1);
  }
  for (const OperandSpec& spec : problem.operands) {
    const std::vector<OperandDecl>& decls = problem.program.operands();
    const auto decl = std::ranges::find(decls, spec.name, &OperandDecl::name);
    const bool is_own_table =
        decl != decls.end() && decl->is_table() && implied_table_shape(problem, spec.name).empty();
    const bool is_scale = has_block_scales(problem, spec.name);
    if (!(is_own_table || is_scale) || !is_open(spec.shape)) continue;
    OperandSizes& own = sizes.operands.emplace_back();
    own.name = spec.name;
    // Block scales that all elements share fit a tensor of any size.
    for (const std::int64_t size : spec.shape) own.shape.push_back(size == kOpenSize ? (is_scale ? 1 : about) : size);
  }
  return sizes;
}

AttentionProblem with_any_sizes(AttentionProblem problem, std::int64_t about) {
  fill_sizes(problem, any_sizes(problem, about));
  return problem;
}

AttentionProblem with_sizes(AttentionProblem problem, const Sizes& sizes) {
  fill_sizes(problem, sizes);
  // A gradient without a layout of its own lies as its tensor does, also where a call says how that lies.
  fill_strides(problem.d_o, problem.o, sizes.d_o);
  fill_strides(problem.dq, problem.q, sizes.dq);
  fill_strides(problem.dk, problem.k, sizes.dk);
  fill_strides(problem.dv, problem.v, sizes.dv);
  fill_strides(problem.q, sizes.q);
  fill_strides(problem.k, sizes.k);
  fill_strides(problem.v, sizes.v);
  fill_strides(problem.o, sizes.o);
  fill_operands(problem, sizes.operands, sizes.takes_zeros);
  return problem;
}

OpenProblem with_all_sizes_open(AttentionProblem problem) {
  Sizes sizes;
  const auto open = [](std::int64_t& own) { return std::exchange(own, kOpenSize); };
  sizes.batch = open(problem.batch);
  sizes.heads_q = open(problem.heads_q);
  sizes.heads_kv = open(problem.heads_kv);
  sizes.seq_q = open(problem.seq_q);
  sizes.seq_kv = open(problem.seq_kv);
  if (problem.tokens_q) sizes.tokens_q = open(*problem.tokens_q);
  if (problem.tokens_kv) sizes.tokens_kv = open(*problem.tokens_kv);
  if (problem.paged) {
    sizes.blocks = open(problem.paged->blocks);
    sizes.blocks_per_sequence = open(problem.paged->blocks_per_sequence);
  }
  const auto take = [](std::optional<Strides>& strides) { return std::exchange(strides, std::nullopt); };
  sizes.q = take(problem.q.strides);
  sizes.k = take(problem.k.strides);
  sizes.v = take(problem.v.strides);
  sizes.o = take(problem.o.strides);
  if (problem.d_o) sizes.d_o = take(problem.d_o->strides);
  if (problem.dq) sizes.dq = take(problem.dq->strides);
  if (problem.dk) sizes.dk = take(problem.dk->strides);
  if (problem.dv) sizes.dv = take(problem.dv->strides);
  for (OperandSpec& spec : problem.operands) {
    sizes.operands.push_back({spec.name, spec.shape, std::exchange(spec.strides, {})});
    for (std::int64_t& size : spec.shape) size = kOpenSize;
  }
  return {std::move(problem), std::move(sizes)};
}

}  // namespace problem

bool has_open_sizes(const AttentionProblem& p) {
  const std::array sizes{p.batch,
                         p.heads_q,
                         p.heads_kv,
                         p.seq_q,
                         p.seq_kv,
                         p.tokens_q.value_or(0),
                         p.tokens_kv.value_or(0),
                         p.paged ? p.paged->blocks : 0,
                         p.paged ? p.paged->blocks_per_sequence : 0};
  return problem::is_open(sizes) ||
         std::ranges::any_of(p.operands, [](const OperandSpec& spec) { return problem::is_open(spec.shape); });
}

AttentionProblem problem_at(const AttentionProblem& open, const Sizes& sizes) {
  AttentionProblem problem = problem::with_sizes(open, sizes);
  problem::validate_for_calls(problem);
  return problem;
}

}  // namespace scoremod
