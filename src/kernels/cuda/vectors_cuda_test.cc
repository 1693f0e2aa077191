// These tests compare products of vector codes on a GPU with those of the decoded weights. Without a GPU they are
// skipped.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <tuple>

#include "core/rng.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/test_device.h"

namespace fidelio {
namespace {

const AttentionShape kShape{{{}}, {{std::vector<float>(32, 0.0f), 1.0f}}, 4, 2, 64, 1e-5f};

// Returns a weight with random codes, codebooks, scales and corrections, and with a bias. All rows have about as many
// corrections. If they are crowded, the first rows have one at every vector instead. `blocks` is the number of
// codebooks, if it is not the one of the format.
LinearWeight random_vectors(const char* format, int64_t out, int64_t in, bool crowded = false, int64_t blocks = 0) {
  LinearWeight w = allocate_weight(parse_format(format), out, in);
  auto& m = std::get<SignedVectors>(w.main);
  if (blocks > 0) {
    m.shape.blocks = blocks;
    m.codebook = OwnedTensor::allocate(DType::i8, codebook_shape(m.shape));
  }
  const VectorShape& s = m.shape;
  Rng rng(11);
  const auto scale = [&] { return to_f16(static_cast<float>(0.01 + 0.02 * rng.uniform())); };
  const auto byte = [&] { return static_cast<int8_t>(static_cast<int>(rng.below(255)) - 127); };
  for (int8_t& b : m.codebook.as<int8_t>()) b = byte();
  for (f16& x : m.row_scale.as<f16>()) x = scale();
  for (f16& x : m.column_scale.as<f16>()) x = scale();
  for (int64_t r = 0; r < out; ++r)
    for (int64_t v = 0; v < s.vectors; ++v)
      set_vector(m, r, v,
                 {static_cast<int>(rng.below(static_cast<uint64_t>(s.entries))),
                  static_cast<uint8_t>(rng.below(uint64_t{1} << s.signs))});
  for (int64_t i = 0; i < s.sparse; ++i) {
    ++m.sparse_count.as<uint16_t>()[static_cast<size_t>(crowded ? i / s.vectors : i % out)];
    m.sparse_scale.as<f16>()[static_cast<size_t>(i)] = scale();
    for (size_t j = 0; j < 8; ++j) m.sparse_value.as<int8_t>()[static_cast<size_t>(i) * 8 + j] = byte();
  }
  size_t at = 0;
  for (int64_t r = 0; r < out && s.sparse > 0; ++r)
    for (int i = 0; i < m.sparse_count.as<uint16_t>()[static_cast<size_t>(r)]; ++i)
      m.sparse_index.as<uint16_t>()[at++] = static_cast<uint16_t>(crowded ? i : 2 * i + 1);
  w.bias = OwnedTensor::allocate(DType::f32, {out});
  for (float& v : w.bias.as<float>()) v = static_cast<float>(rng.normal());
  check_codes(w);
  return w;
}

class VectorsCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
    backend_ = std::make_unique<Cuda>(Cuda::Options{});
  }
  std::vector<float> product(const Cuda::Linear& w, std::span<const float> x, int64_t rows, RowKind kind,
                             Activations mode) {
    Cuda& b = *backend_;
    b.reserve(rows, w.in, 64);
    Batch batch;
    std::vector<int32_t> ids(static_cast<size_t>(rows)), pages(static_cast<size_t>(rows / kPageTokens + 1));
    std::iota(pages.begin(), pages.end(), 0);
    batch.append(ids, 0, pages, static_cast<int>(rows), kind);
    b.begin(batch, mode, kShape);
    Cuda::Matrix input = b.allocate(rows, w.in), output = b.allocate(rows, w.out);
    b.upload(x, input);
    const std::pair<const Cuda::Linear*, Cuda::Matrix*> one[] = {{&w, &output}};
    b.linear(b.input(input), one);
    std::vector<float> y(static_cast<size_t>(rows * w.out));
    b.download(output, 0, rows, y);
    return y;
  }
  std::unique_ptr<Cuda> backend_;
};

