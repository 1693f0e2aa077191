// grammar: which tokens keep an answer within a grammar: the vocabulary as a tree of bytes, walked together with the
// automaton; the mask of a state is made once.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/constraint.h"
#include "grammar/automaton.h"

namespace fidelio::grammar {

// The tokens' bytes as a tree, in the order of a walk that goes deep first. Immutable, shared by all constraints.
class TokenTree {
 public:
  // By id; tokens that write nothing are in no mask.
  explicit TokenTree(std::vector<std::string> tokens);

  struct Step {
    uint8_t byte;
    int32_t depth;        // of its byte in a token, from 0
    int32_t skip;         // the next step if nothing begins like this
    int32_t first, last;  // of ids(): those that end here
  };
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<int32_t>& ids() const { return ids_; }  // in the order of the walk
  const std::string& bytes(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  size_t size() const { return tokens_.size(); }
  size_t longest() const { return longest_; }

 private:
  std::vector<std::string> tokens_;
  std::vector<Step> steps_;
  std::vector<int32_t> ids_;
  size_t longest_ = 0;
};

using Spelled = std::vector<std::pair<int32_t, std::string>>;

class TokenConstraint final : public Constraint {
 public:
  // `spelled`: tokens that write nothing by themselves and count as these texts here, such as marks of thinking.
  TokenConstraint(Grammar grammar, std::shared_ptr<const TokenTree> tree, Spelled spelled = {});

  State start() override { return automaton_.start(); }
  std::span<const uint64_t> allowed(State state) override;
  State next(State state, int32_t id) override;
  bool may_end(State state) override { return automaton_.accepts(state); }
  bool must_end(State state) override { return automaton_.accepts(state) && !automaton_.continues(state); }

  int64_t masks_made() const { return masks_made_; }
  // So many states were met that those who begin with it now might meet its last: a new one should be made for them.
  // From any thread, as is bytes(), what it takes by now.
  bool worn() const { return worn_.load(std::memory_order_relaxed); }
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  using Mask = std::vector<uint64_t>;
  static constexpr size_t kMostMasks = 1024;
  Mask make_mask(State state);
  State after(State state, std::string_view bytes);
  std::string_view bytes_of(int32_t id) const;
  void tell();  // other threads what has been taken

  size_t grammar_bytes_;
  Automaton automaton_;
  std::shared_ptr<const TokenTree> tree_;
  Spelled spelled_;
  std::unordered_map<State, Mask> masks_;
  std::vector<State> path_;
  int64_t masks_made_ = 0;
  std::atomic<bool> worn_ = false;
  std::atomic<size_t> bytes_ = 0;
};

}  // namespace fidelio::grammar
