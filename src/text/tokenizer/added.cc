#include "text/tokenizer/added.h"

#include <algorithm>

#include "text/tokenizer/json.h"

namespace fidelio::tokenization {

AddedTokens::AddedTokens(const Json& config, const BpeModel& model, const Normalizer& normalizer) {
  if (config.is_null()) return;
  expect_type(config.is_array(), config, "tokenizer.json: added_tokens", "an array");
  std::unordered_map<std::string, int32_t> seen;
  Meter meter("tokenizer.json: added_tokens");
  size_t bytes = 0;
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
    if (token.content.empty()) continue;  // Hugging Face ignores empty ones.
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
    if (token.normalized) normalizer.apply(pattern, meter);
    token.decoded = pattern.text;
    check(!pattern.text.empty(), "{}: nothing is left of '{}' after the normalizer", where, token.content);
    check(by_id_.emplace(id, token).second, "{}: id {} of '{}' is used twice", where, id, token.content);
    bytes += pattern.text.size();
    check(bytes <= kMaxAddedBytes, "{}: the added tokens are longer than {} bytes together", where, kMaxAddedBytes);
    matchers_[token.normalized].insert(pattern.text, id);
  }
  for (Matcher& matcher : matchers_) matcher.finish();
}

void AddedTokens::Matcher::insert(const std::string& token, int32_t id) {
  uint32_t node = 0;
  last[static_cast<unsigned char>(token.back())] = true;
  for (size_t i = token.size(); i-- > 0;) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<unsigned char>(token[i]);
    const auto [next, is_new] = edges.emplace(edge, static_cast<uint32_t>(nodes.size()));
    if (is_new) nodes.emplace_back();
    node = next->second;
  }
  check(nodes[node].token < 0, "tokenizer.json: the added tokens {} and {} are both written '{}' in the text",
        nodes[node].token, id, token);
  nodes[node].token = id;
  nodes[node].length = static_cast<uint32_t>(token.size());
}

uint32_t AddedTokens::Matcher::step(uint32_t node, unsigned char byte) const {
  for (;;) {
    if (node == 0 && !last[byte]) return 0;
    const auto next = edges.find(uint64_t{node} << 8 | byte);
    if (next != edges.end()) return next->second;
    if (node == 0) return 0;
    node = nodes[node].shorter;
  }
}

// The walk is breadth first, because a node's `shorter` is nearer to the root.
void AddedTokens::Matcher::finish() {
  struct Edge {
    uint32_t parent, child;
    unsigned char byte;
  };
  std::vector<Edge> all;  // The edges are sorted by parent.
  all.reserve(edges.size());
  for (const auto& [key, child] : edges)
    all.push_back({static_cast<uint32_t>(key >> 8), child, static_cast<unsigned char>(key)});
  std::sort(all.begin(), all.end(), [](const Edge& a, const Edge& b) { return a.parent < b.parent; });
  std::vector<size_t> first(nodes.size() + 1, 0);
  for (const Edge& edge : all) ++first[edge.parent + 1];
  for (size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
  std::vector<uint32_t> queue{0};
  queue.reserve(nodes.size());
  for (size_t at = 0; at < queue.size(); ++at) {
    const uint32_t parent = queue[at];
    for (size_t i = first[parent]; i < first[parent + 1]; ++i) {
      Node& child = nodes[all[i].child];
      child.shorter = parent == 0 ? 0 : step(nodes[parent].shorter, all[i].byte);
      if (child.token < 0) child.token = nodes[child.shorter].token, child.length = nodes[child.shorter].length;
      queue.push_back(all[i].child);
    }
  }
}

void AddedTokens::Matcher::find(std::string_view text, std::vector<Match>& matches) const {
  matches.clear();
  uint32_t node = 0;
  for (size_t at = text.size(); at-- > 0;) {
    node = step(node, static_cast<unsigned char>(text[at]));
    if (nodes[node].token >= 0) matches.push_back({at, at + nodes[node].length, nodes[node].token});
  }
}

// This follows Hugging Face in the details too: a match that fails single_word is skipped as a whole, lstrip does not
// reach back over the previous token, and a token that rstrip ran over is still found.
void AddedTokens::cut(const Matcher& matcher, bool special, TextPiece& piece, std::vector<TextPiece>& result) const {
  const std::string_view text = piece.text;
  size_t covered = 0;
  // The text of a token is not kept. Nothing reads it, and white space that several tokens span would be copied for
  // each.
  auto add = [&](size_t begin, size_t end, int32_t id) {
    if (begin >= end) return;
    result.push_back(id >= 0 ? TextPiece{"", id} : part_of(piece, begin, end));
  };
  std::vector<Matcher::Match> matches;
  matcher.find(text, matches);
  size_t at = 0;         // No token is searched before this place.
  size_t white_end = 0;  // The white space after an earlier token ends here, so it is read once only.
  for (auto found = matches.rbegin(); found != matches.rend(); ++found) {
    if (found->begin < at) continue;
    Matcher::Match match = *found;
    at = match.end;
    const AddedToken& token = by_id_.at(match.id);
    if (token.special && !special) continue;
    size_t length = 0;
    if (token.single_word && ((match.begin > 0 && is_word_character(code_point_before(text, match.begin, &length))) ||
                              (match.end < text.size() && is_word_character(code_point_at(text, match.end, &length)))))
      continue;
    if (token.lstrip) {
      size_t begin = match.begin;
      while (begin > covered && is_white_space(code_point_before(text, begin, &length))) begin -= length;
      match.begin = std::max(begin, covered);
    }
    if (token.rstrip) {
      match.end = std::max(match.end, white_end);
      while (match.end < text.size() && is_white_space(code_point_at(text, match.end, &length))) match.end += length;
      white_end = match.end;
    }
    add(covered, match.begin, -1);
    add(match.begin, match.end, match.id);
    covered = match.end;
  }
  if (covered > 0 || text.empty()) return add(covered, text.size(), -1);
  piece.at_start = piece.first > 0;  // The piece stays whole, and at_start is set as for a part.
  result.push_back(std::move(piece));
}

void AddedTokens::extract(std::vector<TextPiece>& pieces, bool normalized, bool special) const {
  const Matcher& matcher = matchers_[normalized];
  std::vector<TextPiece> result;
  for (TextPiece& piece : pieces) {
    if (piece.id >= 0)
      result.push_back(std::move(piece));
    else
      cut(matcher, special, piece, result);
  }
  pieces = std::move(result);
}

}  // namespace fidelio::tokenization
