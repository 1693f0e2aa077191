#include "text/tokenizer/pattern.h"

#include <oniguruma.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "core/error.h"
#include "core/foreign/foreign_text.h"
#include "text/tokenizer/unicode.h"

namespace fidelio::tokenization {
namespace {

constexpr size_t kMaxExpression = 16 << 10;

const OnigUChar* bytes(const char* p) { return reinterpret_cast<const OnigUChar*>(p); }

std::string reason(int code, OnigErrorInfo* info) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  int length = info ? onig_error_code_to_str(text, code, info) : onig_error_code_to_str(text, code);
  return std::string(reinterpret_cast<char*>(text), static_cast<size_t>(length));
}

// Tells whether an expression refers back, calls a group, is conditional or has something of open length in a
// lookaround. No published one does. It errs towards yes: (?=[*]) counts as one.
bool may_reread(std::string_view e) {
  int group = 0, around = 0;  // These are the depth of groups, and the depth at which the lookaround began.
  for (size_t i = 0; i < e.size(); ++i) {
    const std::string_view rest = e.substr(i);
    if (rest[0] == '\\') {
      if (rest.size() > 1 && std::string_view("123456789kgK").find(rest[1]) != rest.npos) return true;
      ++i;
    } else if (rest[0] == '(') {
      ++group;
      const bool looks =
          rest.starts_with("(?=") || rest.starts_with("(?!") || rest.starts_with("(?<=") || rest.starts_with("(?<!");
      if (looks && around == 0) around = group;
      if (rest.starts_with("(?~") || rest.starts_with("(?(") || rest.starts_with("(?{") || rest.starts_with("(*"))
        return true;
    } else if (rest[0] == ')') {
      if (around == group) around = 0;
      --group;
    } else if (around > 0 && (rest[0] == '*' || rest[0] == '+' || rest[0] == '{')) {
      return true;
    }
  }
  return false;
}

// Adds newer characters to Oniguruma's properties, which are then split as Hugging Face splits them.
void know_newer_characters() {
  static std::vector<std::vector<OnigCodePoint>> tables;  // Oniguruma refers to them until the program ends.
  for (const auto& [property, newer] : characters_after_unicode_14()) {
    std::string name = property;
    auto* begin = reinterpret_cast<OnigUChar*>(name.data());
    const int type = ONIG_ENCODING_UTF8->property_name_to_ctype(ONIG_ENCODING_UTF8, begin, begin + name.size());
    OnigCodePoint single_bytes = 0;
    const OnigCodePoint* known = nullptr;
    check(type >= 0 && ONIG_ENCODING_UTF8->get_ctype_code_range(static_cast<OnigCtype>(type), &single_bytes, &known) ==
                           ONIG_NORMAL,
          "Oniguruma has no table of the characters {}", name);
    std::vector<std::pair<OnigCodePoint, OnigCodePoint>> ranges(newer.begin(), newer.end());
    for (OnigCodePoint i = 0; i < known[0]; ++i) ranges.emplace_back(known[1 + 2 * i], known[2 + 2 * i]);
    std::sort(ranges.begin(), ranges.end());
    std::vector<OnigCodePoint>& table = tables.emplace_back(1);
    for (const auto& [first, last] : ranges) {
      if (table.size() > 1 && first <= table.back() + 1) {
        table.back() = std::max(table.back(), last);
        continue;
      }
      table.insert(table.end(), {first, last});
    }
    table[0] = static_cast<OnigCodePoint>(table.size() / 2);
    const int code = onig_unicode_define_user_property(name.c_str(), table.data());
    check(code == ONIG_NORMAL, "Oniguruma takes no newer characters {}: {}", name, reason(code, nullptr));
  }
}

struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};

}  // namespace

