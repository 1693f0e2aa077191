// These tests compare the operations of gated delta nets and gates with kernels/ref and with finite differences in
// FP64. Sequences end before, at and behind the ends of chunks, and sizes are no multiples of a vector.
#include "kernels/ref/ref.h"
#include "train/gradient_check.h"
#include "train/views.h"

namespace fidelio::train {
namespace {

std::vector<double> nothing(int64_t n) { return std::vector<double>(static_cast<size_t>(n)); }
double sum_of(const std::vector<double>& y, const std::vector<double>& by) {
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += y[i] * by[i];
  return sum;
}

struct DeltaCase {
  std::string name;
  DeltaNet net;
};

class DeltaOperations : public testing::TestWithParam<DeltaCase> {
 protected:
  DeltaOperations() {
    Sequences sequences;
    for (const size_t length : {150, 1, 64, 3, 65}) sequences.append(std::vector<int32_t>(length));
    rows_ = host_.load(sequences);
  }
  int64_t n() const { return rows_.rows(); }

  const DeltaNet net_ = GetParam().net;
  Host<double> host_{2};
  Host<double>::Rows rows_;
};
// In these a key head serves three value heads, and one; keys are narrower than values, and wider.
INSTANTIATE_TEST_SUITE_P(Shapes, DeltaOperations,
                         testing::Values(DeltaCase{"Shared", {2, 6, 8, 12, 4}}, DeltaCase{"Wide", {3, 3, 20, 7, 3}}),
                         [](const auto& info) { return info.param.name; });

TEST_P(DeltaOperations, Convolve) {
  const int64_t channels = net_.channels();
  std::vector<double> x = normal_values(1, n() * channels), y = nothing(n() * channels);
  const std::vector<double> weight = normal_values(2, channels * net_.kernel), dy = normal_values(3, n() * channels);
  std::vector<double> dx = dy;
  host_.convolve_backward(rows_, net_, weight.data(), x.data(), dx.data());
  const auto f = [&] {
    host_.convolve(rows_, net_, weight.data(), x.data(), y.data());
    return sum_of(y, dy);
  };
  expect_gradients(f, {{"x", x, dx}});
  f();
  for (int64_t s = 0; s < rows_.sequences.count(); ++s) {
    const int64_t begin = rows_.sequences.begin[static_cast<size_t>(s)];
    for (int64_t row = begin; row < rows_.sequences.begin[static_cast<size_t>(s) + 1]; ++row)
      for (int64_t c = 0; c < channels; ++c) {
        double sum = 0;
        for (int64_t tap = 0; tap < net_.kernel; ++tap) {
          const int64_t from = row - net_.kernel + 1 + tap;
          if (from >= begin)
            sum += weight[static_cast<size_t>(c * net_.kernel + tap)] * x[static_cast<size_t>(from * channels + c)];
        }
        ASSERT_NEAR(y[static_cast<size_t>(row * channels + c)], sum / (1 + std::exp(-sum)),
                    1e-14 * (1 + std::abs(sum)));
      }
  }
}

// Half of the rows keep nearly all of the state and some hardly any of it. The twin takes one row after another.
TEST_P(DeltaOperations, DeltaRule) {
  const int64_t channels = net_.channels(), heads = net_.value_heads, each = heads / net_.key_heads;
  std::vector<double> u = normal_values(1, n() * channels), b = normal_values(2, n() * heads),
                      a = normal_values(3, n() * heads, 3), y = nothing(n() * net_.values());
  const std::vector<double> log_rate = normal_values(4, heads), step_bias = normal_values(5, heads),
                            dy = normal_values(6, n() * net_.values());
  const DeltaRates<double> rates{log_rate.data(), step_bias.data()};
  std::vector<double> du = u, db = b, da = a;
  host_.delta_rule_backward(rows_, net_, rates, dy.data(), du.data(), db.data(), da.data());
  const auto f = [&] {
    host_.delta_rule(rows_, net_, rates, u.data(), b.data(), a.data(), y.data());
    return sum_of(y, dy);
  };
  expect_gradients(f, {{"u", u, du}, {"b", b, db}, {"a", a, da}}, 1e-6, 1e-4);
  f();
  for (int64_t head = 0; head < heads; ++head) {
    std::vector<double> state, out(static_cast<size_t>(net_.value_dim));
    for (int64_t row = 0; row < n(); ++row) {
      if (rows_.positions[static_cast<size_t>(row)] == 0) state = nothing(int64_t{net_.key_dim} * net_.value_dim);
      const auto of_head = static_cast<size_t>(row * heads + head), h = static_cast<size_t>(head);
      const double kept = std::exp(-std::exp(log_rate[h]) * std::log1p(std::exp(a[of_head] + step_bias[h])));
      const auto part = [&](int64_t first, int64_t columns) {
        return std::span<const double>(u).subspan(static_cast<size_t>(row * channels + first),
                                                  static_cast<size_t>(columns));
      };
      ref::delta_step(
          {part(head / each * net_.key_dim, net_.key_dim), part(net_.keys() + head / each * net_.key_dim, net_.key_dim),
           part(2 * net_.keys() + head * net_.value_dim, net_.value_dim), kept, 1 / (1 + std::exp(-b[of_head]))},
          state, out);
      for (size_t e = 0; e < out.size(); ++e)
        ASSERT_NEAR(y[static_cast<size_t>(row * net_.values() + head * net_.value_dim) + e], out[e], 1e-12)
            << row << " " << head;
    }
  }
}

// FP32 rounds each of the sums of a chunk and of the solution of its system. The error of a sum is some eps of its
// terms, and those are not much larger than the results here, so that 1e-5 of the norm shows any other fault.
TEST_P(DeltaOperations, FloatsAreNear) {
  Host<float> host(2);
  const auto rows = host.load(rows_.sequences);
  const int64_t heads = net_.value_heads;
  const auto run = [&]<typename T>(Host<T>& on, const typename Host<T>::Rows& of, std::vector<double>& y,
                                   std::vector<double>& du) {
    const auto values = [](uint64_t stream, int64_t count) {
      const std::vector<double> exact = normal_values(stream, count);
      std::vector<T> rounded;
      for (const double x : exact) rounded.push_back(static_cast<T>(static_cast<float>(x)));
      return rounded;
    };
    std::vector<T> u = values(1, n() * net_.channels()), b = values(2, n() * heads), a = values(3, n() * heads),
                   out(static_cast<size_t>(n() * net_.values()));
    const std::vector<T> log_rate = values(4, heads), step_bias = values(5, heads), dy = values(6, n() * net_.values());
    const DeltaRates<T> rates{log_rate.data(), step_bias.data()};
    on.delta_rule(of, net_, rates, u.data(), b.data(), a.data(), out.data());
    on.delta_rule_backward(of, net_, rates, dy.data(), u.data(), b.data(), a.data());
    y.assign(out.begin(), out.end()), du.assign(u.begin(), u.end());
    du.insert(du.end(), b.begin(), b.end()), du.insert(du.end(), a.begin(), a.end());
  };
  std::vector<double> y, du, exact_y, exact_du;
  run(host, rows, y, du);
  run(host_, rows_, exact_y, exact_du);
  for (auto [got, want] : {std::pair{&y, &exact_y}, {&du, &exact_du}}) {
    double difference = 0;
    for (size_t i = 0; i < got->size(); ++i) difference += ((*got)[i] - (*want)[i]) * ((*got)[i] - (*want)[i]);
    EXPECT_LT(std::sqrt(difference / sum_of(*want, *want)), 1e-5);
  }
}

TEST(Gates, OfBothFunctions) {
  Host<double> host(2);
  constexpr int64_t n = 1003;
  for (const Gate function : {Gate::silu, Gate::sigmoid}) {
    std::vector<double> gate = normal_values(1, n, 2), x = normal_values(2, n), y = nothing(n);
    const std::vector<double> dy = normal_values(3, n);
    std::vector<double> dgate = gate, dx = dy;
    host.gated_backward(function, dgate.data(), x.data(), n, dx.data());
    const auto f = [&] {
      host.gated(function, gate.data(), x.data(), n, y.data());
      return sum_of(y, dy);
    };
    expect_gradients(f, {{"gate", gate, dgate}, {"x", x, dx}});
    f();
    const std::vector<double> twin = ref::gated(function, gate, x);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], twin[i], 1e-14);
  }
}

TEST(Gates, PairsAreSplitAndJoined) {
  Host<double> host(2);
  constexpr int64_t rows = 70, columns = 5;
  const std::vector<double> from = normal_values(1, rows * 2 * columns);
  std::vector<double> a = nothing(rows * columns), b = a, back = nothing(rows * 2 * columns);
  host.split_pairs(from.data(), rows, columns, a.data(), b.data());
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) {
      EXPECT_EQ(a[r * columns + c], from[r * 2 * columns + c]);
      EXPECT_EQ(b[r * columns + c], from[(r * 2 + 1) * columns + c]);
    }
  host.join_pairs(a.data(), b.data(), rows, columns, back.data());
  EXPECT_EQ(back, from);
}

}  // namespace
}  // namespace fidelio::train
