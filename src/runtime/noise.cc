#include "runtime/noise.h"

#include <cmath>

#include "core/rng.h"

namespace fidelio {

LinearWeight noisy_weight(const LinearWeight& weight, double sigma, uint64_t stream, bool uniform) {
  const std::vector<float> values = decode(weight);
  double energy = 0;
  for (float x : values) energy += double{x} * x;
  const double scale = sigma * std::sqrt(energy / static_cast<double>(values.size()));
  OwnedTensor noisy = OwnedTensor::allocate(DType::f32, {weight.out, weight.in});
  Rng rng(stream);
  const std::span<float> out = noisy.as<float>();
  for (size_t i = 0; i < values.size(); ++i)
    out[i] = static_cast<float>(values[i] + scale * (uniform ? std::sqrt(12.0) * (rng.uniform() - 0.5) : rng.normal()));
  return make_dense(std::move(noisy), weight.bias);
}

}  // namespace fidelio
