// These tests check mixtures of experts on a GPU. The choice of experts is compared with the host's, and the products
// of slots that need no host with every other way to compute them. Without a GPU the tests are skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "core/rng.h"
#include "formats/linear_weight.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/test_device.h"
#include "step/routing.h"

namespace fidelio {
namespace {

const AttentionShape kShape{{{}}, {{std::vector<float>(32, 0.0f), 1.0f}}, 4, 2, 64, 1e-5f};

class CudaExperts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
    backend_ = std::make_unique<Cuda>(Cuda::Options{});
  }
  Cuda& b() { return *backend_; }
  void begin(int64_t n, RowKind kind, Activations mode = Activations::a16) {
    Batch batch;
    const std::vector<int32_t> ids(static_cast<size_t>(n)), pages = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    batch.append(ids, 0, pages, 1, kind);
    b().begin(batch, mode, kShape);
  }
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
  std::vector<float> normals(int64_t n, double size) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& x : values) x = static_cast<float>(rng_.normal() * size);
    return values;
  }
  Cuda::Linear dense(int64_t out, int64_t in) {
    OwnedTensor t = OwnedTensor::allocate(DType::f32, {out, in});
    std::ranges::copy(normals(out * in, 1 / std::sqrt(static_cast<double>(in))), t.as<float>().begin());
    return b().pack(make_dense(std::move(t)));
  }
  // Returns a weight with random codes of an integer or a grid, under scales of a usual size.
  Cuda::Linear coded(const std::string& format, int64_t out, int64_t in) {
    LinearWeight w = allocate_weight(parse_format(format), out, in);
    for (const StoredTensor& t : stored_tensors(w)) {
      if (t.tensor.dtype == DType::f16)
        for (f16& x : t.tensor.as<f16>()) x = to_f16(0.01f);
      else if (t.tensor.dtype == DType::f32)
        for (float& x : t.tensor.as<float>()) x = 0.0005f;
      else if (t.suffix == ".codebook")
        for (int64_t i = 0; i < t.tensor.elements(); ++i)
          t.tensor.as<int8_t>()[static_cast<size_t>(i)] = static_cast<int8_t>(i * 254 / t.tensor.elements() - 127);
      else
        for (int64_t i = 0; i < t.tensor.bytes(); ++i)
          t.tensor.data[i] = static_cast<std::byte>(rng_.below(t.suffix == ".scale" ? 127 : 256));
    }
    return b().pack(w);
  }

  Rng rng_{11};

 private:
  std::unique_ptr<Cuda> backend_;
};

// The experts must be those that the host chooses from the same logits. The shares may differ by the rounding of two
// exponentials and their sum, which is 2^-22 of them.
TEST_F(CudaExperts, AreChosenAsTheHostChooses) {
  for (const auto& [E, k] :
       {std::pair(5, 2), std::pair(64, 8), std::pair(128, 8), std::pair(200, 32), std::pair(600, 1)})
    for (const bool renormalised : {true, false})
      for (const RowKind kind : {RowKind::output, RowKind::prompt}) {
        const int64_t n = 37, d = 200;
        b().reserve(n * k, d, 256);
        begin(n, kind);
        const Cuda::Matrix x = matrix(normals(n * d, 2), d);
        const Cuda::Linear router = dense(E, d);
        Cuda::Matrix logits = b().allocate(n, E);
        const RoutingRule rule{E, k, renormalised};
        b().route(x, router, {}, rule, {}, logits);
        Routes expected;
        route(values_of(logits, n), rule, {}, expected);
        const Routes& got = b().routes();
        EXPECT_EQ(got.rows, expected.rows);
        EXPECT_EQ(got.slots, expected.slots);
        for (size_t i = 0; i < got.shares.size(); ++i)
          ASSERT_NEAR(got.shares[i], expected.shares[i], expected.shares[i] * 0x1p-22) << E << " " << i;
      }
}

