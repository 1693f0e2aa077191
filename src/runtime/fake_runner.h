// This file defines a Runner without arithmetic, for tests alone, which detects every mistake in the bookkeeping
// above it. Its cache holds token ids where a real one holds keys and values. A row's logits are a hash of the tokens
// in the cache at the positions up to its own, so a wrong page, a missing row, or a sequence overwritten by another
// changes them. It throws for calls that no backend would accept.
//
// With Shape::state it keeps a state for each sequence (fake_states.h), and logits depend on it too.
#pragma once
#include <algorithm>
#include <vector>

#include "core/error.h"
#include "runtime/fake_states.h"
#include "runtime/runner.h"

namespace fidelio {

class FakeRunner : public Runner {
 public:
  struct Shape {
    int vocabulary = 23, context = 64;
    double spread = 4;  // logits lie in [-spread, spread]
    double noise = 0;   // the noise of a quantised copy of the model, made from `noise_seed`
    uint64_t noise_seed = 1;
    double draft_noise = 1;   // the noise of readings of high bits
    bool kinds_agree = true;  // if false, output rows leave other bits in the cache than prompt rows
    bool state = false;       // a state is kept for each sequence; kinds then do not agree
  };
  FakeRunner(Shape shape, RunnerOptions options) : shape_(shape), options_(options) {
    config_.L = 1;
    config_.v = shape.vocabulary;
    config_.max_positions = shape.context;
    program_.embedding = {0, 1};
    program_.layers = {{1, 2}};
    if (shape_.state) program_.state = {.layers = 1, .heads = 1, .key_dim = 1, .value_dim = 1};
    if (options_.cache_tokens == 0) options_.cache_tokens = shape.context;
    cache_.assign(static_cast<size_t>(cache_pages() * kPageTokens), -1);
  }

  const ModelConfig& config() const override { return config_; }
  const RunnerOptions& options() const override { return options_; }
  int64_t bytes_read(Reading reading) const override { return reading.high_bits == 0 ? 100 : 10 * reading.high_bits; }
  bool kinds_agree() const override { return shape_.kinds_agree && !shape_.state; }
  int64_t state_slots() const override { return states_.slots(); }
  void reserve_states(int64_t slots) override {
    if (shape_.state && slots > state_slots()) states_.allocate(slots);
  }
  void set_short_head(const LinearWeight&, std::span<const int32_t>) override {}
  std::unique_ptr<Runner> make_draft(const Checkpoint&) override { return nullptr; }
  std::unique_ptr<Runner> make_predictor(const Checkpoint&) override { return nullptr; }
  std::unique_ptr<Runner> make_sibling(const Checkpoint&, const RunnerOptions&) const override { return nullptr; }
  bool shares_cache_with(const Runner& other) const override { return this == &other; }
  int64_t cache_bytes() const override { return 0; }
  int64_t cache_pages() const override { return (options_.cache_tokens + kPageTokens - 1) / kPageTokens; }
  std::string kernel_of(LinearId, Activations) const override { return "fake"; }

  void begin(const Batch& batch, Reading reading) override {
    check(batch.rows() > 0 && batch.rows() <= options_.max_rows, "{} rows", batch.rows());
    batch_ = batch;
    drafts_ = reading.high_bits != 0;
    readings.push_back(reading);
    steps.push_back(batch.rows());
    for (const Segment& s : batch.segments)
      for (int32_t i = 0; i < s.rows; ++i)
        slot(s, s.position + i) = written(batch.ids[static_cast<size_t>(s.first_row + i)], s.kind);
    if (shape_.state) states_.run(batch_, drafts_);
    ran_ = false;
  }
  const Program& program() const override { return program_; }
  void run(OpRange ops) override { ran_ = ops.last == program_.layers.back().last; }
  Routes run_route(OpRange) override { return {}; }
  void follow(const Routes&) override {}
  void read(ValueId, std::span<float>) override {}
  void write(ValueId, std::span<const float>) override {}
  std::span<const float> logits(int64_t first, int64_t count) override {
    check(ran_, "logits before the layers ran");
    check(count <= options_.max_logit_rows, "{} logit rows", count);
    logits_.clear();
    for (int64_t i = first; i < first + count; ++i) append_logits(batch_.logit_rows.at(static_cast<size_t>(i)));
    return logits_;
  }
  void read_logits(int64_t first, int64_t count, std::span<float> to) override {
    std::copy_n(logits(first, count).begin(), to.size(), to.begin());
  }
  // Returns the logits after these tokens, the first `prompt` of which are a prompt, computed directly.
  std::vector<float> logits_after(std::span<const int32_t> history, int64_t prompt = 0) {
    logits_.clear();
    if (!shape_.state) {
      append_hashed(hash(history));
      return logits_;
    }
    FakeStates::State state;
    std::vector<int32_t> cached;
    for (size_t i = 0; i < history.size(); ++i) {
      const bool whole = static_cast<int64_t>(i) < prompt / kStateChunk * kStateChunk;
      state = FakeStates::after(state, history[i], whole, drafts_);
      cached.push_back(written(history[i], whole ? RowKind::prompt : RowKind::output));
    }
    append_hashed(hash(cached) ^ state.sum);
    return logits_;
  }

