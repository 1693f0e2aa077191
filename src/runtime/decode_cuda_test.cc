// These tests check decoding with low-bit weights on a GPU. In a step of one row products make each other's input. It
// must give the bits that the same row has in a step of two. There products of 2 and 3 bits are kernels of their own,
// and wider ones use the kernels for several rows. Without a GPU the tests are skipped.
#include <gtest/gtest.h>
#include <numeric>

#include "core/rng.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/test_device.h"
#include "runtime/execution/executor.h"

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
  const auto uniform = [&] { return static_cast<float>(rng.next() % 2048) / 1024 - 1; };  // in [-1, 1)
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
    config_.L = kLayers, config_.d = p.d, config_.f = p.f, config_.h = p.h, config_.hk = p.hk, config_.e = p.e;
    config_.v = kV, config_.rms_eps = 1e-5f, config_.tie_embeddings = true;
    config_.max_positions = kPages * kPageTokens;
    program_ = build_program(config_, config_.max_positions);
    weights_ = std::make_unique<Weights<Cuda>>(program_);
    for (const LinearId id : program_.linears) {
      const Shape shape = shape_of(config_, id);
      const bool bias = id.role == Role::q || id.role == Role::k || id.role == Role::v;
      (*weights_)[id] = linear(format_of(id.role), shape[0], shape[1], bias);
    }
    for (size_t i = 0; i < program_.norms.size(); ++i) {
      std::vector<float> values(static_cast<size_t>(p.d));
      for (float& v : values) v = 0.5f + static_cast<float>(rng.next() % 1024) / 1024;
      weights_->norms.push_back(b.allocate(1, p.d));
      b.upload(values, weights_->norms.back());
    }
    constexpr int64_t kRows = 2;
    allocate_values(b, program_, kRows, kRows, values_);
    cache_ = b.allocate_cache(program_.attention, 3 * kPages, p.kv);
    b.reserve(kRows, std::max({p.d, p.f, p.h * p.e}), config_.max_positions);
    executor_ = std::make_unique<Executor<Cuda>>(b, program_, *weights_, values_, cache_, states_);
    executor_->find_values();
  }
  const std::string& format_of(Role role) const {
    static const std::string kDense = "bf16";
    const Plan& p = GetParam();
    switch (role) {
      case Role::embedding:
        return kDense;
      case Role::o:
        return p.o;
      case Role::gate:
        return p.gate;
      case Role::up:
        return p.up;
      case Role::down:
        return p.down;
      default:
        return p.qkv;
    }
  }
  // Runs a step in which row i is the token ids[i] of sequence sequences[i] at `position`.
  std::vector<float> step(const std::vector<int>& ids, const std::vector<int>& sequences, int position) {
    Cuda& b = *backend_;
    Batch batch;
    const int n = static_cast<int>(ids.size());
    std::vector<int32_t> own(static_cast<size_t>(kPages));
    for (size_t i = 0; i < ids.size(); ++i) {
      std::iota(own.begin(), own.end(), sequences[i] * kPages);
      batch.append({&ids[i], 1}, position, own, 1, RowKind::output);
    }
    executor_->begin(n, false);
    b.begin(batch, {Activations::a16, GetParam().high_bits}, program_.attention);
    b.repeat(0, [&] {
      executor_->run(OpRange{0, program_.layers.back().last});
      executor_->run_head(0, n);
    });
    std::vector<float> logits(static_cast<size_t>(n * kV));
    b.download(executor_->matrix(program_.logits), 0, n, logits);
    return logits;
  }
  std::unique_ptr<Cuda> backend_;
  ModelConfig config_;
  Program program_;
  std::unique_ptr<Weights<Cuda>> weights_;
  ValueMemory<Cuda> values_;
  Cuda::KvCache cache_;
  Cuda::States states_;
  std::unique_ptr<Executor<Cuda>> executor_;
};

// The first step of a shape runs as it is, the second is recorded, and later ones replay it.
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
  uniform("int4g64z", 320, 448, 5, 1, 64);  // its outputs do not fill whole blocks
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
