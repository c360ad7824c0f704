#pragma once

#include <optional>
#include <string>

#include "scoremod/attention.hpp"
#include "scoremod/c_api.h"
#include "scoremod/request_queue.hpp"
#include "scoremod/sizes.hpp"

namespace scoremod::c_api {

struct ForwardCall {
  ForwardArgs args;
  Buffer workspace;
};

struct BackwardCall {
  BackwardArgs args;
  Buffer workspace;
};

/// The question of scoremod_support and scoremod_explain.
struct Query {
  CompileOptions compile;
  SupportLevel level = SupportLevel::kVerified;
  std::optional<std::string> device_properties;  ///< of a device that need not be here
};

// The C++ meaning of the C structs. Each reads only struct_size bytes of the caller's struct and takes the rest as
// zero. They throw Error(kInvalidArgument) when struct_size can't be one, and when a field is set that this library
// does not know yet.

/// Null gives the defaults. What queries alone take is refused.
CompileOptions convert(const scoremod_compile_options* options);
Query convert_query(const scoremod_compile_options* options);
RequestQueueOptions convert(const scoremod_request_queue_options* options);
/// Null is refused.
Sizes convert(const scoremod_sizes* sizes);
/// It is as it is given; its arrays are there.
scoremod_prepared_call convert(const scoremod_prepared_call* call);
ForwardCall convert(const scoremod_forward_args* args);
BackwardCall convert(const scoremod_backward_args* args);

}  // namespace scoremod::c_api
