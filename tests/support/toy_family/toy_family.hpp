#pragma once

#include <memory>
#include <span>

#include "backend/cuda/text/kernel_text.hpp"
#include "backend/kernels/family.hpp"

namespace scoremod::test {

/// A family of kernels that lives in this folder alone: forwards with one CTA for each row.
extern const backend::kernels::KernelFamily kToyFamily;
/// Its .cuh files.
std::span<const backend::cuda::KernelFile> toy_files();

/// One of its variants, with CTAs of so many warps.
std::shared_ptr<const backend::kernels::Variant> toy_variant(int warps);

}  // namespace scoremod::test
