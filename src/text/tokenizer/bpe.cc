#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "text/tokenizer/json.h"
#include "text/tokenizer/unicode.h"

namespace fidelio::tokenization {
namespace {

constexpr uint64_t kEmpty = ~uint64_t{0};  // Ids are below 2^24, so no pair has this key.
constexpr size_t kCachedSymbols = 64;      // Longer segments rarely occur twice.
constexpr size_t kCachedSegments = 1 << 16;
const char* const kModel = "tokenizer.json: model";

uint64_t key_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// Reads either of the two spellings of a merge: "a b" or ["a", "b"].
std::pair<std::string, std::string> merge_sides(const Json& merge, size_t rank) {
  const std::string where = fmt::format("{}.merges[{}]", kModel, rank);
  if (merge.is_array()) {
    check(merge.size() == 2, "{}: expected a pair of tokens, found {} items", where, merge.size());
    return {string_of(merge[0], where), string_of(merge[1], where)};
  }
  expect_type(merge.is_string(), merge, where, "\"a b\" or [\"a\", \"b\"]");
  const std::string& text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  check(space != std::string::npos && text.find(' ', space + 1) == std::string::npos,
        "{}: '{}' must be two tokens with one space between them", where, text);
  return {text.substr(0, space), text.substr(space + 1)};
}

}  // namespace

PairMap::PairMap(size_t pairs) : slots_(std::bit_ceil(2 * pairs + 2), Slot{kEmpty, {0, 0}}), mask_(slots_.size() - 1) {}

size_t PairMap::slot_of(uint64_t key) const {
  uint64_t hash = key * 0x9E3779B97F4A7C15u;
  size_t slot = (hash ^ hash >> 32) & mask_;
  while (slots_[slot].key != key && slots_[slot].key != kEmpty) slot = (slot + 1) & mask_;
  return slot;
}

void PairMap::assign(int32_t left, int32_t right, Value value) {
  uint64_t key = key_of(left, right);
  slots_[slot_of(key)] = {key, value};
}

const PairMap::Value* PairMap::find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[slot_of(key_of(left, right))];
  return slot.key == kEmpty ? nullptr : &slot.value;
}

BpeModel::BpeModel(const Json& model) {
  const Json* type = find_field(model, "type", kModel);
  if (type) {
    const std::string& name = string_of(*type, "tokenizer.json: model.type");
    check(name == "BPE", "tokenizer.json: the model type '{}' is not supported; supported: BPE", name);
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* value = find_field(model, key, kModel);
    check(!value || string_of(*value, std::string(kModel) + "." + key).empty(),
          "{}: {} is not supported; expected null or \"\"", kModel, key);
  }
  if (const Json* dropout = find_field(model, "dropout", kModel)) {
    expect_type(dropout->is_number(), *dropout, "tokenizer.json: model.dropout", "a number or null");
    check(dropout->get<double>() == 0, "{}: dropout {} is for training and not supported; set it to null", kModel,
          dropout->get<double>());
  }
  if (const Json* unk = find_field(model, "unk_token", kModel)) {
    unk_token_ = string_of(*unk, "tokenizer.json: model.unk_token");
    has_unk_ = true;
  }
  fuse_unk_ = bool_field(model, "fuse_unk", false, kModel);
  ignore_merges_ = bool_field(model, "ignore_merges", false, kModel);
  read_vocabulary(field(model, "vocab", kModel));
  if (has_unk_) unk_id_ = id_of(unk_token_);
  if (bool_field(model, "byte_fallback", false, kModel)) {
    byte_ids_.resize(256);
    for (int b = 0; b < 256; ++b) byte_ids_[b] = id_of(fmt::format("<0x{:02X}>", b)).value_or(-1);
  }
  read_characters();
  read_merges(array_field(model, "merges", kModel));
}

