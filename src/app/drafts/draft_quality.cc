#include "app/drafts/draft_quality.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "core/rng.h"
#include "engine/drafts/controller.h"
#include "engine/sampler.h"
#include "eval/statistics/statistics.h"
#include "kernels/cpu/choice/choose.h"
#include "runtime/page_table.h"
#include "step/choice_arithmetic.h"
#include "step/own_slot.h"

namespace fidelio::app {
namespace {

constexpr int kNumbers = 4;  // A row is chosen with this many random numbers.

// This is one answer in progress, with its pages and the number of its tokens that are in the cache. In a model that
// keeps a state, the first of two slots has that after these tokens, and a draft continues from it in the second.
struct Course {
  const WrittenAnswer* answer;
  std::vector<int32_t> pages;
  int64_t fed = 0;
  int32_t slot = 0;
  int32_t draft_slot() const { return slot + 1; }
  int64_t rows_left() const { return static_cast<int64_t>(answer->ids.size()) - 1 - fed; }
};

std::vector<double> probabilities(std::span<const float> logits, double temperature) {
  const float top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p(logits.size());
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += p[i] = std::exp(static_cast<double>(logits[i] - top) / temperature);
  for (double& x : p) x /= sum;
  return p;
}

// A Count has the right guesses of a step of the draft, and the rows that were judged.
struct Count {
  int64_t rows = 0, right = 0;
  double share() const { return rows > 0 ? static_cast<double>(right) / static_cast<double>(rows) : 0; }
};
using Counts = std::array<Count, kCycle>;

double share_of_all(const Counts& counts) {
  Count all;
  for (const Count& c : counts) all.rows += c.rows, all.right += c.right;
  return all.share();
}

struct Sums {
  Counts greedy{}, coupled{};
  int64_t sampled_rows = 0;
  double ear = 0;

  void add(size_t step, std::span<const float> p, std::span<const float> q, bool sampled, double temperature,
           uint64_t stream) {
    if (!sampled) {
      ++greedy[step].rows;
      greedy[step].right +=
          std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
      return;
    }
    ++sampled_rows;
    const std::vector<double> a = probabilities(p, temperature), b = probabilities(q, temperature);
    for (size_t i = 0; i < a.size(); ++i) ear += std::min(a[i], b[i]);
    SamplingOptions options;
    options.temperature = temperature;
    std::vector<LogitChange> none;
    ChoiceRule rule = choice_rule(options, {}, 0, 0, std::ssize(p), none);
    Rng random(7, stream);
    for (int i = 0; i < kNumbers; ++i) {
      rule.random = random.next();
      ++coupled[step].rows;
      coupled[step].right += chooser.choose(p, rule).id == chooser.choose(q, rule).id;
    }
  }
  cpu::Chooser chooser;
};

// Feeds everything before the first row that is judged.
void feed_prompt(Runner& model, Reading reading, Course& c) {
  const int64_t end = c.answer->begin - 1;
  while (c.fed < end) {
    const int64_t rows = rows_of_prompt(model.program().state, c.fed, end - c.fed, model.options().max_rows);
    Batch batch;
    batch.append(std::span(c.answer->ids).subspan(static_cast<size_t>(c.fed), static_cast<size_t>(rows)), c.fed,
                 c.pages, 0, RowKind::prompt);
    continue_in_slot(model.program().state, batch, c.slot);
    model.step(batch, reading);
    c.fed += rows;
  }
}

// Computes the next rows of all answers by the draft and then by the model, which leaves its own entries in the cache.
void judge_cycle(Runner& model, Reading reading, Runner& draft, Reading draft_reading, std::vector<Course>& courses,
                 double temperature, Sums& sums) {
  const auto v = static_cast<size_t>(model.config().v);
  std::vector<std::vector<float>> drafted(courses.size());
  for (int64_t k = 0; k < kCycle; ++k) {
    Batch batch;
    std::vector<size_t> which;
    for (size_t i = 0; i < courses.size(); ++i) {
      const Course& c = courses[i];
      if (k >= c.rows_left()) continue;
      batch.append(std::span(c.answer->ids).subspan(static_cast<size_t>(c.fed + k), 1), c.fed + k, c.pages, 1,
                   RowKind::output);
      continue_in_slot(model.program().state, batch, c.draft_slot(), k == 0 ? c.slot : c.draft_slot());
      which.push_back(i);
    }
    if (which.empty()) break;
    const std::span<const float> logits = draft.step(batch, draft_reading);
    for (size_t i = 0; i < which.size(); ++i)
      drafted[which[i]].insert(drafted[which[i]].end(), logits.begin() + static_cast<std::ptrdiff_t>(i * v),
                               logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * v));
  }
  Batch batch;
  for (const Course& c : courses) {
    const int64_t rows = std::min(kCycle, c.rows_left());
    if (rows <= 0) continue;
    batch.append(std::span(c.answer->ids).subspan(static_cast<size_t>(c.fed), static_cast<size_t>(rows)), c.fed,
                 c.pages, rows, RowKind::output);
    continue_in_slot(model.program().state, batch, c.slot);
  }
  const std::span<const float> logits = model.step(batch, reading);
  size_t row = 0;
  for (size_t i = 0; i < courses.size(); ++i) {
    Course& c = courses[i];
    const int64_t rows = std::min(kCycle, c.rows_left());
    for (int64_t k = 0; k < rows; ++k, ++row, ++c.fed)
      sums.add(static_cast<size_t>(k), logits.subspan(row * v, v),
               std::span<const float>(drafted[i]).subspan(static_cast<size_t>(k) * v, v), c.answer->sampled,
               temperature, static_cast<uint64_t>(sums.sampled_rows));
  }
}

}  // namespace