// Returns how much rounding activations to whole numbers can change each output: half a step in every group of 1024
// columns, times the magnitudes of the row's centroids there. `steps` is the largest whole number.
std::vector<double> rounding_errors(const LinearWeight& weight, std::span<const float> x, double steps) {
  const auto& m = std::get<SignedVectors>(weight.main);
  const std::span<const f16> columns = m.column_scale.as<const f16>(), rows = m.row_scale.as<const f16>();
  const auto book = m.codebook.as<const int8_t>();
  std::vector<double> errors(static_cast<size_t>(weight.out));
  for (int64_t first = 0; first < weight.in; first += 1024) {
    const int64_t end = std::min(weight.in, first + 1024);
    double range = 0;
    for (int64_t k = first; k < end; ++k)
      range = std::max(range, std::abs(double{x[static_cast<size_t>(k)]} * to_float(columns[static_cast<size_t>(k)])));
    for (int64_t o = 0; o < weight.out; ++o) {
      double levels = 0;
      for (int64_t k = first; k < end; ++k) {
        const int64_t entry = m.shape.block_of(o) * m.shape.entries + get_vector(m, o, k / 8).index;
        levels += std::abs(book[static_cast<size_t>(entry * 8 + k % 8)]);
      }
      errors[static_cast<size_t>(o)] += levels * to_float(rows[static_cast<size_t>(o)]) * range / steps / 2;
    }
  }
  return errors;
}

// The inputs of output rows are rounded to 16 bits, and with FP32 activations to 24, of the largest of 1024. Each is
// then multiplied by its column's scale, with one rounding of 2^-24. A span's sum is exact. The spans, the
// corrections and the scales are some 40 roundings of the magnitudes, where a correction that cancels its code counts
// as both. A correction has 8 additions, and those of a row are added one after the other: at most 12, or all 256 of
// a crowded row. Prompt rows are multiplied with weights and activations in FP16.
TEST_F(VectorsCuda, ProductsAgreeWithDecodedWeightsAndRowsDoNotDependOnTheBatch) {
  constexpr int64_t kRows = 9;
  struct Case {
    RowKind kind;
    Activations mode;
    double steps, eps;
  };
  const Case cases[] = {{RowKind::output, Activations::a16, 127 << 8, 40 * 0x1p-24},
                        {RowKind::output, Activations::f32, 127 << 16, 40 * 0x1p-24},
                        {RowKind::prompt, Activations::a16, 0, 3 * 0x1p-11}};
  for (const char* format : {"vq8k9s1", "vq8k12s1+r2.2", "vq8k12s4+r9.0", "vq8k16s4", "vq8k16s8", "vq8k20s8+r4.7"})
    for (const auto& [out, in, crowded, blocks] : {std::tuple<int64_t, int64_t, bool, int64_t>{37, 72, false, 0},
                                                   {300, 1000, false, 0},
                                                   {16, 61, false, 0},
                                                   {9000, 72, false, 500},
                                                   {1040, 2048, false, 0},
                                                   {1040, 2048, true, 0}}) {
      SCOPED_TRACE(fmt::format("{} {} x {}{}", format, out, in, crowded ? ", crowded" : ""));
      const LinearWeight weight = random_vectors(format, out, in, crowded, blocks);
      const std::vector<float> decoded = decode(weight);
      const Cuda::Linear packed = backend_->pack(weight);
      Rng rng(3);
      std::vector<float> x(static_cast<size_t>(kRows * in));
      for (float& v : x) v = static_cast<float>(rng.normal());
      const double largest = 0.03 * (0.03 * 127 + 128);
      for (const Case& c : cases) {
        const std::vector<float> y = product(packed, x, kRows, c.kind, c.mode);
        for (int64_t m = 0; m < kRows; ++m) {
          const std::span<const float> row = std::span(x).subspan(static_cast<size_t>(m * in), static_cast<size_t>(in));
          const std::vector<double> rounded =
              c.steps > 0 ? rounding_errors(weight, row, c.steps) : std::vector<double>(static_cast<size_t>(out));
          for (int64_t o = 0; o < out; ++o) {
            double want = double{weight.bias.as<float>()[static_cast<size_t>(o)]}, magnitude = std::abs(want);
            for (int64_t k = 0; k < in; ++k) {
              const double at = double{row[static_cast<size_t>(k)]};
              const double term = at * double{decoded[static_cast<size_t>(o * in + k)]};
              want += term;
              magnitude += std::abs(term) + (weight.spec.sparse > 0 ? std::abs(at) * largest : 0);
            }
            ASSERT_NEAR(y[static_cast<size_t>(m * out + o)], want,
                        rounded[static_cast<size_t>(o)] + (c.eps + (crowded ? 256 * 0x1p-24 : 0)) * magnitude)
                << m << " " << o;
          }
        }
        for (const int64_t rows : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{6}}) {
          const std::vector<float> few =
              product(packed, std::span(x).first(static_cast<size_t>(rows * in)), rows, c.kind, c.mode);
          EXPECT_TRUE(std::equal(few.begin(), few.end(), y.begin())) << rows;
        }
      }
    }
}

