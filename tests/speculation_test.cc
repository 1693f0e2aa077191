// These tests check, over whole models on the CPU, the laws behind speculation and scheduling: mixed = alone, drafted
// and verified = decoded, speculative = plain, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "core/rng.h"
#include "core/thread_pool.h"
#include "engine/generate.h"
#include "models.h"
#include "quant/quantize_model.h"

namespace fidelio {
namespace {

using Ids = std::vector<int32_t>;

// These are every width that can be cut, and kinds that cannot, one after the other over a model's linears.
const std::vector<std::string> kDraftedFormats = {"int8g64zs8", "int6g32z", "int5g64",      "int3g64z",
                                                  "int7g32z",   "int8c",    "lut4g64",      "int4g64z",
                                                  "bf16",       "fp4g16",   "vq8k12s4+r2.2"};

Ids random_ids(Rng& rng, size_t count, int vocabulary) {
  Ids ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocabulary)));
  return ids;
}

std::unique_ptr<Runner> make_quantised(const Checkpoint& checkpoint, KvFormat kv, int threads, size_t first_format = 0,
                                       int64_t cache_tokens = 64 * kPageTokens) {
  auto runner = make_cpu_runner(
      checkpoint,
      {.threads = threads, .isa = {}, .kv = kv, .max_rows = 1300, .max_logit_rows = 256, .cache_tokens = cache_tokens});
  ThreadPool pool(1);
  size_t next = first_format;
  for (LinearId id : linears_of(checkpoint.config())) {
    const LinearWeight weight = checkpoint.linear(id);
    const FormatSpec spec = parse_format(kDraftedFormats[next++ % kDraftedFormats.size()]);
    LinearWeight q = quantize_rtn(spec, decode(weight), weight.out, weight.in, {}, pool);
    q.bias = weight.bias;
    runner->set_linear(id, runner->pack(q));
  }
  return runner;
}

std::vector<float> logits_of(Runner& runner, const Batch& batch, Reading reading) {
  const auto logits = runner.step(batch, reading);
  return {logits.begin(), logits.end()};
}

// The tests below check that a batch of segments of all kinds equals each of them alone.

struct Conversation {
  Ids ids;
  std::vector<int32_t> pages;
  int64_t fed = 0;
};

TEST(MixedBatch, EqualsItsSegmentsAloneOverRandomBatches) {
  const Checkpoint checkpoint = Checkpoint::open(tiny_model("mistral"));
  const auto v = static_cast<size_t>(checkpoint.config().v);
  for (const KvFormat kv : {KvFormat::f16, KvFormat::i8, KvFormat::i4x2}) {
    SCOPED_TRACE(name_of(kv));
    const auto mixed = make_quantised(checkpoint, kv, 2), alone = make_quantised(checkpoint, kv, 1);
    Rng rng(static_cast<uint64_t>(kv) + 1);
    for (int round = 0; round < 12; ++round) {
      // Each sequence has its pages in both caches; those before `fed` are filled alone in both.
      std::vector<Conversation> all(1 + rng.below(8));
      std::vector<int32_t> free(64);
      std::iota(free.begin(), free.end(), 0);
      for (Conversation& c : all) {
        c.ids = random_ids(rng, 2 + rng.below(150), checkpoint.config().v);
        for (int64_t p = 0; p < PageTable::pages_for(static_cast<int64_t>(c.ids.size())); ++p) {
          const size_t which = rng.below(free.size());
          c.pages.push_back(free[which]);
          free.erase(free.begin() + static_cast<std::ptrdiff_t>(which));
        }
        // The next rows are a prompt from its beginning or middle, one decoded row, or two to nine verified ones.
        const auto size = static_cast<int64_t>(c.ids.size());
        const int64_t rows[] = {size, 1 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(size))), 1,
                                2 + static_cast<int64_t>(rng.below(8))};
        c.fed = std::max<int64_t>(0, size - rows[rng.below(4)]);
        Batch before;
        before.append(std::span(c.ids).first(static_cast<size_t>(c.fed)), 0, c.pages, 0, RowKind::prompt);
        for (Runner* runner : {mixed.get(), alone.get()})
          if (c.fed > 0) runner->step(before, Activations::a16);
      }
      Batch batch;
      std::vector<float> expected;
      for (const Conversation& c : all) {
        const auto rows = std::span(c.ids).subspan(static_cast<size_t>(c.fed));
        const auto kind = rng.below(2) == 0 ? RowKind::prompt : RowKind::output;
        const auto count = static_cast<int64_t>(rows.size());
        batch.append(rows, c.fed, c.pages, std::min<int64_t>(count, 20), kind);
        Batch one;
        one.append(rows, c.fed, c.pages, std::min<int64_t>(count, 20), kind);
        const auto logits = logits_of(*alone, one, Activations::a16);
        expected.insert(expected.end(), logits.begin(), logits.end());
      }
      const auto got = logits_of(*mixed, batch, Activations::a16);
      ASSERT_EQ(got.size(), expected.size());
      ASSERT_TRUE(got == expected) << "round " << round << ", first row that differs "
                                   << (std::mismatch(got.begin(), got.end(), expected.begin()).first - got.begin()) /
                                          static_cast<std::ptrdiff_t>(v);
    }
  }
}