DraftQuality measure_quality(Runner& model, Reading reading, Runner& draft, Reading draft_reading,
                             const std::vector<WrittenAnswer>& answers, double temperature) {
  Sums sums;
  const int64_t side_by_side =
      std::max<int64_t>(1, std::min(model.options().max_logit_rows, model.options().max_rows) / kCycle);
  model.reserve_states(2 * side_by_side);
  for (size_t next = 0; next < answers.size();) {
    std::vector<Course> courses;
    int32_t page = 0;
    while (next < answers.size() && static_cast<int64_t>(courses.size()) < side_by_side) {
      const int64_t pages = PageTable::pages_for(static_cast<int64_t>(answers[next].ids.size()) + kCycle);
      if (page + pages > model.cache_pages()) break;
      courses.push_back({&answers[next++], std::vector<int32_t>(static_cast<size_t>(pages)), 0,
                         2 * static_cast<int32_t>(courses.size())});
      for (int32_t& p : courses.back().pages) p = page++;
    }
    check(!courses.empty(), "the cache of {} tokens does not hold an answer", model.options().cache_tokens);
    for (Course& c : courses) feed_prompt(model, reading, c);
    while (std::any_of(courses.begin(), courses.end(), [](const Course& c) { return c.rows_left() > 0; }))
      judge_cycle(model, reading, draft, draft_reading, courses, temperature, sums);
  }
  DraftQuality quality;
  quality.greedy = share_of_all(sums.greedy);
  quality.coupled = share_of_all(sums.coupled);
  if (sums.sampled_rows > 0) quality.ear = sums.ear / static_cast<double>(sums.sampled_rows);
  quality.rows = sums.sampled_rows;
  for (size_t step = 0; step < kCycle; ++step) {
    quality.rows += sums.greedy[step].rows;
    quality.greedy_by_step[step] = sums.greedy[step].share();
    quality.coupled_by_step[step] = sums.coupled[step].share();
  }
  return quality;
}

StepTimes measure_times(Runner& model, Reading reading, std::span<const DraftReading> drafts,
                        const WrittenAnswer& answer, int64_t most) {
  constexpr int kRounds = 15;
  Course c{&answer, {}, 0, 0};
  const int64_t rows_of_all = static_cast<int64_t>(answer.ids.size());
  check(rows_of_all > most + 1, "an answer of {} tokens is too short to time {} rows with", rows_of_all, most);
  c.pages.resize(static_cast<size_t>(PageTable::pages_for(rows_of_all)));
  for (size_t i = 0; i < c.pages.size(); ++i) c.pages[i] = static_cast<int32_t>(i);
  WrittenAnswer prompt = answer;
  prompt.begin = rows_of_all - most;
  c.answer = &prompt;
  model.reserve_states(2);
  feed_prompt(model, reading, c);
  const auto time = [&](Runner& runner, Reading how, int64_t rows, bool drafts_it) {
    Batch batch;
    batch.append(std::span(answer.ids).subspan(static_cast<size_t>(c.fed), static_cast<size_t>(rows)), c.fed, c.pages,
                 rows, RowKind::output);
    continue_in_slot(model.program().state, batch, c.draft_slot(), c.slot);
    std::vector<ChoiceRule> rules(static_cast<size_t>(rows));
    if (drafts_it) rules[0].wants_probability = true;
    std::vector<Choice> choices(rules.size());
    const auto start = std::chrono::steady_clock::now();
    runner.step_and_choose(batch, how, rules, choices);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<std::vector<double>> verify(static_cast<size_t>(most)), drafted(drafts.size());
  // Plain decoding follows plain decoding, and verification follows drafts.
  for (int round = 0; round <= kRounds; ++round) {
    const auto keep = [&](std::vector<double>& in, double seconds) {
      if (round > 0) in.push_back(seconds);  // The first round warms up.
    };
    for (int64_t i = 0; i < kPlainStepsToSettle; ++i) time(model, reading, 1, false);
    keep(verify[0], time(model, reading, 1, false));
    for (int64_t rows = 2; rows <= most; ++rows) {
      for (size_t i = 0; i < drafts.size(); ++i) keep(drafted[i], time(*drafts[i].runner, drafts[i].reading, 1, true));
      keep(verify[static_cast<size_t>(rows - 1)], time(model, reading, rows, false));
    }
  }
  StepTimes times;
  for (const auto& of_rows : verify) times.verify.push_back(percentile(of_rows, 50));
  for (const auto& of_draft : drafted) times.drafts.push_back(percentile(of_draft, 50));
  return times;
}

Prediction predict(std::span<const double> acceptance, std::span<const double> verify, double draft) {
  Prediction best;
  double expected = 1, reached = 1;
  for (size_t drafts = 1; drafts < verify.size(); ++drafts) {
    reached *= acceptance[std::min(drafts, acceptance.size()) - 1];
    expected += reached;
    const double seconds = static_cast<double>(drafts) * draft + verify[drafts];
    const double speedup = expected * verify[0] / seconds;
    if (speedup > best.speedup) best = {static_cast<int64_t>(drafts), speedup};
  }
  return best;
}

}  // namespace fidelio::app
