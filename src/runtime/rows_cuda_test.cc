// These tests check row invariance on a GPU. The logits of a sequence must not depend on the other sequences in a
// batch, on where its prompt is cut, nor on how many tokens are verified at once. Without a GPU the tests are
// skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/rng.h"
#include "kernels/cpu/choice/choose.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/test_device.h"
#include "quant/quantize.h"
#include "runtime/page_table.h"
#include "runtime/runner.h"

namespace fidelio {
namespace {

struct Kind {
  const char* name;
  std::vector<const char*> formats;  // the formats of the linears, in turns; if empty, the checkpoint's own
  KvFormat kv = KvFormat::f16;
  Reading reading{};
};

class CudaRows : public ::testing::TestWithParam<Kind> {
 protected:
  static constexpr int64_t kMost = 700;  // the most rows of a prompt
  struct Sequence {
    std::vector<int32_t> ids;  // the prompt and the tokens fed after it
    int64_t prompt = 0, fed = 0;
    std::vector<float> logits;  // the logits of the prompt's last row and of all rows after it, computed alone
    int64_t number = 0;
  };

  void SetUp() override {
    if (const auto why = no_gpu()) GTEST_SKIP() << *why;
    const Checkpoint checkpoint = Checkpoint::open(FIDELIO_SOURCE_DIR "/models/quill-26m");
    RunnerOptions options;
    options.mode = GetParam().reading.activations;
    options.kv = GetParam().kv;
    options.max_rows = 1600;
    options.max_logit_rows = 600;
    options.cache_tokens = 66 * 1024;
    runner_ = make_cuda_runner(checkpoint, options);
    pages_ = std::make_unique<PageTable>(runner_->cache_pages());
    ThreadPool pool;
    size_t next = 0;
    for (LinearId id : linears_of(checkpoint.config())) {
      if (GetParam().formats.empty() || id.role == Role::embedding) continue;
      const LinearWeight weight = checkpoint.linear(id);
      const FormatSpec spec = parse_format(GetParam().formats[next++ % GetParam().formats.size()]);
      runner_->set_linear(id, runner_->pack(quantize_rtn(spec, decode(weight), weight.out, weight.in, {}, pool)));
    }
  }
  int64_t v() const { return runner_->config().v; }

  std::span<const int32_t> ids(const Sequence& s, int64_t count) const {
    return std::span(s.ids).subspan(static_cast<size_t>(s.fed), static_cast<size_t>(count));
  }
  // Runs the sequence alone: its prompt in one step, then token by token.
  void run_alone(Sequence& s) {
    ASSERT_TRUE(pages_->grow(s.number, static_cast<int64_t>(s.ids.size())));
    for (s.fed = 0; s.fed < static_cast<int64_t>(s.ids.size());) {
      const int64_t count = s.fed == 0 ? s.prompt : 1;
      Batch batch;
      batch.append(ids(s, count), s.fed, pages_->pages(s.number), 1, s.fed == 0 ? RowKind::prompt : RowKind::output);
      const auto logits = runner_->step(batch, GetParam().reading);
      s.logits.insert(s.logits.end(), logits.begin(), logits.end());
      s.fed += count;
    }
    pages_->release(s.number);
    s.fed = 0;
  }
  Sequence make(Rng& rng, int64_t number) {
    Sequence s;
    s.number = number;
    s.prompt = 1 + static_cast<int64_t>(rng.below(rng.below(3) == 0 ? kMost : 40));
    const auto size = static_cast<size_t>(s.prompt) + 1 + rng.below(40);
    for (size_t i = 0; i < size; ++i) s.ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(v()))));
    return s;
  }

  std::unique_ptr<Runner> runner_;
  std::unique_ptr<PageTable> pages_;
};

// Mixed is a batch of the next rows of some sequences in any order: a part of a prompt, or 1 to 9 tokens after it.
// For each row of logits `expected` has the sequence and the index of its logits there.
struct Mixed {
  Batch batch;
  std::vector<std::pair<size_t, int64_t>> expected;
};

