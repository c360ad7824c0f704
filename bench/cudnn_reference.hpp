#pragma once

#include <memory>

#include "cudnn_graph.hpp"
#include "reference.hpp"

namespace scoremod::bench {

/// A case's graph by hand, on the tensors of a run on a device. Null where the case names no form.
std::unique_ptr<measure::Reference> cudnn_reference(const BenchCase& bench_case, measure::AttentionRun& run);

}  // namespace scoremod::bench
