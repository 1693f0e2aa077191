#include <array>

#include "text/tokenizer/json.h"
#include "text/tokenizer/text.h"

namespace fidelio::tokenization {
namespace {

const char* const kPreTokenizerKey = "tokenizer.json: pre_tokenizer";

// This is the GPT-2 pattern, which ByteLevel with use_regex has as a constant of the format.
const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// These are the classes as Hugging Face's other regular-expression library (Rust's regex) defines them, whose \w is
// that of UTS 18.
const char* const kWhitespacePattern =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}\s]+)";
const char* const kPunctuationPattern = R"([!-/:-@\[-`{-~\p{P}])";

SplitBehavior behavior_of(const Json& config) {
  const Json* value = find_field(config, "behavior", kPreTokenizerKey);
  if (!value) return SplitBehavior::kIsolated;
  const std::string& name = string_of(*value, std::string(kPreTokenizerKey) + ".behavior");
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  throw Error(
      "{}.behavior '{}' is not supported; supported: Isolated, Removed, MergedWithPrevious, MergedWithNext, "
      "Contiguous",
      kPreTokenizerKey, name);
}

// In the byte-level alphabet printable Latin-1 bytes spell themselves. The other 68, in order, are U+0100, U+0101, ...
struct ByteLevelAlphabet {
  std::array<char32_t, 256> characters;
  std::array<int, 0x144> bytes;
  std::array<std::string, 256> spelling;
  ByteLevelAlphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      characters[b] = printable ? static_cast<char32_t>(b) : next++;
      bytes[characters[b]] = b;
      append_utf8(spelling[b], characters[b]);
    }
  }
};
const ByteLevelAlphabet& byte_level_alphabet() {
  static const ByteLevelAlphabet alphabet;
  return alphabet;
}

std::string replace_spaces(std::string_view text, const std::string& replacement) {
  std::string out;
  out.reserve(text.size());
  for (char c : text) c == ' ' ? out += replacement : out += c;
  return out;
}

}  // namespace

std::string byte_level_spelling(std::string_view bytes) {
  const auto& spelling = byte_level_alphabet().spelling;
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (char c : bytes) out += spelling[static_cast<unsigned char>(c)];
  return out;
}

int byte_level_byte(char32_t c) {
  const auto& bytes = byte_level_alphabet().bytes;
  return c < bytes.size() ? bytes[c] : -1;
}

PrependScheme prepend_scheme_of(const Json& config, const std::string& where) {
  const Json* scheme = find_field(config, "prepend_scheme", where);
  const bool prefix = bool_field(config, "add_prefix_space", true, where);
  if (!scheme) return prefix ? PrependScheme::kAlways : PrependScheme::kNever;
  const std::string& name = string_of(*scheme, where + ".prepend_scheme");
  check(name == "always" || name == "first" || name == "never",
        "{}.prepend_scheme '{}' is not supported; supported: always, first, never", where, name);
  check(prefix || name == "never", "{}: add_prefix_space false contradicts prepend_scheme '{}'; remove one of the two",
        where, name);
  return name == "always" ? PrependScheme::kAlways : name == "first" ? PrependScheme::kFirst : PrependScheme::kNever;
}

std::string metaspace_replacement(const Json& config, const std::string& where) {
  const std::string& text = string_field(config, "replacement", where);
  size_t length = 0;
  if (!text.empty()) code_point_at(text, 0, &length);
  check(!text.empty() && length == text.size(), "{}.replacement '{}' must be one character", where, text);
  return text;
}

PreTokenizer::PreTokenizer(const Json& config) {
  if (!config.is_null()) add(config, 0);
}

