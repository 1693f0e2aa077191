// A Trainer is the tuner over a Device; tuner.h describes it. Only tuner_*.cc include this file.
#pragma once
#include <chrono>
#include <filesystem>
#include <tuple>

#include "train/state.h"
#include "train/tune/layer_stage.h"
#include "train/tune/passes.h"
#include "train/tune/tuner.h"

namespace fidelio::train {

// Returns the rows of the longest pass: options.rows, or the longest window if that is longer.
int64_t rows_at_once(const TuneData& data, const TuneOptions& options);
// These convert a report to what a state file keeps, and back.
nlohmann::json kept(const TuneReport& report);
TuneReport kept(const nlohmann::json& report);
// Returns the share of the codes that differ from the model's.
double share_moved(const Checkpoint& model, const TunedWeights& weights);

template <class D>
class Trainer {
 public:
  using Real = typename D::Real;
  using Progress = std::function<void(const TuneProgress&)>;

  Trainer(D& device, const Checkpoint& model, const Checkpoint& source, const TuneData& data,
          const TuneOptions& options, Progress progress, const Ranks& ranks)
      : device_(device),
        team_(device, ranks),
        model_(model),
        data_(data),
        options_(options),
        progress_(std::move(progress)),
        config_(model.config()),
        teacher_(device, source, false, std::nullopt),
        student_(device, model, source, options.outer, options.dense, options.start),
        tape_(device, config_, rows_at_once(data, options)),
        passes_(device, config_, tape_, team_, teacher_.view(), student_.view()),
        job_(job_of(model, source, data, options)) {
    check(!data.windows.empty() && !data.held.empty(), "tuning needs windows to tune on and others to stop by");
    check_slices();
    for (int layer = -1; layer < (alone() ? 0 : config_.L); ++layer) student_.load(layer), teacher_.load(layer);
  }

  TuneResult run() {
    const bool resumed = resume();
    report_.resumed = resumed;
    if (alone()) {
      layers_alone();
      report_.moved = share_moved(model_, best_);
      return {std::move(best_), report_};
    }
    if (!resumed) {
      report_.kl_before = passes_.evaluate(data_.held);
      keep_best(), best_kl_ = report_.kl_before;
      note(fmt::format("untuned: KL {:.5g} on the windows held out", best_kl_));
    }
    passes_.choose(options_.loss, data_.held);
    layers();
    if (report_.evaluations.empty()) judge(0);
    whole();
    report_.kl_after = best_kl_;
    report_.steps = step_;
    report_.moved = share_moved(model_, best_);
    return {std::move(best_), report_};
  }

 private:
  // Runs the first stage, from the layer where it stopped.
  void layers() {
    if (options_.layer_steps == 0 || layers_done_ >= config_.L) return;
    LayerStage<D> stage(device_, config_, tape_, team_, student_, teacher_.view(), data_, options_);
    for (int layer = 0; layer < config_.L; ++layer) {
      if (layer < layers_done_) {
        stage.skip(layer);
        continue;
      }
      tune_layer(stage, layer);
      save(layer + 1 == config_.L);
    }
  }

  void keep_best() {
    for (int layer = -1; layer < config_.L; ++layer) student_.encode(layer, best_);
  }

  void tune_layer(LayerStage<D>& stage, int layer) {
    const auto [before, after] = stage.tune(layer);
    report_.layer_before.push_back(before), report_.layer_after.push_back(after);
    layers_done_ = layer + 1;
    // The second stage's moments begin at zero, in every saved state.
    student_.parameters(layer, [&](Parameter<D>& p) { device_.zero(p.m.get(), p.n), device_.zero(p.v.get(), p.n); });
    note(fmt::format("layer {}: error {:.4g} -> {:.4g} of the output's energy", layer, before, after));
  }

