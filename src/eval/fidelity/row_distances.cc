#include "eval/fidelity/row_distances.h"

#include <vector>

#include "eval/fidelity/fidelity.h"

namespace fidelio {
namespace {

class HostRowDistances final : public RowDistances {
 public:
  explicit HostRowDistances(ThreadPool& pool) : pool_(pool), comparers_(static_cast<size_t>(pool.threads())) {}
  void measure(const float* p, const float* q, int64_t v, std::span<RowDistance> found) override {
    pool_.run(static_cast<int64_t>(found.size()), [&](int64_t row, int thread) {
      const auto n = static_cast<size_t>(v);
      const PositionFidelity f = comparers_[static_cast<size_t>(thread)].compare({p + row * v, n}, {q + row * v, n});
      found[static_cast<size_t>(row)] = {f.kl, f.ear};
    });
  }

 private:
  ThreadPool& pool_;
  std::vector<RowComparer> comparers_;
};

}  // namespace

std::unique_ptr<RowDistances> make_row_distances(std::optional<int> gpu, ThreadPool& pool) {
  if (gpu) return make_cuda_row_distances(*gpu);
  return std::make_unique<HostRowDistances>(pool);
}

}  // namespace fidelio
