#include <algorithm>

#include "core/foreign/foreign_text.h"
#include "text/tokenizer/json.h"
#include "text/tokenizer/text.h"

namespace fidelio::tokenization {
namespace {

const char* const kNormalizerKey = "tokenizer.json: normalizer";
template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <typename... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

// Where the text without leading (trailing) white space begins (ends).
size_t leading_space(std::string_view text) {
  size_t at = 0;
  for (size_t length; at < text.size() && is_white_space(code_point_at(text, at, &length));) at += length;
  return at;
}
size_t trailing_space(std::string_view text) {
  size_t end = text.size();
  for (size_t length; end > 0 && is_white_space(code_point_before(text, end, &length));) end -= length;
  return end;
}

std::string replaced(const TextPattern& pattern, std::string_view text, std::string_view content, Meter& meter) {
  std::vector<TextSpan> spans;
  pattern.find(text, spans, meter);
  size_t grown = 0;
  for (const TextSpan& span : spans) grown += span.match ? content.size() : 0;
  meter.memory(grown);
  std::string out;
  out.reserve(text.size());
  for (const TextSpan& span : spans) out += span.match ? content : text.substr(span.begin, span.end - span.begin);
  return out;
}

}  // namespace

TextPattern pattern_of(const Json& config, const std::string& where) {
  const Json& pattern = field(config, "pattern", where);
  if (const Json* text = find_field(pattern, "String", where + ".pattern"))
    return TextPattern::literal(string_of(*text, where + ".pattern.String"));
  const Json* regex = find_field(pattern, "Regex", where + ".pattern");
  check(regex != nullptr, "{}.pattern: expected {{\"String\": ...}} or {{\"Regex\": ...}}, found {}", where,
        foreign(pattern.dump()));
  return TextPattern::regex(string_of(*regex, where + ".pattern.Regex"));
}

Normalizer::Normalizer(const Json& config) {
  if (!config.is_null()) add(config, 0);
}

void Normalizer::add(const Json& config, int depth) {
  check(depth < kNestingLimit, "{}: Sequences are nested deeper than {}", kNormalizerKey, kNestingLimit);
  const std::string& type = string_field(config, "type", kNormalizerKey);
  if (type == "Sequence") {
    for (const Json& part : array_field(config, "normalizers", kNormalizerKey)) add(part, depth + 1);
  } else if (type == "NFC") {
    steps_.emplace_back(NormalForm::kNfc);
  } else if (type == "NFD") {
    steps_.emplace_back(NormalForm::kNfd);
  } else if (type == "NFKC") {
    steps_.emplace_back(NormalForm::kNfkc);
  } else if (type == "NFKD") {
    steps_.emplace_back(NormalForm::kNfkd);
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{string_field(config, "prepend", kNormalizerKey)});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{pattern_of(config, kNormalizerKey), string_field(config, "content", kNormalizerKey)});
  } else if (type == "Strip") {
    steps_.emplace_back(Strip{bool_field(config, "strip_left", true, kNormalizerKey),
                              bool_field(config, "strip_right", true, kNormalizerKey)});
  } else if (type == "StripAccents") {  // of Unicode 9, as the normal forms
    steps_.emplace_back(Replace{TextPattern::regex("[\\p{M}&&[^" + std::string(kAfterUnicode9) + "]]"), ""});
  } else {
    throw Error(
        "{} '{}' is not supported; supported: NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, "
        "StripAccents, Sequence",
        kNormalizerKey, type);
  }
}

void Normalizer::apply(TextPiece& piece, Meter& meter) const {
  for (const Step& step : steps_) apply_step(step, piece, meter);
}

void Normalizer::apply_step(const Step& step, TextPiece& piece, Meter& meter) const {
  std::string& text = piece.text;
  std::visit(Overloaded{
                 [&](NormalForm form) {
                   const size_t before = text.size();
                   text = normalize_utf8(text, form);  // one character can become eighteen
                   meter.memory(text.size() - std::min(before, text.size()));
                 },
                 [&](Lowercase) { text = lowercase_utf8(text); },
                 [&](const Prepend& prepend) {
                   meter.memory(prepend.text.size());
                   if (!text.empty()) text.insert(0, prepend.text);
                 },
                 [&](const Replace& replace) { text = replaced(replace.pattern, text, replace.content, meter); },
                 [&](const Strip& strip) {
                   if (strip.right) text.resize(trailing_space(text));
                   size_t begin = strip.left ? leading_space(text) : 0;
                   if (begin > 0) piece.at_start = false;  // what is left begins further on in the original
                   text.erase(0, begin);
                 },
             },
             step);
}

}  // namespace fidelio::tokenization
