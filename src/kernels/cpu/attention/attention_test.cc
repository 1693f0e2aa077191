// This file tests the CPU backend's attention against the reference, in every cache format and on every instruction
// set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/cpu/linear/dense.h"
#include "kernels/cpu/test_support.h"
#include "kernels/ref/ref.h"

namespace fidelio::cpu {
namespace {

// A Play runs sequences of random q, k and v rows through rope_append and attend in steps.
struct Play {
  AttentionShape shape;
  KvFormat format = KvFormat::f32;
  Isa isa = supported_isas().back();
  int threads = 2;
  std::vector<int> lengths;            // of the sequences
  std::vector<std::vector<int>> cuts;  // per step, the rows taken of each sequence; empty = all at once
  std::vector<int> order;              // of the pages
  bool norms = false, sinks = false;

  // Returns the attention outputs of every sequence, (length, h e) each, in turn.
  std::vector<std::vector<float>> outputs() const {
    const int64_t qw = int64_t{shape.heads} * shape.head_dim, kw = int64_t{shape.kv_heads} * shape.head_dim;
    Cpu cpu({.threads = threads, .isa = isa});
    const int total = std::accumulate(lengths.begin(), lengths.end(), 0);
    int pages = 0;
    std::vector<std::vector<int32_t>> lists;
    for (int length : lengths) {
      lists.emplace_back();
      for (int p = 0; p * kPageTokens < length; ++p, ++pages)
        lists.back().push_back(order.empty() ? pages : order[static_cast<size_t>(pages)]);
    }
    Cpu::KvCache cache = cpu.allocate_cache(shape, pages + 3, format);
    cpu.reserve(total, qw, 4096);
    Cpu::Matrix q = cpu.allocate(total, qw), k = cpu.allocate(total, kw), v = cpu.allocate(total, kw);
    Cpu::Matrix q_norm = cpu.allocate(1, shape.head_dim), k_norm = cpu.allocate(1, shape.head_dim);
    cpu.upload(normals(shape.head_dim, 91), q_norm);
    cpu.upload(normals(shape.head_dim, 92), k_norm);
    Cpu::Matrix sink = cpu.allocate(1, shape.heads);
    cpu.upload(sinks_of(shape), sink);
    std::vector<std::vector<float>> results(lengths.size());
    std::vector<int> done(lengths.size(), 0);
    for (const auto& step : cuts.empty() ? std::vector<std::vector<int>>{lengths} : cuts) {
      Batch batch;
      for (size_t s = 0; s < lengths.size(); ++s) {
        if (step[s] == 0) continue;
        for (int i = 0; i < step[s]; ++i) {
          const int64_t row = batch.rows() + i;
          const auto values = [&](int which, int64_t width, float* out) {
            const std::vector<float> x = row_of(static_cast<int>(s), done[s] + i, which, width);
            std::copy(x.begin(), x.end(), out);
          };
          values(0, qw, q.row(row)), values(1, kw, k.row(row)), values(2, kw, v.row(row));
        }
        batch.append(std::vector<int32_t>(static_cast<size_t>(step[s]), 0), done[s], lists[s], 0, RowKind::output);
      }
      cpu.begin(batch, Activations::a16, shape);
      const int last = static_cast<int>(shape.depth()) - 1;
      cpu.rope_append(q, k, v, norms ? &q_norm : nullptr, norms ? &k_norm : nullptr, cache, last);
      const Cpu::Acts acts = cpu.attend(q, cache, last, sinks ? &sink : nullptr);
      std::vector<float> out(static_cast<size_t>(acts.rows * acts.columns));
      cpu.read(acts, out);
      size_t from = 0;
      for (size_t s = 0; s < lengths.size(); ++s) {
        const auto count = static_cast<size_t>(step[s] * qw);
        results[s].insert(results[s].end(), out.begin() + static_cast<int64_t>(from),
                          out.begin() + static_cast<int64_t>(from + count));
        from += count;
        done[s] += step[s];
      }
    }
    return results;
  }

