#include "grammar/automaton.h"

#include <algorithm>
#include <bitset>
#include <utility>

#include "core/error.h"

namespace fidelio::grammar {
namespace {

uint64_t place(NodeId node, int32_t stack) {
  return static_cast<uint64_t>(static_cast<uint32_t>(stack + 1)) << 32 | static_cast<uint32_t>(node);
}
NodeId node_of(uint64_t p) { return static_cast<NodeId>(p & 0xffffffffu); }
int32_t stack_of(uint64_t p) { return static_cast<int32_t>(p >> 32) - 1; }

// These are approximate bytes of a frame with its entry in the map, of a state besides its places and its row, and of a
// place in the set of places seen.
constexpr size_t kFrame = 80, kState = 128, kLookedAt = 40;
constexpr size_t kFewSlots = 256;
constexpr uint64_t kPlacesAStep = 8;  // About this many places are passed over in the time that it takes to enter one.

}  // namespace

size_t Automaton::HashOf::operator()(const Places& places) const {
  uint64_t h = places.size();
  for (const uint64_t p : places) h = (h ^ p) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
  return h;
}

Automaton::Automaton(Grammar grammar) : grammar_(std::move(grammar)), last_(grammar_.size()) {
  for (size_t i = 0; i < grammar_.rules(); ++i)
    last_[static_cast<size_t>(grammar_.rule(static_cast<RuleId>(i)).last)] = 1;
  std::bitset<257> begins;  // A bit is set where a class begins; the bytes of a class are told apart by no edge.
  for (size_t i = 0; i < grammar_.size(); ++i)
    for (const ByteEdge& edge : grammar_.node(static_cast<NodeId>(i)).bytes)
      begins.set(edge.low), begins.set(size_t{edge.high} + 1);
  for (size_t byte = 0; byte < 256; ++byte) {
    if (byte > 0 && begins[byte]) ++classes_;
    class_of_[byte] = static_cast<uint8_t>(classes_);
  }
  ++classes_;
  enter(grammar_.rule(0).first, -1);
  const State first = close();
  check(first != kDead, "no text at all fits the form asked for");
}

int32_t Automaton::push(int32_t stack, NodeId back) {
  const auto [found, fresh] = frame_of_.try_emplace(place(back, stack), static_cast<int32_t>(frames_.size()));
  if (fresh) frames_.push_back({stack, back}), bytes_ += kFrame;
  return found->second;
}

bool Automaton::full() {
  if (work_ > kMostWork || bytes_ + seen_.size() * kLookedAt > kMostBytes) cut_ = spent_ = true;
  return cut_;
}

void Automaton::enter(NodeId node, int32_t stack) {
  if (full()) return;
  ++work_;
  const uint64_t p = place(node, stack);
  if (seen_.insert(p)) left_.push_back(p);
}

bool Automaton::PlaceSet::insert(uint64_t p) {
  if (2 * (size_ + 1) > slots_.size()) {
    std::vector<uint64_t> old(std::max<size_t>(kFewSlots, 2 * slots_.size()));
    old.swap(slots_);
    for (const uint64_t slot : old)
      if (slot != 0) slots_[free_or(slot)] = slot;
  }
  uint64_t& slot = slots_[free_or(p + 1)];
  if (slot != 0) return false;
  slot = p + 1;
  ++size_;
  return true;
}

size_t Automaton::PlaceSet::free_or(uint64_t slot) const {
  const size_t mask = slots_.size() - 1;
  size_t at = static_cast<size_t>((slot * 0x9E3779B97F4A7C15u) >> 32) & mask;
  while (slots_[at] != 0 && slots_[at] != slot) at = (at + 1) & mask;
  return at;
}

// A table that was large once is made small again, as it would take as long to clear at every later byte.
void Automaton::PlaceSet::clear() {
  if (slots_.size() > kFewSlots && size_ < slots_.size() / 16)
    std::vector<uint64_t>(kFewSlots).swap(slots_);
  else
    std::fill(slots_.begin(), slots_.end(), 0);
  size_ = 0;
}

Automaton::State Automaton::close() {
  bool ends = false;
  entered_.clear();
  while (!left_.empty() && !cut_) {
    const uint64_t p = left_.back();
    left_.pop_back();
    const NodeId id = node_of(p);
    const int32_t stack = stack_of(p);
    const Node& node = grammar_.node(id);
    if (!node.bytes.empty()) entered_.push_back(p);
    for (const NodeId to : node.free) enter(to, stack);
    for (const CallEdge& call : node.calls) enter(grammar_.rule(call.rule).first, push(stack, call.to));
    if (last_[static_cast<size_t>(id)] == 0) continue;
    if (stack < 0)
      ends = true;
    else
      enter(frames_[static_cast<size_t>(stack)].back, frames_[static_cast<size_t>(stack)].below);
  }
  left_.clear();
  seen_.clear();
  if (std::exchange(cut_, false)) return kDead;
  if (entered_.empty() && !ends) return kDead;
  std::sort(entered_.begin(), entered_.end());
  if (ends) entered_.push_back(~uint64_t{0});  // Accepting states are told apart by this extra element.
  const auto found = state_of_.find(entered_);
  if (found != state_of_.end()) return found->second;
  if (ends_.size() >= kMostStates) return kDead;
  const auto state = static_cast<State>(ends_.size());
  places_.push_back(&state_of_.emplace(entered_, state).first->first);
  ends_.push_back(ends);
  goes_on_.push_back(entered_.size() > (ends ? 1u : 0u));
  rows_.resize(rows_.size() + classes_, kUnknown);
  bytes_ += kState + entered_.size() * sizeof(uint64_t) + classes_ * sizeof(State);
  return state;
}

Automaton::State Automaton::compute(State state, uint8_t byte) {
  work_ += places_[static_cast<size_t>(state)]->size() / kPlacesAStep;
  for (const uint64_t p : *places_[static_cast<size_t>(state)]) {
    if (p == ~uint64_t{0}) continue;
    if (full()) break;
    for (const ByteEdge& edge : grammar_.node(node_of(p)).bytes)
      if (edge.low <= byte && byte <= edge.high) enter(edge.to, stack_of(p));
  }
  const State next = close();
  rows_[static_cast<size_t>(state) * classes_ + class_of_[byte]] = next;
  return next;
}

}  // namespace fidelio::grammar