void PreTokenizer::add(const Json& config, int depth) {
  check(depth < kNestingLimit, "{}: Sequences are nested deeper than {}", kPreTokenizerKey, kNestingLimit);
  const std::string& type = string_field(config, "type", kPreTokenizerKey);
  if (type == "Sequence") {
    for (const Json& part : array_field(config, "pretokenizers", kPreTokenizerKey)) add(part, depth + 1);
  } else if (type == "Split") {
    field(config, "behavior", kPreTokenizerKey);
    steps_.emplace_back(Split{pattern_of(config, kPreTokenizerKey), behavior_of(config),
                              bool_field(config, "invert", false, kPreTokenizerKey)});
  } else if (type == "ByteLevel") {
    add_byte_level(config);
  } else if (type == "Metaspace") {
    add_metaspace(config);
  } else if (type == "Digits") {
    const bool individual = bool_field(config, "individual_digits", false, kPreTokenizerKey);
    steps_.emplace_back(Split{TextPattern::regex(R"(\p{N})"),
                              individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false});
  } else if (type == "Punctuation") {
    steps_.emplace_back(Split{TextPattern::regex(kPunctuationPattern), behavior_of(config), false});
  } else if (type == "Whitespace") {
    steps_.emplace_back(Split{TextPattern::regex(kWhitespacePattern), SplitBehavior::kRemoved, true});
  } else if (type == "WhitespaceSplit") {
    steps_.emplace_back(Split{TextPattern::regex(R"(\s)"), SplitBehavior::kRemoved, false});
  } else {
    throw Error(
        "{} '{}' is not supported; supported: Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, "
        "WhitespaceSplit, Sequence",
        kPreTokenizerKey, type);
  }
}

void PreTokenizer::add_byte_level(const Json& config) {
  if (bool_field(config, "add_prefix_space", true, kPreTokenizerKey)) steps_.emplace_back(PrefixSpace{});
  if (bool_field(config, "use_regex", true, kPreTokenizerKey))
    steps_.emplace_back(Split{TextPattern::regex(kGpt2Pattern), SplitBehavior::kIsolated, false});
  steps_.emplace_back(BytesToText{});
}

void PreTokenizer::add_metaspace(const Json& config) {
  std::string replacement = metaspace_replacement(config, kPreTokenizerKey);
  PrependScheme scheme = prepend_scheme_of(config, kPreTokenizerKey);
  steps_.emplace_back(Metaspace{replacement, scheme != PrependScheme::kNever, scheme == PrependScheme::kFirst});
  if (bool_field(config, "split", true, kPreTokenizerKey))
    steps_.emplace_back(Split{TextPattern::literal(replacement), SplitBehavior::kMergedWithNext, false});
}

void PreTokenizer::apply(std::vector<TextPiece>& pieces, Meter& meter) const {
  for (const Step& step : steps_) {
    if (const Split* split = std::get_if<Split>(&step)) {
      split_pieces(pieces, [&](const TextPiece& piece, std::vector<TextSpan>& spans) {
        split->pattern.find(piece.text, spans, meter);
        if (split->invert)
          for (TextSpan& span : spans) span.match = !span.match;
        apply_split_behavior(split->behavior, spans);
      });
      continue;
    }
    const Metaspace* metaspace = std::get_if<Metaspace>(&step);
    for (TextPiece& piece : pieces) {
      if (piece.id >= 0) continue;
      if (metaspace) {
        const size_t before = piece.text.size();
        change_characters(piece, [&](const auto& text) { return replace_spaces(text, metaspace->replacement); });
        meter.memory(piece.text.size() - before);
        const bool wanted = metaspace->prepend && (piece.at_start || !metaspace->first_only);
        if (wanted && !piece.text.starts_with(metaspace->replacement)) prepend_to(piece, metaspace->replacement);
      } else if (std::holds_alternative<PrefixSpace>(step)) {
        if (!piece.text.starts_with(' ')) prepend_to(piece, " ");
        meter.memory(1);
      } else {
        const size_t before = piece.text.size();
        change_characters(piece, byte_level_spelling);
        meter.memory(piece.text.size() - before);
      }
    }
  }
}

}  // namespace fidelio::tokenization