// The same for every other rule: sigmoids, corrections, groups, factors and scales.
TEST_F(CudaExperts, AreChosenByEveryRuleAsTheHostChooses) {
  for (const auto& [E, groups, kept] : {std::tuple(12, 1, 1), std::tuple(64, 8, 3), std::tuple(160, 1, 1),
                                        std::tuple(300, 15, 4), std::tuple(96, 32, 16)})
    for (int kind = 0; kind < 16; ++kind) {
      const RoutingRule rule{E,
                             4,
                             (kind & 1) != 0,
                             kind & 2 ? Scoring::sigmoid : Scoring::softmax,
                             (kind & 4) != 0,
                             (kind & 8) != 0,
                             groups,
                             kept,
                             kind & 8 ? 2.5 : 1};
      const int64_t n = 29, d = 200;
      b().reserve(n * rule.per_row, d, 256);
      begin(n, kind & 4 ? RowKind::output : RowKind::prompt);
      const Cuda::Matrix x = matrix(normals(n * d, 1), d);
      OwnedTensor weight = OwnedTensor::allocate(DType::f32, {E, d}), bias = OwnedTensor::allocate(DType::f32, {E});
      std::ranges::copy(normals(E * d, 0.1), weight.as<float>().begin());
      std::ranges::copy(normals(E, 0.3), bias.as<float>().begin());
      LinearWeight biased = make_dense(std::move(weight));
      if (kind & 1) biased.bias = std::move(bias);
      const Cuda::Linear router = b().pack(biased);
      const std::vector<float> adjustments = normals(2 * E, 0.2);
      const Cuda::Matrix uploaded = matrix(adjustments, E);
      Cuda::Matrix logits = b().allocate(n, E);
      b().route(x, router, uploaded, rule, {}, logits);
      Routes expected;
      route(values_of(logits, n), rule, adjustments, expected);
      const Routes& got = b().routes();
      EXPECT_EQ(got.rows, expected.rows) << E << " " << kind;
      EXPECT_EQ(got.slots, expected.slots) << E << " " << kind;
      for (size_t i = 0; i < got.shares.size(); ++i)
        ASSERT_NEAR(got.shares[i], expected.shares[i], std::abs(expected.shares[i]) * 0x1p-22) << E << " " << kind;
    }
}

TEST_F(CudaExperts, EqualLogitsAndNoNumbersAreChosenAsTheHostChooses) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> rows = {0, -0.0f, 0, 0, 3, nan, 3, 3, nan, nan, nan, -1, -inf, inf, nan, 2};
  b().reserve(16, 4, 256);
  begin(4, RowKind::output);
  // The router's first column gives the logits themselves, as the row is 1, 0, 0, 0. A NaN would make all products of
  // a row NaN, so each row of logits is a router of its own.
  for (int row = 0; row < 4; ++row) {
    const std::vector<float> logits(rows.begin() + row * 4, rows.begin() + row * 4 + 4);
    OwnedTensor t = OwnedTensor::allocate(DType::f32, {4, 4});
    for (size_t e = 0; e < 4; ++e)
      for (size_t c = 0; c < 4; ++c) t.as<float>()[e * 4 + c] = c == 0 ? logits[e] : 0;
    const Cuda::Linear router = b().pack(make_dense(std::move(t)));
    begin(1, RowKind::output);
    const Cuda::Matrix x = matrix({1, 0, 0, 0}, 4);
    Cuda::Matrix to = b().allocate(1, 4);
    b().route(x, router, {}, {4, 2, true}, {}, to);
    Routes expected;
    route(logits, {4, 2, true}, {}, expected);
    ASSERT_EQ(b().routes().groups.size(), expected.groups.size()) << row;
    for (size_t i = 0; i < expected.groups.size(); ++i)
      EXPECT_EQ(b().routes().groups[i].expert, expected.groups[i].expert) << row;
  }
}