// Products of one input in one launch must have the bits of each alone.
TEST_F(VectorsCuda, ProductsTogetherAreThoseAlone) {
  constexpr int64_t kRows = 3, kIn = 1200;
  Rng rng(5);
  std::vector<float> x(static_cast<size_t>(kRows * kIn));
  for (float& v : x) v = static_cast<float>(rng.normal());
  Cuda& b = *backend_;
  b.reserve(kRows, kIn, 64);
  Batch batch;
  const std::vector<int32_t> ids(kRows), pages = {0};
  batch.append(ids, 0, pages, kRows, RowKind::output);
  Cuda::Matrix input = b.allocate(kRows, kIn);
  b.upload(x, input);
  for (const std::array<int64_t, 3>& outs : {std::array<int64_t, 3>{40, 1000, 17}, {12000, 11000, 900}}) {
    std::vector<Cuda::Linear> packed;
    std::vector<Cuda::Matrix> outputs;
    for (const int64_t out : outs) {
      packed.push_back(b.pack(random_vectors("vq8k12s1+r2.2", out, kIn)));
      outputs.push_back(b.allocate(kRows, out));
    }
    b.begin(batch, Activations::a16, kShape);
    const std::pair<const Cuda::Linear*, Cuda::Matrix*> all[] = {
        {&packed[0], &outputs[0]}, {&packed[1], &outputs[1]}, {&packed[2], &outputs[2]}};
    b.linear(b.input(input), all);
    for (size_t i = 0; i < std::size(all); ++i) {
      std::vector<float> together(static_cast<size_t>(kRows * packed[i].out));
      b.download(outputs[i], 0, kRows, together);
      EXPECT_EQ(together, product(packed[i], x, kRows, RowKind::output, Activations::a16)) << i;
      b.begin(batch, Activations::a16, kShape);
    }
  }
}

// Inside repeat() a product of one row normalises or gates its input itself.
TEST_F(VectorsCuda, ARowThatTheProductMakesHasTheBitsOfOneInMemory) {
  Cuda& b = *backend_;
  uint64_t step = 0;
  for (const char* format : {"vq8k12s1+r2.2", "vq8k16s8", "vq8k20s8+r4.7"})
    for (const int64_t in : {int64_t{61}, int64_t{1000}, int64_t{5000}}) {
      SCOPED_TRACE(fmt::format("{} of {}", format, in));
      const Cuda::Linear packed = b.pack(random_vectors(format, 300, in));
      b.reserve(1, in, 64);
      Batch batch;
      const std::vector<int32_t> ids(1), pages = {0};
      batch.append(ids, 0, pages, 1, RowKind::output);
      Rng rng(9);
      Cuda::Matrix one = b.allocate(1, in), other = b.allocate(1, in), y = b.allocate(1, 300);
      std::vector<float> values(static_cast<size_t>(in));
      for (Cuda::Matrix* m : {&one, &other}) {
        for (float& v : values) v = static_cast<float>(rng.normal());
        b.upload(values, *m);
      }
      const auto product = [&](bool norm, bool repeated) {
        b.begin(batch, Activations::a16, kShape);
        const auto work = [&] {
          const std::pair<const Cuda::Linear*, Cuda::Matrix*> output[] = {{&packed, &y}};
          b.linear(norm ? b.norm(one, other, 1e-5f) : b.gated(one, other, Gate::silu, 1), output);
        };
        if (repeated)
          b.repeat(++step, work);
        else
          work();
        std::vector<float> got(300);
        b.download(y, 0, 1, got);
        return got;
      };
      for (const bool norm : {true, false}) EXPECT_EQ(product(norm, true), product(norm, false)) << norm;
    }
}

