// app: one answer of a model as it is made, for `generate` and `chat`.
#pragma once
#include <functional>
#include <string>

#include "app/options/common.h"
#include "app/options/draft.h"
#include "app/options/interrupt.h"
#include "engine/engine.h"

namespace fidelio::app {

struct Answer {
  std::vector<int32_t> ids;
  std::string text;  // up to a stop id or stop string
  FinishReason finish_reason = FinishReason::stop;
  bool interrupted = false;
  int64_t drafted = 0, accepted = 0;            // tokens guessed, and how many of them were right
  double first_seconds = 0, total_seconds = 0;  // until the first token; in all
  double tokens_per_second() const {            // after the first
    const auto made = static_cast<double>(ids.size());
    return made > 1 && total_seconds > first_seconds ? (made - 1) / (total_seconds - first_seconds) : 0;
  }
};

// How `generate` and `chat` run a model.
EngineOptions engine_options(const TextModel& model, Activations mode, const Draft& draft);

// Runs one request, handing pieces of text to `print` as they become final: what may yet turn out to be a stop string is
// held back. An interrupt that `catcher` (may be null) has seen ends it after the token in progress.
Answer answer(Engine& engine, GenerationRequest request, const std::function<void(const std::string&)>& print,
              const InterruptCatcher* catcher = nullptr);

// What a model writes is a stranger's text as its files are: a terminal shows control characters instead of obeying them,
// a file or pipe gets them as they are.
std::string for_output(const std::string& piece);

// The conversation in the model's chat template. `sanitize`: control tokens in messages are text, which makes the ids but
// leaves marks in the text (text/control_tokens.h). Throws Error naming the files looked for where there is no template.
struct RenderedChat {
  std::string text;
  std::vector<int32_t> ids;
};
RenderedChat rendered_chat(const TextModel& model, const std::vector<ChatMessage>& messages, bool sanitize);
// The flag for it.
CLI::Option* add_sanitize(CLI::App& verb, bool& sanitize);

// Text for a terminal, with what stands between a family's marks of thinking dimmed. Pieces may cut the marks anywhere.
class ThinkingDimmer {
 public:
  explicit ThinkingDimmer(bool thinking) : thinking_(thinking) {}  // thinking: the prompt opened the block already
  std::string push(const std::string& piece);
  std::string finish();  // whatever was held back, with the dimming ended

 private:
  std::string held_;
  bool thinking_, begun_ = false;
};

}  // namespace fidelio::app
