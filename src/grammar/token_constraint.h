// This file computes which tokens keep an answer within a grammar. It walks the vocabulary as a tree of bytes together
// with the automaton, and makes the mask of a state once.
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

// This holds the bytes of the tokens as a tree, in depth-first order. It is immutable and shared by all constraints.
class TokenTree {
 public:
  // The index is the id; tokens that write nothing are in no mask.
  explicit TokenTree(std::vector<std::string> tokens);

  struct Step {
    uint8_t byte;
    int32_t depth;        // The byte stands at this place in a token, from 0.
    int32_t skip;         // This is the next step to visit if no token may begin with these bytes.
    int32_t first, last;  // The tokens that end here are ids() from first up to, but without, last.
  };
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<int32_t>& ids() const { return ids_; }  // They are in the order of the walk.
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
  // `spelled` are tokens that write nothing by themselves and count as these texts here, such as marks of thinking.
  TokenConstraint(Grammar grammar, std::shared_ptr<const TokenTree> tree, Spelled spelled = {});

  State start() override { return automaton_.start(); }
  std::span<const uint64_t> allowed(State state) override;
  State next(State state, int32_t id) override;
  bool may_end(State state) override { return automaton_.accepts(state); }
  bool must_end(State state) override { return automaton_.accepts(state) && !automaton_.continues(state); }

  int64_t masks_made() const { return masks_made_; }
  // Tells that many states have been made, so answers that begin now might reach the limit; a new constraint should be
  // made for them. It may be called from any thread, as may bytes(), which returns the memory in use.
  bool worn() const { return worn_.load(std::memory_order_relaxed); }
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  using Mask = std::vector<uint64_t>;
  static constexpr size_t kMostMasks = 1024;
  Mask make_mask(State state);
  State after(State state, std::string_view bytes);
  std::string_view bytes_of(int32_t id) const;
  void tell();  // It publishes these numbers to other threads.

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
