#include "eval/fidelity/divergence.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/statistics/proportions.h"

namespace fidelio {
namespace {

int64_t count_divergent(const std::vector<TokenDivergence>& tokens) {
  return std::count_if(tokens.begin(), tokens.end(), [](const TokenDivergence& t) { return !t.agree(); });
}

double probability(std::span<const float> logits, int32_t id, double log_sum) {
  return std::exp(static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum);
}

// Returns the answer's text, which continues the prompt's text, cut into tokens.
std::vector<std::string> token_texts(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                     std::span<const TokenDivergence> tokens) {
  StreamingDetokenizer detokenizer(tokenizer, false, prompt);
  std::vector<std::string> texts;
  for (const TokenDivergence& t : tokens) texts.push_back(detokenizer.push(t.id));
  const std::string rest = detokenizer.finish();
  if (!texts.empty()) texts.back() += rest;
  return texts;
}

}  // namespace

int64_t PromptDivergence::divergent() const { return count_divergent(tokens); }

int64_t DivergenceReport::tokens() const {
  int64_t sum = 0;
  for (const PromptDivergence& p : prompts) sum += static_cast<int64_t>(p.tokens.size());
  return sum;
}

int64_t DivergenceReport::divergent() const {
  int64_t sum = 0;
  for (const PromptDivergence& p : prompts) sum += p.divergent();
  return sum;
}

Estimate DivergenceReport::agreement() const {
  std::vector<double> same, all;
  for (const PromptDivergence& p : prompts) {
    all.push_back(static_cast<double>(p.tokens.size()));
    same.push_back(all.back() - static_cast<double>(p.divergent()));
  }
  if (divergent() == 0 || divergent() == tokens())  // there is no variation to resample
    return wilson(divergent() == 0 ? static_cast<double>(prompts.size()) : 0.0, std::ssize(prompts));
  return ratio(same, all, bootstrap);
}

DivergenceReport measure_divergence(Runner& a, Runner& b, const Tokenizer& tokenizer, const PromptBuilder& prompt,
                                    std::span<const std::string> prompts, const DivergenceOptions& options,
                                    const ProgressCallback& progress) {
  std::vector<GenerationRequest> requests;
  for (const std::string& text : prompts) {
    const ChatMessage message{"user", text};
    requests.push_back(
        {.prompt = prompt(std::span(&message, 1)), .max_tokens = options.max_tokens, .stop_ids = options.stop_ids});
  }
  // Every prompt counts twice: once for the answer and once for the comparison.
  const auto total = static_cast<int64_t>(2 * prompts.size());
  int64_t done = 0;
  const auto answers = generate(a, requests, {.reading = options.mode_a, .on_finish = [&](int64_t, const Generation&) {
                                                if (progress) progress(++done, total);
                                              }});
  DivergenceReport report{options.name_a, options.name_b, std::vector<PromptDivergence>(prompts.size())};
  std::vector<std::vector<int32_t>> ids;
  std::vector<ScoredSequence> sequences;
  for (size_t i = 0; i < answers.size(); ++i) {
    ids.push_back(requests[i].prompt);
    ids.back().insert(ids.back().end(), answers[i].ids.begin(), answers[i].ids.end());
    report.prompts[i].prompt = prompts[i];
    report.prompts[i].finish_reason = answers[i].finish_reason;
  }
  for (size_t i = 0; i < ids.size(); ++i)
    sequences.push_back({ids[i], static_cast<int64_t>(requests[i].prompt.size())});

  const auto v = static_cast<size_t>(a.config().v);
  RowComparer comparer;
  const PassModel models[] = {{&a, options.mode_a}, {&b, options.mode_b}};
  run_pass(
      models, sequences,
      [&](std::span<const ScoredRow> rows, std::span<const std::span<const float>> logits) {
        for (size_t i = 0; i < rows.size(); ++i) {
          const auto p = logits[0].subspan(i * v, v), q = logits[1].subspan(i * v, v);
          const PositionFidelity f = comparer.compare(p, q);
          TokenDivergence t{rows[i].token, f.top_q};
          t.p_token = static_cast<float>(probability(p, t.id, f.log_sum_exp_p));
          t.q_token = static_cast<float>(probability(q, t.id, f.log_sum_exp_q));
          t.q_other = static_cast<float>(probability(q, t.other, f.log_sum_exp_q));
          t.kl = static_cast<float>(f.kl);
          t.ear = static_cast<float>(f.ear);
          t.entropy = static_cast<float>(f.entropy);
          report.prompts[static_cast<size_t>(rows[i].sequence)].tokens.push_back(t);
        }
      },
      [&](int64_t finished, int64_t) {
        if (progress) progress(done + finished, total);
      });
  for (size_t i = 0; i < ids.size(); ++i)
    report.prompts[i].texts = token_texts(tokenizer, requests[i].prompt, report.prompts[i].tokens);
  return report;
}

std::vector<Substitution> substitutions(const DivergenceReport& report, size_t limit) {
  std::map<int32_t, std::map<int32_t, int64_t>> counts;
  for (const PromptDivergence& p : report.prompts)
    for (const TokenDivergence& t : p.tokens)
      if (!t.agree()) ++counts[t.id][t.other];
  std::vector<Substitution> all;
  for (const auto& [id, others] : counts) {
    Substitution s{id, 0, {others.begin(), others.end()}};
    for (const auto& [other, count] : others) s.count += count;
    std::stable_sort(s.others.begin(), s.others.end(),
                     [](const auto& x, const auto& y) { return x.second > y.second; });
    all.push_back(std::move(s));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Substitution& x, const Substitution& y) { return x.count > y.count; });
  all.resize(std::min(all.size(), limit));
  return all;
}

nlohmann::json to_json(const DivergenceReport& report, const Tokenizer& tokenizer) {
  using nlohmann::json;
  json prompts = json::array(), frequent = json::array();
  for (const PromptDivergence& p : report.prompts) {
    json divergent = json::array();
    for (size_t i = 0; i < p.tokens.size(); ++i) {
      const TokenDivergence& t = p.tokens[i];
      if (t.agree()) continue;
      divergent.push_back({{"position", i},
                           {"id", t.id},
                           {"other", t.other},
                           {"p", t.p_token},
                           {"q", t.q_token},
                           {"q_other", t.q_other},
                           {"kl", t.kl},
                           {"entropy", t.entropy}});
    }
    const auto n = static_cast<double>(p.tokens.size());
    prompts.push_back({{"prompt", p.prompt},
                       {"tokens", p.tokens.size()},
                       {"divergent", divergent},
                       {"agreement", (n - static_cast<double>(p.divergent())) / n},
                       {"finish_reason", name_of(p.finish_reason)}});
  }
  for (const Substitution& s : substitutions(report)) {
    json others = json::array();
    for (const auto& [other, count] : s.others)
      others.push_back({{"token", tokenizer.token_text(other)}, {"count", count}});
    frequent.push_back({{"token", tokenizer.token_text(s.id)}, {"count", s.count}, {"others", others}});
  }
  return {{"a", report.name_a},
          {"b", report.name_b},
          {"agreement", to_json(report.agreement())},
          {"tokens", report.tokens()},
          {"divergent", report.divergent()},
          {"prompts", prompts},
          {"substitutions", frequent}};
}

}  // namespace fidelio