// The tests below check that drafted and verified = decoded. Drafts are random, so rejected slots hold values that must
// never be read.

TEST(Verification, GivesTheLogitsOfDecodingWhateverWasDrafted) {
  for (const char* model : {"llama2", "qwen3"})
    for (const KvFormat kv : {KvFormat::f32, KvFormat::f16, KvFormat::bf16, KvFormat::i8, KvFormat::i4x2}) {
      SCOPED_TRACE(fmt::format("{} {}", model, name_of(kv)));
      const Checkpoint checkpoint = Checkpoint::open(tiny_model(model));
      const auto v = static_cast<size_t>(checkpoint.config().v);
      const auto runner = make_quantised(checkpoint, kv, 2, 3);
      Rng rng(7);
      const Ids ids = random_ids(rng, 90, checkpoint.config().v);
      const std::vector<int32_t> plain_pages = {0, 1, 2, 3}, pages = {9, 7, 5, 8};
      const std::vector<float> plain =
          run_chunks(*runner, ids, std::vector<int64_t>(ids.size(), 1), plain_pages, Activations::a16);
      const std::vector<Reading> readings = {
          {Activations::a8, 4}, {Activations::a16, 2}, {Activations::a8, 0}, {Activations::f32, 6}};
      run_chunks(*runner, std::span(ids).first(10), {10}, pages, Activations::a16);
      for (size_t fed = 10; fed < ids.size();) {
        const size_t drafts = std::min<size_t>(1 + rng.below(8), ids.size() - fed - 1);
        const Reading reading = readings[rng.below(readings.size())];
        int32_t token = ids[fed];
        for (size_t i = 0; i < drafts; ++i) {  // These are the newest token and then whatever was drafted.
          Batch batch;
          batch.append({&token, 1}, static_cast<int64_t>(fed + i), pages, 0, RowKind::output);
          runner->step(batch, reading);
          token = static_cast<int32_t>(rng.below(v));
        }
        // The first `accepted` drafts are those of decoding, and the others are not.
        const size_t accepted = rng.below(drafts + 1);
        Ids rows(ids.begin() + static_cast<std::ptrdiff_t>(fed),
                 ids.begin() + static_cast<std::ptrdiff_t>(fed + 1 + accepted));
        while (rows.size() < drafts + 1) rows.push_back(static_cast<int32_t>(rng.below(v)));
        const auto got = run_chunks(*runner, rows, {static_cast<int64_t>(rows.size())}, pages, Activations::a16,
                                    static_cast<int64_t>(fed));
        ASSERT_TRUE(std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>((accepted + 1) * v),
                               plain.begin() + static_cast<std::ptrdiff_t>(fed * v)))
            << "position " << fed << ", " << drafts << " drafts, " << accepted << " accepted";
        fed += accepted + 1;
      }
    }
}