// x += the experts' outputs must have the same bits when slots need no host, when the host groups them, when rows
// pass one at a time, and when the step is recorded.
TEST_F(CudaExperts, GiveARowTheSameBitsInEveryWay) {
  struct Case {
    const char *gate, *up, *down;
    int64_t d, f;
  };
  const Case cases[] = {{"int4g64zs8", "int4g64zs8", "int4g64zs8", 512, 256},
                        {"int8g128z", "int4g64", "lut4g64", 520, 200},
                        {"lut3g32", "lut3g32", "int5g32zs8", 96, 88},
                        {"int6g64zs8", "int6g64zs8", "int2g64z", 1024, 768}};
  for (const Case& c : cases)
    for (const int high_bits : {0, 4}) {
      constexpr int E = 9, k = 3;
      constexpr int64_t n = 6;
      std::vector<Cuda::Linear> gates, ups, downs;
      for (int e = 0; e < E; ++e) {
        gates.push_back(coded(c.gate, c.f, c.d));
        ups.push_back(coded(c.up, c.f, c.d));
        downs.push_back(coded(c.down, c.d, c.f));
      }
      const auto together = [&](const std::vector<Cuda::Linear>& of) {
        std::vector<const Cuda::Linear*> pointers;
        for (const Cuda::Linear& w : of) pointers.push_back(&w);
        return b().experts(pointers);
      };
      const Cuda::Experts gate = together(gates), up = together(ups), down = together(downs);
      EXPECT_TRUE(gate.alone && up.alone && down.alone);
      const Cuda::Linear router = dense(E, c.d);
      const std::vector<float> values = normals(n * c.d, 1);
      b().reserve(n * k, std::max(c.d, c.f), 256);
      Cuda::Matrix logits = b().allocate(n, E), g = b().allocate(n * k, c.f), u = b().allocate(n * k, c.f),
                   y = b().allocate(n * k, c.d);
      const auto pass = [&](const Cuda::Matrix& x, bool alone) {
        const Cuda::Experts* const next[] = {&gate, &up, &down};
        b().route(x, router, {}, {E, k, true}, std::span(next).first(alone ? 3 : 0), logits);
        const auto in = b().routed(x);
        const RoutedProduct<Cuda::Experts, Cuda::Matrix> gate_up[] = {{&gate, &g}, {&up, &u}}, last[] = {{&down, &y}};
        b().linear_routed(in, gate_up);
        b().linear_routed(b().gated(g, u, Gate::silu, in.rows), last);
      };
      const auto all = [&](int64_t first, int64_t rows, bool alone, bool recorded) {
        Batch batch;
        const std::vector<int32_t> ids(static_cast<size_t>(rows)), pages = {0};
        batch.append(ids, 0, pages, 1, RowKind::output);
        const std::vector<float> own(values.begin() + first * c.d, values.begin() + (first + rows) * c.d);
        const Cuda::Matrix x = matrix(own, c.d);
        Cuda::Matrix sum = matrix(own, c.d);
        static uint64_t step = 0;
        ++step;
        for (int round = 0; round < (recorded ? 3 : 1); ++round) {
          b().upload(own, sum);
          b().begin(batch, {Activations::a16, high_bits}, kShape);
          const auto work = [&] {
            pass(x, alone);
            b().add_routed(y, sum);
          };
          if (recorded)
            b().repeat(step, work);
          else
            work();
        }
        return values_of(sum, rows);
      };
      const std::vector<float> grouped = all(0, n, false, false);
      EXPECT_EQ(all(0, n, true, false), grouped) << c.gate << " alone";
      EXPECT_EQ(all(0, n, true, true), grouped) << c.gate << " recorded";
      for (int64_t row = 0; row < n; ++row) {
        const std::vector<float> want(grouped.begin() + row * c.d, grouped.begin() + (row + 1) * c.d);
        EXPECT_EQ(all(row, 1, true, true), want) << c.gate << " row " << row;
        EXPECT_EQ(all(row, 1, false, false), want) << c.gate << " row " << row;
      }
    }
}

// A row of a prompt must get the same bits when all groups are tiles of one launch, when each group is multiplied by
// itself, and wherever the prompt is cut.
TEST_F(CudaExperts, GiveAPromptsRowTheSameBitsInEveryWay) {
  constexpr int E = 5, k = 2;
  constexpr int64_t n = 300, d = 384, f = 200;
  for (const char* format : {"int4g64zs8", "lut3g32", "int6g128z"}) {
    std::vector<Cuda::Linear> weights[3];
    Cuda::Experts experts[3];
    for (int i = 0; i < 3; ++i) {
      std::vector<const Cuda::Linear*> pointers;
      for (int e = 0; e < E; ++e) weights[i].push_back(i < 2 ? coded(format, f, d) : coded("int5g64", d, f));
      for (const Cuda::Linear& w : weights[i]) pointers.push_back(&w);
      experts[i] = b().experts(pointers);
    }
    const Cuda::Linear router = dense(E, d);
    const std::vector<float> values = normals(n * d, 1);
    b().reserve(n * k, d, 512);
    Cuda::Matrix logits = b().allocate(n, E), g = b().allocate(n * k, f), u = b().allocate(n * k, f),
                 y = b().allocate(n * k, d);
    const auto all = [&](int64_t first, int64_t rows, bool alone) {
      begin(rows, RowKind::prompt);
      const std::vector<float> own(values.begin() + first * d, values.begin() + (first + rows) * d);
      const Cuda::Matrix x = matrix(own, d);
      Cuda::Matrix sum = matrix(own, d);
      const Cuda::Experts* const next[] = {&experts[0], &experts[1], &experts[2]};
      b().route(x, router, {}, {E, k, false}, std::span(next).first(alone ? 3 : 0), logits);
      const auto in = b().routed(x);
      const RoutedProduct<Cuda::Experts, Cuda::Matrix> gate_up[] = {{&experts[0], &g}, {&experts[1], &u}},
                                                       last[] = {{&experts[2], &y}};
      b().linear_routed(in, gate_up);
      b().linear_routed(b().gated(g, u, Gate::silu, in.rows), last);
      b().add_routed(y, sum);
      return values_of(sum, rows);
    };
    const std::vector<float> whole = all(0, n, false);
    EXPECT_EQ(all(0, n, true), whole) << format << " dealt out on the device";
    std::vector<float> pieces;
    int64_t at = 0;
    for (const int64_t rows : {1, 130, 7, 162}) {
      const std::vector<float> part = all(at, rows, true);
      pieces.insert(pieces.end(), part.begin(), part.end());
      at += rows;
    }
    EXPECT_EQ(pieces, whole) << format;
    for (Cuda::Experts& of : experts) of.many = false;
    EXPECT_EQ(all(0, n, true), whole) << format << " by groups";
  }
}

