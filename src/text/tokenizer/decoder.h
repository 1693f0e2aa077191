// From tokens back to text: the `decoder` of a tokenizer.json, as a chain of stages that work incrementally.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "text/tokenizer/pattern.h"

namespace fidelio::tokenization {

// What one stage of a decoder does. A stage takes token texts and gives token texts.
struct DecoderStep {
  enum Kind {
    kByteLevel,     // bytes of all tokens joined into one text, ill-formed UTF-8 replaced by U+FFFD
    kReplace,       // `pattern` -> `content` in each token
    kByteFallback,  // a run of tokens <0xNN> becomes its text, or one U+FFFD a byte if the run is not valid UTF-8
    kFuse,          // all tokens become one
    kStrip,         // up to `start` leading and `stop` trailing characters `content` are cut off each token
    kMetaspace,     // `content` -> space; in the first token nothing if `drop_first`
    kJoin,          // no decoder in the file: a space between tokens
  };
  Kind kind;
  std::shared_ptr<const TextPattern> pattern;
  std::string content;
  size_t start = 0, stop = 0;
  bool drop_first = false;
};

// ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and Sequences of them; null: tokens joined by spaces. Throws
// Error naming what is unsupported.
std::vector<DecoderStep> read_decoder(const nlohmann::json& config);

// One run of the chain over one sequence of tokens. After kByteLevel or kFuse there is a single token, which arrives in
// fragments; a stage that cannot work on fragments holds its text back until finish().
class DecoderRun {
 public:
  explicit DecoderRun(std::shared_ptr<const std::vector<DecoderStep>> steps);
  ~DecoderRun();
  DecoderRun(DecoderRun&&) noexcept;
  DecoderRun& operator=(DecoderRun&&) noexcept;

  // Both append the text that became final to `out`; what is appended is always whole UTF-8 characters.
  void push(const std::string& token, std::string& out);
  void finish(std::string& out);
  // Appends what the tokens so far still have to say, as if no more came, and goes on behind it. Only a character that
  // they leave unfinished stays held back, for the tokens that may complete it.
  void settle(std::string& out);
  // Treats the tokens that come as standing inside a text, whatever its beginning was.
  void begin_inside();
  bool pending() const;  // something is held back

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
  size_t dropped_ = 0;  // characters that are still to come and were settled already
  Meter meter_{"the tokenizer's decoder", kMaxWork, kMaxMemory / 4};  // of the patterns; every token adds to it
};

}  // namespace fidelio::tokenization
