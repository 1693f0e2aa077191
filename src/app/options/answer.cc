#include "app/options/answer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "core/foreign/foreign_text.h"
#include "text/control_tokens.h"
#include "text/thinking.h"

namespace fidelio::app {
namespace {

constexpr std::string_view kDim = "\033[2m", kPlain = "\033[0m";

}  // namespace

EngineOptions engine_options(const TextModel& model, Activations mode, const Draft& draft) {
  EngineOptions options;
  options.reading = mode;
  options.tokenizer = &model.tokenizer;
  options.speculation = draft.how;
  return options;
}

Answer answer(Engine& engine, GenerationRequest request, const std::function<void(const std::string&)>& print,
              const InterruptCatcher* catcher) {
  Answer result;
  size_t printed = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  RequestEvents events;
  events.on_token = [&](const NewToken& token) {
    if (result.first_seconds == 0) result.first_seconds = elapsed();
    if (!token.text.empty()) print(std::string(token.text));
    printed += token.text.size();
  };
  std::string error;
  events.on_finish = [&](int64_t, Generation&& made) {
    result.ids = std::move(made.ids);
    result.text = std::move(made.text);
    result.finish_reason = made.finish_reason;
    result.interrupted = made.finish_reason == FinishReason::cancelled;
    result.drafted = made.drafted, result.accepted = made.accepted;
    error = std::move(made.error);
  };
  const int64_t number = engine.add(std::move(request), std::move(events));
  while (engine.step())  // A step computes a part of a long prompt, or tokens.
    if (catcher != nullptr && catcher->asked()) engine.cancel(number);
  check(error.empty(), "{}", error);
  if (printed < result.text.size()) print(result.text.substr(printed));
  result.total_seconds = elapsed();
  return result;
}

std::string for_output(const std::string& piece) {
  static const bool terminal = ::isatty(1) != 0;
  const std::string text = with_mark_tokens(piece);
  return terminal ? visible(text, Lines::kept) : text;
}

void expect_thinking(const TextModel& model, const std::string& prompt, GenerationRequest& request) {
  for (const auto& [id, mark] : special_marks(model.tokenizer)) request.shown_ids.push_back(id);
  request.thinking.channels = channels_of(*model.chat, model.tokenizer, prompt);
  if (!request.thinking.channels) request.thinking.opened = opened_by(prompt, thinking_marks());
}

std::string said_in(const std::string& text, const Thinking& thinking) {
  if (!thinking.channels) return text;
  ChannelReader messages(thinking.channels->begun);
  messages.push(text);
  std::string said;
  while (const auto run = messages.next(true)) {
    if (messages.header().kind() != ChannelHeader::Kind::text) continue;
    if (run->first && !said.empty()) said += "\n\n";
    said += messages.text_of(*run);
  }
  return said;
}

RenderedChat rendered_chat(const TextModel& model, const std::vector<ChatMessage>& messages, bool sanitize) {
  check(model.chat.has_value(), "{} has no chat template ({}); leave out --chat", model.checkpoint.folder(),
        chat_template_places(model.checkpoint.texts()));
  if (!sanitize) {
    const std::string text = model.chat->render(messages);
    return {text, model.tokenizer.encode(text, false)};
  }
  const ControlTokens control(model.tokenizer, *model.chat);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& m : messages) list.push_back({{"role", m.role}, {"content", m.content}});
  const std::string text = model.chat->render_json(control.marked(list), {{"add_generation_prompt", true}});
  return {text, control.encode(text)};
}

CLI::Option* add_sanitize(CLI::App& verb, bool& sanitize) {
  return verb.add_flag("--sanitize-control-tokens", sanitize,
                       "Control tokens that stand in messages, as <|im_end|>, are text and end nothing");
}

// Every message but the first begins on a line of its own.
std::string ThinkingDimmer::push_message(const std::string& piece, bool last) {
  messages_->push(piece);
  std::string out;
  while (const auto run = messages_->next(last)) {
    const bool dim = messages_->header().kind() != ChannelHeader::Kind::text;
    const std::string text(messages_->text_of(*run));
    if (text.empty()) continue;
    if (run->first && std::exchange(begun_, true)) out += "\n\n";
    if (dim != thinking_) out += dim ? kDim : kPlain;
    thinking_ = dim;
    out += for_output(text);
  }
  return out;
}

std::string ThinkingDimmer::push(const std::string& piece) {
  if (messages_) return push_message(piece, false);
  std::string out;
  if (thinking_ && !begun_) out += kDim;
  begun_ = true;
  held_ += for_output(piece);
  const auto mark_of = [this](const ThinkingMarks& marks) { return thinking_ ? marks.end : marks.begin; };
  for (;;) {
    size_t at = std::string::npos, size = 0;
    for (const ThinkingMarks& marks : thinking_tags())
      if (const size_t found = held_.find(mark_of(marks)); found < at) at = found, size = mark_of(marks).size();
    if (at == std::string::npos) break;
    out += held_.substr(0, at);
    out += thinking_ ? kPlain : kDim;
    held_.erase(0, at + size);
    thinking_ = !thinking_;
  }
  size_t keep = 0;
  for (const ThinkingMarks& marks : thinking_tags()) keep = std::max(keep, begun(held_, mark_of(marks)));
  out += held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string ThinkingDimmer::finish() {
  std::string out = messages_ ? push_message("", true) : std::exchange(held_, {});
  if (thinking_) out += kPlain;
  return out;
}

}  // namespace fidelio::app
