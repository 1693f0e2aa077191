// Text to token ids and back, exactly as Hugging Face `tokenizers` (0.23) does it from the same tokenizer.json: the
// byte-level BPE of Llama 3, Qwen 2/2.5/3 and Mistral-Nemo, the SentencePiece-style BPE of Llama 2 and Mistral.
//
//   text -> added tokens (raw) -> normalizer -> added tokens (normalized) -> pre-tokenizer -> BPE -> post-processor -> ids
//   ids -> token texts -> decoder -> text
//
// A component that is not supported is refused by name when the file is loaded, and so is a malformed file;
// `truncation` and `padding` in the file, which transformers heeds where a caller asks for them, are ignored.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/foreign/text_files.h"

namespace fidelio {

// Immutable; copies share one vocabulary; all members may be called from several threads at once.
class Tokenizer {
 public:
  // tokenizer.json or tekken.json of these files (a folder's path will do), and what stands beside it (config.h): bos_token
  // and eos_token are kept, and as in transformers tokens that it alone calls added or special are that. Throws Error with
  // the file's name and the reason.
  static Tokenizer load(const TextFiles& files);
  static Tokenizer from_json(std::string_view tokenizer_json);

  // Ids of `text`. Bytes that are not UTF-8 become U+FFFD first (as Python's errors="replace"). Added tokens written in
  // the text are recognised, special ones too; `add_special`: the post-processor adds its own (beginning of text, ...).
  // Throws Error if the file's regular expression gives up on the text or its unk_token is needed and does not exist.
  std::vector<int32_t> encode(std::string_view text, bool add_special = true) const;
  // The same; nothing where there are more than `most` ids, which is found out early: a text far beyond it costs what it
  // takes to read it, and not what it takes to encode it.
  std::optional<std::vector<int32_t>> encode_at_most(size_t most, std::string_view text, bool add_special = true) const;

  // The same for a text in which no added token is looked for and to which none is added.
  std::vector<int32_t> encode_as_text(std::string_view text) const;

  // Ids without a token are passed over. `skip_special`: special tokens are left out. Always valid UTF-8.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;
  // Returns what one token writes inside a text: with the space that a decoder takes away where a text begins.
  std::string decode_inside(int32_t id) const;

  int32_t vocab_size() const;                                  // largest id + 1; a few ids below it may have no token
  std::optional<int32_t> id_of(std::string_view token) const;  // `token` spelled as in the file
  std::string token_text(int32_t id) const;                    // the file's spelling; throws Error if there is none
  bool is_special(int32_t id) const;
  std::vector<std::pair<int32_t, std::string>> added_tokens() const;  // by id, special ones among them
  // Those of them that tokenizer_config.json says chats are made with; nothing where it does not.
  const std::optional<std::vector<std::string>>& chat_control_tokens() const;
  std::optional<int32_t> bos_id() const;  // of the files' bos_token; nullopt after from_json
  std::optional<int32_t> eos_id() const;
  // The post-processor puts these ids before and behind a text.
  std::vector<int32_t> leading_ids() const;
  std::vector<int32_t> trailing_ids() const;

 private:
  friend class StreamingDetokenizer;
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const Parts> parts_;
};

// Decodes ids that come one at a time. The texts returned by push() and finish(), joined, are Tokenizer::decode of all
// ids, and each is valid UTF-8: what a later id could still change is held back (an unfinished character; with byte
// fallback, the run of byte tokens, since one wrong byte turns the whole run into U+FFFD).
//
// Ids that continue others are decoded as such: their text is decode(all) without decode(before), which begins with a
// space where their own text would not. A character that `before` leaves unfinished is told with the ids that end it.
class StreamingDetokenizer {
 public:
  explicit StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special = true,
                                std::span<const int32_t> before = {});
  ~StreamingDetokenizer();
  StreamingDetokenizer(StreamingDetokenizer&&) noexcept;
  StreamingDetokenizer& operator=(StreamingDetokenizer&&) noexcept;

  std::string push(int32_t id);
  std::string finish();  // the rest; then the object starts afresh, with nothing before
  // Returns the text that the ids so far still hold back, but for a character that they leave unfinished: later ids
  // continue it.
  std::string settle();
  bool pending() const;  // something is held back

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fidelio
