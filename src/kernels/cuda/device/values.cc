#include "kernels/cuda/device/values.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cuda/device/values_kernels.h"

namespace fidelio::cuda {

DeviceBuffer values_of(Stream stream, const LinearWeight& weight) {
  const int64_t n = weight.out * weight.in;
  DeviceBuffer values(static_cast<size_t>(n) * sizeof(float));
  const auto* dense = std::get_if<Dense>(&weight.main);
  if (dense && dense->w.view.dtype != DType::f32) {
    const DeviceBuffer raw(static_cast<size_t>(dense->w.view.bytes()));
    to_device(stream, raw.data(), dense->w.view.data, raw.size());
    widen(stream, raw.as<uint16_t>(), dense->w.view.dtype == DType::bf16, n, values.as<float>());
    wait_for(stream);
    return values;
  }
  const std::vector<float> decoded = decode(weight);
  to_device(stream, values.data(), decoded.data(), values.size());
  wait_for(stream);
  return values;
}

void add_noise(Stream stream, float* values, int64_t n, double sigma, uint64_t seed, bool uniform) {
  const DeviceBuffer parts(kEnergyParts * sizeof(double));
  energy_parts(stream, values, n, parts.as<double>());
  std::vector<double> host(kEnergyParts);
  from_device(stream, host.data(), parts.data(), parts.size());
  const double energy = std::accumulate(host.begin(), host.end(), 0.0);
  noise(stream, values, n, sigma * std::sqrt(energy / static_cast<double>(n)), seed, uniform);
  wait_for(stream);
}

}  // namespace fidelio::cuda
