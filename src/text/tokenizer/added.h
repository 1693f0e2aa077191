// This file finds the added tokens of a tokenizer.json in a text. They are found before the normalizer runs, or after
// it if they are marked `normalized`, and they are never split.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/text.h"

namespace fidelio::tokenization {

struct AddedToken {
  std::string content;
  std::string decoded;  // The decoder gets this text: `content`, normalised if `normalized`.
  bool single_word, lstrip, rstrip, normalized, special;
};

inline constexpr size_t kMaxAddedBytes = 2 << 20;

class AddedTokens {
 public:
  // This is Aho and Corasick's automaton (Communications of the ACM 18, 1975) of the tokens written backwards. It runs
  // from the end of the text to its beginning. A node stands for the end of a token, and its child by a byte for the
  // same end with that byte before it. At each place the automaton knows all tokens that begin there and reports the
  // longest.
  struct Matcher {
    struct Match {
      size_t begin, end;
      int32_t id;
    };
    struct Node {
      uint32_t shorter = 0;  // This is the longest other node whose text is a beginning of this node's text.
      int32_t token = -1;    // This is the id of the longest token that begins here, or -1.
      uint32_t length = 0;   // This is the length of that token.
    };
    std::unordered_map<uint64_t, uint32_t> edges;  // It maps (node << 8 | byte) to the child.
    std::vector<Node> nodes{Node{}};
    std::vector<bool> last = std::vector<bool>(256, false);  // These are the bytes with which a token ends.

    void insert(const std::string& token, int32_t id);
    void finish();  // It must be called after the last insert.
    // Finds the longest token at every place where one begins, rightmost place first.
    void find(std::string_view text, std::vector<Match>& matches) const;
    uint32_t step(uint32_t node, unsigned char byte) const;
  };
  AddedTokens() = default;
  // `config` is the file's array (null means none). Throws Error when an id is out of range, taken or not that of the
  // vocabulary, when two tokens are spelt alike, and when the tokens together are longer than kMaxAddedBytes.
  AddedTokens(const nlohmann::json& config, const BpeModel& model, const Normalizer& normalizer);

  // Cuts the tokens out of the pieces, leftmost and longest first: either those that are not normalized, or the
  // normalized ones. It takes time linear in the text, however long the tokens are and however they overlap. Without
  // `special`, special tokens stay text.
  void extract(std::vector<TextPiece>& pieces, bool normalized, bool special) const;

  const std::unordered_map<int32_t, AddedToken>& by_id() const { return by_id_; }

 private:
  void cut(const Matcher& matcher, bool special, TextPiece& piece, std::vector<TextPiece>& result) const;
  std::unordered_map<int32_t, AddedToken> by_id_;
  Matcher matchers_[2];  // The index is [normalized].
};

}  // namespace fidelio::tokenization
