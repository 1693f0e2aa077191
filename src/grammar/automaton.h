// grammar: a grammar as a machine that reads bytes. States are sets of places (a node, and the stack of rules it is
// inside of), made as they are met and known by number; what follows a state by a byte is computed once.
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
  // Beyond so many states, or so much work or memory for them, no further one is made and the machine says kDead: an
  // expression that means harm ends there. Of states alone a bound would be none, as one may have any number of places.
  static constexpr size_t kMostStates = 50'000, kMostBytes = 64 << 20;
  static constexpr uint64_t kMostWork = kMaxWork / 2;  // places entered; as many states of a schema take half of it

  explicit Automaton(Grammar grammar);
  State start() const { return 0; }
  State step(State state, uint8_t byte) {
    const size_t at = static_cast<size_t>(state) * classes_ + class_of_[byte];
    return rows_[at] != kUnknown ? rows_[at] : compute(state, byte);
  }
  bool accepts(State state) const { return ends_[static_cast<size_t>(state)] != 0; }
  bool continues(State state) const { return goes_on_[static_cast<size_t>(state)] != 0; }
  size_t states() const { return ends_.size(); }
  // More than half of what it may take has been taken, or something was not made for want of more.
  bool worn() const { return spent_ || states() > kMostStates / 2 || work_ > kMostWork / 2 || bytes_ > kMostBytes / 2; }
  size_t bytes() const { return bytes_; }  // of its states, about

 private:
  static constexpr State kUnknown = -2;
  struct Frame {
    int32_t below;  // of the stack; -1: none
    NodeId back;
  };
  using Places = std::vector<uint64_t>;  // node and stack, in order
  // Places met; most states have a few dozen, and sets of them are made for every byte.
  class PlaceSet {
   public:
    bool insert(uint64_t p);  // false: it is there
    void clear();
    size_t size() const { return size_; }

   private:
    size_t free_or(uint64_t slot) const;  // where it stands or may stand
    std::vector<uint64_t> slots_;  // place + 1, 0 where there is none; a power of two of them, half of them empty
    size_t size_ = 0;
  };
  struct HashOf {
    size_t operator()(const Places& places) const;
  };

  State compute(State state, uint8_t byte);
  void enter(NodeId node, int32_t stack);
  State close();  // the state of what was entered
  bool full();    // no more may be entered
  int32_t push(int32_t stack, NodeId back);

  Grammar grammar_;
  std::array<uint8_t, 256> class_of_{};
  size_t classes_ = 0;
  std::vector<char> last_;  // of each node: the rule whose end it is, none: 0
  std::vector<Frame> frames_;
  std::unordered_map<uint64_t, int32_t> frame_of_;  // by its place
  std::unordered_map<Places, State, HashOf> state_of_;
  std::vector<const Places*> places_;  // keys of state_of_, which stay
  std::vector<char> ends_, goes_on_;
  std::vector<State> rows_;  // (states, classes)
  uint64_t work_ = 0;
  size_t bytes_ = 0;
  bool spent_ = false, cut_ = false;  // something was left out; of the state under construction
  // Under construction.
  Places left_, entered_;
  PlaceSet seen_;
};

}  // namespace fidelio::grammar
