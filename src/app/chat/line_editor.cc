#include "app/chat/line_editor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cwchar>
#include <filesystem>
#include <iostream>

#ifdef FIDELIO_LIBEDIT
#include <histedit.h>
#endif

#include "core/error.h"

namespace fidelio::app {
namespace {

constexpr int kWait = 100;  // It is in milliseconds between two checks for Ctrl-C.

termios terminal_before;
std::atomic<bool> terminal_changed = false;

// Waits until standard input has something to read. Returns false if Ctrl-C was pressed before.
bool wait_for_input(const InterruptCatcher& catcher) {
  for (pollfd input = {STDIN_FILENO, POLLIN, 0};;) {
    if (catcher.asked()) return false;
    if (::poll(&input, 1, kWait) > 0) return true;
  }
}

// Returns a byte, or -1 at the end of the input.
int read_byte() {
  unsigned char byte = 0;
  ssize_t count = 0;
  do {
    count = ::read(STDIN_FILENO, &byte, 1);
  } while (count < 0 && (errno == EINTR || errno == EAGAIN));
  return count == 1 ? byte : -1;
}

}  // namespace

std::string state_file(const std::string& name) {
  namespace fs = std::filesystem;
  const char *state = std::getenv("XDG_STATE_HOME"), *home = std::getenv("HOME");
  std::error_code error;
  fs::path folder;
  if (state != nullptr && fs::path(state).is_absolute())
    folder = state;
  else if (home != nullptr && fs::is_directory(home, error))
    folder = fs::path(home) / ".local" / "state";
  else
    return "";
  folder /= "fidelio";
  fs::create_directories(folder, error);
  return error ? "" : (folder / name).string();
}

void leave_terminal_as_it_was() {
  if (terminal_changed.exchange(false)) ::tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
}

#ifdef FIDELIO_LIBEDIT

namespace {

volatile std::sig_atomic_t continued = 0;

void note_continued(int) { continued = 1; }

// Terminals that support it put these around pasted text.
constexpr const char *kPasteOn = "\033[?2004h", *kPasteOff = "\033[?2004l", *kPasteBegins = "\033[200~";
constexpr std::string_view kPasteEnds = "\033[201~";

// Returns pasted text as it is put into the line. Lines end in a newline, and control characters, which would be
// obeyed, are left out.
std::string cleaned(const std::string& pasted) {
  std::string text;
  for (size_t i = 0; i < pasted.size(); ++i) {
    const auto c = static_cast<unsigned char>(pasted[i]);
    if (c == '\r' && i + 1 < pasted.size() && pasted[i + 1] == '\n') continue;
    if (c == '\r')
      text += '\n';
    else if (c >= 0x20 ? c != 0x7f : c == '\n' || c == '\t')
      text += pasted[i];
  }
  return text;
}

}  // namespace

struct LineEditor::State {
  EditLine* editor = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string file, prompt;
  InterruptCatcher* catcher = nullptr;
  bool interrupted = false;
  std::wstring pending;  // These characters come before those that are typed.

  static State& of(EditLine* editor) {
    void* state = nullptr;
    el_get(editor, EL_CLIENTDATA, &state);
    return *static_cast<State*>(state);
  }
  static char* prompt_of(EditLine* editor) { return of(editor).prompt.data(); }
  static int next_of(EditLine* editor, wchar_t* character) { return of(editor).next(character); }
  static unsigned char paste_of(EditLine* editor, int) { return of(editor).paste(); }

  // Gives libedit a character and returns 1, or returns 0 at the end of the input. Ctrl-C empties the line (it goes to
  // the beginning and cuts the rest) and ends it.
  int next(wchar_t* character) {
    while (pending.empty()) {
      if (wait_for_input(*catcher)) {
        const int byte = read_byte();
        if (byte < 0) return 0;
        if (decode(static_cast<char>(byte), character)) return 1;
      } else {
        interrupted = true;
        pending = L"\001\013\n";
      }
      if (continued != 0) {  // The shell has changed the settings of the terminal.
        continued = 0;
        el_set(editor, EL_PREP_TERM, 0);
        el_set(editor, EL_PREP_TERM, 1);
        el_set(editor, EL_REFRESH);
      }
    }
    *character = pending.front();
    pending.erase(0, 1);
    return 1;
  }

  bool decode(char byte, wchar_t* character) {
    const size_t size = std::mbrtowc(character, &byte, 1, &partial);
    if (size == static_cast<size_t>(-1)) partial = {};  // A byte that is no character of this locale is left out.
    if (size == 0) *character = L'\0';
    return size == 0 || size == 1;
  }
  std::mbstate_t partial{};

