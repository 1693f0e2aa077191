// This file measures KL and EAR of rows of logits in the memory where the logits are: the host's, or a GPU's, which
// they then need not leave.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/thread_pool.h"
#include "eval/fidelity/fidelity.h"

namespace fidelio {

struct RowDistance {
  double kl = 0, ear = 0;  // over the full vocabulary, as fidelity.h defines them
};

class RowDistances {
 public:
  virtual ~RowDistances() = default;
  // Measures rows of the reference p and of q, each of shape (found.size(), v). Throws Error if a logit is not
  // finite.
  virtual void measure(const float* p, const float* q, int64_t v, std::span<RowDistance> found) = 0;
};

// Makes an object for rows in the memory of this GPU, or in the host's memory if `gpu` is empty.
std::unique_ptr<RowDistances> make_row_distances(std::optional<int> gpu, ThreadPool& pool);
// Makes the object for a GPU. Throws Error in a build without CUDA.
std::unique_ptr<RowDistances> make_cuda_row_distances(int gpu);

// A CudaComparer finds everything about rows that a RowComparer finds, in a GPU's memory. Its sums of exps are FP64
// where the host's exps are FP32, so figures of the two differ by a few 1e-7 of themselves.
class CudaComparer {
 public:
  struct TokenLogits {
    float p = 0, q = 0;
  };
  virtual ~CudaComparer() = default;
  // Compares rows of p and q, each of shape (found.size(), v). `logits` receives those of each row's own token.
  // Throws Error if a logit is not finite.
  virtual void compare(const float* p, const float* q, int64_t v, std::span<const int32_t> tokens,
                       std::span<PositionFidelity> found, std::span<TokenLogits> logits) = 0;
};
// `top_k` is RowComparer's. Throws Error in a build without CUDA.
std::unique_ptr<CudaComparer> make_cuda_comparer(int gpu, int top_k);

}  // namespace fidelio
