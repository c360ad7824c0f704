#pragma once

#include <exception>
#include <initializer_list>
#include <new>
#include <string_view>
#include <system_error>

#include "scoremod/context_lost.hpp"
#include "scoremod/error.hpp"

namespace scoremod {

/// An exception's kind, for callers who get no exceptions.
struct Failure {
  ErrorCode code;
  bool is_context_lost = false;  ///< a ContextLost
};

/// Describes the exception that is being handled to callers who get no exceptions: answer(failure, parts). The parts of
/// the message are valid during the call. It allocates nothing, because there may be no memory left.
template <class Answer>
auto answer_current_exception(const Answer& answer) {
  using Parts = std::initializer_list<std::string_view>;
  try {
    throw;
  } catch (const ContextLost& error) {
    return answer(Failure{error.code(), true}, Parts{error.what()});
  } catch (const Error& error) {
    return answer(Failure{error.code()}, Parts{error.what()});
  } catch (const std::bad_alloc&) {
    return answer(Failure{ErrorCode::kEnvironment},
                  Parts{"out of memory: the system refused an allocation; use a smaller problem or free memory"});
  } catch (const std::system_error& error) {
    return answer(Failure{ErrorCode::kEnvironment},
                  Parts{"the system refused a resource, such as one more thread: ", error.what(),
                        "; raise its limit (ulimit -u, a container's limit of processes)"});
  } catch (const std::exception& error) {
    return answer(Failure{ErrorCode::kBug},
                  Parts{"internal error, please report it: unexpected exception: ", error.what()});
  } catch (...) {
    return answer(Failure{ErrorCode::kBug}, Parts{"internal error, please report it: an exception of no known type"});
  }
}

}  // namespace scoremod
