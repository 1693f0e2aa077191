// This file runs one request for `generate` and `chat`, and gives out the answer as it is made.
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
  std::string text;  // It ends before a stop id or stop string.
  FinishReason finish_reason = FinishReason::stop;
  bool interrupted = false;
  int64_t drafted = 0, accepted = 0;            // These count the tokens that were guessed, and those that were right.
  double first_seconds = 0, total_seconds = 0;  // These are the time until the first token, and the whole time.
  double tokens_per_second() const {            // It counts from the first token on.
    const auto made = static_cast<double>(ids.size());
    return made > 1 && total_seconds > first_seconds ? (made - 1) / (total_seconds - first_seconds) : 0;
  }
};

// Returns the options with which `generate` and `chat` run a model.
EngineOptions engine_options(const TextModel& model, Activations mode, const Draft& draft);

// Runs one request and passes pieces of text to `print` as they become final; text that may still become a stop string
// is held back. An interrupt that `catcher` (may be null) has noted ends it after the current token.
Answer answer(Engine& engine, GenerationRequest request, const std::function<void(const std::string&)>& print,
              const InterruptCatcher* catcher = nullptr);

// Returns a model's text for output. It is a stranger's text as files are: a terminal shows control characters instead
// of obeying them, and a file or pipe gets them as they are.
std::string for_output(const std::string& piece);

// This is the conversation in the model's chat template. With `sanitize`, control tokens in messages are plain text,
// which changes the ids and leaves marks in the text (text/control_tokens.h). Throws Error naming the places that were
// searched where there is no template.
struct RenderedChat {
  std::string text;
  std::vector<int32_t> ids;
};
RenderedChat rendered_chat(const TextModel& model, const std::vector<ChatMessage>& messages, bool sanitize);
// Adds the flag for it.
CLI::Option* add_sanitize(CLI::App& verb, bool& sanitize);

// Prepares a request that continues this prompt of a chat. Marks of thinking stay in its text, and so do those of an
// answer in messages (text/channels.h).
void expect_thinking(const TextModel& model, const std::string& prompt, GenerationRequest& request);
// Returns what an answer says without thoughts where it consists of messages, as the next prompt has it. Other answers
// are returned as they are; templates cut their thoughts off.
std::string said_in(const std::string& text, const Thinking& thinking);

// This prepares text for a terminal and dims the text between a family's marks of thinking, or all messages but those
// that are shown. Pieces may cut the marks anywhere.
class ThinkingDimmer {
 public:
  // If `thinking` is opened, the prompt has already opened the block.
  explicit ThinkingDimmer(const Thinking& thinking) : thinking_(thinking.opened.has_value()) {
    if (thinking.channels) messages_.emplace(thinking.channels->begun);
  }
  std::string push(const std::string& piece);
  std::string finish();  // It returns the text that was held back, and ends the dimming.

 private:
  std::string push_message(const std::string& piece, bool last);
  std::optional<ChannelReader> messages_;
  std::string held_;
  bool thinking_, begun_ = false;
};

}  // namespace fidelio::app
