#include "app/answer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "core/foreign_text.h"

namespace fidelio::app {
namespace {

struct Interrupted {};  // unwinds generate() from its callback

constexpr std::string_view kOpen = "<think>", kClose = "</think>", kDim = "\033[2m", kPlain = "\033[0m";

// Bytes at the end of `text` that may be the beginning of `tag`.
size_t may_begin(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n)
    if (text.ends_with(tag.substr(0, n))) return n;
  return 0;
}

}  // namespace

Answer answer(Runner& runner, const TextModel& model, GenerationRequest request, Activations mode,
              const std::function<void(const std::string&)>& print, const InterruptCatcher* catcher) {
  StreamingDetokenizer detokenizer(model.tokenizer);
  Answer result;
  const std::vector<int32_t> stop_ids = request.stop_ids;
  const std::vector<std::string> stops = request.stop_strings;
  size_t longest = 1, printed = 0;
  for (const std::string& stop : stops) longest = std::max(longest, stop.size());
  const auto print_up_to = [&](size_t end) {
    if (end <= printed) return;
    print(result.text.substr(printed, end - printed));
    printed = end;
  };
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  GenerationOptions options;
  options.mode = mode;
  options.tokenizer = &model.tokenizer;
  options.on_token = [&](int64_t, int32_t id) {
    if (result.first_seconds == 0) result.first_seconds = elapsed();
    result.ids.push_back(id);
    if (std::find(stop_ids.begin(), stop_ids.end(), id) == stop_ids.end()) result.text += detokenizer.push(id);
    size_t end = result.text.size() - std::min(result.text.size(), longest - 1);
    for (const std::string& stop : stops) end = std::min(end, result.text.find(stop, printed));
    print_up_to(end);
    if (catcher != nullptr && catcher->asked()) throw Interrupted{};
  };
  try {
    Generation made = std::move(generate(runner, {std::move(request)}, options).front());
    result.ids = std::move(made.ids);
    result.text = std::move(made.text);
    result.finish_reason = made.finish_reason;
  } catch (const Interrupted&) {
    result.interrupted = true;
    result.text += detokenizer.finish();
  }
  print_up_to(result.text.size());
  result.total_seconds = elapsed();
  return result;
}

std::string for_output(const std::string& piece) {
  static const bool terminal = ::isatty(1) != 0;
  return terminal ? visible(piece, Lines::kept) : piece;
}

std::string chat_text(const TextModel& model, const std::vector<ChatMessage>& messages) {
  check(model.chat.has_value(),
        "{} has no chat template (tokenizer_config.json or chat_template.jinja); leave out --chat",
        model.checkpoint.folder());
  return model.chat->render(messages);
}

std::string ThinkingDimmer::push(const std::string& piece) {
  std::string out;
  if (thinking_ && !begun_) out += kDim;
  begun_ = true;
  held_ += piece;
  for (;;) {
    const std::string_view tag = thinking_ ? kClose : kOpen;
    const size_t at = held_.find(tag);
    if (at == std::string::npos) break;
    out += held_.substr(0, at);
    out += thinking_ ? kPlain : kDim;
    held_.erase(0, at + tag.size());
    thinking_ = !thinking_;
  }
  const size_t keep = may_begin(held_, thinking_ ? kClose : kOpen);
  out += held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string ThinkingDimmer::finish() {
  std::string out = std::exchange(held_, {});
  if (thinking_) out += kPlain;
  return out;
}

}  // namespace fidelio::app
