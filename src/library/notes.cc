#include "library/notes.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <deque>
#include <mutex>

#include "core/foreign/foreign_text.h"

namespace fidelio::library {
namespace {

constexpr size_t kMostNotes = 1000;

class Notes final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::string take() {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const std::string& line : lines_) all += line + "\n";
    lines_.clear();
    return all;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string_view text(message.payload.data(), message.payload.size());
    lines_.push_back(fmt::format("{}: {}", message.level >= spdlog::level::warn ? "warning" : "note", foreign(text)));
    if (lines_.size() > kMostNotes) lines_.pop_front();
  }
  void flush_() override {}
  std::deque<std::string> lines_;
};

// The notes are never destroyed, because threads may log until the process ends.
const std::shared_ptr<Notes>& notes() {
  static const auto* const all = new std::shared_ptr<Notes>(std::make_shared<Notes>());
  return *all;
}

}  // namespace

void collect_notes() {
  static std::once_flag once;
  std::call_once(once, [] { spdlog::set_default_logger(std::make_shared<spdlog::logger>("fidelio", notes())); });
}

std::string take_notes() { return notes()->take(); }

}  // namespace fidelio::library
