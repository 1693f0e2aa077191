#include "text/tokenizer/pattern.h"

#include <oniguruma.h>

#include <algorithm>
#include <mutex>

#include "core/error.h"

namespace fidelio::tokenization {
namespace {

const OnigUChar* bytes(const char* p) { return reinterpret_cast<const OnigUChar*>(p); }

std::string reason(int code, OnigErrorInfo* info) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  int length = info ? onig_error_code_to_str(text, code, info) : onig_error_code_to_str(text, code);
  return std::string(reinterpret_cast<char*>(text), static_cast<size_t>(length));
}

struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};

}  // namespace

struct TextPattern::Compiled {
  explicit Compiled(const std::string& expression) : source(expression) {
    // Compiling touches Oniguruma's global tables; searching does not.
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    static const int ready = [] {
      OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
      return onig_initialize(encodings, 1);
    }();
    check(ready == ONIG_NORMAL, "Oniguruma does not start: {}", reason(ready, nullptr));
    OnigErrorInfo info;
    // ONIG_SYNTAX_DEFAULT and no options, as Hugging Face compiles them.
    int code = onig_new(&program, bytes(source.data()), bytes(source.data() + source.size()), ONIG_OPTION_NONE,
                        ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
    check(code == ONIG_NORMAL, "the regular expression '{}' does not compile: {}", source, reason(code, &info));
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
  pattern.regex_ = std::make_shared<const Compiled>(expression);
  return pattern;
}

void TextPattern::find(std::string_view text, std::vector<TextSpan>& spans) const {
  spans.clear();
  size_t covered = 0;  // everything before is in `spans`
  auto add_match = [&](size_t begin, size_t end) {
    if (covered != begin) spans.push_back({covered, begin, false});
    spans.push_back({begin, end, true});
    covered = end;
  };
  if (!regex_) {
    for (size_t at; (at = text.find(literal_, covered)) != std::string_view::npos;) add_match(at, at + literal_.size());
  } else if (!text.empty()) {
    std::unique_ptr<OnigRegion, FreeRegion> region(onig_region_new());
    const OnigUChar *begin = bytes(text.data()), *end = begin + text.size();
    bool any = false;
    for (size_t from = 0; from <= text.size();) {
      int at = onig_search(regex_->program, begin, end, begin + from, end, region.get(), ONIG_OPTION_NONE);
      if (at == ONIG_MISMATCH) break;
      check(at >= 0, "the regular expression '{}' fails on a text of {} bytes: {}", regex_->source, text.size(),
            reason(at, nullptr));
      size_t match_begin = static_cast<size_t>(region->beg[0]), match_end = static_cast<size_t>(region->end[0]);
      if (match_begin == match_end && any && match_end == covered) {
        // Nothing, right after the last match: look again one character further.
        ++from;
        while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
        continue;
      }
      add_match(match_begin, match_end);
      any = true;
      from = match_end;
    }
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
