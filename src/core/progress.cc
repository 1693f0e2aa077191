#include "core/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "core/standard_error.h"

namespace fidelio {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string clock_text(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

// One decimal is shown below 10%, so the first percents of a long run can be told apart.
std::string percent(double fraction) { return fmt::format("{:.{}f}%", 100 * fraction, fraction < 0.0995 ? 1 : 0); }

std::string quoted(const std::string& text) {  // The names are our own: they consist of letters, digits and spaces.
  std::string out = "\"";
  for (char c : text)
    if (c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20) out += c;
  return out + "\"";
}

// This is the run in progress together with the thread that shows it.
class Board {
 public:
  Board(std::string task, std::vector<Stage> stages, ProgressMode mode)
      : task_(std::move(task)), stages_(std::move(stages)), start_(Clock::now()), stage_start_(start_), said_(start_) {
    const bool terminal = ::isatty(2) != 0;
    bar_ = mode == ProgressMode::automatic && terminal;
    json_ = mode == ProgressMode::json;
    silent_ = mode == ProgressMode::none;
    for (const Stage& s : stages_) shares_.push_back({s.weight, 0});
    if (!silent_) ticker_ = std::thread([this] { tick(); });
  }

  ~Board() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_all();
    if (ticker_.joinable()) ticker_.join();
  }

  // The owner calls this once, before destruction.
  void end(bool failed) {
    const std::lock_guard lock(mutex_);
    if (silent_) return;
    clear();
    if (failed || !worked_) return;
    const double took = seconds_since(start_);
    if (json_) return line(json(true));
    if (bar_ || took >= kPlainEvery) line(fmt::format("-- {} took {}", task_, clock_text(took)));
  }

  void next_stage() {
    const std::lock_guard lock(mutex_);
    if (current_ >= 0) shares_[index()].spent = seconds_since(stage_start_);
    if (current_ + 1 < static_cast<int>(stages_.size())) ++current_;
    parts_done_ = 0;
    done_ = total_ = 0;
    stage_start_ = Clock::now();
    worked_ = true;
    show();
  }

  void begin_part(int64_t total) {
    const std::lock_guard lock(mutex_);
    if (current_ < 0) current_ = 0;
    done_ = 0;
    total_ = total;
  }
  void advance(int64_t done) {
    const std::lock_guard lock(mutex_);
    done_ += done;
    worked_ = true;
    if (bar_ && seconds_since(drawn_) > 0.1) show();
  }
  void end_part() {
    const std::lock_guard lock(mutex_);
    if (total_ > 0) ++parts_done_;
    done_ = total_ = 0;
  }

  void print(std::string_view text, std::FILE* stream) {
    const std::lock_guard lock(mutex_);
    clear();
    std::fwrite(text.data(), 1, text.size(), stream);
    std::fflush(stream);
    if (worked_) show();
  }

 private:
  static constexpr double kPlainEvery = 10;  // This is in seconds between plain lines.

  void tick() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::seconds(1), [this] { return ended_; })) {
      if (!worked_) continue;
      if (bar_ || json_) {
        show();
      } else if (seconds_since(said_) >= kPlainEvery) {
        said_ = Clock::now();
        line(plain());
      }
    }
  }

  size_t index() const { return static_cast<size_t>(std::max(current_, 0)); }

  // Returns the finished fraction of the stage in progress: its finished parts and the share done of the present one.
  double stage_fraction() const {
    if (stages_.empty()) return 0;
    const double part = total_ > 0 ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : 0;
    const int parts = std::max(stages_[index()].parts, parts_done_ + (total_ > 0 ? 1 : 0));
    return parts > 0 ? std::min(1.0, (parts_done_ + part) / parts) : 0;
  }
  Outlook whole() const {
    std::vector<StageShare> shares = shares_;
    if (!shares.empty()) shares[index()].spent = seconds_since(stage_start_);
    return outlook(shares, index(), stage_fraction());
  }
  std::string where() const {
    const std::string& name = stages_.empty() ? task_ : stages_[index()].name;
    return stages_.size() > 1 ? fmt::format("[{}/{}] {}", index() + 1, stages_.size(), name) : name;
  }
  std::string times(const Outlook& o) const {
    std::string text = clock_text(seconds_since(start_));
    if (o.seconds_left >= 0) text += fmt::format(", about {} left", clock_text(o.seconds_left));
    return text;
  }

  void show() {
    if (json_) return line(json(false));
    if (!bar_) return;
    drawn_ = Clock::now();
    const Outlook o = whole();
    winsize size = {};
    const int columns = ::ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    const std::string left = where(), right = fmt::format("{:>4}  {}", percent(o.fraction), times(o));
    const int room = std::clamp(columns - static_cast<int>(left.size() + right.size()) - 5, 0, 30);
    std::string bar;
    if (room >= 5)
      for (int i = 0; i < room; ++i) bar += i < static_cast<int>(o.fraction * room + 0.5) ? "█" : "░";
    print_error(fmt::format("\r\033[K{}  {}  {}", left, bar, right));
    shown_ = true;
  }
  void clear() {
    if (!shown_) return;
    print_error("\r\033[K");
    shown_ = false;
  }
  void line(const std::string& text) { print_error(text + "\n"); }
  std::string plain() const {
    const Outlook o = whole();
    return fmt::format("-- {} {}, {}", where(), percent(o.fraction), times(o));
  }
  std::string json(bool last) const {
    const Outlook o = whole();
    return fmt::format(
        "{{\"schema\": 1, \"task\": {}, \"stage\": {}, \"stage_number\": {}, \"stages\": {}, \"done\": {}, \"total\": "
        "{}, "
        "\"fraction\": {:.4f}, \"seconds\": {:.1f}, \"seconds_left\": {}}}",
        quoted(task_), quoted(stages_.empty() ? task_ : stages_[index()].name), index() + 1, stages_.size(), done_,
        total_, last ? 1.0 : o.fraction, seconds_since(start_),
        last                  ? "0.0"
        : o.seconds_left >= 0 ? fmt::format("{:.1f}", o.seconds_left)
                              : "null");
  }

  const std::string task_;
  const std::vector<Stage> stages_;
  std::vector<StageShare> shares_;
  bool bar_ = false, json_ = false, silent_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread ticker_;
  Clock::time_point start_, stage_start_, said_, drawn_{};
  int current_ = -1, parts_done_ = 0;
  int64_t done_ = 0, total_ = 0;
  bool worked_ = false, shown_ = false, ended_ = false;
};