// Experts of different formats must be grouped by the host. Each row must be the sum of its experts' own products
// times their shares, to within k + 1 roundings of the terms.
TEST_F(CudaExperts, OfAnyFormatAreSummedUnderTheirShares) {
  constexpr int E = 6, k = 2;
  constexpr int64_t n = 11, d = 256, f = 128;
  const char* formats[] = {"int4g64zs8", "bf16", "f32", "lut4g64", "int8g128z", "vq8k16s8"};
  std::vector<Cuda::Linear> downs;
  for (const char* format : formats) {
    const FormatSpec spec = parse_format(format);
    if (spec.kind == Kind::integer || spec.kind == Kind::grid) {
      downs.push_back(coded(format, d, f));
      continue;
    }
    OwnedTensor t = OwnedTensor::allocate(spec.kind == Kind::bf16 ? DType::bf16 : DType::f32, {d, f});
    const std::vector<float> values = normals(d * f, 0.1);
    for (size_t i = 0; i < values.size(); ++i)
      if (spec.kind == Kind::bf16)
        t.as<bf16>()[i] = to_bf16(values[i]);
      else
        t.as<float>()[i] = values[i];
    downs.push_back(b().pack(make_dense(std::move(t))));
  }
  std::vector<const Cuda::Linear*> pointers;
  for (const Cuda::Linear& w : downs) pointers.push_back(&w);
  const Cuda::Experts down = b().experts(pointers);
  EXPECT_FALSE(down.alone);
  for (const RowKind kind : {RowKind::output, RowKind::prompt}) {
    b().reserve(n * k, d, 256);
    begin(n, kind);
    const std::vector<float> values = normals(n * f, 1);
    const Cuda::Matrix x = matrix(values, f);
    const Cuda::Linear router = dense(E, f);
    Cuda::Matrix logits = b().allocate(n, E), y = b().allocate(n * k, d),
                 sum = matrix(std::vector<float>(n * d, 1.0f), d);
    const Cuda::Experts* const next[] = {&down};
    b().route(x, router, {}, {E, k, false}, next, logits);
    const Routes routes = b().routes();
    const RoutedProduct<Cuda::Experts, Cuda::Matrix> product[] = {{&down, &y}};
    b().linear_routed(b().routed(x), product);
    b().add_routed(y, sum);
    const std::vector<float> got = values_of(sum, n);
    std::vector<double> want(n * d, 1.0), size(want);
    Cuda::Matrix one = b().allocate(1, d);
    for (const ExpertRows& group : routes.groups)
      for (int64_t slot = group.first_slot; slot < group.first_slot + group.slots; ++slot) {
        const int64_t row = routes.rows[static_cast<size_t>(slot)];
        begin(1, kind);
        const Cuda::Matrix own = matrix({values.begin() + row * f, values.begin() + (row + 1) * f}, f);
        const std::pair<const Cuda::Linear*, Cuda::Matrix*> output[] = {
            {pointers[static_cast<size_t>(group.expert)], &one}};
        b().linear(b().input(own), output);
        const std::vector<float> part = values_of(one, 1);
        for (int64_t i = 0; i < d; ++i) {
          const double term = double{routes.shares[static_cast<size_t>(slot)]} * part[static_cast<size_t>(i)];
          want[static_cast<size_t>(row * d + i)] += term, size[static_cast<size_t>(row * d + i)] += std::abs(term);
        }
      }
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], (k + 1) * 0x1p-24 * size[i]) << i;
  }
}

}  // namespace
}  // namespace fidelio
