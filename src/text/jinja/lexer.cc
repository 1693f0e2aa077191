#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/foreign/foreign_text.h"
#include "text/jinja/text.h"

namespace fidelio::jinja {
namespace {

using TokenKind = Token::Kind;

constexpr size_t kMaxTokens = 500'000;  // Published templates have some thousands.

// Turns CR LF and CR into LF and drops one final newline, as jinja2 does before it searches for tags.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r')
      out += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n')
      out += '\n';
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)), rest_(source_) {}

  std::vector<Token> run() {
    while (!rest_.empty()) outside();
    push(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  void push(TokenKind kind, std::string text) {
    check(tokens_.size() < kMaxTokens, "chat template line {}: more than {} words and signs", line_, kMaxTokens);
    tokens_.push_back({kind, std::move(text), line_});
  }

  // Advances by `n` bytes and updates the line number and whether the next byte starts a line.
  void skip(size_t n) {
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + static_cast<ptrdiff_t>(n), '\n'));
    if (n > 0) line_start_ = rest_[n - 1] == '\n';
    rest_.remove_prefix(n);
  }
  void skip_white_space() { skip(rest_.size() - strip(rest_, nullptr, true, false).size()); }
  bool starts(std::string_view s) const { return rest_.substr(0, s.size()) == s; }

  // Returns the literal text before a tag. `sign` is the tag's '-', '+' or 0. A block or comment tag alone on its line
  // also removes the white space before it (lstrip_blocks).
  std::string_view before_tag(std::string_view text, char sign, bool strips_line) const {
    if (sign == '-') return strip(text, nullptr, false, true);
    if (sign == '+' || !strips_line) return text;
    size_t start = text.rfind('\n');
    start = start == text.npos ? 0 : start + 1;
    if (start == 0 && !line_start_) return text;
    return strip(text.substr(start), nullptr, true, false).empty() ? text.substr(0, start) : text;
  }

  static size_t find_tag(std::string_view s) {
    for (size_t i = 0; i + 1 < s.size(); ++i)
      if (s[i] == '{' && (s[i + 1] == '{' || s[i + 1] == '%' || s[i + 1] == '#')) return i;
    return s.npos;
  }

  // Returns the size of `{%- raw %}` at the start of `tag`, or 0.
  size_t raw_opening(std::string_view tag, std::string_view word) const {
    if (tag.substr(0, 2) != "{%") return 0;
    std::string_view s = tag.substr(2);
    if (!s.empty() && (s[0] == '-' || s[0] == '+')) s.remove_prefix(1);
    s = strip(s, nullptr, true, false);
    if (s.substr(0, word.size()) != word) return 0;
    s = strip(s.substr(word.size()), nullptr, true, false);
    if (s.substr(0, 2) == "%}") return tag.size() - s.size() + 2;
    if (s.substr(0, 3) == "-%}") return tag.size() - strip(s.substr(3), nullptr, true, false).size();
    return word == "endraw" && s.substr(0, 3) == "+%}" ? tag.size() - s.size() + 3 : 0;
  }

  void outside() {
    size_t at = find_tag(rest_);
    if (at == rest_.npos) {
      push(TokenKind::text, std::string(rest_));
      return skip(rest_.size());
    }
    char what = rest_[at + 1];
    char sign = at + 2 < rest_.size() ? rest_[at + 2] : '\0';
    if (sign != '-' && (sign != '+' || what == '{')) sign = '\0';
    std::string_view text = before_tag(rest_.substr(0, at), sign, what != '{');
    if (!text.empty()) push(TokenKind::text, std::string(text));
    skip(at);
    if (size_t raw = raw_opening(rest_, "raw")) return raw_text(raw);
    skip(sign ? 3 : 2);
    if (what == '#') return comment();
    push(what == '{' ? TokenKind::open_print : TokenKind::open_block, "");
    inside(what == '{');
  }

  // Skips the end of a block or comment: `-` skips all white space after it, `+` nothing, and otherwise one newline.
  void after_block(size_t closing, char sign) {
    skip(closing);
    if (sign == '-')
      skip_white_space();
    else if (sign != '+' && starts("\n"))
      skip(1);
  }

  void comment() {
    size_t end = rest_.find("#}");
    check(end != rest_.npos, "chat template line {}: the comment is not closed by #}}", line_);
    char sign = end > 0 ? rest_[end - 1] : '\0';
    after_block(end + 2, sign);
  }

  void raw_text(size_t opening) {
    int line = line_;
    skip(opening);
    size_t at = 0;
    size_t closing = 0;
    for (;; ++at) {
      at = rest_.find("{%", at);
      check(at != rest_.npos, "chat template line {}: {{% raw %}} is not closed by {{% endraw %}}", line);
      closing = raw_opening(rest_.substr(at), "endraw");
      if (closing) break;
    }
    std::string_view text = before_tag(rest_.substr(0, at), rest_[at + 2], true);
    if (!text.empty()) push(TokenKind::text, std::string(text));
    std::string_view tag = rest_.substr(at, closing);
    bool keeps_newline = tag.ends_with("+%}");
    skip(at + closing);
    if (!keeps_newline && starts("\n")) skip(1);
  }

  void inside(bool print) {
    std::string open_brackets;
    int first_line = line_;
    for (;;) {
      check(!rest_.empty(), "chat template line {}: the tag is not closed by {}", first_line, print ? "}}" : "%}");
      if (open_brackets.empty() && closes(print)) return;
      char c = rest_[0];
      size_t white = rest_.size() - strip(rest_, nullptr, true, false).size();
      if (white > 0)
        skip(white);
      else if (is_digit(c))
        number();
      else if (starts_name(c))
        name();
      else if (c == '"' || c == '\'')
        string(c);
      else
        sign(open_brackets);
    }
  }

  bool closes(bool print) {
    std::string_view mark = print ? "}}" : "%}";
    char sign = rest_[0] == '-' || (rest_[0] == '+' && !print) ? rest_[0] : '\0';
    if (rest_.substr(sign ? 1 : 0, 2) != mark) return false;
    push(print ? TokenKind::close_print : TokenKind::close_block, "");
    size_t n = sign ? 3 : 2;
    if (!print) {
      after_block(n, sign);
    } else {
      skip(n);
      if (sign == '-') skip_white_space();
    }
    return true;
  }

  size_t digits(size_t i) const {  // It skips digits that may be separated by single underscores.
    while (i < rest_.size() &&
           (is_digit(rest_[i]) || (rest_[i] == '_' && i + 1 < rest_.size() && is_digit(rest_[i + 1]))))
      ++i;
    return i;
  }

  void number() {
    size_t end = digits(0);
    bool real = false;
    bool after_dot = !tokens_.empty() && tokens_.back().kind == TokenKind::sign && tokens_.back().text == ".";
    if (!after_dot && end + 1 < rest_.size() && rest_[end] == '.' && is_digit(rest_[end + 1])) {
      end = digits(end + 1);
      real = true;
    }
    if (!after_dot && end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
      size_t e = end + 1;
      if (e < rest_.size() && (rest_[e] == '+' || rest_[e] == '-')) ++e;
      if (e < rest_.size() && is_digit(rest_[e])) {
        end = digits(e);
        real = true;
      }
    }
    std::string text(rest_.substr(0, end));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    bool other_base = text == "0" && end < rest_.size() && std::string_view("xXoObB").find(rest_[end]) != rest_.npos;
    check(!other_base && (real || text.size() == 1 || text[0] != '0' || text.find_first_not_of('0') == text.npos),
          "chat template line {}: the number {} is not written in plain decimal", line_,
          foreign(rest_.substr(0, end + 1)));
    push(real ? TokenKind::number : TokenKind::integer, std::move(text));
    skip(end);
  }

  void name() {
    size_t end = 1;
    while (end < rest_.size() && (starts_name(rest_[end]) || is_digit(rest_[end]))) ++end;
    push(TokenKind::name, std::string(rest_.substr(0, end)));
    skip(end);
  }

  void sign(std::string& open_brackets) {
    static constexpr std::array<std::string_view, 6> kPairs = {"//", "**", "==", "!=", ">=", "<="};
    std::string_view two = rest_.substr(0, 2);
    bool pair = std::find(kPairs.begin(), kPairs.end(), two) != kPairs.end();
    char c = rest_[0];
    check(pair || std::string_view("+-*/%~[](){}<>=.:|,").find(c) != rest_.npos,
          "chat template line {}: unexpected character '{}'", line_, c);
    if (!pair && std::string_view("([{").find(c) != rest_.npos) open_brackets += c;
    if (!pair && std::string_view(")]}").find(c) != rest_.npos) {
      char wanted = c == ')' ? '(' : c == ']' ? '[' : '{';
      check(!open_brackets.empty() && open_brackets.back() == wanted, "chat template line {}: unexpected '{}'", line_,
            c);
      open_brackets.pop_back();
    }
    push(TokenKind::sign, std::string(rest_.substr(0, pair ? 2 : 1)));
    skip(pair ? 2 : 1);
  }

  void string(char quote) {
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    check(end < rest_.size(), "chat template line {}: the string is not closed by {}", line_, quote);
    push(TokenKind::string, unescape(rest_.substr(1, end - 1)));
    skip(end + 1);
  }

  // Resolves the escapes of a Python string literal; an unknown one keeps its backslash.
  std::string unescape(std::string_view s) const {
    static constexpr std::string_view kFrom = "\\'\"abfnrtv";
    static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
    std::string out;
    for (size_t i = 0; i < s.size();) {
      if (s[i] != '\\' || i + 1 == s.size()) {
        out += s[i++];
        continue;
      }
      char c = s[i + 1];
      size_t simple = kFrom.find(c);
      if (simple != kFrom.npos) {
        out += kTo[simple];
        i += 2;
      } else if (c == '\n') {
        i += 2;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append(out, code_point(s.substr(i + 2, n), n, 16));
        i += 2 + n;
      } else if (c >= '0' && c <= '7') {
        size_t n = 1;
        while (n < 3 && i + 1 + n < s.size() && s[i + 1 + n] >= '0' && s[i + 1 + n] <= '7') ++n;
        append(out, code_point(s.substr(i + 1, n), n, 8));
        i += 1 + n;
      } else {
        check(c != 'N', "chat template line {}: \\N{{...}} escapes are not supported; write \\uXXXX", line_);
        out += '\\';
        ++i;
      }
    }
    return out;
  }

  char32_t code_point(std::string_view text, size_t n, int base) const {
    static constexpr std::string_view kDigits = "0123456789abcdef";
    char32_t value = 0;
    bool good = text.size() == n;
    for (char c : text) {
      size_t digit = kDigits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c);
      good = good && digit < static_cast<size_t>(base) && value < 0x110000;
      value = value * static_cast<char32_t>(base) + static_cast<char32_t>(digit & 15);
    }
    check(good && value < 0x110000 && (value < 0xD800 || value > 0xDFFF),
          "chat template line {}: '{}' is not the number of a Unicode character", line_, foreign(text));
    return value;
  }

  std::string source_;
  std::string_view rest_;
  std::vector<Token> tokens_;
  int line_ = 1;
  bool line_start_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace fidelio::jinja
