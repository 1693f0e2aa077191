// These tests compare every operation's backward with finite differences in FP64, over sizes that are no multiples of
// a tile, and its forward with kernels/ref where that has it.
#include <numeric>

#include "kernels/ref/ref.h"
#include "train/block.h"
#include "train/gradient_check.h"

namespace fidelio::train {
namespace {

using Values = std::vector<double>;

Values zeros(int64_t n) { return Values(static_cast<size_t>(n)); }
double weighted(const Values& y, const Values& by) { return std::inner_product(y.begin(), y.end(), by.begin(), 0.0); }

Sequences three_sequences(int32_t v) {
  Sequences s;
  Rng rng(3);
  for (const int length : {70, 1, 19}) {  // longer than a tile of queries, the shortest, and one in between
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(v)));
    s.append(ids);
  }
  return s;
}

class Operations : public testing::Test {
 protected:
  Host<double> host_{2};
};

TEST_F(Operations, ProductsInEveryOrientation) {
  constexpr int64_t m = 131, n = 517, k = 3;  // these go over the edges of a tile
  const Values a = normal_values(1, m * k), b = normal_values(2, k * n);
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      Values c = normal_values(3, m * n);
      const Values before = c;
      host_.multiply({m, n, k, a.data(), ta, b.data(), tb, 1.0, c.data()});
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = before[i * n + j];
          for (int64_t t = 0; t < k; ++t) sum += a[ta ? t * m + i : i * k + t] * b[tb ? j * k + t : t * n + j];
          ASSERT_NEAR(c[i * n + j], sum, 1e-13)
              << ta << tb << i << j;  // three products and sums of order 10, with eps 1e-16
        }
    }
}

TEST_F(Operations, LinearWithBias) {
  constexpr int64_t n = 33, in = 24, out = 17;
  Values x = normal_values(1, n * in), w = normal_values(2, out * in), bias = normal_values(3, out);
  const Values dy = normal_values(4, n * out);
  Values y = zeros(n * out), dx = zeros(n * in), dw = zeros(out * in), dbias = zeros(out);
  const LinearView<double> view{out, in, w.data(), bias.data(), dw.data(), dbias.data()};
  linear_backward(host_, view, n, x.data(), dy.data(), false, dx.data());
  expect_gradients(
      [&] {
        linear(host_, view, n, x.data(), false, y.data());
        return weighted(y, dy);
      },
      {{"x", x, dx}, {"w", w, dw}, {"bias", bias, dbias}});
}

TEST_F(Operations, Embedding) {
  const Sequences s = three_sequences(11);
  const auto rows = host_.load(s);
  constexpr int64_t d = 70;
  Values table = normal_values(1, 11 * d), dtable = zeros(11 * d), x = zeros(s.rows() * d);
  const Values dx = normal_values(2, s.rows() * d);
  host_.scatter(rows, dx.data(), d, dtable.data());
  expect_gradients(
      [&] {
        host_.gather(rows, table.data(), d, x.data());
        return weighted(x, dx);
      },
      {{"table", table, dtable}});
}

TEST_F(Operations, Norm) {
  constexpr int64_t n = 37, d = 75;
  Values x = normal_values(1, n * d), w = normal_values(2, d), y = zeros(n * d), dx = zeros(n * d), dw = zeros(d);
  const Values dy = normal_values(3, n * d);
  host_.norm_backward(x.data(), w.data(), 1e-2, n, d, dy.data(), dx.data(), false, dw.data());
  const auto f = [&] {
    host_.norm(x.data(), w.data(), 1e-2, n, d, y.data());
    return weighted(y, dy);
  };
  expect_gradients(f, {{"x", x, dx}, {"w", w, dw}});
  f();
  const Values twin = ref::rmsnorm(x, w, 1e-2, n, d);
  for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], twin[i], 1e-14 * (1 + std::abs(twin[i])));
  Values added(dx);
  host_.norm_backward(x.data(), w.data(), 1e-2, n, d, dy.data(), added.data(), true, nullptr);
  for (size_t i = 0; i < dx.size(); ++i) ASSERT_DOUBLE_EQ(added[i], 2 * dx[i]);
}

