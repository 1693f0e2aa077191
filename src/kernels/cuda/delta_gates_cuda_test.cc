// These tests hold the gates of delta nets, of attention and of shared experts on the GPU to kernels/ref, and the
// products around them to the laws of backend.h. Without a GPU they are skipped.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/rng.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/delta_fixture.h"
#include "kernels/ref/ref.h"

namespace fidelio {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

const AttentionShape kShape{{{}}, {{Floats(32, 0.0f), 1.0f}}, 4, 2, 64, 1e-5f};

Floats rows_of(const Floats& values, int64_t first, int64_t count, int64_t columns) {
  return {values.begin() + first * columns, values.begin() + (first + count) * columns};
}

class CudaDeltaGates : public CudaDeltaFixture {
 protected:
  CudaDeltaGates() : CudaDeltaFixture(128) {}
  using CudaDeltaFixture::values_of;

  // Begins a step of `n` rows of one sequence.
  void begin(int n, RowKind kind = RowKind::output, Activations mode = Activations::a16) {
    Batch batch;
    const std::vector<int32_t> ids(static_cast<size_t>(n), 0), pages = {0, 1, 2};
    batch.append(ids, 0, pages, 0, kind);
    b().begin(batch, mode, kShape);
  }
  Floats values_of(const Cuda::Acts& acts) {
    Floats values(static_cast<size_t>(acts.rows * acts.columns));
    b().read(acts, values);
    return values;
  }
};

// There are about twenty roundings in each value, those of the exponentials included.
TEST_F(CudaDeltaGates, GatesAgreeWithTheReference) {
  Rng rng(6);
  const int n = 5;
  const auto expect_near = [](const Floats& got, const Doubles& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], std::abs(want[i]) * 4e-6 + 1e-9) << "value " << i;
  };
  const auto doubles = [](const Floats& values) { return Doubles(values.begin(), values.end()); };
  for (const int e : {8, 10, 96, 128, 256}) {
    const int heads = 6, d = heads * e;
    const Floats x = normals(rng, n * d, 3), gate = normals(rng, n * d, 3), weight = normals(rng, e);
    const Cuda::Matrix mx = matrix(x, d), mg = matrix(gate, d), mw = matrix(weight, e);
    const Doubles normed = ref::rmsnorm(doubles(x), doubles(weight), 1e-6f, n * heads, e);
    for (const Gate function : {Gate::silu, Gate::sigmoid}) {
      begin(n);
      const Floats got = values_of(b().gated_norm(mx, mg, mw, 1e-6f, function));
      expect_near(got, ref::gated(function, doubles(gate), normed));
      const Cuda::Matrix last = matrix(rows_of(x, n - 1, 1, d), d), last_gate = matrix(rows_of(gate, n - 1, 1, d), d);
      begin(1);
      EXPECT_EQ(values_of(b().gated_norm(last, last_gate, mw, 1e-6f, function)), rows_of(got, n - 1, 1, d));
    }
    begin(n);
    expect_near(values_of(b().gate_heads(b().input(mx), mg)), ref::gated(Gate::sigmoid, doubles(gate), doubles(x)));
    // A norm of prompt rows is not launched before somebody reads it.
    const Cuda::Matrix wide = matrix(normals(rng, d), d);
    begin(n, RowKind::prompt);
    const Floats values = values_of(b().norm(mx, wide, 1e-5f));
    expect_near(values_of(b().gate_heads(b().norm(mx, wide, 1e-5f), mg)),
                ref::gated(Gate::sigmoid, doubles(gate), doubles(values)));
  }
  const int width = kShape.heads * kShape.head_dim;
  const Floats both = normals(rng, n * 2 * width);
  Cuda::Matrix q = b().allocate(n, width), gate = b().allocate(n, width);
  begin(n);
  b().split_gate(matrix(both, 2 * width), q, gate);
  const Floats got_q = values_of(q, n), got_gate = values_of(gate, n);
  for (int i = 0; i < n * width; ++i) {
    const int e = kShape.head_dim, from = i / e * 2 * e + i % e;
    ASSERT_EQ(got_q[static_cast<size_t>(i)], both[static_cast<size_t>(from)]);
    ASSERT_EQ(got_gate[static_cast<size_t>(i)], both[static_cast<size_t>(from + e)]);
  }
  const Floats y = normals(rng, n * 37), share = normals(rng, n), x = normals(rng, n * 37);
  Cuda::Matrix sum = matrix(x, 37);
  begin(n);
  b().add_shared(matrix(y, 37), matrix(share, 1), sum);
  const Floats got = values_of(sum, n);
  for (size_t i = 0; i < got.size(); ++i) {
    const double added = y[i] / (1 + std::exp(-double{share[i / 37]}));
    ASSERT_NEAR(got[i], x[i] + added, 1e-6 * (std::abs(x[i]) + std::abs(added)));
  }
}

LinearWeight random_weight(const std::string& format, int64_t out, int64_t in, Rng& rng) {
  const FormatSpec spec = parse_format(format);
  if (spec.is_dense()) {
    LinearWeight w = make_dense(OwnedTensor::allocate(spec.kind == Kind::f32 ? DType::f32 : DType::bf16, {out, in}));
    for (const StoredTensor& t : stored_tensors(w)) {
      if (t.tensor.dtype == DType::f32)
        for (float& v : t.tensor.as<float>()) v = static_cast<float>(rng.normal());
      else
        for (bf16& v : t.tensor.as<bf16>()) v = to_bf16(static_cast<float>(rng.normal()));
    }
    return w;
  }
  LinearWeight w = allocate_weight(spec, out, in);
  for (const StoredTensor& t : stored_tensors(w)) {
    if (t.tensor.dtype == DType::u8)
      for (uint8_t& v : t.tensor.as<uint8_t>()) v = static_cast<uint8_t>(rng.below(256));
    else
      for (f16& v : t.tensor.as<f16>()) v = to_f16(static_cast<float>(0.005 + 0.01 * rng.uniform()));
  }
  return w;
}