  PackedLinear pack(const LinearWeight&) override { return nullptr; }
  void set_linear(LinearId, PackedLinear) override {}
  PackedLinear linear(LinearId) const override { return nullptr; }

  std::vector<int64_t> steps;     // the rows of every batch so far
  std::vector<Reading> readings;  // how each batch read the weights

 protected:
  // Appends the logits after these tokens of a sequence, of which the state, if there is one, has this hash.
  virtual void append_logits_after(std::span<const int32_t> history, uint64_t state) {
    append_hashed(hash(history) ^ state);
  }
  std::vector<float> logits_;

 private:
  // Returns what a row writes to the cache. A draft never writes what the verifier would.
  int32_t written(int32_t id, RowKind kind) const {
    return id + (drafts_ ? 1 << 28 : 0) + (!kinds_agree() && kind == RowKind::output ? 1 << 27 : 0);
  }
  int32_t& slot(const Segment& segment, int64_t position) {
    check(position / kPageTokens < segment.pages, "position {} of {} pages", position, segment.pages);
    const auto pages = batch_.pages_of(segment);
    check(position >= 0 && position < config_.max_positions, "position {}", position);
    return cache_.at(
        static_cast<size_t>(pages[static_cast<size_t>(position / kPageTokens)] * kPageTokens + position % kPageTokens));
  }
  static uint64_t hash(std::span<const int32_t> history) {
    uint64_t h = history.size();
    for (int32_t id : history) h = splitmix64(h ^ static_cast<uint64_t>(id));
    return h;
  }
  void append_logits(int32_t row) {
    const auto after = std::upper_bound(batch_.segments.begin(), batch_.segments.end(), row,
                                        [](int32_t r, const Segment& s) { return r < s.first_row; });
    const Segment& segment = *(after - 1);
    std::vector<int32_t> history;
    for (int32_t p = 0; p <= segment.position + row - segment.first_row; ++p)
      history.push_back(drafts_ ? slot(segment, p) & ~(1 << 28) : slot(segment, p));
    append_logits_after(history, shape_.state ? states_.sum_after(row) : 0);
  }
  void append_hashed(uint64_t h) {
    const auto unit = [](uint64_t x) { return static_cast<double>(x >> 11) * 0x1p-52 - 1; };  // in [-1, 1)
    for (int k = 0; k < config_.v; ++k) {
      const uint64_t key = splitmix64(h ^ static_cast<uint64_t>(k) << 32);
      logits_.push_back(static_cast<float>(shape_.spread * unit(key) +
                                           shape_.noise * unit(splitmix64(key ^ shape_.noise_seed)) +
                                           (drafts_ ? shape_.draft_noise * unit(splitmix64(key ^ 0xd4af7)) : 0)));
    }
  }

  Shape shape_;
  RunnerOptions options_;
  ModelConfig config_;
  Program program_;  // an embedding and one layer, each of one operation that does nothing
  Batch batch_;
  std::vector<int32_t> cache_;
  FakeStates states_;
  bool ran_ = false, drafts_ = false;
};

}  // namespace fidelio
