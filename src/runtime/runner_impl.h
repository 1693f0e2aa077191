// This file implements Runner over one backend, as RunnerImpl<B>. Only runner_cpu.cc and runner_cuda.cc include it.
#pragma once
#include <algorithm>
#include <ranges>
#include <vector>

#include "formats/finite.h"
#include "runtime/execution/batch_part.h"
#include "runtime/page_table.h"
#include "runtime/runner.h"
#include "runtime/runner_memory.h"

namespace fidelio {

template <Backend B>
class RunnerImpl : public Runner {
 public:
  // `sibling` is a runner of the same checkpoint on the same device, whose packed weights are shared.
  RunnerImpl(B backend, const Checkpoint& checkpoint, const RunnerOptions& options, const Runner* sibling = nullptr)
      : RunnerImpl(std::make_shared<RunnerMemory<B>>(RunnerMemory<B>{.backend = std::move(backend)}), checkpoint,
                   options, Part::model, sibling) {
    allocate_memory();
  }

  const ModelConfig& config() const override { return config_; }
  const Program& program() const override { return program_; }
  const RunnerOptions& options() const override { return options_; }
  int64_t cache_bytes() const override { return cache_.bytes(); }
  int64_t state_slots() const override { return memory_->states.slots; }
  int64_t state_bytes() const override { return state_slots() * program_.state.floats() * int64_t{sizeof(float)}; }
  void reserve_states(int64_t slots) override {
    if (program_.state.floats() == 0 || slots <= state_slots()) return;
    memory_->states = {};  // gives its memory back before more is taken
    memory_->states = b_.allocate_states(program_.state, slots);
    ++memory_->states_version;
  }
  int64_t cache_pages() const override { return PageTable::pages_for(options_.cache_tokens); }
  bool kinds_agree() const override { return !B::kOneKindAStep && program_.state.floats() == 0; }
  std::unique_ptr<Runner> make_draft(const Checkpoint& checkpoint) override {
    check_same_shapes(checkpoint.config(), config_);
    RunnerOptions options = options_;
    options.high_bits = 0;  // its weights are read whole
    options.predictor = false;
    auto draft = std::unique_ptr<RunnerImpl>(new RunnerImpl(memory_, checkpoint, options, Part::model, nullptr));
    draft->executor_.find_values();
    return draft;
  }
  std::unique_ptr<Runner> make_predictor(const Checkpoint& checkpoint) override {
    check(options_.predictor, "{} was loaded without its predictor", checkpoint.folder());
    auto made = std::unique_ptr<RunnerImpl>(new RunnerImpl(memory_, checkpoint, options_, Part::predictor, this));
    allocate_values(b_, made->program_, options_.max_rows, options_.max_logit_rows, memory_->values);
    made->executor_.find_values();
    executor_.find_values();
    return made;
  }
  std::unique_ptr<Runner> make_sibling(const Checkpoint&, const RunnerOptions&) const override {
    throw Error("a draft has no siblings; ask the runner that it drafts for");
  }
  bool shares_cache_with(const Runner& other) const override {
    const auto* runner = dynamic_cast<const RunnerImpl*>(&other);
    return runner != nullptr && runner->memory_ == memory_;
  }

  int64_t bytes_read(Reading reading) const override {
    int64_t bytes = 0, of_experts = 0;
    const auto read = [&](LinearId id) { return b_.bytes_read(*weights_[id], reading); };
    for (const Op& operation : program_.ops) {
      if (const auto* product = std::get_if<op::Product>(&operation))
        for (const op::Output& output : product->outputs)
          if (const LinearId id = program_.linears[static_cast<size_t>(output.weight)];
              id.role != Role::head && id.role != Role::embedding)
            bytes += read(id);
      if (const auto* product = std::get_if<op::RoutedProduct>(&operation))
        for (const op::RoutedOutput& output : product->outputs) {
          const auto [layer, role] = program_.experts[static_cast<size_t>(output.weights)];
          for (int expert = 0; expert < config_.experts; ++expert) of_experts += read({layer, role, expert});
        }
    }
    // One row passes only some of a layer's experts.
    if (config_.experts > 0) bytes += of_experts / config_.experts * config_.experts_per_row;
    check_short_head(reading);
    const auto& head =
        reading.short_head ? weights_.draft_head.rows : weights_.linears[static_cast<size_t>(program_.head_weight)];
    return bytes + b_.bytes_read(*head, reading.activations);
  }
  std::string kernel_of(LinearId id, Activations mode) const override { return b_.kernel_name(*weights_[id], mode); }