void BpeModel::read_vocabulary(const Json& vocabulary) {
  expect_type(vocabulary.is_object(), vocabulary, "tokenizer.json: model.vocab", "an object of token: id");
  ids_.reserve(vocabulary.size());
  for (const auto& [token, value] : vocabulary.items()) {
    int32_t id = index_of(value, kTokenIdLimit, "tokenizer.json: model.vocab['" + token + "']");
    if (static_cast<size_t>(id) >= texts_.size()) texts_.resize(id + 1, nullptr);
    check(texts_[id] == nullptr, "{}.vocab: the tokens '{}' and '{}' have the same id {}", kModel,
          texts_[id] ? *texts_[id] : "", token, id);
    texts_[id] = &ids_.emplace(token, id).first->first;
    const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
    longest_ = std::max(longest_, static_cast<size_t>(std::count_if(token.begin(), token.end(), begins)));
  }
}

// Finds the tokens of one character, with which a word starts.
void BpeModel::read_characters() {
  for (const auto& [token, id] : ids_) {
    size_t length = 0;
    if (token.empty()) continue;
    char32_t c = code_point_at(token, 0, &length);
    if (length != token.size()) continue;
    if (c >= character_ids_.size()) character_ids_.resize(c + 1, -1);
    character_ids_[c] = id;
  }
}

void BpeModel::read_merges(const Json& merges) {
  merges_ = PairMap(merges.size());
  std::vector<std::pair<int32_t, int32_t>> pairs;
  pairs.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::pair<std::string, std::string> sides = merge_sides(merges[rank], rank);
    const auto& left = sides.first;
    const auto& right = sides.second;
    auto known = [&](const std::string& token) {
      auto id = id_of(token);
      check(id.has_value(), "{}.merges[{}] ('{}' + '{}') names '{}', which is not in the vocabulary", kModel, rank,
            left, right, token);
      return *id;
    };
    pairs.emplace_back(known(left), known(right));
    merges_.assign(pairs.back().first, pairs.back().second, {static_cast<uint32_t>(rank), known(left + right)});
  }
  find_joints(pairs);
}

// A merge joins the last character of its left side to the first of its right side.
void BpeModel::find_joints(const std::vector<std::pair<int32_t, int32_t>>& merges) {
  // A word can start with these symbols although they are no characters.
  std::vector<bool> not_a_character(texts_.size(), false);
  for (int32_t id : byte_ids_)
    if (id >= 0) not_a_character[id] = true;
  if (unk_id_) not_a_character[*unk_id_] = true;
  std::vector<std::pair<int32_t, int32_t>> joints;
  for (auto [left, right] : merges) {
    // Cutting at joints needs every leaf of a merge to be a character of its text. No known tokenizer breaks this.
    if (not_a_character[left] || not_a_character[right] || texts_[left]->empty() || texts_[right]->empty()) {
      cut_at_joints_ = false;
      return;
    }
    size_t length = 0;
    char32_t last = code_point_before(*texts_[left], texts_[left]->size(), &length);
    char32_t first = code_point_at(*texts_[right], 0, &length);
    auto id = [&](char32_t c) { return c < character_ids_.size() ? character_ids_[c] : -1; };
    if (id(last) >= 0 && id(first) >= 0) joints.emplace_back(id(last), id(first));
  }
  std::sort(joints.begin(), joints.end());
  joints.erase(std::unique(joints.begin(), joints.end()), joints.end());
  joints_ = PairMap(joints.size());
  for (auto [left, right] : joints) joints_.assign(left, right, {0, 0});
}

std::optional<int32_t> BpeModel::id_of(std::string_view token) const {
  auto it = ids_.find(token);
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

const std::string* BpeModel::text_of(int32_t id) const { return id >= 0 && id < id_bound() ? texts_[id] : nullptr; }

// The order of unknown characters and byte tokens is Hugging Face's: an unknown character waits for the next known one
// (or the end), and byte tokens overtake it.
void BpeModel::to_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  symbols.clear();
  int32_t waiting = -1;
  for (size_t at = 0, length; at < word.size(); at += length) {
    char32_t c = code_point_at(word, at, &length);
    if (int32_t id = c < character_ids_.size() ? character_ids_[c] : -1; id >= 0) {
      if (waiting >= 0) symbols.push_back(std::exchange(waiting, -1));
      symbols.push_back(id);
      continue;
    }
    if (!byte_ids_.empty()) {
      auto byte_id = [&](size_t i) { return byte_ids_[static_cast<unsigned char>(word[at + i])]; };
      bool all = true;
      for (size_t i = 0; i < length; ++i) all = all && byte_id(i) >= 0;
      if (all) {
        for (size_t i = 0; i < length; ++i) symbols.push_back(byte_id(i));
        continue;
      }
    }
    if (!has_unk_) continue;
    if (waiting >= 0 && !fuse_unk_) symbols.push_back(waiting);
    check(unk_id_.has_value(), "{}: the text has a character outside the vocabulary, and so is the unk_token '{}'",
          kModel, unk_token_);
    waiting = *unk_id_;
  }
  if (waiting >= 0) symbols.push_back(waiting);
}

