// Decoding with low-bit weights on a GPU: a step of one row, whose products make each other's input, gives the bits
// that the same row has in a step of two, where every operation is a kernel of its own. Without a GPU skipped by name.
#include <gtest/gtest.h>
#include <numeric>

#include "core/rng.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/test_device.h"
#include "runtime/forward/forward.h"

namespace fidelio {
namespace {

struct Plan {
  std::string name;
  int d, f, h, hk, e;
  std::string qkv, o, gate, up, down;
  KvFormat kv = KvFormat::f16;
  int high_bits = 0;
};
void PrintTo(const Plan& plan, std::ostream* out) { *out << plan.name; }

LinearWeight random_weight(const std::string& format, int64_t out, int64_t in, bool bias, Rng& rng) {
  const FormatSpec spec = parse_format(format);
  LinearWeight w =
      spec.is_dense() ? make_dense(OwnedTensor::allocate(DType::bf16, {out, in})) : allocate_weight(spec, out, in);
  const auto uniform = [&] { return static_cast<float>(rng.next() % 2048) / 1024 - 1; };  // [-1, 1)
  for (const StoredTensor& t : stored_tensors(w)) {
    if (t.tensor.dtype == DType::f16)
      for (f16& v : t.tensor.as<f16>()) v = to_f16(0.02f + 0.01f * uniform());
    else if (t.tensor.dtype == DType::f32)
      for (float& v : t.tensor.as<float>()) v = 1e-4f * (2 + uniform());
    else if (t.tensor.dtype == DType::bf16)
      for (bf16& v : t.tensor.as<bf16>()) v = to_bf16(0.05f * uniform());
    else
      for (int64_t i = 0; i < t.tensor.bytes(); ++i) t.tensor.data[i] = static_cast<std::byte>(rng.next());
  }
  if (bias) {
    w.bias = OwnedTensor::allocate(DType::f32, {out});
    for (float& v : w.bias.view.as<float>()) v = 0.1f * uniform();
  }
  return w;
}

class CudaDecodeTest : public ::testing::TestWithParam<Plan> {
 protected:
  static constexpr int kLayers = 3, kV = 300, kPages = 2;
  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
    backend_ = std::make_unique<Cuda>(Cuda::Options{});
    Cuda& b = *backend_;
    const Plan& p = GetParam();
    Rng rng(7);
    const auto linear = [&](const std::string& format, int64_t out, int64_t in, bool bias = false) {
      return std::make_shared<const Cuda::Linear>(b.pack(random_weight(format, out, in, bias, rng)));
    };
    const auto norm = [&] {
      Cuda::Matrix m = b.allocate(1, p.d);
      std::vector<float> values(static_cast<size_t>(p.d));
      for (float& v : values) v = 0.5f + static_cast<float>(rng.next() % 1024) / 1024;
      b.upload(values, m);
      return m;
    };
    model_.attention = {std::vector<LayerAttention>(kLayers),
                        {{std::vector<float>(static_cast<size_t>(p.e / 2), 0.3f), 1.0f}},
                        p.h,
                        p.hk,
                        p.e,
                        1e-5f};
    model_.scalars.eps = 1e-5f;
    const int64_t q = int64_t{p.h} * p.e, k = int64_t{p.hk} * p.e;
    for (int i = 0; i < kLayers; ++i)
      model_.layers.push_back({linear(p.qkv, q, p.d, true),
                               linear(p.qkv, k, p.d, true),
                               linear(p.qkv, k, p.d, true),
                               linear(p.o, p.d, q),
                               linear(p.gate, p.f, p.d),
                               linear(p.up, p.f, p.d),
                               linear(p.down, p.d, p.f),
                               norm(),
                               norm(),
                               {},
                               {},
                               {},
                               {}});
    model_.embedding = model_.head = linear("bf16", kV, p.d);
    model_.final_norm = norm();
    const int64_t n = 2;
    w_ = {b.allocate(n, p.d),
          b.allocate(n, q),
          b.allocate(n, k),
          b.allocate(n, k),
          b.allocate(n, p.f),
          b.allocate(n, p.f),
          {},
          b.allocate(n, kV)};
    cache_ = b.allocate_cache(model_.attention, 3 * kPages, p.kv);
    b.reserve(n, std::max(p.d, p.f), kPages * kPageTokens);
  }
  // Row i is sequence_of[i]'s token at `position`.
  std::vector<float> step(const std::vector<int>& ids, const std::vector<int>& sequences, int position) {
    Cuda& b = *backend_;
    Batch batch;
    const int n = static_cast<int>(ids.size());
    std::vector<int32_t> own(static_cast<size_t>(kPages));
    for (size_t i = 0; i < ids.size(); ++i) {
      std::iota(own.begin(), own.end(), sequences[i] * kPages);
      batch.append({&ids[i], 1}, position, own, 1, RowKind::output);
    }
    b.begin(batch, {Activations::a16, GetParam().high_bits}, model_.attention);
    b.repeat(0, [&] {
      b.embed(*model_.embedding, w_.x, 1);
      for (int i = 0; i < kLayers; ++i) forward_layer(b, model_, i, w_, cache_);
      const std::pair<const Cuda::Linear*, Cuda::Matrix*> head[] = {{model_.head.get(), &w_.logits}};
      b.linear(b.norm_logit_rows(w_.x, model_.final_norm, 1e-5f, 0, n), head);
    });
    std::vector<float> logits(static_cast<size_t>(n * kV));
    b.download(w_.logits, 0, n, logits);
    return logits;
  }
  std::unique_ptr<Cuda> backend_;
  Model<Cuda> model_;
  Workspace<Cuda> w_;
  Cuda::KvCache cache_;
};

// The first step of a shape runs as it is, the second is recorded, others replay it.
TEST_P(CudaDecodeTest, ARowAloneEqualsItAmongTwoBitForBit) {
  for (int position = 0; position < 40; ++position) {
    const int id = position * 37 % kV, other = position * 11 % kV;
    const std::vector<float> alone = step({id}, {0}, position), two = step({id, other}, {1, 2}, position);
    for (size_t i = 0; i < static_cast<size_t>(kV); ++i) {
      ASSERT_TRUE(std::isfinite(alone[i])) << "position " << position << " logit " << i;
      ASSERT_EQ(alone[i], two[i]) << "position " << position << " logit " << i;
    }
    ASSERT_NE(alone[0], alone[1]);
  }
}

std::vector<Plan> plans() {
  std::vector<Plan> all;
  const auto uniform = [&](const std::string& format, int d, int f, int h, int hk, int e) {
    all.push_back({format + " " + std::to_string(d), d, f, h, hk, e, format, format, format, format, format});
  };
  for (int bits = 2; bits <= 8; ++bits) uniform("int" + std::to_string(bits) + "g128z", 256, 384, 4, 2, 64);
  uniform("int4g64zs8", 384, 1280, 6, 2, 64);
  uniform("int6g64s8", 512, 256, 4, 1, 128);
  uniform("int3g32z", 1152, 640, 9, 3, 128);
  uniform("int4g64z", 320, 448, 5, 1, 64);  // no whole blocks of outputs
  for (const char* grid : {"lut4g64", "lut5g64", "lut6g64"}) uniform(grid, 256, 384, 4, 2, 64);
  uniform("bf16", 256, 384, 4, 2, 64);
  all.push_back(
      {"mixed widths", 256, 640, 4, 2, 64, "int5g64zs8", "int8g64zs8", "int3g64zs8", "int3g64zs8", "int6g64zs8"});
  all.push_back(
      {"gate not as up", 256, 384, 4, 2, 64, "int4g128z", "int4g128z", "int4g128z", "int5g128z", "int4g128z"});
  all.push_back({"grids between", 256, 384, 4, 2, 64, "lut6g64", "int4g128z", "int4g128z", "int4g128z", "lut3g64"});
  all.push_back({"dense between", 256, 384, 4, 2, 64, "int4g128z", "bf16", "int4g128z", "int4g128z", "bf16"});
  all.push_back(
      {"i8 cache", 256, 384, 4, 2, 64, "int4g128z", "int4g128z", "int4g128z", "int4g128z", "int4g128z", KvFormat::i8});
  for (const char* format : {"int8g64zs8", "int7g128z", "int6g32z", "int5g64zs8"})
    all.push_back({std::string("view of ") + format, 384, 1280, 6, 2, 64, format, format, format, format, format,
                   KvFormat::f16, 4});
  all.push_back({"views beside what is whole", 256, 640, 4, 2, 64, "int8g64zs8", "int4g64zs8", "int6g64zs8",
                 "int6g64zs8", "int3g64zs8", KvFormat::f16, 4});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Plans, CudaDecodeTest, ::testing::ValuesIn(plans()));

}  // namespace
}  // namespace fidelio