struct TextPattern::Compiled {
  Compiled(const std::string& expression, OnigSyntaxType* syntax) : source(expression) {
    // Compiling uses Oniguruma's global tables; searching does not.
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    static const int ready = [] {
      OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
      onig_set_parse_depth_limit(kMaxNesting);
      const int code = onig_initialize(encodings, 1);
      if (code == ONIG_NORMAL) know_newer_characters();
      return code;
    }();
    check(ready == ONIG_NORMAL, "Oniguruma does not start: {}", reason(ready, nullptr));
    check(source.size() <= kMaxExpression, "a regular expression of {} bytes; at most {} are read", source.size(),
          kMaxExpression);
    check(!may_reread(source),
          "the regular expression '{}' is not compiled: it refers back, calls itself or looks around for something of "
          "open length, so that one match could take time quadratic in the text; no published tokenizer does",
          foreign(source));
    OnigErrorInfo info;
    int code = onig_new(&program, bytes(source.data()), bytes(source.data() + source.size()), ONIG_OPTION_NONE,
                        ONIG_ENCODING_UTF8, syntax, &info);
    check(code == ONIG_NORMAL, "the regular expression '{}' does not compile: {}", foreign(source),
          reason(code, &info));
  }
  ~Compiled() { onig_free(program); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  std::string source;
  OnigRegex program = nullptr;
};

TextPattern TextPattern::literal(std::string text) {
  check(!text.empty(), "a literal text pattern is empty; expected at least one character");
  TextPattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

TextPattern TextPattern::regex(const std::string& expression) {
  TextPattern pattern;
  // There are no options, as Hugging Face compiles them without.
  pattern.regex_ = std::make_shared<const Compiled>(expression, ONIG_SYNTAX_DEFAULT);
  return pattern;
}

TextPattern TextPattern::python(const std::string& expression) {
  TextPattern pattern;
  pattern.regex_ = std::make_shared<const Compiled>(expression, ONIG_SYNTAX_PYTHON);
  return pattern;
}

namespace {

// These bound the cost of one match attempt. Oniguruma counts its steps back ("retries") and the entries of its stack.
// It does not count running ahead, as a* does, which is linear in the text for one attempt, so attempts are timed as
// well.
constexpr unsigned long kFirstSteps = 32, kMostSteps = 32ul << 20;
constexpr unsigned kLeastStack = 160, kMostStack = 2u << 20;  // An entry has 40 bytes.
uint64_t work_of(unsigned long steps) { return steps / 8; }

// The processor time is read once for this many attempts. Words of a text take less than a microsecond each; attempts
// that take more on average are charged, at 100 ns a step.
constexpr int kTimedTogether = 16;
constexpr int64_t kFreeNanoseconds = kTimedTogether * 20'000;
int64_t thread_nanoseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

struct FreeParameters {
  void operator()(OnigMatchParam* p) const { onig_free_match_param(p); }
};

// The spans must fit into the memory that is left, with room to grow. A match adds at most two, so the test runs once
// for each 4096.
void pay_spans(const std::vector<TextSpan>& spans, Meter& meter) {
  if (spans.size() % 4096 < 2) meter.passing_memory(2 * sizeof(TextSpan) * spans.size());
}

}  // namespace

// This class searches one text place by place. Oniguruma's own search takes a range of places but lets no match end
// beyond it, so a word would be cut where a range ends. A place is tried with few steps, which is enough for a word of
// a text. One that needs more gets four times as many again and again, and these are charged. A text whose every place
// takes a few steps therefore costs nothing, and one that makes the expression run far ahead from each place is stopped
// in bounded time. The result does not depend on any of this.
class TextPattern::Search {
 public:
  Search(const Compiled& regex, std::string_view text, Meter& meter)
      : regex_(regex), text_(text), meter_(meter), region_(onig_region_new()), parameters_(onig_new_match_param()) {}

  // Finds the first match that begins at or after `from`.
  bool next(size_t from, size_t* begin, size_t* end) {
    for (size_t at = from;; at = boundary(at + 1)) {
      int found = run(at, kFirstSteps);
      if (is_limit(found)) found = run_harder(at);
      // check() is not used, as it would build the words of its message at every place of the text.
      if (found < ONIG_MISMATCH) [[unlikely]]
        throw Error("the regular expression '{}' fails on a text of {} bytes: {}", foreign(regex_.source), text_.size(),
                    reason(found, nullptr));
      if (found >= 0) {
        *begin = static_cast<size_t>(region_->beg[0]), *end = static_cast<size_t>(region_->end[0]);
        return true;
      }
      if (at >= text_.size()) return false;
    }
  }

  // Returns the first group of the match that next() found, which is empty where it took no part. Without groups it
  // returns the whole match.
  std::string_view group() const {
    const int which = region_->num_regs > 1 ? 1 : 0;
    if (region_->beg[which] < 0) return {};
    const auto begin = static_cast<size_t>(region_->beg[which]);
    return text_.substr(begin, static_cast<size_t>(region_->end[which]) - begin);
  }

 private:
  static bool is_limit(int code) {
    return code == ONIGERR_MATCH_STACK_LIMIT_OVER || code == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER ||
           code == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
  }
  size_t boundary(size_t at) const {
    while (at < text_.size() && (static_cast<unsigned char>(text_[at]) & 0xC0) == 0x80) ++at;
    return at;
  }

  // Tries a match that begins at `at`.
  int run(size_t at, unsigned long steps) {
    if (++attempts_ % kTimedTogether == 0) pay_time();
    onig_set_retry_limit_in_match_of_match_param(parameters_.get(), steps);
    onig_set_match_stack_limit_size_of_match_param(
        parameters_.get(), static_cast<unsigned>(std::clamp<unsigned long>(steps, kLeastStack, kMostStack)));
    const OnigUChar* begin = bytes(text_.data());
    return onig_match_with_param(regex_.program, begin, begin + text_.size(), begin + at, region_.get(),
                                 ONIG_OPTION_NONE, parameters_.get());
  }

  void pay_time() {
    const int64_t now = thread_nanoseconds(), spent = now - paid_;
    paid_ = now;
    if (spent > kFreeNanoseconds) meter_.work(static_cast<uint64_t>(spent / 100));
  }

  int run_harder(size_t at) {
    for (unsigned long steps = 4 * kFirstSteps;; steps *= 4) {
      meter_.work(work_of(steps));
      const int found = run(at, steps);
      if (!is_limit(found)) return found;
      const bool stack = found == ONIGERR_MATCH_STACK_LIMIT_OVER;
      check(steps < (stack ? kMostStack : kMostSteps),
            "the regular expression '{}' takes too long on what follows byte {} of a text of {}; a run of millions of "
            "like characters (blanks, say) must be broken up",
            foreign(regex_.source), at, text_.size());
    }
  }

  const Compiled& regex_;
  const std::string_view text_;
  Meter& meter_;
  const std::unique_ptr<OnigRegion, FreeRegion> region_;
  const std::unique_ptr<OnigMatchParam, FreeParameters> parameters_;
  int64_t paid_ = thread_nanoseconds();
  unsigned attempts_ = 0;
};

void TextPattern::find_regex(std::string_view text, std::vector<TextSpan>& spans, Meter& meter) const {
  Search search(*regex_, text, meter);
  size_t covered = 0;  // Everything before this place is in `spans`.
  bool any = false;
  size_t match_begin = 0, match_end = 0;
  for (size_t from = 0; from <= text.size();) {
    if (!search.next(from, &match_begin, &match_end)) break;
    if (match_begin == match_end && any && match_end == covered) {
      // The match is empty and follows the last one directly, so the search continues one character further.
      ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
      continue;
    }
    // \K and lookbehind can give a match that begins in the covered part or ends before it begins.
    check(match_begin >= covered && match_end >= match_begin, "the regular expression '{}' matches backwards",
          regex_->source);
    pay_spans(spans, meter);
    if (covered != match_begin) spans.push_back({covered, match_begin, false});
    spans.push_back({match_begin, match_end, true});
    covered = match_end;
    any = true;
    from = match_end;
  }
  if (covered != text.size()) spans.push_back({covered, text.size(), false});
}

std::optional<std::string_view> TextPattern::last(std::string_view text, Meter& meter) const {
  Search search(*regex_, text, meter);
  std::optional<std::string_view> found;
  size_t begin = 0, end = 0;
  for (size_t from = 0; from <= text.size() && search.next(from, &begin, &end);) {
    found = search.group();
    from = end;
    if (begin != end) continue;
    ++from;  // The match is empty, so the search continues one character further.
    while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
  }
  return found;
}

void TextPattern::find(std::string_view text, std::vector<TextSpan>& spans, Meter& meter) const {
  spans.clear();
  if (text.empty()) return;
  if (regex_) return find_regex(text, spans, meter);
  size_t covered = 0;
  while (const void* found = ::memmem(text.data() + covered, text.size() - covered, literal_.data(), literal_.size())) {
    const auto at = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    pay_spans(spans, meter);
    if (covered != at) spans.push_back({covered, at, false});
    spans.push_back({at, at + literal_.size(), true});
    covered = at + literal_.size();
  }
  if (covered != text.size()) spans.push_back({covered, text.size(), false});
}

void apply_split_behavior(SplitBehavior behavior, std::vector<TextSpan>& spans) {
  if (behavior == SplitBehavior::kRemoved) return;
  if (behavior == SplitBehavior::kIsolated) {
    for (TextSpan& span : spans) span.match = false;
    return;
  }
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) std::reverse(spans.begin(), spans.end());
  size_t kept = 0;
  bool previous_match = false;
  for (const TextSpan span : spans) {
    bool join = behavior == SplitBehavior::kContiguous ? span.match == previous_match : span.match && !previous_match;
    previous_match = span.match;
    if (!join || kept == 0)
      spans[kept++] = {span.begin, span.end, false};
    else if (backwards)
      spans[kept - 1].begin = span.begin;
    else
      spans[kept - 1].end = span.end;
  }
  spans.resize(kept);
  if (backwards) std::reverse(spans.begin(), spans.end());
}

}  // namespace fidelio::tokenization