bool BpeModel::encode(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids, size_t most) const {
  if (word.empty()) return true;
  if (ignore_merges_) {
    if (auto id = id_of(word)) {
      ids.push_back(*id);
      return ids.size() <= most;
    }
  }
  to_symbols(word, workspace.symbols);
  const std::vector<int32_t>& symbols = workspace.symbols;
  const size_t least = (symbols.size() + longest_ - 1) / longest_;
  if (ids.size() > most || least > most - ids.size()) return false;
  for (size_t begin = 0, end; begin < symbols.size() && ids.size() <= most; begin = end) {
    end = begin + 1;
    while (end < symbols.size() && (!cut_at_joints_ || joints_.find(symbols[end - 1], symbols[end]))) ++end;
    encode_segment(symbols.data() + begin, end - begin, workspace, ids);
  }
  return ids.size() <= most;
}

void BpeModel::encode_segment(const int32_t* symbols, size_t count, Workspace& workspace,
                              std::vector<int32_t>& ids) const {
  if (count == 1) {
    ids.push_back(symbols[0]);
    return;
  }
  if (count > kCachedSymbols) return merge(symbols, count, workspace, ids);
  std::string_view key(reinterpret_cast<const char*>(symbols), count * sizeof(int32_t));
  auto hit = workspace.cache.find(key);
  if (hit == workspace.cache.end()) {
    if (workspace.cache.size() == kCachedSegments) return merge(symbols, count, workspace, ids);
    uint32_t begin = static_cast<uint32_t>(workspace.merged.size());
    merge(symbols, count, workspace, workspace.merged);
    uint32_t merged = static_cast<uint32_t>(workspace.merged.size()) - begin;
    hit = workspace.cache.emplace(std::string(key), Workspace::Range{begin, merged}).first;
  }
  auto begin = workspace.merged.begin() + hit->second.begin;
  ids.insert(ids.end(), begin, begin + hit->second.count);
}

// The symbols are a doubly linked list, and candidate merges wait in a heap ordered by (rank, position). A candidate
// that became outdated because its neighbours changed is recognised when it reaches the top, and skipped.
void BpeModel::merge(const int32_t* symbols, size_t count, Workspace& workspace, std::vector<int32_t>& ids) const {
  using Candidate = Workspace::Candidate;
  auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  auto& chain = workspace.chain;
  auto& heap = workspace.heap;
  chain.clear();
  heap.clear();
  const int32_t n = static_cast<int32_t>(count);
  for (int32_t i = 0; i < n; ++i) chain.push_back({symbols[i], i - 1, i + 1 < n ? i + 1 : -1});
  auto add = [&](int32_t left, int32_t right) {
    if (const PairMap::Value* rule = merges_.find(chain[left].id, chain[right].id)) {
      heap.push_back({rule->rank, left, rule->id});
      return true;
    }
    return false;
  };
  for (int32_t i = 0; i + 1 < n; ++i) add(i, i + 1);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate top = heap.back();
    heap.pop_back();
    Workspace::Symbol& left = chain[top.position];
    if (left.id < 0 || left.next < 0) continue;
    Workspace::Symbol& right = chain[left.next];
    const PairMap::Value* rule = merges_.find(left.id, right.id);
    if (!rule || rule->id != top.id) continue;
    left.id = top.id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) chain[left.next].previous = top.position;
    if (left.previous >= 0 && add(left.previous, top.position)) std::push_heap(heap.begin(), heap.end(), later);
    if (left.next >= 0 && add(top.position, left.next)) std::push_heap(heap.begin(), heap.end(), later);
  }
  for (int32_t i = 0; i >= 0; i = chain[i].next) ids.push_back(chain[i].id);
}

}  // namespace fidelio::tokenization
