// This fixture has the parts that tests of delta nets on a GPU share: the backend, and values that go there and back.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/rng.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/test_device.h"

namespace fidelio {

inline std::vector<float> normals(Rng& rng, int64_t n, double scale = 1) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = static_cast<float>(rng.normal() * scale);
  return values;
}

class CudaDeltaFixture : public ::testing::Test {
 protected:
  // The most rows of a batch, and the most positions.
  explicit CudaDeltaFixture(int64_t rows) : rows_(rows) {}
  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
    backend_ = std::make_unique<Cuda>(Cuda::Options{});
    b().reserve(rows_, 2048, rows_);
  }
  Cuda& b() { return *backend_; }

  Cuda::Matrix matrix(const std::vector<float>& values, int64_t columns) {
    Cuda::Matrix m = b().allocate(static_cast<int64_t>(values.size()) / columns, columns);
    b().upload(values, m);
    return m;
  }
  std::vector<float> values_of(const Cuda::Matrix& m, int64_t rows) {
    std::vector<float> values(static_cast<size_t>(rows * m.columns));
    b().download(m, 0, rows, values);
    return values;
  }

 private:
  const int64_t rows_;
  std::unique_ptr<Cuda> backend_;
};

}  // namespace fidelio