  void begin(const Batch& batch, Reading reading) override {
    check_batch(batch, config_, options_, cache_pages());
    check_states(batch, program_.state, state_slots());
    check_short_head(reading);
    for (; !stale_.empty(); stale_.pop_back()) collect_experts(b_, program_, stale_.back(), weights_);
    executor_.begin(batch.rows(), reading.short_head);
    b_.begin(batch, reading, program_.attention);
  }
  void run(OpRange ops) override { executor_.run(ops); }
  Routes run_route(OpRange ops) override { return executor_.run_route(ops); }
  void follow(const Routes& routes) override { b_.follow(routes); }
  void read(ValueId value, std::span<float> to) override { executor_.read(value, to); }
  void write(ValueId value, std::span<const float> from) override { executor_.write(value, from); }
  std::span<const float> logits(int64_t first, int64_t count) override {
    check_logit_rows(count);
    executor_.run_head(first, count);
    return host_logits(count);
  }
  void read_logits(int64_t first, int64_t count, std::span<float> to) override {
    check_logit_rows(count);
    executor_.run_head(first, count);
    b_.download(logits(), 0, count, to);
  }
  std::span<const float> step(const Batch& batch, Reading reading) override {
    const auto count = static_cast<int64_t>(batch.logit_rows.size()), v = int64_t{config_.v};
    if (!runs_in_parts(batch)) {
      run(batch, reading);
      return host_logits(count);
    }
    host_logits_.resize(static_cast<size_t>(count * v));
    run_parts(batch, reading, [&] {
      int64_t next = 0;
      for (size_t place : part_.places)
        b_.download(logits(), next++, 1,
                    {host_logits_.data() + static_cast<int64_t>(place) * v, static_cast<size_t>(v)});
    });
    return host_logits_;
  }
  void step_and_choose(const Batch& batch, Reading reading, std::span<const ChoiceRule> rules,
                       std::span<Choice> choices) override {
    if (!runs_in_parts(batch)) {
      run(batch, reading);
      return b_.choose(logits(), rules, choices);
    }
    run_parts(batch, reading, [&] {
      std::vector<Choice> own(part_.places.size());
      b_.choose(logits(), part_.rules(rules), own);
      part_.put(own, choices);
    });
  }
  void enqueue(const Batch& batch, Reading reading, std::span<const int32_t> from, std::span<const ChoiceRule> rules,
               std::vector<Choice>& chosen) override {
    if (chosen.empty()) memory_->collected = 0;
    if constexpr (kChoosesLater) {
      if (!runs_in_parts(batch) && chosen.size() + rules.size() <= B::kMostLater) {
        feed_known(batch, from, std::span(chosen).first(memory_->collected), fed_);
        run(fed_.batch, reading, fed_.from);
        b_.choose_later(logits(), rules, static_cast<int64_t>(chosen.size()));
        return chosen.resize(chosen.size() + rules.size());
      }
    }
    collect(chosen);
    Runner::enqueue(batch, reading, from, rules, chosen);
    memory_->collected = chosen.size();
  }
  void collect(std::vector<Choice>& chosen) override {
    if constexpr (kChoosesLater)
      b_.collect(static_cast<int64_t>(memory_->collected), std::span(chosen).subspan(memory_->collected));
    memory_->collected = chosen.size();
  }

  PackedLinear pack(const LinearWeight& weight) override { return pack(weight, 0); }
  void set_linear(LinearId id, PackedLinear weight) override {
    forget_recorded();
    weights_[id] = std::static_pointer_cast<const typename B::Linear>(std::move(weight));
    if (id.role == Role::embedding && config_.tie_embeddings) weights_[{-1, Role::head}] = weights_[id];
    if (id.expert >= 0 && (stale_.empty() || stale_.back() != id.layer)) stale_.push_back(id.layer);
  }
  void set_short_head(const LinearWeight& weight, std::span<const int32_t> tokens) override {
    check(weight.out == config_.v, "a head of {} tokens, not {}", weight.out, config_.v);
    check(!tokens.empty() && tokens.front() >= 0 && tokens.back() < weight.out &&
              std::ranges::adjacent_find(tokens, std::greater_equal()) == tokens.end(),
          "tokens of a short head: expected some from 0 to {}, ascending", weight.out - 1);
    forget_recorded();
    auto& head = weights_.draft_head;
    head.rows = std::make_shared<const typename B::Linear>(b_.pack(take_rows(weight, tokens)));
    head.tokens = b_.make_token_set(tokens, config_.v);
    head.logits = b_.allocate(options_.max_logit_rows, std::ssize(tokens));
  }
  PackedLinear linear(LinearId id) const override { return weights_[id]; }

 private:
  // A runner runs a model, or the predictor of one (step/build.h).
  enum class Part : uint8_t { model, predictor };
  static Program program_of(const ModelConfig& config, const RunnerOptions& options, Part part) {
    check(!options.predictor || config.predictor, "this {} has no block that predicts a token more (mtp.*)",
          name_of(config.architecture));
    if (part == Part::predictor) return build_predictor_program(config, options.context);
    return options.predictor ? build_followed_program(config, options.context) : build_program(config, options.context);
  }
  RunnerImpl(std::shared_ptr<RunnerMemory<B>> memory, const Checkpoint& checkpoint, const RunnerOptions& options,
             Part part, const Runner* sibling)
      : memory_(std::move(memory)),
        b_(memory_->backend),
        config_(checkpoint.config()),
        options_(with_defaults(options, config_)),
        program_(program_of(config_, options_, part)),
        weights_(program_),
        cache_(memory_->cache),
        executor_(b_, program_, weights_, memory_->values, cache_, memory_->states) {
    if (sibling)
      for (LinearId id : program_.linears) set_linear(id, sibling->linear(id));
    else
      load_linears(checkpoint);
    load_beside_linears(b_, program_, checkpoint, weights_);
  }
  static RunnerOptions with_defaults(RunnerOptions options, const ModelConfig& config) {
    if (options.cache_tokens == 0) options.cache_tokens = config.max_positions;
    if (options.context == 0) options.context = std::min(options.cache_tokens, int64_t{config.max_positions});
    return options;
  }

