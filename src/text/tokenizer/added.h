// The added tokens of a tokenizer.json: found in the text before (normalized: after) the normalizer, and never split.
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
  std::string decoded;  // what the decoder is given: `content`, normalised if `normalized`
  bool single_word, lstrip, rstrip, normalized, special;
};

inline constexpr size_t kMaxAddedBytes = 2 << 20;

class AddedTokens {
 public:
  // Aho and Corasick's automaton (Communications of the ACM 18, 1975) of the tokens written backwards, run from the end
  // of the text to its beginning. A node stands for the end of a token (its child by a byte for that byte before it);
  // what the automaton has found at a place are all tokens that begin there, the longest by itself.
  struct Matcher {
    struct Match {
      size_t begin, end;
      int32_t id;
    };
    struct Node {
      uint32_t shorter = 0;  // the longest other node whose text begins this one's
      int32_t token = -1;    // the longest token that begins here: its id, or -1
      uint32_t length = 0;   // of that token
    };
    std::unordered_map<uint64_t, uint32_t> edges;  // (node << 8 | byte) -> child
    std::vector<Node> nodes{Node{}};
    std::vector<bool> last = std::vector<bool>(256, false);  // bytes with which a token ends

    void insert(const std::string& token, int32_t id);
    void finish();  // after the last insert
    // The longest token at every place where one begins, rightmost place first.
    void find(std::string_view text, std::vector<Match>& matches) const;
    uint32_t step(uint32_t node, unsigned char byte) const;
  };
  AddedTokens() = default;
  // `config`: the file's array (null: none). Throws Error when an id is out of range, taken or not the vocabulary's,
  // when two tokens are written alike, and when they are longer together than kMaxAddedBytes.
  AddedTokens(const nlohmann::json& config, const BpeModel& model, const Normalizer& normalizer);

  // Cuts the tokens out of the pieces, leftmost and longest first: the not normalized ones, or the normalized ones.
  // Linear in the text, however long the tokens are and however they overlap. Without
  // `special` tokens that are special stay text.
  void extract(std::vector<TextPiece>& pieces, bool normalized, bool special) const;

  const std::unordered_map<int32_t, AddedToken>& by_id() const { return by_id_; }

 private:
  void cut(const Matcher& matcher, bool special, TextPiece& piece, std::vector<TextPiece>& result) const;
  std::unordered_map<int32_t, AddedToken> by_id_;
  Matcher matchers_[2];  // [normalized]
};

}  // namespace fidelio::tokenization
