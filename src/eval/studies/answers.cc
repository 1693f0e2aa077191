#include "eval/studies/answers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/hash.h"
#include "engine/generate.h"
#include "eval/statistics/proportions.h"

namespace fidelio {
namespace {

std::string prompts_sha256(std::span<const std::vector<int32_t>> prompts) {
  Sha256 hash;
  for (const std::vector<int32_t>& p : prompts) {
    hash.update(fmt::format("{} ", p.size()));
    hash.update(std::as_bytes(std::span(p)));
  }
  return hash.hex();
}

}  // namespace

Estimate WholeAnswers::share() const { return clopper_pearson(same, prompts); }

WholeAnswers measure_answers(Runner& source, Runner& candidate, std::span<const std::vector<int32_t>> prompts,
                             const AnswerOptions& options, const ProgressCallback& progress) {
  check(!prompts.empty(), "whole answers are measured on prompts, and there are none");
  check(source.config().v == candidate.config().v, "source and candidate have vocabularies of {} and {} tokens",
        source.config().v, candidate.config().v);
  std::vector<GenerationRequest> requests;
  for (const std::vector<int32_t>& p : prompts)
    requests.push_back({.prompt = p, .max_tokens = options.max_tokens, .stop_ids = options.stop_ids});
  const auto total = static_cast<int64_t>(2 * prompts.size());  // every prompt is first answered, then compared
  int64_t done = 0;
  const std::vector<Generation> made =
      generate(source, requests, {.reading = options.reference_mode, .on_finish = [&](int64_t, const Generation&) {
                                    if (progress) progress(++done, total);
                                  }});
  WholeAnswers answers;
  answers.max_tokens = options.max_tokens;
  answers.prompts = std::ssize(prompts);
  answers.differs_at.assign(prompts.size(), -1);
  answers.sha256 = prompts_sha256(prompts);
  std::vector<std::vector<int32_t>> ids;
  std::vector<ScoredSequence> sequences;
  for (size_t i = 0; i < made.size(); ++i) {
    check(!made[i].ids.empty(), "prompt {} of those that are answered fills the context of {} tokens", i + 1,
          source.options().context > 0 ? source.options().context : int64_t{source.config().max_positions});
    ids.push_back(prompts[i]);
    ids.back().insert(ids.back().end(), made[i].ids.begin(), made[i].ids.end());
  }
  for (size_t i = 0; i < ids.size(); ++i) sequences.push_back({ids[i], std::ssize(prompts[i])});
  const auto v = static_cast<size_t>(candidate.config().v);
  const PassModel model[] = {{&candidate, options.candidate_mode}};
  run_pass(
      model, sequences,
      [&](std::span<const ScoredRow> rows, std::span<const std::span<const float>> logits) {
        for (size_t i = 0; i < rows.size(); ++i) {
          const auto of = static_cast<size_t>(rows[i].sequence);
          ++answers.tokens;
          if (argmax(logits[0].subspan(i * v, v)) == rows[i].token)
            ++answers.alike;
          else if (answers.differs_at[of] < 0)
            answers.differs_at[of] = rows[i].position - std::ssize(prompts[of]);
        }
      },
      [&](int64_t finished, int64_t) {
        if (progress) progress(done + finished, total);
      });
  answers.same = std::count(answers.differs_at.begin(), answers.differs_at.end(), -1);
  return answers;
}

nlohmann::json to_json(const WholeAnswers& a) {
  return {{"prompts", a.prompts},        {"max_tokens", a.max_tokens}, {"same", a.same},
          {"share", to_json(a.share())}, {"tokens", a.tokens},         {"alike", a.alike},
          {"differs_at", a.differs_at},  {"sha256", a.sha256}};
}

WholeAnswers answers_from_json(const nlohmann::json& json) {
  WholeAnswers a;
  a.max_tokens = json.at("max_tokens").get<int64_t>();
  a.prompts = json.at("prompts").get<int64_t>();
  a.same = json.at("same").get<int64_t>();
  a.tokens = json.at("tokens").get<int64_t>();
  a.alike = json.at("alike").get<int64_t>();
  a.differs_at = json.at("differs_at").get<std::vector<int64_t>>();
  a.sha256 = json.at("sha256").get<std::string>();
  return a;
}

}  // namespace fidelio
