#include "text/tokenizer/added.h"

#include <algorithm>

#include "text/tokenizer/json.h"

namespace fidelio::tokenization {

AddedTokens::AddedTokens(const Json& config, const BpeModel& model, const Normalizer& normalizer) {
  if (config.is_null()) return;
  expect_type(config.is_array(), config, "tokenizer.json: added_tokens", "an array");
  std::unordered_map<std::string, int32_t> seen;
  for (size_t i = 0; i < config.size(); ++i) {
    const Json& entry = config[i];
    const std::string where = fmt::format("tokenizer.json: added_tokens[{}]", i);
    const int32_t id = index_of(field(entry, "id", where), kTokenIdLimit, where + ".id");
    const bool special = bool_field(entry, "special", false, where);
    AddedToken token{.content = string_field(entry, "content", where),
                     .decoded = {},
                     .single_word = bool_field(entry, "single_word", false, where),
                     .lstrip = bool_field(entry, "lstrip", false, where),
                     .rstrip = bool_field(entry, "rstrip", false, where),
                     .normalized = bool_field(entry, "normalized", !special, where),
                     .special = special};
    if (token.content.empty()) continue;  // Hugging Face ignores these
    const std::string* taken = model.text_of(id);
    check(!taken || *taken == token.content, "{}: id {} of '{}' belongs to '{}' in the vocabulary", where, id,
          token.content, taken ? *taken : "");
    auto own = model.id_of(token.content);
    check(!own || *own == id, "{}: '{}' has id {} here and id {} in the vocabulary", where, token.content, id,
          own.value_or(-1));
    auto [first, is_new] = seen.emplace(token.content, id);
    check(is_new || first->second == id, "{}: '{}' has id {} here and id {} above", where, token.content, id,
          first->second);
    TextPiece pattern{token.content};
    if (token.normalized) normalizer.apply(pattern);
    token.decoded = pattern.text;
    check(!pattern.text.empty(), "{}: nothing is left of '{}' after the normalizer", where, token.content);
    check(by_id_.emplace(id, token).second, "{}: id {} of '{}' is used twice", where, id, token.content);
    insert(token.normalized, pattern.text, id);
  }
}

void AddedTokens::insert(bool normalized, const std::string& pattern, int32_t id) {
  Trie& trie = tries_[normalized];
  uint32_t node = 0;
  trie.first[static_cast<unsigned char>(pattern[0])] = true;
  for (char c : pattern) {
    uint64_t edge = uint64_t{node} << 8 | static_cast<unsigned char>(c);
    auto [next, is_new] = trie.edges.emplace(edge, static_cast<uint32_t>(trie.tokens.size()));
    if (is_new) trie.tokens.push_back(-1);
    node = next->second;
  }
  check(trie.tokens[node] < 0, "tokenizer.json: the added tokens {} and {} are both written '{}' in the text",
        trie.tokens[node], id, pattern);
  trie.tokens[node] = id;
}

bool AddedTokens::longest_match(const Trie& trie, std::string_view text, size_t at, Match* match) const {
  bool found = false;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    auto next = trie.edges.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    if (next == trie.edges.end()) break;
    node = next->second;
    if (trie.tokens[node] >= 0) *match = {at, i + 1, trie.tokens[node]}, found = true;
  }
  return found;
}

// Follows Hugging Face in the corners too: a match that fails single_word is skipped as a whole, lstrip does not reach
// back over the previous token, and a token that rstrip ran over is still found.
void AddedTokens::cut(const Trie& trie, TextPiece& piece, std::vector<TextPiece>& result) const {
  const std::string_view text = piece.text;
  size_t covered = 0;
  auto add = [&](size_t begin, size_t end, int32_t id) {
    if (begin < end) result.push_back({std::string(text.substr(begin, end - begin)), id, piece.at_start && begin == 0});
  };
  Match match{};
  for (size_t at = 0; at < text.size();) {
    if (!trie.first[static_cast<unsigned char>(text[at])] || !longest_match(trie, text, at, &match)) {
      ++at;
      continue;
    }
    at = match.end;
    const AddedToken& token = by_id_.at(match.id);
    size_t length = 0;
    if (token.single_word && ((match.begin > 0 && is_word_character(code_point_before(text, match.begin, &length))) ||
                              (match.end < text.size() && is_word_character(code_point_at(text, match.end, &length)))))
      continue;
    if (token.lstrip) {
      size_t begin = match.begin;
      while (begin > 0 && is_white_space(code_point_before(text, begin, &length))) begin -= length;
      match.begin = std::max(begin, covered);
    }
    if (token.rstrip)
      while (match.end < text.size() && is_white_space(code_point_at(text, match.end, &length))) match.end += length;
    add(covered, match.begin, -1);
    add(match.begin, match.end, match.id);
    covered = match.end;
  }
  if (covered == 0 && !text.empty())
    result.push_back(std::move(piece));
  else
    add(covered, text.size(), -1);
}

void AddedTokens::extract(std::vector<TextPiece>& pieces, bool normalized) const {
  const Trie& trie = tries_[normalized];
  std::vector<TextPiece> result;
  for (TextPiece& piece : pieces) {
    if (piece.id >= 0)
      result.push_back(std::move(piece));
    else
      cut(trie, piece, result);
  }
  pieces = std::move(result);
}

}  // namespace fidelio::tokenization