std::mutex board_mutex;
std::unique_ptr<Board> board;  // This is the board of the run in progress.
ProgressMode wanted = ProgressMode::automatic;
std::mutex words_mutex;
std::string words;

// Returns true if there was no board before.
bool open_board(const std::string& task, std::vector<Stage> stages) {
  const std::lock_guard lock(board_mutex);
  if (board) return false;
  board = std::make_unique<Board>(task, std::move(stages), wanted);
  return true;
}

void close_board(int exceptions) {
  const std::lock_guard lock(board_mutex);
  board->end(std::uncaught_exceptions() > exceptions);
  board.reset();
}

}  // namespace

void set_progress_mode(ProgressMode mode) { wanted = mode; }

Stages::Stages(std::string task, std::vector<Stage> stages) : exceptions_(std::uncaught_exceptions()) {
  outer_ = open_board(task, std::move(stages));
}

Stages::~Stages() {
  if (outer_) close_board(exceptions_);
}

void Stages::next() {
  if (outer_) board->next_stage();
}

Progress::Progress(std::string task, int64_t total) : exceptions_(std::uncaught_exceptions()) {
  own_ = open_board(task, {{task}});
  board->begin_part(total);
}

Progress::~Progress() {
  board->end_part();
  if (own_) close_board(exceptions_);
}

void Progress::advance(int64_t done) { board->advance(done); }

void print_beside_progress(std::string_view text, std::FILE* stream) {
  const std::lock_guard lock(board_mutex);
  if (board) return board->print(text, stream);
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

// The text is written in one call, so lines of several processes do not mix.
void print_error(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void set_words_on_interrupt(std::string text) {
  const std::lock_guard lock(words_mutex);
  words = std::move(text);
}

std::string words_on_interrupt() {
  const std::lock_guard lock(words_mutex);
  return words;
}

// A later stage is assumed to take as long per unit of weight as the finished ones did. If none has finished, the rate
// of the present stage is used.
Outlook outlook(const std::vector<StageShare>& stages, size_t current, double fraction) {
  double all = 0, done = 0, spent = 0, to_come = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    all += stages[i].weight;
    if (i < current) done += stages[i].weight;
    if (i <= current) spent += stages[i].spent;
    if (i > current) to_come += stages[i].weight;
  }
  if (all <= 0 || current >= stages.size()) return {};
  const StageShare& now = stages[current];
  const double worked = done + fraction * now.weight;
  Outlook o{worked / all, -1};
  if (worked <= 0 || spent < 1) return o;  // One second is too short to extrapolate from.
  const double rate = spent / worked;      // The rate is in seconds per unit of weight.
  const double rest = fraction > 0.05 ? now.spent * (1 - fraction) / fraction : rate * (1 - fraction) * now.weight;
  o.seconds_left = rest + rate * to_come;
  return o;
}

}  // namespace fidelio
