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

// Returns where the text without leading (trailing) white space begins (ends).
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

void replace_matches(const TextPattern& pattern, TextPiece& piece, std::string_view content, Meter& meter) {
  const std::string_view text = piece.text;
  std::vector<TextSpan> spans;
  pattern.find(text, spans, meter);
  size_t grown = 0;
  for (const TextSpan& span : spans) grown += span.match ? content.size() : 0;
  meter.memory(grown);
  std::string out;
  out.reserve(text.size());
  size_t first = 0;
  for (const TextSpan& span : spans) {
    out += span.match ? content : text.substr(span.begin, span.end - span.begin);
    // Inserted text stands for the last character that it replaces, or for the beginning of the piece where it replaces
    // none.
    if (!span.match && span.begin < piece.first) first = out.size() - (span.end - std::min(span.end, piece.first));
    if (span.match && span.end <= piece.first && (span.end > 0 || piece.at_start)) first = out.size();
  }
  piece.text = std::move(out);
  piece.first = first;
}

void bring_to_form(NormalForm form, TextPiece& piece, Meter& meter) {
  std::string text = normalize_utf8(piece.text, form);  // One character can become eighteen.
  meter.memory(text.size() - std::min(piece.text.size(), text.size()));
  if (piece.first > 0) {
    const std::string alone = normalize_utf8(piece.text.substr(0, piece.first), form);
    // The same number of characters is counted off, of which the last may have been composed with those after it.
    size_t first = 0;
    for (size_t at = 0, length; at < alone.size() && first < text.size(); at += length) {
      code_point_at(alone, at, &length);
      size_t own;
      code_point_at(text, first, &own);
      first += own;
    }
    piece.first = first;
  }
  piece.text = std::move(text);
}

void strip(bool left, bool right, TextPiece& piece) {
  if (right) piece.text.resize(trailing_space(piece.text));
  const size_t begin = left ? leading_space(piece.text) : 0;
  piece.text.erase(0, begin);
  piece.first = std::min(piece.first - std::min(piece.first, begin), piece.text.size());
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
  } else if (type == "StripAccents") {  // These are the marks of Unicode 9, as in the normal forms.
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
  std::visit(Overloaded{
                 [&](NormalForm form) { bring_to_form(form, piece, meter); },
                 [&](Lowercase) { change_characters(piece, lowercase_utf8); },
                 [&](const Prepend& prepend) {
                   meter.memory(prepend.text.size());
                   prepend_to(piece, prepend.text);
                 },
                 [&](const Replace& replace) { replace_matches(replace.pattern, piece, replace.content, meter); },
                 [&](const Strip& white) { strip(white.left, white.right, piece); },
             },
             step);
}

}  // namespace fidelio::tokenization
