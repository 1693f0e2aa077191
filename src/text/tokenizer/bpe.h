// This file implements byte-pair encoding, the `model` of a tokenizer.json. A word becomes one symbol per character.
// Then the neighbours whose merge has the lowest rank (leftmost first) are joined, until no neighbours have a merge.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fidelio::tokenization {

inline constexpr int32_t kTokenIdLimit = 1 << 24;  // Ids of a tokenizer file are below this.

// This maps a pair of ids to {rank, id} by open addressing with linear probing. It is the inner loop of the encoder.
class PairMap {
 public:
  struct Value {
    uint32_t rank;
    int32_t id;
  };
  explicit PairMap(size_t pairs = 0);                     // It has room for this many pairs.
  void assign(int32_t left, int32_t right, Value value);  // A later assignment of the same pair wins.
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
  // A Workspace holds the merged segments already seen and scratch space, for one thread. Each text should get a fresh
  // one, as it only grows.
  struct Workspace {
    struct TransparentHash {
      using is_transparent = void;
      size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
    };
    struct Range {
      uint32_t begin, count;  // The range is in `merged`.
    };
    struct Symbol {
      // The neighbours are indices, -1 at the ends. An id of -1 means that the symbol was merged into its left
      // neighbour.
      int32_t id, previous, next;
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

  // Throws Error naming the field that is missing, wrong or unsupported.
  explicit BpeModel(const nlohmann::json& model);

  // Appends the ids of `word` (valid UTF-8). A character that has no token, no byte tokens and no unk_token is dropped,
  // as Hugging Face does. Throws Error if the unk_token is needed and not in the vocabulary. It takes O(n log n) steps.
  // Returns false if there would be more than `most` ids; the appended ids are then no complete encoding, and the cost
  // of the rest is saved.
  bool encode(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids, size_t most) const;

  std::optional<int32_t> id_of(std::string_view token) const;
  int32_t id_bound() const { return static_cast<int32_t>(texts_.size()); }  // This is the largest id + 1.
  size_t size() const { return ids_.size(); }                               // It counts the tokens.
  const std::string* text_of(int32_t id) const;                             // It is null for an id without a token.

 private:
  void read_vocabulary(const nlohmann::json& vocabulary);
  void read_merges(const nlohmann::json& merges);
  void read_characters();
  void find_joints(const std::vector<std::pair<int32_t, int32_t>>& merges);
  int32_t character_id(char32_t c, std::string_view text) const;
  void to_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void encode_segment(const int32_t* symbols, size_t count, Workspace& workspace, std::vector<int32_t>& ids) const;
  void merge(const int32_t* symbols, size_t count, Workspace& workspace, std::vector<int32_t>& ids) const;

  // The index is the id; the entry is null where no token has that id. The pointers point into ids_.
  std::vector<const std::string*> texts_;
  std::unordered_map<std::string, int32_t, Workspace::TransparentHash, std::equal_to<>> ids_;
  std::vector<int32_t> character_ids_;  // The index is the code point, for those below its size; -1 means none.
  // These are the ids of <0x00>..<0xFF>, -1 where absent. It is empty without byte_fallback.
  std::vector<int32_t> byte_ids_;
  PairMap merges_;
  // These are the neighbouring character symbols that some merge can join. Where a word has a pair that is not here, no
  // token ever spans the two, so the word can be cut there without changing the result. This keeps words short where
  // there is no pre-tokenizer.
  PairMap joints_;
  bool cut_at_joints_ = true;
  std::string unk_token_;
  std::optional<int32_t> unk_id_;
  size_t longest_ = 1;  // This is the most characters that a token has, so this many symbols give at least one id.
  bool has_unk_ = false, fuse_unk_ = false, ignore_merges_ = false;
};

}  // namespace fidelio::tokenization