// Products of one row in one launch, where each reads what those before it made as in a layer, must have the bits of
// launches of their own. The step runs ten times, first as it is and then recorded, because thread blocks meet in
// another order each time. With 300 columns most thread blocks have no part of a product. A row of 30,000 has no room
// beside corrections. Columns that are no multiple of 8, other forms of codes and a fifth product begin another
// launch.
TEST_F(VectorsCuda, ProductsOfALayerHaveTheBitsOfLaunchesOfTheirOwn) {
  Cuda& b = *backend_;
  // Gate has so many outputs that a thread block goes through more than two codebooks.
  constexpr int64_t kManyBooks = 18000;
  uint64_t step = 0;
  for (const auto& [formats, wide, inner] :
       {std::tuple{std::array{"vq8k12s1+r2.2", "vq8k12s1+r2.2"}, int64_t{300}, int64_t{700}},
        {{"vq8k12s1+r2.2", "vq8k12s1+r2.2"}, 64, kManyBooks},
        {{"vq8k16s8", "vq8k16s8"}, 64, kManyBooks},
        {{"vq8k20s8+r4.7", "vq8k20s8+r4.7"}, 2048, 5000},
        {{"vq8k16s8", "vq8k16s8"}, 1024, 2600},
        {{"vq8k12s1+r2.2", "vq8k12s1+r2.2"}, 1000, 30000},
        {{"vq8k12s1+r2.2", "vq8k12s1+r2.2"}, 512, 700},
        {{"vq8k20s8+r4.7", "vq8k16s8"}, 512, 1000}}) {
    SCOPED_TRACE(fmt::format("{} and {}, {} and {} columns", formats[0], formats[1], wide, inner));
    const Cuda::Linear o = b.pack(random_vectors(formats[0], wide, wide)),
                       gate = b.pack(random_vectors(formats[1], inner, wide, false, inner == kManyBooks ? 500 : 0)),
                       up = b.pack(random_vectors(formats[1], inner, wide)),
                       down = b.pack(random_vectors(formats[0], wide, inner)),
                       q = b.pack(random_vectors(formats[0], wide, wide)),
                       k = b.pack(random_vectors(formats[0], wide / 4, wide));
    b.reserve(1, std::max(wide, inner), 64);
    Batch batch;
    const std::vector<int32_t> ids(1), pages = {0};
    batch.append(ids, 0, pages, 1, RowKind::output);
    Rng rng(9);
    Cuda::Matrix stream = b.allocate(1, wide), heads = b.allocate(1, wide), weight = b.allocate(1, wide),
                 of_gate = b.allocate(1, inner), of_up = b.allocate(1, inner), of_q = b.allocate(1, wide),
                 of_k = b.allocate(1, wide / 4);
    std::vector<float> values(static_cast<size_t>(wide)), at_first(values.size());
    for (float& v : at_first) v = static_cast<float>(rng.normal());
    for (Cuda::Matrix* m : {&heads, &weight}) {
      for (float& v : values) v = static_cast<float>(rng.normal());
      b.upload(values, *m);
    }
    ++step;
    const auto layer = [&](bool repeated) {
      b.begin(batch, Activations::a16, kShape);
      b.upload(at_first, stream);
      const auto work = [&] {
        using Output = std::pair<const Cuda::Linear*, Cuda::Matrix*>;
        b.linear_add(b.input(heads), o, stream);
        b.linear(b.norm(stream, weight, 1e-5f), std::array{Output{&gate, &of_gate}, Output{&up, &of_up}});
        b.linear_add(b.gated(of_gate, of_up, Gate::silu, 1), down, stream);
        b.linear(b.norm(stream, weight, 1e-5f), std::array{Output{&q, &of_q}, Output{&k, &of_k}});
        b.linear_add(b.norm(of_q, weight, 1e-5f), o, stream);
      };
      if (repeated)
        b.repeat(step, work);
      else
        work();
      std::vector<float> got;
      for (Cuda::Matrix* m : {&stream, &of_q, &of_k}) {
        values.resize(static_cast<size_t>(m->columns));
        b.download(*m, 0, 1, values);
        got.insert(got.end(), values.begin(), values.end());
      }
      return got;
    };
    const std::vector<float> alone = layer(false);
    for (const float v : alone) ASSERT_TRUE(std::isfinite(v));
    for (int i = 0; i < 10; ++i) ASSERT_EQ(layer(true), alone) << i;
  }
}

// An element is two products and, where there is a correction, a sum. It must have the value of decode_row(), bit for
// bit.
TEST_F(VectorsCuda, EmbeddingGivesTheDecodedRows) {
  for (const char* format : {"vq8k12s1+r2.2", "vq8k16s4", "vq8k16s8+r5.0"}) {
    const LinearWeight weight = random_vectors(format, 150, 200);
    const Cuda::Linear packed = backend_->pack(weight);
    Batch batch;
    const std::vector<int32_t> ids = {3, 0, 149, 77}, pages = {0};
    batch.append(ids, 0, pages, 4, RowKind::output);
    backend_->reserve(4, 200, 64);
    backend_->begin(batch, Activations::a16, kShape);
    Cuda::Matrix x = backend_->allocate(4, 200);
    backend_->embed(packed, x, 1);
    std::vector<float> got(800), row(200);
    backend_->download(x, 0, 4, got);
    for (size_t i = 0; i < ids.size(); ++i) {
      decode_row(weight, ids[i], row);
      EXPECT_TRUE(std::equal(row.begin(), row.end(), got.begin() + static_cast<std::ptrdiff_t>(200 * i))) << format;
    }
  }
}

}  // namespace
}  // namespace fidelio
