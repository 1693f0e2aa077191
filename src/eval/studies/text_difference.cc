#include "eval/studies/text_difference.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/foreign/json.h"

namespace fidelio {
namespace {

using nlohmann::json;

// Returns the stop id that the model would most likely have chosen; any of them ends the text alike.
int32_t likeliest_stop(std::span<const int32_t> stops, std::span<const float> row) {
  check(!stops.empty(), "no stop token is known, and one text ends where the other goes on");
  return *std::max_element(stops.begin(), stops.end(), [&](int32_t a, int32_t b) {
    return row[static_cast<size_t>(a)] < row[static_cast<size_t>(b)];
  });
}

// Returns the logits after these tokens. They are the row that predicts the last token of a sequence that is one
// longer.
std::vector<float> logits_after(const TaskModel& model, std::vector<int32_t> ids, Activations mode) {
  std::vector<float> row;
  ids.push_back(ids.back());
  const ScoredSequence sequence{ids, static_cast<int64_t>(ids.size()) - 1};
  const PassModel models[] = {{model.runner, mode}};
  run_pass(models, std::span(&sequence, 1),
           [&](std::span<const ScoredRow>, std::span<const std::span<const float>> logits) {
             row.assign(logits[0].begin(), logits[0].begin() + model.runner->config().v);
           });
  return row;
}

std::string shown(const Tokenizer& tokenizer, int32_t id) {
  return id < 0 ? "(cut off)" : json(tokenizer.decode_inside(id)).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::map<std::string, std::string> read_answers(const std::string& path) {
  std::istringstream lines(read_text_file(path));
  std::map<std::string, std::string> answers;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const json object = parse_json(line, fmt::format("{} line {}", path, number));
    const auto text = [&](const char* key) {
      check(object.is_object() && object.contains(key) && object[key].is_string(),
            "{} line {}: expected an object with \"id\" and \"text\"", path, number);
      return object[key].get<std::string>();
    };
    check(answers.emplace(text("id"), text("text")).second, "{} line {}: a second text for {}", path, number,
          text("id"));
  }
  check(!answers.empty(), "{} holds no texts", path);
  return answers;
}

Estimate TextComparison::equal() const {
  return wilson(static_cast<double>(compared - std::ssize(differences)), compared);
}

TextComparison compare_texts(const TaskModel& model, const TaskSet& set, const TaskOptions& options,
                             std::span<const ItemResult> results, const std::map<std::string, std::string>& others) {
  check(set.method == TaskMethod::generate, "{} is scored by log-likelihood: there are no texts to compare", set.path);
  TextComparison comparison;
  for (size_t i = 0; i < results.size(); ++i) {
    const ItemResult& r = results[i];
    const auto other = others.find(r.id);
    check(other != others.end(), "there is no text to compare with for {} {}", r.task, r.id);
    ++comparison.compared;
    if (r.text == other->second) continue;
    const std::vector<int32_t> own_ids = model.tokenizer->encode(r.text, false),
                               other_ids = model.tokenizer->encode(other->second, false);
    const auto [own, theirs] = std::mismatch(own_ids.begin(), own_ids.end(), other_ids.begin(), other_ids.end());
    std::vector<int32_t> before = model.prompt(conversation(set.items[i], set.examples));
    before.insert(before.end(), own_ids.begin(), own);
    const std::vector<float> row = logits_after(model, before, options.mode);

    TextDifference d{r.task, r.id, own - own_ids.begin()};
    if (own != own_ids.end())
      d.own = *own;
    else if (r.finish_reason == name_of(FinishReason::stop))
      d.own = likeliest_stop(options.stop_ids, row);
    d.other = theirs != other_ids.end() ? *theirs : likeliest_stop(options.stop_ids, row);
    d.own_logit = d.own < 0 ? std::numeric_limits<float>::quiet_NaN() : row[static_cast<size_t>(d.own)];
    d.other_logit = row[static_cast<size_t>(d.other)];
    comparison.differences.push_back(d);
  }
  return comparison;
}

Table to_table(const TextComparison& c, const Tokenizer& tokenizer, const std::string& reference) {
  Table table{"Texts that differ from " + reference,
              "Position: in tokens of the answer. Logits: the model's own, of its token and of the other text's.",
              {"question", "position", "token", "other token", "logit", "other's", "difference"},
              {}};
  for (const TextDifference& d : c.differences)
    table.rows.push_back({d.id, fmt::format("{}", d.position), shown(tokenizer, d.own), shown(tokenizer, d.other),
                          number_text(static_cast<double>(d.own_logit), 5),
                          number_text(static_cast<double>(d.other_logit), 5),
                          number_text(static_cast<double>(d.own_logit) - static_cast<double>(d.other_logit), 5)});
  return table;
}

json to_json(const TextComparison& c, const Tokenizer& tokenizer) {
  json differences = json::array();
  for (const TextDifference& d : c.differences)
    differences.push_back({{"task", d.task},
                           {"id", d.id},
                           {"position", d.position},
                           {"id_own", d.own},
                           {"id_other", d.other},
                           {"token", shown(tokenizer, d.own)},
                           {"other_token", shown(tokenizer, d.other)},
                           {"logit", d.own < 0 ? json(nullptr) : json(d.own_logit)},
                           {"other_logit", d.other_logit}});
  return {{"compared", c.compared}, {"equal", to_json(c.equal())}, {"differences", differences}};
}

}  // namespace fidelio
