// Byte-pair encoding: the `model` of a tokenizer.json. A word becomes one symbol per character, then the neighbours
// whose merge has the lowest rank (leftmost first) are joined until no neighbours have a merge.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fidelio::tokenization {

inline constexpr int32_t kTokenIdLimit = 1 << 24;  // ids of a tokenizer file are below this

// A map from a pair of ids to {rank, id}, open addressing with linear probing: the encoder's inner loop.
class PairMap {
 public:
  struct Value {
    uint32_t rank;
    int32_t id;
  };
  explicit PairMap(size_t pairs = 0);                     // room for so many pairs
  void assign(int32_t left, int32_t right, Value value);  // a later assignment of the same pair wins
  const Value* find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key;
    Value value;
  };
  size_t slot_of(uint64_t key) const;
  std::vector<Slot> slots_;
  uint64_t mask_;
};

class BpeModel {
 public:
  // Merged segments already seen and scratch space, for one thread. Start a fresh one per text: it only grows.
  struct Workspace {
    struct TransparentHash {
      using is_transparent = void;
      size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
    };
    struct Range {
      uint32_t begin, count;  // in `merged`
    };
    struct Symbol {
      int32_t id, previous, next;  // neighbours' indices, -1 at the ends; id -1: merged into its left neighbour
    };
    struct Candidate {
      uint32_t rank;
      int32_t position, id;
    };
    std::unordered_map<std::string, Range, TransparentHash, std::equal_to<>> cache;
    std::vector<int32_t> merged, symbols;
    std::vector<Symbol> chain;
    std::vector<Candidate> heap;
  };

  explicit BpeModel(
      const nlohmann::json& model);  // throws Error naming the field that is missing, wrong or unsupported

  // Appends the ids of `word` (valid UTF-8). A character without token, byte tokens or unk_token is dropped, as Hugging
  // Face does. Throws Error if the unk_token is needed and not in the vocabulary. O(n log n). False where there come to be
  // more than `most` ids: what was appended then is no encoding, and what the word would have cost was not all paid.
  bool encode(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids, size_t most) const;

  std::optional<int32_t> id_of(std::string_view token) const;
  int32_t id_bound() const { return static_cast<int32_t>(texts_.size()); }  // largest id + 1
  size_t size() const { return ids_.size(); }                               // tokens
  const std::string* text_of(int32_t id) const;                             // null: no such token

 private:
  void read_vocabulary(const nlohmann::json& vocabulary);
  void read_merges(const nlohmann::json& merges);
  void read_characters();
  void find_joints(const std::vector<std::pair<int32_t, int32_t>>& merges);
  int32_t character_id(char32_t c, std::string_view text) const;
  void to_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void encode_segment(const int32_t* symbols, size_t count, Workspace& workspace, std::vector<int32_t>& ids) const;
  void merge(const int32_t* symbols, size_t count, Workspace& workspace, std::vector<int32_t>& ids) const;

  std::vector<const std::string*> texts_;  // by id; null where no token has that id. They point into ids_.
  std::unordered_map<std::string, int32_t, Workspace::TransparentHash, std::equal_to<>> ids_;
  std::vector<int32_t> character_ids_;  // by code point, for those below its size; -1: none
  std::vector<int32_t> byte_ids_;       // of <0x00>..<0xFF>, -1 where absent; empty without byte_fallback
  PairMap merges_;
  // Neighbouring character symbols that some merge can join. Where a word has a pair that is not here, no token ever
  // spans the two, so it can be cut there without changing the result: words without pre-tokenizer stay short.
  PairMap joints_;
  bool cut_at_joints_ = true;
  std::string unk_token_;
  std::optional<int32_t> unk_id_;
  size_t longest_ = 1;  // characters of a token: of so many symbols at most one id comes
  bool has_unk_ = false, fuse_unk_ = false, ignore_merges_ = false;
};

}  // namespace fidelio::tokenization