TEST_P(CudaRows, MixedIsAloneAndChunkedIsWholeBitForBit) {
  constexpr size_t kSequences = 64;
  Rng rng(31);
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < kSequences; ++i) {
    sequences.push_back(make(rng, static_cast<int64_t>(i)));
    ASSERT_NO_FATAL_FAILURE(run_alone(sequences.back()));
  }
  for (int round = 0; round < 200; ++round) {
    const auto most_sequences = 1 + rng.below(kSequences);
    Mixed mixed;
    std::vector<size_t> order(kSequences);
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = 0; i + 1 < kSequences; ++i) std::swap(order[i], order[i + rng.below(kSequences - i)]);
    for (size_t i = 0; i < most_sequences; ++i) {
      Sequence& s = sequences[order[i]];
      const auto size = static_cast<int64_t>(s.ids.size());
      if (s.fed == size) pages_->release(s.number), s.fed = 0;  // the sequence starts again
      ASSERT_TRUE(pages_->grow(s.number, size));
      const bool is_prompt = s.fed < s.prompt;
      const int64_t left = is_prompt ? s.prompt - s.fed : size - s.fed;
      int64_t count =
          1 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(is_prompt ? left : std::min<int64_t>(9, left))));
      if (is_prompt && rng.below(3) == 0) count = left;
      if (mixed.batch.rows() + count > runner_->options().max_rows) continue;
      const int64_t wanted = !is_prompt ? count : count == left ? 1 : 0;
      mixed.batch.append(ids(s, count), s.fed, pages_->pages(s.number), wanted,
                         is_prompt ? RowKind::prompt : RowKind::output);
      s.fed += count;
      for (int64_t k = wanted; k > 0; --k) mixed.expected.emplace_back(order[i], s.fed - k - (s.prompt - 1));
    }
    const auto got = runner_->step(mixed.batch, GetParam().reading);
    const auto width = static_cast<size_t>(v());
    ASSERT_EQ(got.size(), mixed.expected.size() * width);
    for (size_t row = 0; row < mixed.expected.size(); ++row) {
      const auto& [which, number] = mixed.expected[row];
      const Sequence& s = sequences[which];
      const auto alone = std::span(s.logits).subspan(static_cast<size_t>(number) * width, width);
      ASSERT_TRUE(std::equal(alone.begin(), alone.end(), got.begin() + static_cast<std::ptrdiff_t>(row * width)))
          << "round " << round << ", " << mixed.batch.segments.size() << " segments, " << mixed.batch.rows()
          << " rows; a prompt of " << s.prompt << ", logits " << number;
    }
    if (round % 10 != 0) continue;
    // The same step runs again, with tokens chosen where the logits are.
    std::vector<ChoiceRule> rules(mixed.expected.size());
    for (ChoiceRule& rule : rules) {
      rule.greedy = rng.below(4) == 0;
      rule.scale = 2;
      rule.top_p = rng.below(2) == 0 ? 0.9 : 1;
      rule.random = rng.next();
    }
    const std::vector<float> logits(got.begin(), got.end());
    std::vector<Choice> choices(rules.size());
    runner_->step_and_choose(mixed.batch, GetParam().reading, rules, choices);
    cpu::Chooser chooser;
    for (size_t row = 0; row < rules.size(); ++row)
      ASSERT_EQ(choices[row].id, chooser.choose(std::span(logits).subspan(row * width, width), rules[row]).id);
  }
}

const Kind kKinds[] = {
    {"bf16", {}},
    {"int4g64zs8", {"int4g64zs8"}},
    {"int8g128z", {"int8g128z"}},
    {"lut4g64", {"lut4g64"}},
    {"mixed", {"int3g64zs8", "int8g64zs8", "int5g32z", "lut3g64", "int4g128", "lut5g64", "bf16", "lut6g64"}},
    {"int4_i8_cache", {"int4g128z"}, KvFormat::i8},
    {"int4_a8", {"int4g64zs8"}, KvFormat::f16, Activations::a8},
    {"integers_a8", {"int4g128z", "int8g128"}, KvFormat::f16, Activations::a8},
    {"mixed_aw",
     {"int3g64zs8", "int8g64zs8", "int5g32z", "lut3g64", "int4g128", "lut5g64", "bf16", "lut6g64"},
     KvFormat::f16,
     Activations::aw},
    {"views_a8", {"int8g64zs8", "int6g128z", "int3g64zs8"}, KvFormat::f16, {Activations::a8, 4}},
    {"views",
     {"int8g64zs8", "int6g128z", "int5g32z", "int7g64zs8", "int3g64zs8"},
     KvFormat::f16,
     {Activations::a16, 4}},
};
INSTANTIATE_TEST_SUITE_P(Kinds, CudaRows, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fidelio
