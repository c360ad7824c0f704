#pragma once

#include "python.hpp"

namespace scoremod::torch_binding {

/// PyTorch's functions, and scoremod's, that say in which state a call is made.
struct StateFunctions {
  Ref any_autocast, count_modes, count_function_modes;  ///< modes, of which a repeated call is in none
  Ref forward_ad;                                       ///< the module, whose _current_level is below 0 outside of it
  Ref error;                                            ///< the class of what the library reports
  Ref default_dtype, is_grad_enabled, is_deterministic, count_threads, settings;
};

/// Set once, as Python imports the binding.
StateFunctions& state_functions();

/// All of PyTorch's and the environment's settings that decide what a call is, in a tuple, but for what guards see;
/// None within modes.
Ref state();

}  // namespace scoremod::torch_binding
