// This file defines the tokenizer, which turns text into token ids and back exactly as Hugging Face `tokenizers` (0.23)
// does from the same tokenizer.json. It covers the byte-level BPE of Llama 3, Qwen 2/2.5/3 and Mistral-Nemo and the
// SentencePiece-style BPE of Llama 2 and Mistral.
//
//   text -> added tokens (raw) -> normalizer -> added tokens (normalized) -> pre-tokenizer -> BPE
//        -> post-processor -> ids
//   ids -> token texts -> decoder -> text
//
// A component that is not supported is refused by name when the file is loaded, and so is a malformed file.
// `truncation` and `padding` in the file, which transformers applies where a caller asks for them, are ignored.
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

// A Tokenizer is immutable, copies share one vocabulary, and all members may be called from several threads at once.
class Tokenizer {
 public:
  // Loads tokenizer.json or tekken.json from these files (the path of a folder works, too), and the files beside it
  // (config.h). bos_token and eos_token are kept, and tokens that only those other files call added or special are
  // treated as such, as in transformers. Throws Error with the name of the file and the reason.
  static Tokenizer load(const TextFiles& files);
  static Tokenizer from_json(std::string_view tokenizer_json);

  // Returns the ids of `text`. Bytes that are not UTF-8 become U+FFFD first (as with Python's errors="replace"). Added
  // tokens written in the text are recognised, special ones too. With `add_special` the post-processor adds its own
  // (beginning of text, ...). Throws Error if the file's regular expression exceeds its limits on the text, or if its
  // unk_token is needed and does not exist.
  std::vector<int32_t> encode(std::string_view text, bool add_special = true) const;
  // Encodes as above and returns nothing where there are more than `most` ids. This is detected early: a text far
  // beyond the limit costs the time to read it, not the time to encode it.
  std::optional<std::vector<int32_t>> encode_at_most(size_t most, std::string_view text, bool add_special = true) const;

  // Encodes a text in which no added token is searched and to which none is added.
  std::vector<int32_t> encode_as_text(std::string_view text) const;

  // Ids without a token are passed over. With `skip_special`, special tokens are left out. The result is always valid
  // UTF-8.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;
  // Returns the text of one token inside a text. It includes the space that a decoder removes at the beginning of a
  // text.
  std::string decode_inside(int32_t id) const;

  int32_t vocab_size() const;  // It is the largest id + 1; a few ids below it may have no token.
  std::optional<int32_t> id_of(std::string_view token) const;  // `token` is spelt as in the file.
  std::string token_text(int32_t id) const;  // It returns the file's spelling and throws Error if there is none.
  bool is_special(int32_t id) const;
  std::vector<std::pair<int32_t, std::string>> added_tokens() const;  // They are sorted by id, special ones among them.
  // Returns those of them that tokenizer_config.json declares as control tokens of chats, or nothing where it declares
  // none.
  const std::optional<std::vector<std::string>>& chat_control_tokens() const;
  std::optional<int32_t> bos_id() const;  // It is the files' bos_token; nullopt after from_json.
  std::optional<int32_t> eos_id() const;
  // The post-processor puts these ids before and after a text.
  std::vector<int32_t> leading_ids() const;
  std::vector<int32_t> trailing_ids() const;

 private:
  friend class StreamingDetokenizer;
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const Parts> parts_;
};

// This decodes ids that come one at a time. The texts returned by push() and finish(), joined, equal Tokenizer::decode
// of all ids, and each is valid UTF-8. Text that a later id could still change is held back: an unfinished character
// or, with byte fallback, the run of byte tokens, since one wrong byte turns the whole run into U+FFFD.
//
// Ids that continue the ids `before` are decoded as a continuation. Their text is decode(all) without decode(before),
// which begins with a space where their own text would not. A character that `before` leaves unfinished is returned
// with the ids that complete it.
class StreamingDetokenizer {
 public:
  explicit StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special = true,
                                std::span<const int32_t> before = {});
  ~StreamingDetokenizer();
  StreamingDetokenizer(StreamingDetokenizer&&) noexcept;
  StreamingDetokenizer& operator=(StreamingDetokenizer&&) noexcept;

  std::string push(int32_t id);
  std::string finish();  // It returns the rest, after which the object starts afresh, with nothing before.
  // Returns the text that the ids so far still hold back, except a character that they leave unfinished, which later
  // ids continue.
  std::string settle();
  bool pending() const;  // It is true if something is held back.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fidelio
