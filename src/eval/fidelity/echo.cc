#include "eval/fidelity/echo.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "eval/fidelity/fidelity.h"

namespace fidelio {
namespace {

std::vector<std::pair<int32_t, double>> most_likely(std::span<const float> row, double log_sum, int count) {
  std::vector<int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](int32_t a, int32_t b) {
    const float x = row[static_cast<size_t>(a)], y = row[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::vector<std::pair<int32_t, double>> top;
  for (int32_t id : std::span(ids).first(static_cast<size_t>(count)))
    top.emplace_back(id, static_cast<double>(row[static_cast<size_t>(id)]) - log_sum);
  return top;
}

}  // namespace

std::vector<std::vector<EchoedToken>> echo(Runner& runner, std::span<const std::vector<int32_t>> prompts, int top,
                                           Activations mode, const ProgressCallback& progress) {
  const auto v = static_cast<size_t>(runner.config().v);
  check(top >= 1 && top <= runner.config().v, "{} most likely tokens asked for: from 1 to the vocabulary's {}", top, v);
  std::vector<std::vector<EchoedToken>> echoes(prompts.size());
  std::vector<std::vector<int32_t>> ids;
  std::vector<ScoredSequence> sequences;
  for (size_t i = 0; i < prompts.size(); ++i) {
    check(!prompts[i].empty(), "prompt {} is empty: there is nothing to echo", i);
    for (int32_t id : prompts[i]) echoes[i].push_back({id, std::numeric_limits<double>::quiet_NaN(), {}});
    ids.push_back(prompts[i]);
    ids.back().push_back(prompts[i].back());  // this only makes room for the position of the next token
  }
  for (const auto& sequence : ids) sequences.push_back({sequence, 1});
  const PassModel models[] = {{&runner, mode}};
  run_pass(
      models, sequences,
      [&](std::span<const ScoredRow> rows, std::span<const std::span<const float>> logits) {
        for (size_t i = 0; i < rows.size(); ++i) {
          const auto row = logits[0].subspan(i * v, v);
          const double log_sum = log_sum_exp(row);
          auto& tokens = echoes[static_cast<size_t>(rows[i].sequence)];
          const auto position = static_cast<size_t>(rows[i].position);
          EchoedToken token{0, 0, most_likely(row, log_sum, top)};
          token.id = position < tokens.size() ? tokens[position].id : token.top[0].first;
          token.logprob = static_cast<double>(row[static_cast<size_t>(token.id)]) - log_sum;
          if (position == tokens.size())
            tokens.push_back(std::move(token));
          else
            tokens[position] = std::move(token);
        }
      },
      progress);
  return echoes;
}

}  // namespace fidelio
