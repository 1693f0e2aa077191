// This test compares the tuner's vector codes on a GPU with the host's. Without a GPU it is skipped by name.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "kernels/cuda/test_device.h"
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

// Returns the weights, and the gradients that random gradients of the weights give for all parameters, one after the
// other, and for the codebook that they share.
template <class D>
std::vector<std::vector<float>> values_of(D& device, const std::vector<LinearWeight>& weights) {
  std::vector<std::vector<float>> all;
  const auto download = [&](const float* from, int64_t n) {
    device.download(from, std::span<float>(all.emplace_back(static_cast<size_t>(n))));
  };
  const std::string name = shared_name(weights[0].spec);
  const auto book = name.empty() ? nullptr : std::make_shared<Codebook<D>>(device, name, weights[0]);
  Rng rng(3);
  for (const LinearWeight& w : weights) {
    Matrix<D> matrix(device, "m", w, {}, 0.45f, book);
    std::vector<float> gradient(static_cast<size_t>(w.out * w.in));
    for (float& x : gradient) x = static_cast<float>(rng.normal());
    download(matrix.view().weight, w.out * w.in);
    device.upload(gradient, matrix.view().weight_gradient);
    matrix.backward();
    matrix.parameters([&](Parameter<D>& p) { download(p.gradient.get(), p.n); });
  }
  if (book) download(book->gradient(), book->parameter().n);
  return all;
}

TEST(TrainVectorsCuda, TheGpuGivesWhatTheHostGives) {
  std::optional<Gpu> gpu;
  if (const auto why = no_gpu()) GTEST_SKIP() << *why;
  gpu.emplace(0);
  Host<float> host(2);
  // 2,200 x 1,500 weights have three codebooks, and the larger ones have more codes than a GPU lists at once.
  const std::vector<std::tuple<const char*, int64_t, int64_t>> cases = {
      {"vq8k12s1+r5.0", 100, 200}, {"vq8k13s4+r2.0", 100, 200}, {"vq8k16s8", 100, 200},
      {"vq8k16s8", 2200, 1500},    {"vq8k16s4m", 100, 200},     {"vq8k16s8m", 1100, 1000}};
  for (const auto& [format, out, in] : cases) {
    std::vector<LinearWeight> weights = {random_vectors(format, out, in)};
    if (weights[0].spec.shared) weights.push_back(random_vectors(format, 64, 61));
    const auto expected = values_of(host, weights), got = values_of(*gpu, weights);
    ASSERT_EQ(expected.size(), got.size());
    // Values are equal but for one rounding where there is a correction. Sums have at most 100 x 25 terms, or 2,200,
    // of random sign, in another order; their error is the root of that times 6e-8 of their size.
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
