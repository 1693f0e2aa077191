// KL and EAR of rows of logits where the logits are: in the host's memory, or in a GPU's, where they then stay.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/thread_pool.h"

namespace fidelio {

struct RowDistance {
  double kl = 0, ear = 0;  // over the full vocabulary, as fidelity.h defines them
};

class RowDistances {
 public:
  virtual ~RowDistances() = default;
  // Rows of p, the reference, and q, each (found.size(), v). Throws Error if a logit is not finite.
  virtual void measure(const float* p, const float* q, int64_t v, std::span<RowDistance> found) = 0;
};

// `gpu`: whose memory p and q are in; none: the host's.
std::unique_ptr<RowDistances> make_row_distances(std::optional<int> gpu, ThreadPool& pool);
// Throws Error in a build without CUDA.
std::unique_ptr<RowDistances> make_cuda_row_distances(int gpu);

}  // namespace fidelio