// Rejected slots hold NaN, as far after the verified rows as eight drafts reach, so any read of one of them shows.
TEST(Verification, NeverReadsASlotThatADraftLeft) {
  const Checkpoint checkpoint = Checkpoint::open(tiny_model("llama2"));
  const auto v = static_cast<size_t>(checkpoint.config().v);
  for (const KvFormat kv : {KvFormat::f32, KvFormat::f16, KvFormat::bf16, KvFormat::i8, KvFormat::i4x2}) {
    SCOPED_TRACE(name_of(kv));
    const auto runner = make_quantised(checkpoint, kv, 2);
    const auto poison = runner->make_draft(checkpoint);
    for (LinearId id : linears_of(checkpoint.config())) {
      if (id.role != Role::k && id.role != Role::v) continue;
      const LinearWeight weight = checkpoint.linear(id);
      OwnedTensor nan = OwnedTensor::allocate(DType::f32, {weight.out, weight.in});
      std::fill(nan.as<float>().begin(), nan.as<float>().end(), std::numeric_limits<float>::quiet_NaN());
      poison->set_linear(id, poison->pack(make_dense(std::move(nan))));
    }
    Rng rng(5);
    const Ids ids = random_ids(rng, 80, checkpoint.config().v);
    const std::vector<int32_t> plain_pages = {0, 1, 2}, pages = {9, 7, 5};
    const std::vector<float> plain =
        run_chunks(*runner, ids, std::vector<int64_t>(ids.size(), 1), plain_pages, Activations::a16);
    run_chunks(*runner, std::span(ids).first(10), {10}, pages, Activations::a16);
    for (size_t fed = 10; fed < ids.size();) {
      const size_t drafts = std::min<size_t>(8, ids.size() - fed - 1), rows = 1 + rng.below(drafts + 1);
      for (size_t i = 0; i <= drafts; ++i) {
        Batch batch;
        batch.append(std::span(ids).subspan(fed + i, 1), static_cast<int64_t>(fed + i), pages, 0, RowKind::output);
        poison->step(batch, Activations::a16);
      }
      const auto got = run_chunks(*runner, std::span(ids).subspan(fed, rows), {static_cast<int64_t>(rows)}, pages,
                                  Activations::a16, static_cast<int64_t>(fed));
      ASSERT_TRUE(std::equal(got.begin(), got.end(), plain.begin() + static_cast<std::ptrdiff_t>(fed * v)))
          << "position " << fed << ", " << rows << " rows";
      fed += rows;
    }
  }
}

// The tests below check that speculative = plain.

std::vector<GenerationRequest> requests_for(const Checkpoint& checkpoint, size_t count) {
  Rng rng(11);
  std::vector<GenerationRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    GenerationRequest& r = requests[i];
    r.prompt = random_ids(rng, 1 + rng.below(70), checkpoint.config().v);
    r.max_tokens = 1 + static_cast<int64_t>(rng.below(40));
    r.logprobs = true;
    const double temperatures[] = {0, 0.3, 0.7, 1};
    r.sampling.temperature = temperatures[i % 4];
    r.sampling.seed = i;
    if (i % 3 == 1) r.sampling.top_p = 0.9, r.sampling.repetition_penalty = 1.1;
    if (i % 5 == 2) r.sampling.top_k = 20, r.sampling.presence_penalty = 0.4;
  }
  return requests;
}

TEST(Speculation, GivesThePlainTextAndItsProbabilitiesBitForBit) {
  const Checkpoint checkpoint = Checkpoint::open(source_path("models/quill-1m"));
  const auto requests = requests_for(checkpoint, 32);
  const auto runner = make_quantised(checkpoint, KvFormat::f16, 2, 0, 4096);
  const auto plain = generate(*runner, requests, {.reading = Activations::a16, .max_sequences = 1});
  // The copy is not quantised, so another kind of weights uses the same cache.
  const auto copy = runner->make_draft(checkpoint);
  // The cache cannot hold all running sequences, with drafts or without, so some are preempted in the middle.
  const auto small = make_quantised(checkpoint, KvFormat::f16, 1, 0, 5 * kPageTokens);
  struct Case {
    Runner *model, *draft;
    Reading reading;
    int64_t most;
    bool lookup, adapt;
  };
  for (const Case& c : {Case{runner.get(), runner.get(), {Activations::a8, 4}, 1, false, false},
                        {runner.get(), runner.get(), {Activations::a16, 4}, 4, false, false},
                        {runner.get(), runner.get(), {Activations::a8, 6}, 8, true, false},
                        {runner.get(), copy.get(), Activations::a8, 3, false, false},
                        {small.get(), small.get(), {Activations::a8, 4}, 5, false, true},
                        {runner.get(), nullptr, {}, 8, true, false}}) {
    SCOPED_TRACE(fmt::format("{} high bits, {} drafts, lookup {}", c.reading.high_bits, c.most, c.lookup));
    SpeculationOptions how;
    how.draft = c.draft;
    how.reading = c.reading;
    how.most = c.most;
    how.lookup = c.lookup;
    how.adapt = c.adapt;
    EngineCounters counters;
    const auto got =
        generate(*c.model, requests, {.reading = Activations::a16, .speculation = how, .counters = &counters});
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(got[i].ids, plain[i].ids) << i;
      EXPECT_EQ(got[i].logprobs, plain[i].logprobs) << i;
    }
    if (c.draft != nullptr) {
      EXPECT_GT(counters.accepted, 0);
    }
    if (c.model == small.get()) {
      EXPECT_GT(counters.preemptions, 0);
    }
  }
}

