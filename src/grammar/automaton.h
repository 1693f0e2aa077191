// This file turns a grammar into an automaton that reads bytes. A state is a set of places, where a place is a node
// together with the stack of rules that it is inside of. States are made when they are first reached and have numbers;
// the successor of a state for a byte is computed once.
#pragma once
#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"

namespace fidelio::grammar {

class Automaton {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;
  // Beyond this many states, or this much work or memory for them, no further state is made and the automaton returns
  // kDead, which stops expressions made to do harm. A bound on the states alone would not be enough, as one state may
  // have any number of places.
  static constexpr size_t kMostStates = 50'000, kMostBytes = 64 << 20;
  // This bounds the places entered; as many states of a schema as are allowed take about half of it.
  static constexpr uint64_t kMostWork = kMaxWork / 2;

  explicit Automaton(Grammar grammar);
  State start() const { return 0; }
  State step(State state, uint8_t byte) {
    const size_t at = static_cast<size_t>(state) * classes_ + class_of_[byte];
    return rows_[at] != kUnknown ? rows_[at] : compute(state, byte);
  }
  bool accepts(State state) const { return ends_[static_cast<size_t>(state)] != 0; }
  bool continues(State state) const { return goes_on_[static_cast<size_t>(state)] != 0; }
  size_t states() const { return ends_.size(); }
  // Tells that more than half of the limits has been used, or that something was left out because a limit was reached.
  bool worn() const { return spent_ || states() > kMostStates / 2 || work_ > kMostWork / 2 || bytes_ > kMostBytes / 2; }
  size_t bytes() const { return bytes_; }  // These are the approximate bytes of its states.

 private:
  static constexpr State kUnknown = -2;
  struct Frame {
    int32_t below;  // This is the frame below in the stack, or -1.
    NodeId back;
  };
  using Places = std::vector<uint64_t>;  // A place is a node and a stack; they are in order.
  // This is the set of places seen while a state is made. Most states have a few dozen places, and a set is made for
  // every byte.
  class PlaceSet {
   public:
    bool insert(uint64_t p);  // It returns false if the place is there already.
    void clear();
    size_t size() const { return size_; }

   private:
    size_t free_or(uint64_t slot) const;  // It returns the slot where the place is or may be put.
    // A slot is place + 1, or 0 if it is free. Their number is a power of two, and at least half of them are free.
    std::vector<uint64_t> slots_;
    size_t size_ = 0;
  };
  struct HashOf {
    size_t operator()(const Places& places) const;
  };

  State compute(State state, uint8_t byte);
  void enter(NodeId node, int32_t stack);
  State close();  // It returns the state of the places that were entered.
  bool full();    // It is true if no more places may be entered.
  int32_t push(int32_t stack, NodeId back);

  Grammar grammar_;
  std::array<uint8_t, 256> class_of_{};
  size_t classes_ = 0;
  std::vector<char> last_;  // This is 1 for a node that ends a rule, else 0.
  std::vector<Frame> frames_;
  std::unordered_map<uint64_t, int32_t> frame_of_;  // The key is the place of the frame.
  std::unordered_map<Places, State, HashOf> state_of_;
  std::vector<const Places*> places_;  // These point to keys of state_of_, which stay where they are.
  std::vector<char> ends_, goes_on_;
  std::vector<State> rows_;  // (states, classes)
  uint64_t work_ = 0;
  size_t bytes_ = 0;
  // spent_ says that something was left out at some time, cut_ that it was left out of the state under construction.
  bool spent_ = false, cut_ = false;
  // These belong to the state under construction.
  Places left_, entered_;
  PlaceSet seen_;
};

}  // namespace fidelio::grammar
