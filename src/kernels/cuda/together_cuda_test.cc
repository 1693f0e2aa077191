// This test checks rows of a sequence that attend together on the GPU. Their outputs, and the keys and values that
// they append, must be bit for bit those of rows alone. Without a GPU the test is skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/rng.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/test_device.h"

namespace fidelio {
namespace {

struct Case {
  int h, hk, e, window;
  KvFormat kv;
  int most = 16;   // the most rows of a sequence in a step
  int before = 0;  // positions that are there before those that are compared
};
// Next tells where the next rows of a sequence begin, and how many there are.
struct Next {
  int sequence, position, rows;
};

class Together : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
    backend_ = std::make_unique<Cuda>(Cuda::Options{});
    shape_ = {{{c.window, 0}}, {{{}, 1.0f}}, c.h, c.hk, c.e, 1e-5f};
    for (int i = 0; i < c.e / 2; ++i)
      shape_.rotations[0].inverse_frequencies.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / c.e)));
    q_ = normals(total * q_width()), k_ = normals(total * k_width()), v_ = normals(total * k_width());
    q_norm_ = matrix(normals(c.e), c.e), k_norm_ = matrix(normals(c.e), c.e);
    b().reserve(total, q_width(), total);
  }
  Cuda& b() { return *backend_; }
  int64_t q_width() const { return int64_t{c.h} * c.e; }
  int64_t k_width() const { return int64_t{c.hk} * c.e; }
  std::vector<float> normals(int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = static_cast<float>(rng_.normal());
    return values;
  }
  Cuda::Matrix matrix(const std::vector<float>& values, int64_t columns) {
    Cuda::Matrix m = b().allocate(static_cast<int64_t>(values.size()) / columns, columns);
    b().upload(values, m);
    return m;
  }
  // Runs a step of these rows. Every sequence has the same heads at the same positions. Returns attention's output,
  // if it is wanted.
  std::vector<float> step(const std::vector<Next>& nexts, RowKind kind, Cuda::KvCache& cache, bool attends) {
    Batch batch;
    std::vector<float> parts[3];
    for (const Next& next : nexts) {
      std::vector<int32_t> ids(static_cast<size_t>(next.rows)), own(pages);
      std::iota(own.rbegin(), own.rend(), next.sequence * pages);
      batch.append(ids, next.position, own, next.rows, kind);
      const auto take = [&](std::vector<float>& to, const std::vector<float>& from, int64_t width) {
        to.insert(to.end(), from.begin() + next.position * width, from.begin() + (next.position + next.rows) * width);
      };
      take(parts[0], q_, q_width()), take(parts[1], k_, k_width()), take(parts[2], v_, k_width());
    }
    b().begin(batch, Activations::a16, shape_);
    Cuda::Matrix q = matrix(parts[0], q_width()), k = matrix(parts[1], k_width());
    const Cuda::Matrix v = matrix(parts[2], k_width());
    b().rope_append(q, k, v, &q_norm_, &k_norm_, cache, 0);
    if (!attends) return {};
    const Cuda::Acts acts = b().attend(q, cache, 0);
    std::vector<float> values(static_cast<size_t>(acts.rows * acts.columns));
    b().read(acts, values);
    return values;
  }
  std::vector<uint8_t> bytes_of(const Cuda::KvCache& cache) {
    std::vector<uint8_t> bytes(cache.storage.size());
    const cuda::Stream stream = cuda::make_stream();
    cuda::from_device(stream, bytes.data(), cache.storage.data(), bytes.size());
    cuda::destroy_stream(stream);
    return bytes;
  }

  const Case c = GetParam();
  const int total = c.before + 1300, pages = (total + kPageTokens - 1) / kPageTokens;
  Rng rng_{11};
  std::unique_ptr<Cuda> backend_;
  AttentionShape shape_;
  std::vector<float> q_, k_, v_;
  Cuda::Matrix q_norm_, k_norm_;
};

TEST_P(Together, RowsGetWhatTheyGetAloneAndAppendTheSame) {
  Cuda::KvCache whole = b().allocate_cache(shape_, pages, c.kv);
  step({{0, 0, total}}, RowKind::prompt, whole, false);
  std::vector<float> alone;
  for (int position = c.before; position < total; ++position) {
    const std::vector<float> row = step({{0, position, 1}}, RowKind::output, whole, true);
    alone.insert(alone.end(), row.begin(), row.end());
  }
  // The numbers of sequences make a unit have a cluster of eight thread blocks, of fewer, some separate blocks, or
  // one.
  for (const int sequences : {1, 2, 5, 40}) {
    Cuda::KvCache cache = b().allocate_cache(shape_, int64_t{sequences} * pages, c.kv);
    std::vector<int> at;  // before some of these there is a chunk of a prompt, whose attention is not computed
    for (int s = 0; s < sequences; ++s) {
      at.push_back(c.before + (sequences == 1 ? 0 : static_cast<int>(rng_.below(1100))));
      if (at.back() > 0) step({{s, 0, at.back()}}, RowKind::prompt, cache, false);
    }
    for (int round = 0; round < (sequences == 1 ? 400 : 40); ++round) {
      std::vector<Next> nexts;
      for (int s = 0; s < sequences; ++s) {
        const int most = rng_.below(8) == 0 ? 3 * c.most : rng_.below(2) == 0 ? 4 : c.most;
        const int rows =
            std::min(total - at[static_cast<size_t>(s)], 1 + static_cast<int>(rng_.below(static_cast<uint64_t>(most))));
        if (rows > 0) nexts.push_back({s, at[static_cast<size_t>(s)], rows});
        at[static_cast<size_t>(s)] += rows;
      }
      if (nexts.empty()) break;
      const std::vector<float> got = step(nexts, RowKind::output, cache, true);
      const float* row = got.data();
      for (const Next& next : nexts)
        for (int i = 0; i < next.rows; ++i, row += q_width())
          ASSERT_EQ(0, std::memcmp(row, alone.data() + (next.position - c.before + i) * q_width(),
                                   static_cast<size_t>(q_width()) * sizeof(float)))
              << "row " << i << " of " << next.rows << " at " << next.position << ", " << nexts.size() << " sequences";
    }
    if (sequences == 1) {
      EXPECT_TRUE(bytes_of(cache) == bytes_of(whole));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Together,
                         ::testing::Values(Case{8, 2, 128, 0, KvFormat::f16}, Case{8, 2, 128, 300, KvFormat::f16},
                                           Case{16, 2, 128, 0, KvFormat::f16}, Case{6, 2, 64, 0, KvFormat::f16},
                                           Case{4, 4, 64, 150, KvFormat::f16}, Case{2, 2, 80, 0, KvFormat::f16},
                                           Case{4, 2, 256, 0, KvFormat::f16}, Case{12, 1, 32, 0, KvFormat::f16, 5},
                                           Case{8, 2, 128, 0, KvFormat::i8},
                                           Case{8, 2, 128, 0, KvFormat::f16, 16, 7600},
                                           Case{14, 2, 64, 8200, KvFormat::f16, 16, 7600}));

}  // namespace
}  // namespace fidelio
