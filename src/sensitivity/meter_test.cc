#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "eval/fidelity/fidelity.h"
#include "runtime/noise.h"
#include "sensitivity/candidates.h"
#include "sensitivity/meter.h"
#include "sensitivity/sensitivity_fixture.h"

namespace fidelio {
namespace {

// Returns KL and 1 - EAR between two runners from whole forward passes, without writing any stream.
MeterResult from_scratch(Runner& reference, Runner& candidate, const std::vector<std::vector<int32_t>>& sequences) {
  MeterResult result;
  int64_t total = 0;
  RowComparer comparer;
  for (const auto& ids : sequences) {
    Batch batch = pack_batches({ids}, reference.options().max_rows, reference.cache_pages()).front().batch;
    for (int32_t row = 0; row + 1 < static_cast<int32_t>(ids.size()); ++row) batch.logit_rows.push_back(row);
    const auto logits = [&](Runner& runner) {
      std::vector<float> all;
      runner.begin(batch, Activations::f32);
      runner.embed();
      runner.layers(0, runner.config().L);
      const auto rows = static_cast<int64_t>(batch.logit_rows.size());
      for (int64_t first = 0; first < rows; first += 16) {
        const std::span<const float> part = runner.logits(first, std::min<int64_t>(16, rows - first));
        all.insert(all.end(), part.begin(), part.end());
      }
      return all;
    };
    const std::vector<float> p = logits(reference), q = logits(candidate);
    const auto v = static_cast<size_t>(reference.config().v);
    double kl = 0, loss = 0;
    for (size_t row = 0; row < batch.logit_rows.size(); ++row) {
      const PositionFidelity f = comparer.compare(std::span(p).subspan(row * v, v), std::span(q).subspan(row * v, v));
      kl += f.kl;
      loss += 1 - f.ear;
    }
    const auto n = static_cast<double>(batch.logit_rows.size());
    result.kl += kl;
    result.loss += loss;
    result.sequence_kl.push_back(kl / n);
    result.sequence_loss.push_back(loss / n);
    total += static_cast<int64_t>(batch.logit_rows.size());
  }
  result.kl /= static_cast<double>(total);
  result.loss /= static_cast<double>(total);
  return result;
}

void expect_same_bits(const MeterResult& a, const MeterResult& b) {
  EXPECT_EQ(a.kl, b.kl);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.sequence_kl, b.sequence_kl);
  EXPECT_EQ(a.sequence_loss, b.sequence_loss);
}

// Weights change in any order, and some changes are committed and some undone. Every measurement equals that of a
// runner that kept nothing.
TEST(FidelityMeter, PrefixReuseIsFullRecomputationBitForBit) {
  for (const char* name : {"llama2", "qwen2", "qwen3"}) {
    Tiny tiny(name);
    const auto reference = tiny.make(), candidate = tiny.make();
    FidelityMeter meter(*tiny.runner, tiny.sequences, tiny.pool);
    const std::vector<LinearId> all = linears_of(tiny.checkpoint.config());
    Rng rng(11);
    for (int step = 0; step < 25; ++step) {
      const LinearId id = all[rng.below(all.size())];
      if (rng.below(4) == 0) {
        meter.restore(id);
        candidate->set_linear(id, reference->linear(id));
      } else {
        const PackedLinear weight = tiny.rounded(id, rng.below(2) == 0 ? "int3g32z" : "int5g32");
        meter.assign(id, weight);
        candidate->set_linear(id, weight);
      }
      if (rng.below(3) == 0) continue;  // several changes are made at once
      const MeterResult found = meter.measure();
      expect_same_bits(found, from_scratch(*reference, *candidate, tiny.sequences));
      if (rng.below(2) == 0) meter.commit();
    }
  }
}

TEST(FidelityMeter, TheSameWeightsHaveNoDistance) {
  Tiny tiny("llama32");
  FidelityMeter meter(*tiny.runner, tiny.sequences, tiny.pool);
  for (LinearId id : linears_of(tiny.checkpoint.config()))
    meter.assign(id, tiny.runner->pack(tiny.checkpoint.linear(id)));
  const MeterResult same = meter.measure();
  EXPECT_EQ(same.kl, 0);
  EXPECT_EQ(same.loss, 0);
  EXPECT_EQ(same.sequence_kl, std::vector<double>(5, 0.0));
  meter.assign({1, Role::down}, tiny.rounded({1, Role::down}, "int2g32z"));
  EXPECT_GT(meter.measure().kl, 0);
}

TEST(Groups, FusedSingleAndWithoutEmbedding) {
  ModelConfig config;
  config.L = 2;
  config.tie_embeddings = true;
  const auto names = [&](Grouping grouping, bool with_embedding) {
    std::vector<std::string> list;
    for (const LinearGroup& g : groups_of(config, grouping, with_embedding))
      list.push_back(g.name + ":" + std::to_string(g.linears.size()));
    return list;
  };
  const std::vector<std::string> fused = {"layers.0.qkv:3", "layers.0.o:1", "layers.0.gate_up:2", "layers.0.down:1",
                                          "layers.1.qkv:3", "layers.1.o:1", "layers.1.gate_up:2", "layers.1.down:1"};
  EXPECT_EQ(names(Grouping::fused, false), fused);
  EXPECT_EQ(names(Grouping::fused, true).front(), "embedding:1");
  EXPECT_EQ(names(Grouping::fused, true).size(), 9u);
  const auto single = names(Grouping::single, false);
  EXPECT_EQ(single.size(), 14u);
  EXPECT_EQ(single[1], "layers.0.k:1");
  config.tie_embeddings = false;
  EXPECT_EQ(names(Grouping::fused, true)[1], "head:1");
  // Every linear occurs once.
  std::map<LinearId, int> seen;
  for (const LinearGroup& g : groups_of(config, Grouping::fused, true))
    for (LinearId id : g.linears) ++seen[id];
  EXPECT_EQ(seen.size(), linears_of(config).size());
}

TEST(Groups, ExpertsOfALayerShareAFormatByStopOrWhole) {
  ModelConfig config;
  config.L = 2;
  config.experts = 3;
  config.tie_embeddings = true;
  const auto names = [&](bool whole) {
    std::vector<std::string> list;
    for (const LinearGroup& g : groups_of(config, Grouping::fused, false, whole))
      list.push_back(g.name + ":" + std::to_string(g.linears.size()));
    return list;
  };
  EXPECT_EQ(names(false),
            (std::vector<std::string>{"layers.0.qkv:3", "layers.0.o:1", "layers.0.gate_up:6", "layers.0.down:3",
                                      "layers.1.qkv:3", "layers.1.o:1", "layers.1.gate_up:6", "layers.1.down:3"}));
  EXPECT_EQ(names(true), (std::vector<std::string>{"layers.0.qkv:3", "layers.0.o:1", "layers.0.experts:9",
                                                   "layers.1.qkv:3", "layers.1.o:1", "layers.1.experts:9"}));
}

// The relative noise power ||N||^2 / ||W||^2 is sigma^2 up to the spread of a mean of n squares. Its relative
// variance is 2/n for Gaussian noise and 0.8/n for uniform noise. Here n is 96 * 96 or more, and the tolerance is
// five standard errors.
TEST(Noise, HasTheRelativePowerAskedFor) {
  Rng rng(9);
  OwnedTensor w = OwnedTensor::allocate(DType::f32, {96, 96});
  for (float& x : w.as<float>()) x = static_cast<float>(0.1 + rng.normal());
  const LinearWeight weight = make_dense(std::move(w));
  const std::vector<float> before = decode(weight);
  for (bool uniform : {false, true}) {
    const std::vector<float> after = decode(noisy_weight(weight, 0.125, 42, uniform));
    double noise = 0, energy = 0, largest = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      const double n = double{after[i]} - before[i];
      noise += n * n;
      energy += double{before[i]} * before[i];
      largest = std::max(largest, std::abs(n));
    }
    EXPECT_NEAR(noise / energy / (0.125 * 0.125), 1, 5 * std::sqrt(2.0 / 9216));
    // Uniform noise ends at sqrt(3) sigma, while some of 9216 Gaussian values lie beyond three sigma.
    const double sigma = 0.125 * std::sqrt(energy / 9216);
    EXPECT_EQ(uniform, largest < 1.74 * sigma);
  }
}

}  // namespace
}  // namespace fidelio