  // The file is either complete or unchanged, and only its owner may read it.
  void keep(const std::string& line) {
    ::history(history, &event, H_ENTER, line.c_str());
    if (file.empty()) return;
    const std::string beside = fmt::format("{}.{}.tmp", file, ::getpid());
    const mode_t before = ::umask(0077);
    const bool written = ::history(history, &event, H_SAVE, beside.c_str()) >= 0;
    ::umask(before);
    if (!written || ::rename(beside.c_str(), file.c_str()) != 0) ::unlink(beside.c_str());
  }

  // Puts pasted text, which stands between the terminal's marks, into the line as it is.
  unsigned char paste() {
    std::string text;
    while (!text.ends_with(kPasteEnds) && wait_for_input(*catcher)) {
      const int byte = read_byte();
      if (byte < 0) return CC_EOF;
      text += static_cast<char>(byte);
    }
    if (!text.ends_with(kPasteEnds)) return CC_NORM;  // It was interrupted, which the next character reports.
    text.resize(text.size() - kPasteEnds.size());
    return el_insertstr(editor, cleaned(text).c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }
};

LineEditor::LineEditor(std::string history) : state_(new State) {
  // Letters are counted, not bytes. A locale that knows only ASCII would lose all others.
  std::setlocale(LC_CTYPE, "");
  if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
  constexpr int kLines = 1000;
  State& s = *state_;
  s.file = std::move(history);
  s.history = history_init();
  ::history(s.history, &s.event, H_SETSIZE, kLines);
  ::history(s.history, &s.event, H_SETUNIQUE, 1);
  if (!s.file.empty()) ::history(s.history, &s.event, H_LOAD, s.file.c_str());
  s.editor = el_init("fidelio", stdin, stdout, stderr);
  check(s.editor != nullptr, "this terminal cannot be used for editing lines; set TERM to its kind");
  el_set(s.editor, EL_CLIENTDATA, &s);
  el_set(s.editor, EL_EDITOR, "emacs");
  el_set(s.editor, EL_SIGNAL, 0);
  el_set(s.editor, EL_PROMPT, State::prompt_of);
  el_set(s.editor, EL_GETCFN, State::next_of);
  el_set(s.editor, EL_HIST, ::history, s.history);
  el_set(s.editor, EL_ADDFN, "fidelio-paste", "Put a pasted text into the line", State::paste_of);
  el_set(s.editor, EL_BIND, kPasteBegins, "fidelio-paste", nullptr);
  struct sigaction action = {};
  action.sa_handler = note_continued;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGCONT, &action, nullptr);
}

LineEditor::~LineEditor() {
  el_end(state_->editor);
  history_end(state_->history);
  delete state_;
}

Typed LineEditor::read(const std::string& prompt, InterruptCatcher& catcher) {
  State& s = *state_;
  s.prompt = prompt;
  s.catcher = &catcher;
  s.interrupted = false;
  s.pending.clear();
  if (::tcgetattr(STDIN_FILENO, &terminal_before) == 0) terminal_changed = true;
  fmt::print("{}", kPasteOn);
  std::fflush(stdout);
  el_resize(s.editor);
  int count = 0;
  const char* line = el_gets(s.editor, &count);
  fmt::print("{}", kPasteOff);
  std::fflush(stdout);
  terminal_changed = false;
  if (s.interrupted) {
    catcher.forget();
    return {Typed::End::interrupted, ""};
  }
  if (line == nullptr || count <= 0) return {Typed::End::input_ended, ""};
  std::string text(line, static_cast<size_t>(count));
  if (text.ends_with('\n')) text.pop_back();
  if (!text.empty()) s.keep(text);
  return {Typed::End::line, text};
}

#else

// Without libedit the terminal edits lines itself, and pasted text becomes as many messages as it has lines.
struct LineEditor::State {};

LineEditor::LineEditor(std::string) : state_(new State) {}
LineEditor::~LineEditor() { delete state_; }

Typed LineEditor::read(const std::string& prompt, InterruptCatcher& catcher) {
  fmt::print("{}", prompt);
  std::fflush(stdout);
  std::string text;
  if (std::cin.rdbuf()->in_avail() <= 0 && !wait_for_input(catcher)) {
    catcher.forget();
    fmt::print("\n");
    return {Typed::End::interrupted, ""};
  }
  if (!std::getline(std::cin, text)) return {Typed::End::input_ended, ""};
  return {Typed::End::line, text};
}

#endif

}  // namespace fidelio::app
