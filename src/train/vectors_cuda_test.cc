// Vector codes of the tuner on a GPU against the host. Without a GPU the test is skipped by name.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <utility>

#include "core/rng.h"
#include "train/cuda/gpu.h"
#include "train/host/host.h"
#include "train/matrix.h"

namespace fidelio::train {
namespace {

LinearWeight random_vectors(const char* format, int64_t out, int64_t in) {
  LinearWeight w = allocate_weight(parse_format(format), out, in);
  auto& m = std::get<SignedVectors>(w.main);
  Rng rng(12);
  for (int8_t& x : m.codebook.as<int8_t>()) x = static_cast<int8_t>(static_cast<int>(rng.below(255)) - 127);
  for (f16& x : m.row_scale.as<f16>()) x = to_f16(static_cast<float>(0.5 + rng.uniform()));
  for (f16& x : m.column_scale.as<f16>()) x = to_f16(static_cast<float>(0.01 + 0.01 * rng.uniform()));
  for (int64_t r = 0; r < out; ++r)
    for (int64_t v = 0; v < m.shape.vectors; ++v)
      set_vector(m, r, v,
                 {static_cast<int>(rng.below(static_cast<uint64_t>(m.shape.entries))),
                  static_cast<uint8_t>(rng.below(uint64_t{1} << m.shape.signs))});
  const int64_t sparse = m.shape.sparse;
  int64_t row = -1, place = 0;
  for (int64_t i = 0; i < sparse; ++i) {
    place = std::exchange(row, i * out / sparse) == i * out / sparse ? place + 1 : 0;
    const auto at = static_cast<size_t>(i);
    ++m.sparse_count.as<uint16_t>()[static_cast<size_t>(row)];
    m.sparse_index.as<uint16_t>()[at] = static_cast<uint16_t>(place);
    m.sparse_scale.as<f16>()[at] = to_f16(0.01f);
    for (size_t j = 0; j < 8; ++j) m.sparse_value.as<int8_t>()[at * 8 + j] = static_cast<int8_t>(rng.below(100));
  }
  check_codes(w);
  return w;
}

// The weight, and what a random gradient of it makes of all parameters' gradients, one after the other.
template <class D>
std::vector<std::vector<float>> values_of(D& device, const LinearWeight& w) {
  Matrix<D> matrix(device, "m", w, {}, 0.45f);
  const auto n = static_cast<size_t>(w.out * w.in);
  std::vector<float> gradient(n);
  Rng rng(3);
  for (float& x : gradient) x = static_cast<float>(rng.normal());
  std::vector<std::vector<float>> all(1, std::vector<float>(n));
  device.download(matrix.view().weight, std::span<float>(all[0]));
  device.upload(gradient, matrix.view().weight_gradient);
  matrix.backward();
  matrix.parameters([&](Parameter<D>& p) {
    device.download(p.gradient.get(), std::span<float>(all.emplace_back(static_cast<size_t>(p.n))));
  });
  return all;
}

TEST(TrainVectorsCuda, TheGpuGivesWhatTheHostGives) {
  std::optional<Gpu> gpu;
  try {
    gpu.emplace(0);
  } catch (const Error& e) {
    GTEST_SKIP() << "no GPU: " << e.what();
  }
  Host<float> host(2);
  for (const char* format : {"vq8k12s1+r5.0", "vq8k13s4+r2.0", "vq8k16s8"}) {
    const LinearWeight w = random_vectors(format, 100, 200);
    const auto expected = values_of(host, w), got = values_of(*gpu, w);
    ASSERT_EQ(expected.size(), got.size());
    // Values but for one rounding where there is a correction; sums of at most 100 x 25 terms of random sign in another
    // order: sqrt of that times 6e-8 of their size.
    for (size_t i = 0; i < expected.size(); ++i) {
      double distance = 0, norm = 0;
      for (size_t k = 0; k < expected[i].size(); ++k) {
        distance += std::pow(double{expected[i][k]} - got[i][k], 2);
        norm += std::pow(double{expected[i][k]}, 2);
      }
      EXPECT_LE(std::sqrt(distance), 1e-5 * std::sqrt(norm)) << format << " " << i;
    }
  }
}

}  // namespace
}  // namespace fidelio::train