  // A backend that has feed() has choose_later() and collect() too.
  static constexpr bool kChoosesLater = requires(B b) { b.feed({}); };
  void forget_recorded() { weights_version_ = memory_->versions += 2; }
  const typename B::Matrix& logits() const { return executor_.matrix(program_.logits); }

  void check_short_head(Reading reading) const {
    check(!reading.short_head || weights_.draft_head.rows, "a short head is to be read, and none was set");
  }
  void check_logit_rows(int64_t count) const {
    check(count <= options_.max_logit_rows, "{} rows of logits asked for at once, the runner has room for {}", count,
          options_.max_logit_rows);
  }
  static bool runs_in_parts(const Batch& batch) { return B::kOneKindAStep && has_both_kinds(batch); }
  // Runs output rows first, because sequences that decode wait for them, and then prompt rows. `take` is called after
  // each and reads part_ and its logits.
  template <typename Take>
  void run_parts(const Batch& batch, Reading reading, const Take& take) {
    for (RowKind kind : {RowKind::output, RowKind::prompt}) {
      take_kind(batch, kind, part_);
      run(part_.batch, reading);
      take();
    }
  }
  void run(const Batch& batch, Reading reading, [[maybe_unused]] std::span<const int32_t> from = {}) {
    const auto count = static_cast<int64_t>(batch.logit_rows.size());
    check_logit_rows(count);
    begin(batch, reading);
    if constexpr (kChoosesLater) b_.feed(from);
    const auto work = [&] {
      embed();
      layers(0, static_cast<int>(program_.layers.size()));
      run(program_.follow);
      if (count > 0) executor_.run_head(0, count);
    };
    if (!executor_.routes_alone()) return work();
    if (states_version_ != memory_->states_version) forget_recorded();  // recorded steps know where the slots were
    states_version_ = memory_->states_version;
    b_.repeat(weights_version_ + (reading.short_head ? 1 : 0), work);
  }
  std::span<const float> host_logits(int64_t count) {
    host_logits_.resize(static_cast<size_t>(count * config_.v));
    b_.download(logits(), 0, count, host_logits_);
    return host_logits_;
  }

  PackedLinear pack(const LinearWeight& weight, int high_bits) {
    return std::make_shared<const typename B::Linear>(b_.pack(weight, high_bits));
  }
  void load_linears(const Checkpoint& checkpoint) {
    // The file's pages of a matrix are resident while it is packed, so the two largest go first, when memory is
    // emptiest.
    std::vector<LinearId> order = linears_of(config_);
    const std::vector<LinearId> kept = options_.predictor ? kept_linears_of(config_) : fixed_linears_of(config_);
    order.insert(order.end(), kept.begin(), kept.end());
    std::stable_partition(order.begin(), order.end(), [](LinearId id) { return id.layer == -1; });
    for (LinearId id : order) {
      const LinearWeight weight = checkpoint.linear(id);
      check_finite(weight, fmt::format("{}: {}", checkpoint.folder(), to_string(id)));
      set_linear(id, pack(weight, id.layer >= 0 ? options_.high_bits : 0));
      checkpoint.drop(id);
    }
  }

  void allocate_memory() {
    allocate_values(b_, program_, options_.max_rows, options_.max_logit_rows, memory_->values);
    executor_.find_values();
    cache_ = b_.allocate_cache(program_.attention, cache_pages(), options_.kv);
    memory_->states = b_.allocate_states(program_.state, 0);
    int64_t widest = 0, slots = 1;  // the widest input of a product, and the slots of a row
    for (const Value& v : program_.values) {
      if (v.rows == Rows::slots) slots = program_.routing.per_row;
      if (v.prepared || v.name == "x") widest = std::max(widest, v.columns);
    }
    b_.reserve(options_.max_rows * slots, widest, std::max(options_.cache_tokens, int64_t{config_.max_positions}));
  }

  std::shared_ptr<RunnerMemory<B>> memory_;
  B& b_;
  const ModelConfig config_;
  RunnerOptions options_;
  const Program program_;
  Weights<B> weights_;
  typename B::KvCache& cache_;
  Executor<B> executor_;
  uint64_t states_version_ = 0;
  uint64_t weights_version_ = 0;  // names what b_.repeat may have recorded; steps with a short head use the next number
  typename B::HostFloats host_logits_;
  BatchPart part_;
  FedBatch fed_;
  std::vector<int> stale_;  // layers some of whose experts were given other weights
};

}  // namespace fidelio
