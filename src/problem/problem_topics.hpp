#pragma once

#include <type_traits>
#include <utility>

#include "scoremod/problem.hpp"

namespace scoremod::problem {

/// The members of one topic of a problem, for structured bindings. Whoever treats a topic in its own way names its
/// members by them, so that a new member does not compile until it is run or refused there. A topic that is run as any
/// other problem's needs no names.
template <class Topic>
const Topic& topic(const AttentionProblem& problem) {
  return problem;
}
template <class Topic>
Topic& topic(AttentionProblem& problem) {
  return problem;
}

namespace detail {

/// In place of one more topic.
struct AnyTopic {
  template <class Topic>
  operator Topic() const;
};

template <class... Topics>
concept Initializes = requires {
  AttentionProblem{std::declval<Topics>()...};
};

}  // namespace detail

/// Whether these are all topics of a problem, in their order. Every backend asserts it of those that it runs or judges,
/// so that a new topic does not compile until each has decided.
template <class... Topics>
inline constexpr bool kAllTopics = detail::Initializes<Topics...> && !detail::Initializes<Topics..., detail::AnyTopic>;

}  // namespace scoremod::problem