  // Some sinks are far above all scores, others far below.
  static std::vector<float> sinks_of(const AttentionShape& shape) {
    std::vector<float> values = normals(shape.heads, 93);
    for (size_t i = 0; i < values.size(); ++i) values[i] += i % 3 == 1 ? 40.0f : i % 3 == 2 ? -300.0f : 0.0f;
    return values;
  }
  static std::vector<float> row_of(int sequence, int position, int which, int64_t width) {
    return normals(width, static_cast<uint64_t>(1000000 * which + 10000 * sequence + position + 1));
  }
};

// Returns the expected output: queries and keys are rotated (and normalised) in double, then go through
// ref::attention. Keys and values are rounded as the cache keeps them.
std::vector<double> expected(const Play& run, int sequence, int position, const std::function<double(double)>& kept) {
  const AttentionShape& s = run.shape;
  const int64_t e = s.head_dim;
  const LayerAttention layer = s.layers.back();
  const Rotation& rotation = s.rotations[static_cast<size_t>(layer.rotation)];
  const std::vector<double> frequencies(rotation.inverse_frequencies.begin(), rotation.inverse_frequencies.end());
  const auto turned = [&](int at, int which, int heads) {
    std::vector<double> x = widened(Play::row_of(sequence, at, which, heads * e));
    if (run.norms) {
      std::vector<double> weight = widened(normals(e, which == 0 ? 91 : 92));
      x = ref::rmsnorm(x, weight, s.norm_eps, heads, e);
    }
    if (which == 0)
      for (double& value : x) value *= static_cast<double>(s.query_factor(at));
    ref::rope(x, frequencies, static_cast<double>(rotation.scale), at, heads, e);
    return x;
  };
  std::vector<double> k, v;
  for (int t = 0; t <= position; ++t) {
    for (double x : turned(t, 1, s.kv_heads)) k.push_back(kept(x));
    for (double x : widened(Play::row_of(sequence, t, 2, s.kv_heads * e))) v.push_back(kept(x));
  }
  return ref::attention(turned(position, 0, s.heads), k, v, position, s.heads, s.kv_heads, e, layer.window,
                        run.sinks ? widened(Play::sinks_of(s)) : std::vector<double>());
}

// Returns the tolerance of attention in FP32. Queries and keys are standard normals (`norms`: times a normal weight),
// so q||k| / sqrt(e) is componentwise below S = 6 * 6 * sqrt(e) in the worst case. Rotation, norm and the dot product
// round q, k and the score by (e + 12) u S, which moves log p by twice that; exp is good to 4 u, the sums over n
// positions add n u, and |v| <= 6.
double attention_tolerance(int64_t e, int64_t positions) {
  const double score = 36 * std::sqrt(static_cast<double>(e)) * static_cast<double>(e + 12) * kUnit;
  return 6 * (2 * score + static_cast<double>(positions + 16) * kUnit);
}

class Attention : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(All, Attention, testing::ValuesIn(supported_isas().begin(), supported_isas().end()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(Attention, AgreesWithTheReferenceForEveryShape) {
  struct Shape {
    int h, hk, e, window, n;
    bool norms;
  };
  for (const Shape c : {Shape{4, 2, 8, 0, 40, false},
                        {6, 2, 20, 0, 70, true},
                        {8, 1, 64, 0, 33, false},
                        {3, 3, 80, 7, 50, false},
                        {2, 2, 128, 33, 99, true},
                        {40, 1, 16, 0, 35, false},
                        {4, 4, 2, 1, 5, false}}) {
    Play run;
    run.isa = GetParam();
    run.shape = tiny_shape(c.h, c.hk, c.e, 2);
    set_window(run.shape, c.window);
    run.shape.rotations[0].scale = 1.1f;
    run.norms = c.norms;
    run.lengths = {c.n};
    const auto out = run.outputs();
    for (int position = 0; position < c.n; position += position < 3 ? 1 : 11) {
      const std::vector<double> want = expected(run, 0, position, [](double x) { return x; });
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(out[0][static_cast<size_t>(position) * want.size() + i], want[i], attention_tolerance(c.e, c.n))
            << "h " << c.h << " e " << c.e << " position " << position << " element " << i;
    }
  }
}

// A layer may have its own window and rotation. Here a part of each head is rotated, or nothing, and queries are
// scaled and grow.
TEST_P(Attention, LayersMayDiffer) {
  for (const int pairs : {0, 3, 8})
    for (const int window : {0, 5}) {
      Play run;
      run.isa = GetParam();
      run.shape = tiny_shape(4, 2, 16, 3);
      Rotation other{{}, 1.3f};
      for (int i = 0; i < pairs; ++i) other.inverse_frequencies.push_back(0.7f / static_cast<float>(i + 1));
      run.shape.rotations.push_back(other);
      run.shape.layers.back() = {window, 1};  // the layer that Play runs
      run.shape.query_scale = 0.75f;
      run.shape.query_growth = 0.3;
      run.shape.query_growth_positions = 7;
      run.lengths = {40};
      const auto out = run.outputs();
      for (int position : {0, 6, 7, 39}) {
        const std::vector<double> want = expected(run, 0, position, [](double x) { return x; });
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(out[0][static_cast<size_t>(position) * want.size() + i], want[i], attention_tolerance(16, 40))
              << pairs << " pairs, window " << window << ", position " << position;
      }
    }
}

// A sink takes its share of a head's softmax, in short histories and in those that are divided among threads.
TEST_P(Attention, SinksJoinTheSoftmax) {
  for (const int window : {0, 20})
    for (const auto& cuts : {std::vector<std::vector<int>>{}, std::vector<std::vector<int>>{{1099}, {1}}}) {
      Play run;
      run.isa = GetParam();
      run.shape = tiny_shape(6, 2, 24, 2);
      run.sinks = true;
      run.lengths = {1100};
      run.cuts = cuts;
      set_window(run.shape, window);
      const auto out = run.outputs();
      for (int position : {0, 1, 33, 700, 1099}) {
        const std::vector<double> want = expected(run, 0, position, [](double x) { return x; });
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(out[0][static_cast<size_t>(position) * want.size() + i], want[i], attention_tolerance(24, 1100))
              << "window " << window << " position " << position << " element " << i;
      }
    }
}

TEST_P(Attention, LongHistoriesCrossChunks) {
  Play run;
  run.isa = GetParam();
  run.shape = tiny_shape(2, 1, 8);
  run.lengths = {1100};
  for (int window : {0, 600}) {
    set_window(run.shape, window);
    const auto out = run.outputs();
    for (int position : {511, 512, 513, 1023, 1024, 1099}) {
      const std::vector<double> want = expected(run, 0, position, [](double x) { return x; });
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(out[0][static_cast<size_t>(position) * want.size() + i], want[i], attention_tolerance(8, 1100))
            << position;
    }
  }
}

// For 16-bit caches the reference keeps keys and values rounded in the same way. The rotated key may sit on a
// rounding boundary, so that FP32 and double round apart: one unit of the format more in every key makes a score
// error of 36 sqrt(e) eps at the very worst. In the mean over positions it is far less, so the test asks for a tenth
// of that bound.
TEST_P(Attention, SixteenBitCachesRoundKeysAndValues) {
  for (const KvFormat format : {KvFormat::f16, KvFormat::bf16}) {
    Play run;
    run.isa = GetParam();
    run.format = format;
    run.shape = tiny_shape(4, 2, 24);
    run.lengths = {45};
    const bool half = format == KvFormat::f16;
    const auto kept = [&](double x) {
      return static_cast<double>(half ? to_float(to_f16(static_cast<float>(x)))
                                      : to_float(to_bf16(static_cast<float>(x))));
    };
    const auto out = run.outputs();
    for (int position : {0, 31, 32, 44}) {
      const std::vector<double> want = expected(run, 0, position, kept);
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(out[0][static_cast<size_t>(position) * want.size() + i], want[i],
                    0.1 * 36 * std::sqrt(24.0) * (half ? 0x1p-11 : 0x1p-8) + attention_tolerance(24, 45));
    }
  }
}

// For integer caches a code is within half a step of its value, and a step is (max - min) / 255 of 24 normals, below
// 10 / 255. A score moves by at most |q|_1 / sqrt(e) * step / 2 and a value by step / 2. Again the worst case does
// not occur, and the test asks for a fifth of it.
TEST_P(Attention, IntegerCachesStayWithinHalfAStep) {
  std::vector<std::vector<float>> planes;
  for (const KvFormat format : {KvFormat::i8, KvFormat::i4x2}) {
    Play run;
    run.isa = GetParam();
    run.format = format;
    run.shape = tiny_shape(4, 2, 24);
    run.lengths = {45};
    const auto out = run.outputs();
    planes.push_back(out[0]);
    const double step = 10.0 / 255, score = 24 * 0.8 * 2 / std::sqrt(24.0) * step / 2;
    for (int position : {0, 31, 32, 44}) {
      const std::vector<double> want = expected(run, 0, position, [](double x) { return x; });
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(out[0][static_cast<size_t>(position) * want.size() + i], want[i], step / 2 + 0.2 * 2 * 6 * score)
            << name_of(format) << position;
    }
  }
  EXPECT_EQ(planes[0], planes[1]) << "i4x2 keeps the same bytes as i8, in two planes";
}

TEST_P(Attention, ARowDependsOnNothingButItsPast) {
  for (const KvFormat format : {KvFormat::f32, KvFormat::f16, KvFormat::i4x2})
    for (int window : {0, 37}) {
      Play whole;
      whole.isa = GetParam();
      whole.format = format;
      whole.sinks = format == KvFormat::f16;
      whole.shape = tiny_shape(6, 2, 24, 2);
      set_window(whole.shape, window);
      whole.lengths = {70, 45};
      const auto want = whole.outputs();
      Play shuffled = whole;  // pages in another order
      shuffled.order = {4, 1, 3, 0, 2};
      EXPECT_EQ(shuffled.outputs(), want);
      Play chunked = whole;  // prefill in pieces, then token by token
      chunked.cuts = {{33, 0}, {7, 31}, {29, 2}, {1, 11}, {0, 1}};
      EXPECT_EQ(chunked.outputs(), want);
      for (int threads : {1, 3, 5}) {
        Play other = whole;
        other.threads = threads;
        EXPECT_EQ(other.outputs(), want) << threads;
      }
      Play alone = whole;
      alone.lengths = {70};
      EXPECT_EQ(alone.outputs()[0], want[0]);
    }
}

TEST_P(Attention, DecodingALongHistoryEqualsPrefillingIt) {
  Play whole;
  whole.isa = GetParam();
  whole.shape = tiny_shape(4, 1, 16);
  whole.sinks = true;
  whole.lengths = {1601};
  const auto want = whole.outputs();
  for (int threads : {1, 2, 5}) {
    Play split = whole;
    split.threads = threads;
    split.cuts = {{1598}, {1}, {2}};
    EXPECT_EQ(split.outputs(), want) << threads;
  }
}

TEST(KvCache, BytesAreThoseOfTheFormat) {
  Cpu cpu({.threads = 1});
  AttentionShape shape = tiny_shape(4, 2, 64, 3);
  const int64_t elements = 3 * 5 * 2 * 2 * kPageTokens * 64;
  EXPECT_EQ(cpu.allocate_cache(shape, 5, KvFormat::f32).bytes(), elements * 4 + 64);
  EXPECT_EQ(cpu.allocate_cache(shape, 5, KvFormat::f16).bytes(), elements * 2 + 64);
  const int64_t scales = 3 * 5 * 2 * 4 * kPageTokens * 4;
  EXPECT_EQ(cpu.allocate_cache(shape, 5, KvFormat::i8).bytes(), elements + scales + 64);
  EXPECT_EQ(cpu.allocate_cache(shape, 5, KvFormat::i4x2).bytes(), elements + scales + 64);
}

TEST(KvCache, ShapesThatCannotBeServedAreRefused) {
  Cpu cpu({.threads = 1});
  EXPECT_THAT([&] { cpu.allocate_cache(tiny_shape(5, 2, 8), 1, KvFormat::f16); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("5 heads")));
  EXPECT_THAT([&] { cpu.allocate_cache(tiny_shape(4, 2, 7), 1, KvFormat::f16); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("not 7")));
}

}  // namespace
}  // namespace fidelio::cpu