// The last of these rotates the first four of six columns.
TEST_F(Operations, Rope) {
  const Sequences s = three_sequences(5);
  const auto rows = host_.load(s);
  for (const std::vector<float>& frequencies : {std::vector<float>{1, 0.1f, 0.01f}, {1, 0.1f}}) {
    const AttentionSizes sizes{.h = 3, .hk = 1, .e = 6, .frequencies = frequencies, .rope_scale = 1.25f};
    Values x = normal_values(1, s.rows() * 18), y = x;
    const Values dy = normal_values(2, s.rows() * 18);
    Values dx = dy;
    host_.rope(rows, sizes, 3, true, dx.data());
    const auto f = [&] {
      y = x;
      host_.rope(rows, sizes, 3, false, y.data());
      return weighted(y, dy);
    };
    expect_gradients(f, {{"x", x, dx}});
    f();
    Values twin(x.begin() + 69 * 18, x.begin() + 70 * 18);  // the last row of the first sequence
    ref::rope(twin, Values(frequencies.begin(), frequencies.end()), 1.25, 69, 3, 6);
    for (size_t i = 0; i < 18; ++i) EXPECT_NEAR(y[69 * 18 + i], twin[i], 1e-13);
  }
}

class Attention : public Operations, public testing::WithParamInterface<int64_t> {};

TEST_P(Attention, GroupedCausalWindowed) {
  const Sequences s = three_sequences(5);
  const auto rows = host_.load(s);
  const int64_t n = s.rows();
  const AttentionSizes sizes{.h = 4, .hk = 2, .e = 6, .window = GetParam(), .frequencies = {}, .rope_scale = 1};
  Values q = normal_values(1, n * 24), k = normal_values(2, n * 12), v = normal_values(3, n * 12);
  Values out = zeros(n * 24), lse = zeros(n * 4), dq = zeros(n * 24), dk = zeros(n * 12), dv = zeros(n * 12);
  const Values dout = normal_values(4, n * 24);
  const auto f = [&] {
    host_.attend(rows, sizes, q.data(), k.data(), v.data(), out.data(), lse.data());
    return weighted(out, dout);
  };
  f();
  for (const int64_t row : {0, 40, 69}) {
    const Values twin = ref::attention(std::span(q).subspan(row * 24, 24), std::span(k).first(70 * 12),
                                       std::span(v).first(70 * 12), row, 4, 2, 6, GetParam());
    for (size_t i = 0; i < 24; ++i) ASSERT_NEAR(out[row * 24 + i], twin[i], 1e-13);
  }
  host_.attend_backward(rows, sizes, q.data(), k.data(), v.data(), out.data(), lse.data(), dout.data(), dq.data(),
                        dk.data(), dv.data());
  expect_gradients(f, {{"q", q, dq}, {"k", k, dk}, {"v", v, dv}});
}
INSTANTIATE_TEST_SUITE_P(Windows, Attention, testing::Values(0, 2, 13));

TEST_F(Operations, Swiglu) {
  constexpr int64_t n = 1003;
  Values gate = normal_values(1, n, 2), up = normal_values(2, n), y = zeros(n);
  const Values dy = normal_values(3, n);
  Values dgate = gate, dup = up;
  host_.swiglu_backward(dgate.data(), dup.data(), n, dy.data(), true);
  const auto f = [&] {
    host_.swiglu(gate.data(), up.data(), n, y.data());
    return weighted(y, dy);
  };
  expect_gradients(f, {{"gate", gate, dgate}, {"up", up, dup}});
  f();
  const Values twin = ref::swiglu(gate, up);
  for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], twin[i], 1e-14);
}

