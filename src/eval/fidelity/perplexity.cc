#include "eval/fidelity/perplexity.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/fidelity/fidelity.h"

namespace fidelio {

std::vector<TextWindow> text_windows(int64_t tokens, const WindowOptions& options) {
  const int64_t context = options.context, stride = options.stride == 0 ? context : options.stride;
  check(context >= 2, "a window needs a context of at least 2 tokens, not {}", context);
  check(stride >= 1 && stride <= context, "the stride must be between 1 and the context of {} tokens, not {}", context,
        stride);
  check(options.windows >= 0, "the number of windows must be 0 (all) or more, not {}", options.windows);
  check(tokens >= 2, "a text needs at least 2 tokens to be scored, this one has {}", tokens);
  const auto limit = options.windows == 0 ? tokens : options.windows;
  std::vector<TextWindow> windows;
  for (int64_t begin = 0, scored = 0; static_cast<int64_t>(windows.size()) < limit; begin += stride) {
    const int64_t end = std::min(begin + context, tokens);
    if (stride == context && end - begin < context && begin > 0) break;  // the incomplete last window is dropped
    windows.push_back({begin, end, std::max(scored, begin + 1)});
    scored = end;
    if (end == tokens) break;
  }
  return windows;
}

WindowSet windows_of(std::span<const EvalText> texts, const WindowOptions& options) {
  check(!texts.empty(), "there is no text to evaluate on");
  WindowSet set;
  for (size_t i = 0; i < texts.size(); ++i) {
    check(texts[i].ids.size() >= 2, "{}: a text needs at least 2 tokens to be scored, this one has {}", texts[i].name,
          texts[i].ids.size());
    for (const TextWindow& w : text_windows(static_cast<int64_t>(texts[i].ids.size()), options)) {
      const auto ids =
          std::span(texts[i].ids).subspan(static_cast<size_t>(w.begin), static_cast<size_t>(w.end - w.begin));
      const int64_t first = std::max(w.first_scored, texts[i].given);
      if (first >= w.end) continue;
      set.sequences.push_back({ids, first - w.begin});
      set.text.push_back(static_cast<int32_t>(i));
    }
  }
  check(!set.sequences.empty(), "{}: nothing of it is to be scored", texts.front().name);
  return set;
}

int64_t PerplexityReport::tokens() const {
  int64_t sum = 0;
  for (const WindowLoss& w : windows) sum += w.tokens;
  return sum;
}

Estimate PerplexityReport::loss() const {
  std::vector<double> nll, count;
  for (const WindowLoss& w : windows) {
    nll.push_back(w.nll);
    count.push_back(static_cast<double>(w.tokens));
  }
  return ratio(nll, count, options.bootstrap);
}

Estimate perplexity_of(const Estimate& loss) {
  return {std::exp(loss.value), {std::exp(loss.ci95.low), std::exp(loss.ci95.high)}};
}

Estimate PerplexityReport::perplexity() const { return perplexity_of(loss()); }

PerplexityReport measure_perplexity(Runner& runner, std::span<const EvalText> texts, const PerplexityOptions& options,
                                    ThreadPool& pool, const ProgressCallback& progress) {
  PerplexityReport report;
  report.options = options;
  for (const EvalText& t : texts) {
    report.text_names.push_back(t.name);
    report.text_sha256.push_back(t.sha256);
  }
  const WindowSet set = windows_of(texts, options.windows);
  for (size_t i = 0; i < set.sequences.size(); ++i) report.windows.push_back({0, 0, set.text[i]});

  const auto v = static_cast<size_t>(runner.config().v);
  std::vector<double> nll;
  const PassModel models[] = {{&runner, options.mode}};
  run_pass(
      models, set.sequences,
      [&](std::span<const ScoredRow> rows, std::span<const std::span<const float>> logits) {
        nll.resize(rows.size());
        pool.run(static_cast<int64_t>(rows.size()), [&](int64_t job, int) {
          const auto i = static_cast<size_t>(job);
          const auto row = logits[0].subspan(i * v, v);
          nll[i] = log_sum_exp(row) - static_cast<double>(row[static_cast<size_t>(rows[i].token)]);
        });
        for (size_t i = 0; i < rows.size(); ++i) {  // adding in order makes the sum independent of the threads
          WindowLoss& w = report.windows[static_cast<size_t>(rows[i].sequence)];
          w.nll += nll[i];
          ++w.tokens;
        }
      },
      progress);
  return report;
}

nlohmann::json to_json(const WindowOptions& o) {
  return {{"context", o.context}, {"stride", o.stride == 0 ? o.context : o.stride}, {"windows", o.windows}};
}

nlohmann::json to_json(const PerplexityReport& report) {
  nlohmann::json texts = nlohmann::json::array(), windows = nlohmann::json::array(),
                 settings = to_json(report.options.windows);
  for (size_t i = 0; i < report.text_names.size(); ++i)
    texts.push_back({{"name", report.text_names[i]}, {"sha256", report.text_sha256[i]}});
  for (const WindowLoss& w : report.windows) windows.push_back({w.nll, w.tokens});
  settings["activations"] = name_of(report.options.mode.activations);
  settings["bootstrap"] = {{"resamples", report.options.bootstrap.resamples}, {"seed", report.options.bootstrap.seed}};
  return {{"perplexity", to_json(report.perplexity())},
          {"loss", to_json(report.loss())},
          {"tokens", report.tokens()},
          {"settings", settings},
          {"texts", texts},
          {"windows", windows}};
}

}  // namespace fidelio
