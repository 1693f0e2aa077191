#include "app/options/prompts.h"

#include "core/file.h"

namespace fidelio::app {

std::vector<GenerationRequest> read_prompts(const PromptOptions& o, const SamplingOptions& sampling,
                                            const TextModel& model) {
  const std::string text = read_text_file(o.file);
  std::vector<GenerationRequest> requests;
  for (size_t begin = 0; begin < text.size() && static_cast<int64_t>(requests.size()) < o.limit;) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const auto parsed = nlohmann::json::parse(line, nullptr, false);
    for (const char* key : {"prompt", "question"})
      if (parsed.is_object() && parsed.contains(key) && parsed[key].is_string()) line = parsed[key];
    GenerationRequest r;
    const bool chat = model.chat.has_value() && !o.plain;
    const ChatMessage message{"user", line};
    r.prompt = chat ? model.tokenizer.encode(model.chat->render({&message, 1}), false) : model.tokenizer.encode(line);
    r.max_tokens = o.max_tokens;
    r.stop_ids = model.stop_ids;
    r.sampling = sampling;
    r.sampling.seed += requests.size();
    requests.push_back(std::move(r));
  }
  check(!requests.empty(), "{} holds no prompt", o.file);
  return requests;
}

}  // namespace fidelio::app
