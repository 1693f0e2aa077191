#include "text/tokenizer/decoder.h"

#include <algorithm>

#include "text/tokenizer/json.h"
#include "text/tokenizer/text.h"

namespace fidelio::tokenization {
namespace {

const char* const kDecoderKey = "tokenizer.json: decoder";
constexpr int32_t kStripLimit = 1 << 16;

void add_steps(const Json& config, int depth, std::vector<DecoderStep>& steps) {
  check(depth < kNestingLimit, "{}: Sequences are nested deeper than {}", kDecoderKey, kNestingLimit);
  const std::string& type = string_field(config, "type", kDecoderKey);
  DecoderStep step{};
  if (type == "Sequence") {
    for (const Json& part : array_field(config, "decoders", kDecoderKey)) add_steps(part, depth + 1, steps);
    return;
  } else if (type == "ByteLevel") {
    step.kind = DecoderStep::kByteLevel;
  } else if (type == "Replace") {
    step.kind = DecoderStep::kReplace;
    step.pattern = std::make_shared<const TextPattern>(pattern_of(config, kDecoderKey));
    step.content = string_field(config, "content", kDecoderKey);
  } else if (type == "ByteFallback") {
    step.kind = DecoderStep::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = DecoderStep::kFuse;
  } else if (type == "Strip") {
    step.kind = DecoderStep::kStrip;
    step.content = string_field(config, "content", kDecoderKey);
    size_t length = 0;
    if (!step.content.empty()) code_point_at(step.content, 0, &length);
    check(length > 0 && length == step.content.size(), "{}: Strip's content '{}' must be one character", kDecoderKey,
          step.content);
    step.start = index_of(field(config, "start", kDecoderKey), kStripLimit, std::string(kDecoderKey) + ".start");
    step.stop = index_of(field(config, "stop", kDecoderKey), kStripLimit, std::string(kDecoderKey) + ".stop");
  } else if (type == "Metaspace") {
    step.kind = DecoderStep::kMetaspace;
    step.content = metaspace_replacement(config, kDecoderKey);
    step.drop_first = prepend_scheme_of(config, kDecoderKey) != PrependScheme::kNever;
  } else {
    throw Error(
        "{} '{}' is not supported; supported: ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence",
        kDecoderKey, type);
  }
  steps.push_back(std::move(step));
}

// Returns the byte of a token <0xNN>, or -1.
int fallback_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (char c : {token[3], token[4]}) {
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                       : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

// Returns the bytes at the end of a valid run that begin a character and do not complete it.
std::string unfinished_end(const std::string& run) {
  for (size_t at = 0; at < run.size();) {
    const Utf8Step step = utf8_step(run, at);
    if (step.kind == Utf8Step::kUnfinished) return run.substr(at);
    if (step.kind != Utf8Step::kCharacter) return "";
    at += step.length;
  }
  return "";
}

std::string replace_all(const DecoderStep& step, const std::string& token, Meter& meter) {
  std::vector<TextSpan> spans;
  step.pattern->find(token, spans, meter);
  size_t grown = 0;
  for (const TextSpan& span : spans) grown += span.match ? step.content.size() : 0;
  meter.memory(grown);
  std::string out;
  for (const TextSpan& span : spans)
    span.match ? out += step.content : out.append(token, span.begin, span.end - span.begin);
  return out;
}

std::string strip_token(const DecoderStep& step, const std::string& token) {
  size_t begin = 0, end = token.size();
  const size_t length = step.content.size();
  for (size_t i = 0; i < step.start && token.compare(begin, length, step.content) == 0; ++i) begin += length;
  for (size_t i = 0; i < step.stop && end >= begin + length && token.compare(end - length, length, step.content) == 0;
       ++i)
    end -= length;
  return token.substr(begin, end - begin);
}

std::string from_metaspace(const DecoderStep& step, const std::string& token, bool first) {
  std::string out;
  for (size_t at = 0, length; at < token.size(); at += length) {
    code_point_at(token, at, &length);
    if (token.compare(at, length, step.content) != 0)
      out.append(token, at, length);
    else if (!first || !step.drop_first)
      out += ' ';
  }
  return out;
}

// Returns the bytes that a token of the byte-level alphabet stands for. A token with any other character stands for
// itself.
std::string bytes_of(const std::string& token) {
  std::string out;
  for (size_t at = 0, length; at < token.size(); at += length) {
    int byte = byte_level_byte(code_point_at(token, at, &length));
    if (byte < 0) return token;
    out += static_cast<char>(byte);
  }
  return out;
}

}  // namespace

std::vector<DecoderStep> read_decoder(const Json& config) {
  std::vector<DecoderStep> steps;
  if (config.is_null()) {
    steps.push_back({.kind = DecoderStep::kJoin, .pattern = nullptr, .content = {}});
  } else {
    add_steps(config, 0, steps);
  }
  return steps;
}

struct DecoderRun::State {
  bool fused = false;    // The input of this stage is one token in fragments.
  bool waits = false;    // In that case, this stage must see the whole token.
  bool started = false;  // A token (or, for Strip, a character that stays) has arrived.
  size_t stripped = 0;   // For Strip on fragments, it counts the leading characters cut so far.
  std::string held;      // It holds text or bytes that are not final yet.
};

DecoderRun::DecoderRun(std::shared_ptr<const std::vector<DecoderStep>> steps)
    : steps_(std::move(steps)), states_(steps_->size()) {
  bool fused = false;
  for (size_t i = 0; i < states_.size(); ++i) {
    const DecoderStep& step = (*steps_)[i];
    const bool fragments_suffice =
        step.kind == DecoderStep::kFuse || (step.kind == DecoderStep::kStrip && step.stop == 0);
    states_[i].fused = fused;
    states_[i].waits = fused && !fragments_suffice;
    fused = fused || step.kind == DecoderStep::kByteLevel || step.kind == DecoderStep::kFuse;
  }
}
DecoderRun::~DecoderRun() = default;
DecoderRun::DecoderRun(DecoderRun&&) noexcept = default;
DecoderRun& DecoderRun::operator=(DecoderRun&&) noexcept = default;

void DecoderRun::push(const std::string& token, std::string& out) {
  meter_.allow(1000 + 4 * token.size(), 1000 + 64 * token.size());
  feed(0, token, out);
}
void DecoderRun::finish(std::string& out) { flush(0, out); }

void DecoderRun::feed(size_t stage, const std::string& text, std::string& out) {
  if (stage == states_.size()) return give(text, out);
  State& state = states_[stage];
  const DecoderStep& step = (*steps_)[stage];
  if (state.waits) {
    state.held += text;
    return;
  }
  switch (step.kind) {
    case DecoderStep::kByteLevel:
      return feed_byte_level(stage, text, out);
    case DecoderStep::kByteFallback:
      return feed_byte_fallback(stage, text, out);
    case DecoderStep::kStrip:
      if (state.fused) return feed_strip(stage, text, out);
      break;
    default:
      break;
  }
  feed(stage + 1, whole_token(stage, text), out);
}

void DecoderRun::give(const std::string& text, std::string& out) {
  size_t at = 0;
  for (size_t length; dropped_ > 0 && at < text.size(); at += length, --dropped_) code_point_at(text, at, &length);
  out.append(text, at);
}

// A stage that waits will later write its characters again with those after them, so as many are dropped then.
void DecoderRun::settle(std::string& out) {
  bool waits = false;
  for (size_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    waits = waits || state.waits;
    if ((*steps_)[i].kind != DecoderStep::kByteFallback || state.waits) continue;
    std::string tail = unfinished_end(state.held);
    state.held.resize(state.held.size() - tail.size());
    end_byte_run(i, out);
    state.held = std::move(tail);
  }
  if (!waits) return;
  DecoderRun rest(steps_);
  rest.states_ = states_;
  rest.meter_ = meter_;
  std::string text;
  rest.finish(text);
  size_t characters = 0;
  for (size_t at = 0, length; at < text.size(); at += length, ++characters) code_point_at(text, at, &length);
  give(text, out);
  dropped_ = characters;
}

void DecoderRun::begin_inside() {
  for (State& state : states_) state.started = true;
}

bool DecoderRun::pending() const {
  return std::any_of(states_.begin(), states_.end(), [](const State& state) { return !state.held.empty(); });
}

// Runs a stage that remembers nothing except whether a token came before.
std::string DecoderRun::whole_token(size_t stage, const std::string& text) {
  const DecoderStep& step = (*steps_)[stage];
  const bool first = !std::exchange(states_[stage].started, true);
  switch (step.kind) {
    case DecoderStep::kReplace:
      return replace_all(step, text, meter_);
    case DecoderStep::kStrip:
      return strip_token(step, text);
    case DecoderStep::kMetaspace:
      return from_metaspace(step, text, first);
    case DecoderStep::kJoin:
      return first ? text : " " + text;
    case DecoderStep::kByteLevel:
      return replace_ill_formed_utf8(bytes_of(text));
    case DecoderStep::kByteFallback: {
      int byte = fallback_byte(text);
      return byte < 0 ? text : replace_ill_formed_utf8(std::string(1, static_cast<char>(byte)));
    }
    case DecoderStep::kFuse:
      break;
  }
  return text;
}

void DecoderRun::feed_byte_level(size_t stage, const std::string& text, std::string& out) {
  std::string& held = states_[stage].held;
  held += bytes_of(text);
  std::string ready;
  size_t at = 0;
  while (at < held.size()) {
    Utf8Step step = utf8_step(held, at);
    if (step.kind == Utf8Step::kUnfinished) break;
    step.kind == Utf8Step::kCharacter ? ready.append(held, at, step.length) : ready.append(kReplacementCharacter);
    at += step.length;
  }
  held.erase(0, at);
  feed(stage + 1, ready, out);
}

// A byte is known to be part of valid text only at the end of its run, as a single wrong byte spoils the whole run.
void DecoderRun::feed_byte_fallback(size_t stage, const std::string& text, std::string& out) {
  if (int byte = fallback_byte(text); byte >= 0) {
    states_[stage].held += static_cast<char>(byte);
    return;
  }
  end_byte_run(stage, out);
  feed(stage + 1, text, out);
}

void DecoderRun::end_byte_run(size_t stage, std::string& out) {
  std::string run = std::exchange(states_[stage].held, {});
  if (run.empty()) return;
  if (is_valid_utf8(run)) return feed(stage + 1, run, out);
  for (size_t i = 0; i < run.size(); ++i) feed(stage + 1, std::string(kReplacementCharacter), out);
}

void DecoderRun::feed_strip(size_t stage, const std::string& text, std::string& out) {
  State& state = states_[stage];
  const DecoderStep& step = (*steps_)[stage];
  size_t begin = 0;
  while (!state.started && state.stripped < step.start && begin < text.size()) {
    if (text.compare(begin, step.content.size(), step.content) != 0)
      state.started = true;
    else
      begin += step.content.size(), ++state.stripped;
  }
  if (begin < text.size()) feed(stage + 1, text.substr(begin), out);
}

void DecoderRun::flush(size_t stage, std::string& out) {
  if (stage == states_.size()) return;
  State& state = states_[stage];
  const DecoderStep& step = (*steps_)[stage];
  if (state.waits) {
    feed(stage + 1, whole_token(stage, std::exchange(state.held, {})), out);
  } else if (step.kind == DecoderStep::kByteLevel) {
    std::string rest = std::exchange(state.held, {});
    if (!rest.empty()) feed(stage + 1, replace_ill_formed_utf8(rest), out);
  } else if (step.kind == DecoderStep::kByteFallback) {
    end_byte_run(stage, out);
  }
  flush(stage + 1, out);
}

}  // namespace fidelio::tokenization
