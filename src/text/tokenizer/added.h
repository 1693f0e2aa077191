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

class AddedTokens {
 public:
  AddedTokens() = default;
  // `config`: the file's array (null: none). Throws Error when an id is out of range, taken or not the vocabulary's,
  // and when two tokens are written alike.
  AddedTokens(const nlohmann::json& config, const BpeModel& model, const Normalizer& normalizer);

  // Cuts the tokens out of the pieces, leftmost and longest first: the not normalized ones, or the normalized ones.
  void extract(std::vector<TextPiece>& pieces, bool normalized) const;

  const std::unordered_map<int32_t, AddedToken>& by_id() const { return by_id_; }

 private:
  // A trie over bytes: child = edges[node << 8 | byte]; tokens[node] is the id of the token that ends there, or -1.
  struct Trie {
    std::unordered_map<uint64_t, uint32_t> edges;
    std::vector<int32_t> tokens{-1};
    std::vector<bool> first = std::vector<bool>(256, false);
  };
  struct Match {
    size_t begin, end;
    int32_t id;
  };
  void insert(bool normalized, const std::string& pattern, int32_t id);
  bool longest_match(const Trie& trie, std::string_view text, size_t at, Match* match) const;
  void cut(const Trie& trie, TextPiece& piece, std::vector<TextPiece>& result) const;
  std::unordered_map<int32_t, AddedToken> by_id_;
  Trie tries_[2];  // [normalized]
};

}  // namespace fidelio::tokenization
