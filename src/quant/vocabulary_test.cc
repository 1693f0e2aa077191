#include "quant/vocabulary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "quant/quantize_model.h"

namespace fidelio {
namespace {

struct Quill {
  Quill()
      : source(Checkpoint::open(FIDELIO_SOURCE_DIR "/models/quill-26m")),
        tokenizer(Tokenizer::load(source.folder())),
        pool(2),
        runner(make_cpu_runner(source, {.threads = 2,
                                        .isa = "",
                                        .kv = KvFormat::f32,
                                        .max_rows = 512,
                                        .max_logit_rows = 128,
                                        .cache_tokens = 1024,
                                        .mode = Activations::f32})) {}
  Dataset text(const char* file, int64_t tokens) const {
    return read_dataset({FIDELIO_SOURCE_DIR "/models/data/" + std::string(file)}, tokenizer, nullptr, {128, tokens});
  }

  Checkpoint source;
  Tokenizer tokenizer;
  ThreadPool pool;
  std::unique_ptr<Runner> runner;
};

std::vector<double> log_softmax(std::span<const float> z) {
  const float top = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (float x : z) sum += std::exp(double{x} - top);
  std::vector<double> log_p;
  for (float x : z) log_p.push_back(double{x} - top - std::log(sum));
  return log_p;
}

// Returns the mean KL, over all positions, between the model with this embedding and the model as it is.
double kl_of(Quill& quill, const LinearWeight& embedding, const Dataset& text) {
  const PackedLinear exact = quill.runner->linear({-1, Role::embedding}), changed = quill.runner->pack(embedding);
  double kl = 0;
  for (PackedBatch& packed : pack_batches(text.sequences, 128, quill.runner->cache_pages())) {
    for (int32_t i = 0; i < packed.batch.rows(); ++i) packed.batch.logit_rows.push_back(i);
    const auto logits = [&](const PackedLinear& weight) {
      quill.runner->set_linear({-1, Role::embedding}, weight);
      const auto found = quill.runner->step(packed.batch, Activations::f32);
      return std::vector<float>(found.begin(), found.end());
    };
    const std::vector<float> p = logits(exact), q = logits(changed);
    const auto v = static_cast<size_t>(quill.source.config().v);
    for (size_t at = 0; at < p.size(); at += v) {
      const auto lp = log_softmax(std::span(p).subspan(at, v)), lq = log_softmax(std::span(q).subspan(at, v));
      for (size_t k = 0; k < v; ++k) kl += std::exp(lp[k]) * (lp[k] - lq[k]);
    }
  }
  quill.runner->set_linear({-1, Role::embedding}, exact);
  return kl / static_cast<double>(text.tokens);
}

// Text is used that no quantiser has seen, and formats of three widths. A tied embedding that is quantised for both
// its roles must cost less than one rounded to nearest.
TEST(Vocabulary, ATiedEmbeddingQuantisedForBothRolesBeatsRounding) {
  Quill quill;
  ASSERT_TRUE(quill.source.config().tie_embeddings);
  const Dataset calibration = quill.text("docs-calibration.txt", 8192), unseen = quill.text("docs-heldout.txt", 1024);
  const LinearId embedding{-1, Role::embedding};
  ModelQuantizer how;
  how.sequential = false;
  how.formats[embedding] = {parse_format("int3g64zs8"), parse_format("int5g64zs8"), parse_format("lut4g64")};
  const PackedLinear before = quill.runner->linear(embedding);
  const LinearWeight original = quill.source.linear(embedding);
  int made = 0;
  quantize_model_gptq(*quill.runner, quill.source, calibration, how, quill.pool, [&](const QuantizedLinear& q) {
    const LinearWeight rounded =
        quantize_rtn(q.weight.spec, decode(original), original.out, original.in, {}, quill.pool);
    EXPECT_LT(kl_of(quill, q.weight, unseen), kl_of(quill, rounded, unseen)) << to_string(q.weight.spec);
    ++made;
  });
  EXPECT_EQ(made, 3);
  EXPECT_EQ(quill.runner->linear(embedding), before);
  EXPECT_EQ(quill.runner->linear({-1, Role::head}), before);
}

// A weight that stays in the source's format is passed on as it is, and nothing is computed for it.
TEST(Vocabulary, TheSourcesOwnFormatIsTheSourcesOwnWeight) {
  Quill quill;
  ModelQuantizer how;
  for (LinearId id : linears_of(quill.source.config())) how.formats[id] = {quill.source.format(id)};
  size_t made = 0;
  quantize_model_gptq(*quill.runner, quill.source, {}, how, quill.pool, [&](const QuantizedLinear& q) {
    EXPECT_EQ(decode(q.weight), decode(quill.source.linear(q.id)));
    ++made;
  });
  EXPECT_EQ(made, linears_of(quill.source.config()).size());
}

}  // namespace
}  // namespace fidelio