  // Without steps of the whole model, the device holds only one layer at a time.
  bool alone() const { return options_.steps == 0; }
  void layers_alone() {
    LayerStage<D> stage(device_, config_, tape_, team_, student_, teacher_.view(), data_, options_);
    student_.encode(-1, best_);
    for (int layer = 0; layer < config_.L; ++layer) {
      const bool done = layer < layers_done_;
      teacher_.load(layer), student_.load(layer);
      if (done) {
        stage.pass_untuned(layer);
        student_.release(layer), student_.load(layer, &best_);
        stage.skip(layer);
      } else {
        tune_layer(stage, layer);
        student_.encode(layer, best_);
      }
      student_.release(layer), teacher_.release(layer);
      if (!done) save(false);
    }
    std::tie(report_.kl_before, report_.kl_after) = stage.divergence();
    report_.evaluations.push_back({0, report_.kl_after});
    if (report_.kl_after < report_.kl_before) return;
    note("layer by layer the whole came no nearer: it is left as it was");
    report_.kl_after = report_.kl_before;
    for (int layer = 0; layer < config_.L; ++layer) {
      student_.load(layer);
      student_.encode(layer, best_);
      student_.release(layer);
    }
  }

  void whole() {
    const auto begin = std::chrono::steady_clock::now();
    const int64_t first = step_;
    while (step_ < end() && !report_.diverged && !report_.stopped_early) {
      const bool finite = step();
      ++step_;
      report_.seconds_a_step = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
                               static_cast<double>(step_ - first);
      std::string words;
      if (!finite) {
        report_.diverged = true;
      } else if (step_ % options_.evaluate_every == 0 || step_ == end()) {
        const int64_t before = end();
        judge(step_);
        words = fmt::format("step {}: KL {:.5g} on the windows held out, best {:.5g}", step_,
                            report_.evaluations.back().kl, best_kl_);
        if (end() < before) words += fmt::format("; rates are halved, {} steps are left", end() - step_);
      }
      note(words);
      save(false);
    }
  }

  // Makes one step. Returns false, without having changed anything, if the loss or its gradient is not finite.
  bool step() {
    const LossSums sums = gradients();
    student_.backward();
    student_.parameters([&](Parameter<D>& p) { p.add_gradient_squares(device_); });
    const double norm = std::sqrt(device_.squares());
    if (!std::isfinite(sums.mixed(passes_.mix())) || !std::isfinite(norm)) return false;
    if (mean_norm_ == 0) mean_norm_ = norm;
    const double kept = std::min(norm, options_.clip * mean_norm_);
    mean_norm_ += 0.02 * (kept - mean_norm_);
    const double rise = rise_at(step_);
    student_.parameters([&](Parameter<D>& p) {
      p.step(device_,
             {.rate = rise * options_.rates[static_cast<size_t>(p.share)],
              .beta2 = options_.memory,
              .eps = kAdamEps,
              .step = step_ + 1},
             norm > 0 ? kept / norm : 1);
    });
    student_.decode();
    return true;
  }

  std::vector<const std::vector<int32_t>*> windows_at(int64_t step) const {
    std::vector<const std::vector<int32_t>*> windows;
    for (const int64_t i :
         windows_of_step(step, options_.windows, static_cast<int64_t>(data_.windows.size()), options_.seed))
      windows.push_back(&data_.windows[static_cast<size_t>(i)]);
    return windows;
  }
  void check_slices() const {
    const size_t slices = passes_.slices(windows_at(0)).size();
    check(static_cast<size_t>(team_.size()) <= slices,
          "{} ranks share a step that is cut into {} slices of at most {} rows, so that some would have no work: give "
          "fewer --rows, more --windows or fewer ranks",
          team_.size(), slices, tape_.capacity());
  }

  // Computes the gradients for a step's windows, with the weights as products use them. Returns the losses, whichever
  // ranks made the slices.
  LossSums gradients() {
    const std::vector<Sequences> slices = passes_.slices(windows_at(step_));
    double total = 0;
    for (const Sequences& slice : slices) total += static_cast<double>(slice.rows());
    std::vector<typename Team<D>::Values> tensors;
    student_.zero_gradients();
    for (int layer = -1; layer < config_.L; ++layer)
      student_.pass_gradients(layer, [&](Real* values, int64_t n) { tensors.push_back({values, n}); });
    std::vector<LossSums> made(slices.size());
    team_.add_up(tensors, slices.size(), [&](size_t slice) { made[slice] = passes_.pass(slices[slice], 1 / total); });
    return passes_.sum(slices.size(), [&](size_t slice) { return made[slice]; });
  }