// A gated norm and a gate on heads also prepare what a product reads. It must then have the bits of a product of the
// same values from outside.
TEST_F(CudaDeltaGates, GatesPrepareWhatIsMultiplied) {
  Rng rng(7);
  const int e = 128, d = 8 * e;
  for (const std::string format : {"int4g64z", "int8g128z", "bf16"}) {
    const Cuda::Linear w = b().pack(random_weight(format, 200, d, rng));
    for (const Activations mode : {Activations::a16, Activations::a8})
      for (const int n : {1, 3, 20}) {
        SCOPED_TRACE(testing::Message() << format << " " << name_of(mode) << " rows " << n);
        const Cuda::Matrix x = matrix(normals(rng, n * d), d), gate = matrix(normals(rng, n * d), d),
                           with = matrix(normals(rng, e), e);
        const auto product = [&](const std::function<Cuda::Acts()>& make) {
          begin(n, RowKind::output, mode);
          b().upcoming(std::array<const Cuda::Linear*, 1>{&w});
          Cuda::Matrix y = b().allocate(n, 200);
          const Cuda::Acts acts = make();
          b().linear(acts, std::array{std::pair<const Cuda::Linear*, Cuda::Matrix*>{&w, &y}});
          const Floats made = values_of(y, n);
          return std::pair(made, values_of(acts));
        };
        for (const auto& make :
             std::vector<std::function<Cuda::Acts()>>{[&] { return b().gated_norm(x, gate, with, 1e-6f, Gate::silu); },
                                                      [&] { return b().gate_heads(b().input(x), gate); }}) {
          const auto [y, values] = product(make);
          const Cuda::Matrix same = matrix(values, d);
          EXPECT_EQ(product([&] { return b().input(same); }).first, y);
        }
      }
  }
}

// The small linears of a delta net and of a shared expert may have any number of outputs. They are multiplied beside
// codes, in whichever order, and have the bits that they have alone. The tolerance is that of FP16 inputs, and of sums
// with at most as many roundings as there are inputs.
TEST_F(CudaDeltaGates, NarrowProductsHaveAnyNumberOfOutputs) {
  Rng rng(8);
  const int in = 1024, rows = 70;
  const Floats x = normals(rng, rows * in);
  const Cuda::Linear codes = b().pack(random_weight("int4g64z", 384, in, rng)),
                     more = b().pack(random_weight("int4g64z", 128, in, rng));
  for (const std::string format : {"bf16", "f32"})
    for (const int out : {1, 2, 3, 16, 17, 48, 64}) {
      const LinearWeight weight = random_weight(format, out, in, rng);
      const Cuda::Linear w = b().pack(weight), twin = b().pack(weight);
      const Floats decoded = decode(weight);
      for (const RowKind kind : {RowKind::output, RowKind::prompt})
        for (const int n : {1, 3, rows}) {
          SCOPED_TRACE(testing::Message()
                       << format << " " << out << " outputs, rows " << n << " kind " << static_cast<int>(kind));
          begin(n, kind);
          const Cuda::Matrix input = matrix(rows_of(x, 0, n, in), in);
          Cuda::Matrix y = b().allocate(n, out), y_twin = b().allocate(n, out), of_codes = b().allocate(n, 384),
                       of_more = b().allocate(n, 128), alone = b().allocate(n, out), codes_alone = b().allocate(n, 384);
          const std::pair<const Cuda::Linear*, Cuda::Matrix*> outputs[] = {{&codes, &of_codes},
                                                                           {&more, &of_more},
                                                                           {&w, &y},
                                                                           {&twin, &y_twin}},
                                                              one[] = {{&w, &alone}},
                                                              other[] = {{&codes, &codes_alone}};
          b().linear(b().input(input), outputs);
          b().linear(b().input(input), one);
          b().linear(b().input(input), other);
          const Floats got = values_of(y, n);
          EXPECT_EQ(values_of(y_twin, n), got);
          EXPECT_EQ(values_of(alone, n), got);
          EXPECT_EQ(values_of(codes_alone, n), values_of(of_codes, n));
          for (int m = 0; m < n; ++m)
            for (int o = 0; o < out; ++o) {
              double want = 0, size = 0;
              for (int i = 0; i < in; ++i) {
                const double term =
                    double{x[static_cast<size_t>(m * in + i)]} * decoded[static_cast<size_t>(o * in + i)];
                want += term, size += std::abs(term);
              }
              ASSERT_NEAR(got[static_cast<size_t>(m * out + o)], want, (0x1p-11 + in * 0x1p-23) * size)
                  << m << " " << o;
            }
          if (n > 1) {
            begin(1, kind);
            const Cuda::Matrix last = matrix(rows_of(x, n - 1, 1, in), in);
            Cuda::Matrix y_last = b().allocate(1, out);
            const std::pair<const Cuda::Linear*, Cuda::Matrix*> single[] = {{&w, &y_last}};
            b().linear(b().input(last), single);
            EXPECT_EQ(values_of(y_last, 1), rows_of(got, n - 1, 1, out));
          }
        }
    }
}

}  // namespace
}  // namespace fidelio
