#include "app/options/prompts.h"

#include "core/foreign/json.h"
#include "core/foreign/lines.h"
#include "runtime/texts/bundled.h"

namespace fidelio::app {

std::vector<std::string> read_prompt_lines(const std::string& path) {
  std::vector<std::string> prompts;
  for_each_line(read_text(path), [&](std::string_view line, int64_t number) {
    if (!path.ends_with(".jsonl")) return prompts.emplace_back(line), void();
    const auto object = parse_json(line, fmt::format("{}:{}", path, number));
    const char* key = object.is_object() && object.contains("prompt") ? "prompt" : "question";
    check(object.is_object() && object.contains(key) && object[key].is_string(),
          "{}:{}: expected an object with \"prompt\" or \"question\", a text", path, number);
    prompts.push_back(object[key]);
  });
  check(!prompts.empty(), "{} has no prompts; one a line is expected", path);
  return prompts;
}

std::vector<GenerationRequest> read_prompts(const PromptOptions& o, const SamplingOptions& sampling,
                                            const TextModel& model) {
  std::vector<GenerationRequest> requests;
  const int64_t context = model.checkpoint.config().max_positions;
  for (const std::string& line : read_prompt_lines(o.file)) {
    if (static_cast<int64_t>(requests.size()) == o.limit) break;
    GenerationRequest r;
    const bool chat = model.chat.has_value() && !o.plain;
    const ChatMessage message{"user", line};
    r.prompt = chat ? model.tokenizer.encode(model.chat->render({&message, 1}), false) : model.tokenizer.encode(line);
    const auto size = static_cast<int64_t>(r.prompt.size());
    check(size < context, "{}: prompt {} has {} tokens, the model's context of {} leaves no room for an answer", o.file,
          requests.size() + 1, size, context);
    r.max_tokens = o.max_tokens;
    r.stop_ids = model.stop_ids;
    r.sampling = sampling;
    r.sampling.seed += requests.size();
    requests.push_back(std::move(r));
  }
  return requests;
}

}  // namespace fidelio::app
