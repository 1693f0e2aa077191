#include "grammar/token_constraint.h"

#include <algorithm>
#include <numeric>

namespace fidelio::grammar {
namespace {

constexpr size_t kNode = 160;  // These are the approximate bytes of a grammar's node with its edges.

}  // namespace

TokenTree::TokenTree(std::vector<std::string> tokens) : tokens_(std::move(tokens)), ids_(tokens_.size()) {
  std::iota(ids_.begin(), ids_.end(), 0);
  std::erase_if(ids_, [&](int32_t id) { return bytes(id).empty(); });
  std::sort(ids_.begin(), ids_.end(),
            [&](int32_t a, int32_t b) { return bytes(a) != bytes(b) ? bytes(a) < bytes(b) : a < b; });
  std::vector<int32_t> open;  // These are the steps of the bytes of the previous token.
  const auto close_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back())
      steps_[static_cast<size_t>(open.back())].skip = static_cast<int32_t>(steps_.size());
  };
  for (size_t i = 0; i < ids_.size(); ++i) {
    const std::string& token = bytes(ids_[i]);
    const auto at = static_cast<int32_t>(i);
    longest_ = std::max(longest_, token.size());
    size_t common = 0;
    while (common < std::min(open.size(), token.size()) &&
           steps_[static_cast<size_t>(open[common])].byte == static_cast<uint8_t>(token[common]))
      ++common;
    close_to(common);
    for (size_t depth = common; depth < token.size(); ++depth) {
      open.push_back(static_cast<int32_t>(steps_.size()));
      steps_.push_back({static_cast<uint8_t>(token[depth]), static_cast<int32_t>(depth), 0, at, at});
    }
    steps_[static_cast<size_t>(open.back())].last = at + 1;
  }
  close_to(0);
}

TokenConstraint::TokenConstraint(Grammar grammar, std::shared_ptr<const TokenTree> tree, Spelled spelled)
    : grammar_bytes_(grammar.size() * kNode),
      automaton_(std::move(grammar)),
      tree_(std::move(tree)),
      spelled_(std::move(spelled)),
      path_(tree_->longest() + 1) {
  tell();
}

void TokenConstraint::tell() {
  worn_.store(automaton_.worn(), std::memory_order_relaxed);
  const size_t masks = masks_.size() * (tree_->size() / 8 + 64);
  bytes_.store(grammar_bytes_ + automaton_.bytes() + masks, std::memory_order_relaxed);
}

TokenConstraint::Mask TokenConstraint::make_mask(State state) {
  Mask mask((tree_->size() + 63) / 64);
  path_[0] = state;
  const auto& steps = tree_->steps();
  const auto& ids = tree_->ids();
  for (size_t i = 0; i < steps.size();) {
    const TokenTree::Step& step = steps[i];
    const State next = automaton_.step(path_[static_cast<size_t>(step.depth)], step.byte);
    if (next == Automaton::kDead) {
      i = static_cast<size_t>(step.skip);
      continue;
    }
    path_[static_cast<size_t>(step.depth) + 1] = next;
    for (int32_t at = step.first; at < step.last; ++at) {
      const auto id = static_cast<size_t>(ids[static_cast<size_t>(at)]);
      mask[id / 64] |= uint64_t{1} << (id % 64);
    }
    ++i;
  }
  for (const auto& [id, bytes] : spelled_)
    if (after(state, bytes) != kForbidden) mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  ++masks_made_;
  tell();
  return mask;
}

std::span<const uint64_t> TokenConstraint::allowed(State state) {
  const auto found = masks_.find(state);
  if (found != masks_.end()) return found->second;
  if (masks_.size() >= kMostMasks) masks_.clear();
  return masks_.emplace(state, make_mask(state)).first->second;
}

std::string_view TokenConstraint::bytes_of(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tree_->size()) return {};
  for (const auto& [own, bytes] : spelled_)
    if (own == id) return bytes;
  return tree_->bytes(id);
}

Constraint::State TokenConstraint::after(State state, std::string_view bytes) {
  if (bytes.empty()) return kForbidden;
  for (const char byte : bytes) {
    state = automaton_.step(state, static_cast<uint8_t>(byte));
    if (state == Automaton::kDead) return kForbidden;
  }
  return state;
}

Constraint::State TokenConstraint::next(State state, int32_t id) { return after(state, bytes_of(id)); }

}  // namespace fidelio::grammar
