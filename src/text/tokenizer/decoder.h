// This file turns tokens back into text. It implements the `decoder` of a tokenizer.json as a chain of stages that work
// incrementally.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "text/tokenizer/pattern.h"

namespace fidelio::tokenization {

// This is one stage of a decoder. A stage takes token texts and gives token texts.
struct DecoderStep {
  enum Kind {
    kByteLevel,     // The bytes of all tokens are joined into one text, and ill-formed UTF-8 is replaced by U+FFFD.
    kReplace,       // `pattern` is replaced by `content` in each token.
    kByteFallback,  // A run of tokens <0xNN> becomes its text, or one U+FFFD a byte if the run is not valid UTF-8.
    kFuse,          // All tokens become one.
    kStrip,         // Up to `start` leading and `stop` trailing characters `content` are cut off each token.
    kMetaspace,     // `content` becomes a space, or nothing at the start of the first token if `drop_first`.
    kJoin,          // The file has no decoder, so tokens are joined by spaces.
  };
  Kind kind;
  std::shared_ptr<const TextPattern> pattern;
  std::string content;
  size_t start = 0, stop = 0;
  bool drop_first = false;
};

// Reads ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and Sequences of them; null means tokens joined by
// spaces. Throws Error naming what is unsupported.
std::vector<DecoderStep> read_decoder(const nlohmann::json& config);

// This is one run of the chain over one sequence of tokens. After kByteLevel or kFuse there is a single token, which
// arrives in fragments. A stage that cannot work on fragments holds its text back until finish().
class DecoderRun {
 public:
  explicit DecoderRun(std::shared_ptr<const std::vector<DecoderStep>> steps);
  ~DecoderRun();
  DecoderRun(DecoderRun&&) noexcept;
  DecoderRun& operator=(DecoderRun&&) noexcept;

  // Both append the text that became final to `out`. The appended text always consists of whole UTF-8 characters.
  void push(const std::string& token, std::string& out);
  void finish(std::string& out);
  // Appends the text that the tokens so far still hold back, as if no more came, and can continue after it. Only an
  // unfinished character stays held back, for the tokens that may complete it.
  void settle(std::string& out);
  // Treats the following tokens as standing inside a text, whatever its beginning was.
  void begin_inside();
  bool pending() const;  // It is true if something is held back.

 private:
  struct State;
  void feed(size_t stage, const std::string& text, std::string& out);
  void flush(size_t stage, std::string& out);
  void feed_byte_level(size_t stage, const std::string& text, std::string& out);
  void feed_byte_fallback(size_t stage, const std::string& text, std::string& out);
  void end_byte_run(size_t stage, std::string& out);
  void feed_strip(size_t stage, const std::string& text, std::string& out);
  std::string whole_token(size_t stage, const std::string& text);
  void give(const std::string& text, std::string& out);
  std::shared_ptr<const std::vector<DecoderStep>> steps_;
  std::vector<State> states_;
  size_t dropped_ = 0;  // These characters are still to come and were already settled.
  // This limits the work of the patterns; every token adds to the allowance.
  Meter meter_{"the tokenizer's decoder", kMaxWork, kMaxMemory / 4};
};

}  // namespace fidelio::tokenization