  int64_t end() const { return options_.steps - report_.skipped; }
  double rise_at(int64_t step) const { return schedule(step + report_.skipped, options_.steps, options_.warmup); }

  // Measures the held windows and keeps the best model. A rate that is too high hides gains, which appear as it falls.
  // So if no better model comes for long, the schedule jumps to where the rate is half of the present one. If that
  // would be less than kLeast of the top rate, the run ends.
  void judge(int64_t at) {
    constexpr double kLeast = 0.03;
    const double kl = passes_.evaluate(data_.held);
    report_.evaluations.push_back({at, kl});
    if (kl < best_kl_) {
      keep_best(), best_kl_ = kl, report_.best_step = at;
    } else if (!std::isfinite(kl) || kl > 2 * report_.kl_before) {
      report_.diverged = true;
    } else if (at - std::max(report_.best_step, report_.skipped_at) >= options_.patience * options_.evaluate_every) {
      const double half = rise_at(at) / 2;
      report_.stopped_early = half < kLeast;
      report_.skipped_at = at;
      while (!report_.stopped_early && rise_at(at) > half) ++report_.skipped;
    }
  }

  void note(const std::string& text) {
    if (progress_)
      progress_({layers_done_ * options_.layer_steps + step_, config_.L * options_.layer_steps + end(), text});
  }

  void save(bool now) {
    if (options_.state.empty() || !team_.first()) return;
    const auto time = std::chrono::steady_clock::now();
    if (!now && std::chrono::duration<double>(time - saved_).count() < options_.save_seconds) return;
    std::vector<TensorToWrite> tensors;
    if (!alone()) {
      student_.parameters([&](Parameter<D>& p) { add_parameter(device_, p, tensors); });
      student_.choices([&](const std::string& name, const Real* values, int64_t n) {
        add_values(device_, name, values, n, tensors);
      });
    }
    add_weights(best_, tensors);
    write_state(options_.state, std::move(tensors),
                {{"job", job_},
                 {"step", step_},
                 {"layers_done", layers_done_},
                 {"mean_norm", mean_norm_},
                 {"best_kl", best_kl_},
                 {"report", kept(report_)}});
    saved_ = std::chrono::steady_clock::now();
  }

  // Loads the state, which either all ranks must find or none.
  bool resume() {
    const bool found = !options_.state.empty() && std::filesystem::exists(options_.state);
    for (const std::vector<double>& of_rank : team_.collect(
             static_cast<size_t>(team_.size()), [&](size_t) { return std::vector<double>{found ? 1.0 : 0.0}; }))
      check((of_rank[0] != 0) == found, "ranks disagree about whether {} is there: they must share a file system",
            options_.state);
    if (!found) return false;
    const Safetensors file = open_state(options_.state);
    const nlohmann::json about = read_state(file, options_.state, job_);
    if (!alone()) {
      student_.parameters([&](Parameter<D>& p) { load_parameter(device_, file, p); });
      student_.choices(
          [&](const std::string& name, Real* values, int64_t n) { load_values(device_, file, name, n, values); });
      student_.decode(false);
    }
    best_ = load_weights(file, model_, alone() ? about.at("layers_done").get<int>() : config_.L);
    step_ = about.at("step"), layers_done_ = about.at("layers_done"), mean_norm_ = about.at("mean_norm");
    best_kl_ = about.at("best_kl"), report_ = kept(about.at("report"));
    return true;
  }

  D& device_;
  Team<D> team_;
  const Checkpoint& model_;
  const TuneData& data_;
  TuneOptions options_;
  Progress progress_;
  ModelConfig config_;
  DenseNetwork<D> teacher_;
  Student<D> student_;
  Tape<D> tape_;
  Passes<D> passes_;
  nlohmann::json job_;
  TuneReport report_;
  TunedWeights best_;
  double best_kl_ = 0, mean_norm_ = 0;
  int64_t step_ = 0;
  int layers_done_ = 0;
  std::chrono::steady_clock::time_point saved_ = std::chrono::steady_clock::now();
};

}  // namespace fidelio::train