// This is one draft of a model: its high bits with some activations, copies that keep their weights in other formats,
// or lookup.
struct Pair {
  std::string name;
  Runner* draft;
  Reading reading;
  bool lookup = false;
};

// Runs `pairs` with 1 to 8 drafts by 1, 3, 8 and 32 sequences at once, for those combinations that `wanted` accepts.
void expect_plain_text(Runner& model, const std::vector<GenerationRequest>& requests,
                       const std::vector<Generation>& plain, const std::vector<Pair>& pairs,
                       const std::function<bool(int)>& wanted) {
  int combination = 0;
  int64_t accepted = 0, preemptions = 0;
  for (const Pair& pair : pairs)
    for (int64_t most = 1; most <= 8; ++most)
      for (const int64_t batch : {1, 3, 8, 32}) {
        if (!wanted(combination++)) continue;
        SCOPED_TRACE(fmt::format("{}, {} drafts, {} at once", pair.name, most, batch));
        SpeculationOptions how;
        how.draft = pair.draft;
        how.reading = pair.reading;
        how.most = most;
        how.lookup = pair.lookup;
        how.adapt = combination % 5 == 0;
        EngineCounters counters;
        const auto got =
            generate(model, requests,
                     {.reading = Activations::a16, .max_sequences = batch, .speculation = how, .counters = &counters});
        accepted += counters.accepted;
        preemptions += counters.preemptions;
        for (size_t i = 0; i < requests.size(); ++i) {
          ASSERT_EQ(got[i].ids, plain[i].ids) << i;
          // These are the values of accepted positions, equal bit for bit.
          ASSERT_EQ(got[i].logprobs, plain[i].logprobs) << i;
        }
      }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(preemptions, 0);
}

void expect_plain_text_of_every_pair(const std::function<bool(int)>& wanted) {
  const Checkpoint checkpoint = Checkpoint::open(source_path("models/quill-1m"));
  const auto requests = requests_for(checkpoint, 32);
  const auto whole = make_quantised(checkpoint, KvFormat::f16, 2, 0, 4096);
  const auto plain = generate(*whole, requests, {.reading = Activations::a16, .max_sequences = 1});
  // The cache is too small for all running sequences, with drafts or without. Which of them are preempted does not
  // depend on the clock.
  const auto model = make_quantised(checkpoint, KvFormat::f16, 2, 0, 5 * kPageTokens);
  const auto copy = model->make_draft(checkpoint), grids = model->make_draft(checkpoint);
  ThreadPool pool(1);
  for (LinearId id : linears_of(checkpoint.config())) {
    const LinearWeight weight = checkpoint.linear(id);
    grids->set_linear(
        id, grids->pack(quantize_rtn(parse_format("lut3g64"), decode(weight), weight.out, weight.in, {}, pool)));
  }
  std::vector<Pair> pairs = {{"lookup", nullptr, {}, true}};
  for (const Activations mode : {Activations::a16, Activations::a8}) {
    for (const int bits : {2, 4, 6})
      pairs.push_back({fmt::format("{} bits {}", bits, name_of(mode)), model.get(), {mode, bits}, bits == 4});
    pairs.push_back({fmt::format("lut3 {}", name_of(mode)), grids.get(), mode});
  }
  for (const Activations mode : {Activations::a8, Activations::a4, Activations::f32})
    pairs.push_back({std::string(name_of(mode)), model.get(), mode});
  pairs.push_back({"bf16", copy.get(), Activations::a16, true});
  expect_plain_text(*model, requests, plain, pairs, wanted);
}

TEST(Speculation, EveryPairGivesThePlainText) {
  // 29 has no common divisor with 8 and 4, and every pair has 32 combinations, so one of each pair runs at least.
  expect_plain_text_of_every_pair([](int combination) { return combination % 29 == 0; });
}

// This runs all 416 of them, which takes some minutes:
//   build/laws_test --gtest_also_run_disabled_tests --gtest_filter='*EveryPairInFull*'
TEST(Speculation, DISABLED_EveryPairInFull) {
  expect_plain_text_of_every_pair([](int) { return true; });
}

TEST(Speculation, DraftsOfAnotherShapeAreRefused) {
  const auto runner = make_cpu_runner(Checkpoint::open(tiny_model("llama2")), {.threads = 1, .isa = {}});
  EXPECT_THROW(runner->make_draft(Checkpoint::open(tiny_model("qwen2"))), Error);
}

}  // namespace
}  // namespace fidelio