TEST_F(Operations, LossesOfEveryMix) {
  constexpr int64_t n = 21, v = 53;
  const Values teacher = normal_values(1, n * v, 3);
  Values student = normal_values(2, n * v, 3), losses = zeros(n * kLosses);
  std::vector<int32_t> labels(n);
  for (int32_t i = 0; i < n; ++i) labels[static_cast<size_t>(i)] = i % 5 == 0 ? -1 : i;
  for (const LossMix mix : {LossMix{1, 0, 0}, LossMix{0, 1, 0}, LossMix{0, 0, 1}, LossMix{0.3, 0.7, 0.1}}) {
    Values gradient = student;
    host_.divergence(teacher.data(), gradient.data(), labels.data(), n, v, mix, 0.25, losses.data());
    const auto f = [&] {
      Values copy = student;
      host_.divergence(teacher.data(), copy.data(), labels.data(), n, v, mix, 0, losses.data());
      EXPECT_EQ(copy, student);  // it was only measured
      double sum = 0;
      for (int64_t r = 0; r < n; ++r)
        sum += mix.forward * losses[r * 3] + mix.reverse * losses[r * 3 + 1] + mix.label * losses[r * 3 + 2];
      return 0.25 * sum;
    };
    expect_gradients(f, {{"logits", student, gradient}});
  }
  // The losses themselves are compared with their definitions.
  host_.divergence(teacher.data(), student.data(), labels.data(), n, v, {}, 0, losses.data());
  const Values p = ref::softmax(std::span(teacher).first(v)), q = ref::softmax(std::span(student).first(v));
  double forward = 0, reverse = 0;
  for (int64_t k = 0; k < v; ++k) {
    forward += p[k] * std::log(p[k] / q[k]);
    reverse += q[k] * std::log(q[k] / p[k]);
  }
  EXPECT_NEAR(losses[0], forward, 1e-12 * forward);
  EXPECT_NEAR(losses[1], reverse, 1e-12 * reverse);
  const Values q1 = ref::softmax(std::span(student).subspan(v, v));
  EXPECT_NEAR(losses[3 + 2], -std::log(q1[1]), 1e-12);
}

TEST_F(Operations, LabelsWithoutATeacher) {
  constexpr int64_t n = 9, v = 31;
  Values student = normal_values(2, n * v, 3), losses = zeros(n * kLosses), gradient = student;
  const std::vector<int32_t> labels = {1, 2, 3, -1, 5, 6, 7, 8, -1};
  const LossMix mix{0, 0, 1};
  host_.divergence(nullptr, gradient.data(), labels.data(), n, v, mix, 1, losses.data());
  expect_gradients(
      [&] {
        Values copy = student;
        host_.divergence(nullptr, copy.data(), labels.data(), n, v, mix, 0, losses.data());
        double sum = 0;
        for (int64_t r = 0; r < n; ++r) sum += losses[r * 3 + 2];
        return sum;
      },
      {{"logits", student, gradient}});
}

TEST_F(Operations, DifferenceAndSums) {
  constexpr int64_t n = 40001;
  Values x = normal_values(1, n);
  const Values target = normal_values(2, n);
  Values gradient = x;
  const double sum = host_.difference(target.data(), 2, n, gradient.data());
  double twin = 0;
  for (int64_t i = 0; i < n; ++i) twin += (x[i] - target[i]) * (x[i] - target[i]);
  EXPECT_NEAR(sum, twin, 1e-12 * twin);
  expect_gradients(
      [&] {
        Values copy = x;
        return host_.difference(target.data(), 0, n, copy.data());
      },
      {{"x", x, gradient}});
  EXPECT_NEAR(host_.sum_of_squares(x.data(), nullptr, n), weighted(x, x), 1e-9);
}

// The result is compared with the update as the paper writes it, one value at a time.
TEST_F(Operations, Adam) {
  constexpr int64_t n = 5;
  Values value = normal_values(1, n), m = zeros(n), v = zeros(n), unit = {1, 2, .5, 1, 1};
  Values twin = value, tm = m, tv = v;
  for (int64_t step = 1; step <= 20; ++step) {
    const Values g = normal_values(static_cast<uint64_t>(step), n);
    host_.adam(g.data(), unit.data(), n, {.rate = .1, .step = step, .clip = .5, .low = -1}, value.data(), m.data(),
               v.data());
    for (size_t i = 0; i < n; ++i) {
      const double scaled = .5 * g[i] * unit[i];
      tm[i] = .9 * tm[i] + .1 * scaled;
      tv[i] = .999 * tv[i] + .001 * scaled * scaled;
      const double mean = tm[i] / (1 - std::pow(.9, step)), square = tv[i] / (1 - std::pow(.999, step));
      twin[i] = std::max(-1.0, twin[i] - .1 * unit[i] * mean / (std::sqrt(square) + 1e-8));
      EXPECT_NEAR(value[i], twin[i], 1e-13) << step << " " << i;
    }
  }
}

}  // namespace
}  // namespace fidelio::train
