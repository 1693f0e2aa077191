// RunnerImpl<B>: Runner over one backend. Included by runner_cpu.cc and runner_cuda.cc alone.
#pragma once
#include <algorithm>
#include <ranges>
#include <vector>

#include "formats/finite.h"
#include "runtime/batch_part.h"
#include "runtime/load_norms.h"
#include "runtime/page_table.h"
#include "runtime/runner.h"
#include "runtime/runner_memory.h"

namespace fidelio {

template <Backend B>
class RunnerImpl : public Runner {
 public:
  // `sibling`: a runner of the same checkpoint on the same device, whose packed weights are taken as they are.
  RunnerImpl(B backend, const Checkpoint& checkpoint, const RunnerOptions& options, const Runner* sibling = nullptr)
      : RunnerImpl(std::make_shared<RunnerMemory<B>>(RunnerMemory<B>{std::move(backend), {}, {}}), checkpoint, options,
                   sibling) {
    allocate_workspace();
  }

  const ModelConfig& config() const override { return model_.config; }
  const RunnerOptions& options() const override { return options_; }
  int64_t cache_bytes() const override { return cache_.bytes(); }
  int64_t cache_pages() const override { return PageTable::pages_for(options_.cache_tokens); }
  bool kinds_agree() const override { return !B::kOneKindAStep; }
  std::unique_ptr<Runner> make_draft(const Checkpoint& checkpoint) override {
    check_same_shapes(checkpoint.config(), model_.config);
    RunnerOptions options = options_;
    options.high_bits = 0;  // it is read whole
    return std::unique_ptr<Runner>(new RunnerImpl(memory_, checkpoint, options, nullptr));
  }
  std::unique_ptr<Runner> make_sibling(const Checkpoint&, const RunnerOptions&) const override {
    throw Error("a draft has no siblings; ask the runner that it drafts for");
  }
  bool shares_cache_with(const Runner& other) const override {
    const auto* runner = dynamic_cast<const RunnerImpl*>(&other);
    return runner != nullptr && runner->memory_ == memory_;
  }

  int64_t weight_bytes() const override {
    int64_t bytes = 0;
    for (LinearId id : linears_of(model_.config)) bytes += const_cast<Model<B>&>(model_).slot(id)->bytes();
    return bytes;
  }
  int64_t bytes_read(Reading reading) const override {
    int64_t bytes = 0, of_experts = 0;
    for (LinearId id : linears_of(model_.config))
      if (id.role != Role::embedding && id.role != Role::head)
        (id.expert < 0 ? bytes : of_experts) += b_.bytes_read(*const_cast<Model<B>&>(model_).slot(id), reading);
    const ModelConfig& c = model_.config;
    if (c.experts > 0) bytes += of_experts / c.experts * c.experts_per_row;  // of one row
    check_short_head(reading);
    return bytes + b_.bytes_read(reading.short_head ? *model_.short_head.rows : *model_.head, reading.activations);
  }
  std::string kernel_of(LinearId id, Activations mode) const override {
    return b_.kernel_name(*const_cast<Model<B>&>(model_).slot(id), mode);
  }

