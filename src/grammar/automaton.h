// grammar: a grammar as a machine that reads bytes. States are sets of places (a node, and the stack of rules it is
// inside of), made as they are met and known by number; what follows a state by a byte is computed once.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"

namespace fidelio::grammar {

class Automaton {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;
  // Beyond so many states no further one is made and the machine says kDead: an expression that means harm ends there.
  static constexpr size_t kMostStates = 50'000;

  explicit Automaton(Grammar grammar);
  State start() const { return 0; }
  State step(State state, uint8_t byte) {
    const size_t at = static_cast<size_t>(state) * classes_ + class_of_[byte];
    return rows_[at] != kUnknown ? rows_[at] : compute(state, byte);
  }
  bool accepts(State state) const { return ends_[static_cast<size_t>(state)] != 0; }
  bool continues(State state) const { return goes_on_[static_cast<size_t>(state)] != 0; }
  size_t states() const { return ends_.size(); }

 private:
  static constexpr State kUnknown = -2;
  struct Frame {
    int32_t below;  // of the stack; -1: none
    NodeId back;
  };
  using Places = std::vector<uint64_t>;  // node and stack, in order
  struct HashOf {
    size_t operator()(const Places& places) const;
  };

  State compute(State state, uint8_t byte);
  void enter(NodeId node, int32_t stack);
  State close();  // the state of what was entered
  int32_t push(int32_t stack, NodeId back);

  Grammar grammar_;
  std::array<uint8_t, 256> class_of_{};
  size_t classes_ = 0;
  std::vector<char> last_;  // of each node: the rule whose end it is, none: 0
  std::vector<Frame> frames_;
  std::map<std::pair<int32_t, NodeId>, int32_t> frame_of_;
  std::unordered_map<Places, State, HashOf> state_of_;
  std::vector<const Places*> places_;  // keys of state_of_, which stay
  std::vector<char> ends_, goes_on_;
  std::vector<State> rows_;  // (states, classes)
  // Under construction.
  Places left_, entered_;
  std::unordered_map<uint64_t, char> seen_;
};

}  // namespace fidelio::grammar
