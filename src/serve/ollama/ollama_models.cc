#include "serve/ollama/ollama_models.h"

#include <algorithm>
#include <chrono>
#include <ctime>

namespace fidelio::serve {
namespace {

// 134515008 becomes "134.5M".
std::string short_count(int64_t n) {
  if (n >= 1'000'000'000) return fmt::format("{:.1f}B", static_cast<double>(n) / 1e9);
  return fmt::format("{:.1f}M", static_cast<double>(n) / 1e6);
}

Json details_of(const ServedModel& model) {
  const double bits =
      8 * static_cast<double>(model.bytes) / static_cast<double>(std::max<int64_t>(1, model.parameters));
  return {{"parent_model", ""},
          {"format", "safetensors"},
          {"family", model.family},
          {"families", {model.family}},
          {"parameter_size", short_count(model.parameters)},
          {"quantization_level", fmt::format("{:.1f} bits", bits)}};
}

Json ollama_card(const ServedModel& model) {
  const std::string name = model.name + kOllamaTag;
  return {
      {"name", name}, {"model", name}, {"size", model.bytes}, {"digest", model.digest}, {"details", details_of(model)}};
}

}  // namespace

std::string ollama_time(int64_t second) {
  const auto time = static_cast<std::time_t>(second);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return std::string(text) + "Z";
}

std::string ollama_time() {
  const auto now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string time = ollama_time(now / 1'000'000'000);
  time.insert(time.size() - 1, fmt::format(".{:09}", now % 1'000'000'000));
  return time;
}

Json ollama_tags(const ServedModel& model, int64_t since) {
  Json card = ollama_card(model);
  card["modified_at"] = ollama_time(since);
  return {{"models", Json::array({std::move(card)})}};
}

// The model stays loaded as long as the server runs.
Json ollama_running(const ServedModel& model, int64_t since) {
  Json card = ollama_card(model);
  constexpr int64_t century = int64_t{100} * 365 * 86400;
  card["expires_at"] = ollama_time(since + century);
  card["size_vram"] = 0;
  card["context_length"] = model.context;
  return {{"models", Json::array({std::move(card)})}};
}

Json ollama_show(const ServedModel& model, int64_t since) {
  const std::string source = model.chat ? model.chat->source() : "";
  Json abilities = Json::array({"completion"});
  if (model.chat && model.chat->shows_tools()) abilities.push_back("tools");
  const auto knows = [&](std::string_view word) { return source.find(word) != std::string::npos; };
  const auto marks = thinking_marks();
  if (knows("think") || std::any_of(marks.begin(), marks.end(), [&](const ThinkingMarks& m) { return knows(m.begin); }))
    abilities.push_back("thinking");
  std::string parameters;
  const auto say = [&](const char* name, const auto& value) {
    if (value) parameters += fmt::format("{:<30} {}\n", name, *value);
  };
  const GenerationDefaults& d = model.defaults;
  say("temperature", d.do_sample == false ? std::optional<double>(0) : d.temperature);
  say("top_k", d.top_k);
  say("top_p", d.top_p);
  say("min_p", d.min_p);
  say("repeat_penalty", d.repetition_penalty);
  return {{"modelfile", fmt::format("# served by fidelio {}\nFROM {}\n", FIDELIO_VERSION, model.name)},
          {"parameters", parameters},
          {"template", source},
          {"details", details_of(model)},
          {"model_info",
           {{"general.architecture", model.family},
            {"general.parameter_count", model.parameters},
            {model.family + ".context_length", model.context},
            {model.family + ".vocab_size", model.vocabulary}}},
          {"capabilities", abilities},
          {"modified_at", ollama_time(since)}};
}

Json ollama_version() { return {{"version", kOllamaVersion}, {"fidelio", FIDELIO_VERSION}}; }

Json ollama_loaded(const std::string& model, bool chat) {
  Json answer = {{"model", model}, {"created_at", ollama_time()}};
  if (chat)
    answer["message"] = {{"role", "assistant"}, {"content", ""}};
  else
    answer["response"] = "";
  answer["done"] = true;
  answer["done_reason"] = "load";
  return answer;
}

}  // namespace fidelio::serve