  void begin(const Batch& batch, Reading reading) override {
    check_batch(batch, model_.config, options_, cache_pages());
    rows_ = batch.rows();
    check_short_head(reading);
    model_.reads_short_head = reading.short_head;
    for (; !stale_.empty(); stale_.pop_back()) collect_experts(b_, layer(stale_.back()));
    b_.begin(batch, reading, model_.attention);
  }
  void embed() override { b_.embed(*model_.embedding, w_.x, model_.scalars.embedding); }
  void layers(int first, int last) override {
    for (int i = first; i < last; ++i) forward_layer(b_, model_, i, w_, cache_);
  }
  std::span<const float> logits(int64_t first, int64_t count) override {
    check_logit_rows(count);
    multiply_head(first, count);
    return host_logits(count);
  }
  void read_logits(int64_t first, int64_t count, std::span<float> to) override {
    check_logit_rows(count);
    multiply_head(first, count);
    b_.download(w_.logits, 0, count, to);
  }
  std::span<const float> step(const Batch& batch, Reading reading) override {
    const auto count = static_cast<int64_t>(batch.logit_rows.size()), v = int64_t{model_.config.v};
    if (!runs_in_parts(batch)) {
      run(batch, reading);
      return host_logits(count);
    }
    host_logits_.resize(static_cast<size_t>(count * v));
    run_parts(batch, reading, [&] {
      int64_t next = 0;
      for (size_t place : part_.places)
        b_.download(w_.logits, next++, 1,
                    {host_logits_.data() + static_cast<int64_t>(place) * v, static_cast<size_t>(v)});
    });
    return host_logits_;
  }
  void step_and_choose(const Batch& batch, Reading reading, std::span<const ChoiceRule> rules,
                       std::span<Choice> choices) override {
    if (!runs_in_parts(batch)) {
      run(batch, reading);
      return b_.choose(w_.logits, rules, choices);
    }
    run_parts(batch, reading, [&] {
      std::vector<Choice> own(part_.places.size());
      b_.choose(w_.logits, part_.rules(rules), own);
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
        b_.choose_later(w_.logits, rules, static_cast<int64_t>(chosen.size()));
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

  void read_stream(std::span<float> x) override { b_.download(w_.x, 0, rows_, x); }
  void write_stream(std::span<const float> x) override { b_.upload(x, w_.x); }

  void linear_input(int index, InputId which, std::span<float> to) override {
    const float eps = model_.scalars.eps;
    const auto acts = [&] {
      switch (which) {
        case InputId::attn_in:
          return branch_input(b_, w_.x, layer(index).attn_norm, eps);
        case InputId::o_in:
          return attention_half(b_, model_, index, w_, cache_);
        case InputId::mlp_in:
          return branch_input(b_, w_.x, layer(index).mlp_norm, eps);
        default:
          return mlp_half(b_, model_, index, w_);
      }
    }();
    check(static_cast<int64_t>(to.size()) == acts.rows * acts.columns, "{} rows of {} inputs do not fill {} values",
          acts.rows, acts.columns, to.size());
    b_.read(acts, to);
  }
  void add_output(int index, Role role, std::span<const float> input) override {
    typename B::Matrix& m = role == Role::o ? w_.q : w_.gate;  // same shape as the input of o, of down
    b_.upload(input, m);
    const typename B::Matrix& norm = role == Role::o ? layer(index).post_attn_norm : layer(index).post_mlp_norm;
    add_branch(b_, model_, b_.input(m), *model_.slot({index, role}), norm, w_);
  }

  Routes routes(int index) override {
    choose_experts(b_, model_, index, w_, {});
    return b_.routes();
  }
  void expert_input(int index, const Routes& routes, std::span<float> to) override {
    b_.normalise(w_.x, layer(index).mlp_norm, model_.scalars.eps, w_.normed);
    b_.follow(routes);
    b_.read(experts_half(b_, model_, index, w_), to);
  }
  void add_experts(int index, const Routes& routes, std::span<const float> input) override {
    b_.upload(input, w_.gate);
    b_.follow(as_they_are(routes.count()));
    const auto acts = b_.routed(w_.gate);
    b_.follow(routes);
    add_given(b_, model_, index, w_, acts);
  }
  void take_rows(std::span<const float> x, std::span<const int32_t> rows, std::span<float> to) override {
    const auto d = static_cast<size_t>(model_.config.d);
    if (gpu()) {
      b_.upload(x, w_.normed);
      b_.follow(alone(rows));
      return b_.read(b_.routed(w_.normed), to);
    }
    for (size_t i = 0; i < rows.size(); ++i)
      std::ranges::copy(x.subspan(static_cast<size_t>(rows[i]) * d, d),
                        to.begin() + static_cast<std::ptrdiff_t>(i * d));
  }

  PackedLinear pack(const LinearWeight& weight) override { return pack(weight, 0); }
  void set_linear(LinearId id, PackedLinear weight) override {
    forget_recorded();
    model_.slot(id) = std::static_pointer_cast<const typename B::Linear>(std::move(weight));
    if (id.expert >= 0 && (stale_.empty() || stale_.back() != id.layer)) stale_.push_back(id.layer);
    if (id.role == Role::embedding && model_.config.tie_embeddings) model_.head = model_.embedding;
  }
  void set_short_head(const LinearWeight& weight, std::span<const int32_t> tokens) override {
    check(weight.out == model_.config.v, "a head of {} tokens, not {}", weight.out, model_.config.v);
    check(!tokens.empty() && tokens.front() >= 0 && tokens.back() < weight.out &&
              std::ranges::adjacent_find(tokens, std::greater_equal()) == tokens.end(),
          "tokens of a short head: expected some from 0 to {}, ascending", weight.out - 1);
    forget_recorded();
    model_.short_head.rows = std::make_shared<const typename B::Linear>(b_.pack(fidelio::take_rows(weight, tokens)));
    model_.short_head.tokens = b_.make_token_set(tokens, model_.config.v);
    model_.short_head.logits = b_.allocate(options_.max_logit_rows, std::ssize(tokens));
  }
  PackedLinear linear(LinearId id) const override { return const_cast<Model<B>&>(model_).slot(id); }

 private:
  RunnerImpl(std::shared_ptr<RunnerMemory<B>> memory, const Checkpoint& checkpoint, const RunnerOptions& options,
             const Runner* sibling)
      : memory_(std::move(memory)),
        b_(memory_->backend),
        options_(options),
        w_(memory_->workspace),
        cache_(memory_->cache) {
    model_.config = checkpoint.config();
    const ModelConfig& c = model_.config;
    if (options_.cache_tokens == 0) options_.cache_tokens = c.max_positions;
    if (options_.context == 0) options_.context = std::min(options_.cache_tokens, int64_t{c.max_positions});
    model_.attention = attention_shape(c, options_.context);
    model_.scalars = scalars_of(c);
    model_.layers.resize(static_cast<size_t>(model_.config.L));
    for (Layer<B>& layer : model_.layers) layer.experts.resize(static_cast<size_t>(c.experts));
    if (sibling)
      for (LinearId id : linears_of(model_.config)) set_linear(id, sibling->linear(id));
    else
      load_linears(checkpoint);
    load_norms(b_, model_, checkpoint);
  }

  static constexpr bool kChoosesLater = requires(B b) { b.feed({}); };  // and then choose_later and collect
  void forget_recorded() { weights_version_ = memory_->versions += 2; }
  Layer<B>& layer(int i) { return model_.layers[static_cast<size_t>(i)]; }

  void check_short_head(Reading reading) const {
    check(!reading.short_head || model_.short_head.rows, "a short head is to be read, and none was set");
  }
  void check_logit_rows(int64_t count) const {
    check(count <= options_.max_logit_rows, "{} rows of logits asked for at once, the runner has room for {}", count,
          options_.max_logit_rows);
  }
  void multiply_head(int64_t first, int64_t count) {
    fidelio::multiply_head(b_, model_, b_.norm_logit_rows(w_.x, model_.final_norm, model_.scalars.eps, first, count),
                           w_.logits);
  }
  static bool runs_in_parts(const Batch& batch) { return B::kOneKindAStep && has_both_kinds(batch); }
  // Output rows first, which sequences that decode are waiting for; then prompts. `take` sees part_ and its logits.
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
      layers(0, model_.config.L);
      if (count > 0) multiply_head(0, count);
    };
    if (chooses_on_host()) return work();
    b_.repeat(weights_version_ + (reading.short_head ? 1 : 0), work);
  }
  // Whether the host chooses experts, or groups rows by them, within the step that has begun.
  bool chooses_on_host() const {
    return model_.config.experts > 0 && !std::ranges::all_of(model_.layers, [&](const Layer<B>& layer) {
             return b_.routes_alone(routing_rule(model_.config), experts_of(layer));
           });
  }
  std::span<const float> host_logits(int64_t count) {
    host_logits_.resize(static_cast<size_t>(count * model_.config.v));
    b_.download(w_.logits, 0, count, host_logits_);
    return host_logits_;
  }

  PackedLinear pack(const LinearWeight& weight, int high_bits) {
    return std::make_shared<const typename B::Linear>(b_.pack(weight, high_bits));
  }
  void load_linears(const Checkpoint& checkpoint) {
    // A matrix's pages of the file are resident while it is packed: the largest two go first, when memory is emptiest.
    std::vector<LinearId> order = linears_of(model_.config);
    std::stable_partition(order.begin(), order.end(),
                          [](LinearId id) { return id.role == Role::embedding || id.role == Role::head; });
    for (LinearId id : order) {
      const LinearWeight weight = checkpoint.linear(id);
      check_finite(weight, fmt::format("{}: {}", checkpoint.folder(), to_string(id)));
      set_linear(id, pack(weight, id.layer >= 0 ? options_.high_bits : 0));
      checkpoint.drop(id);
    }
  }

  void allocate_workspace() {
    const ModelConfig& c = model_.config;
    w_ = allocate_matrices(b_, c, options_.max_rows, options_.max_logit_rows);
    cache_ = b_.allocate_cache(model_.attention, cache_pages(), options_.kv);
    b_.reserve(options_.max_rows * slots_per_row(c),
               std::max({int64_t{c.d}, int64_t{c.h} * c.e, int64_t{c.f}}) + c.kept_columns,
               std::max(options_.cache_tokens, int64_t{c.max_positions}));
  }

  std::shared_ptr<RunnerMemory<B>> memory_;
  B& b_;
  RunnerOptions options_;
  Model<B> model_;
  Workspace<B>& w_;
  typename B::KvCache& cache_;
  int64_t rows_ = 0;
  uint64_t weights_version_ = 0;  // of what b_.repeat may have recorded; with a short head the next number
  typename B::HostFloats host_logits_;
  BatchPart part_;
  FedBatch fed_;
  std::vector<int> stale_;  // layers whose experts were given other weights
};

}  // namespace fidelio
