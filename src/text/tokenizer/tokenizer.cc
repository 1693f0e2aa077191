#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <limits>

#include "core/foreign/json.h"
#include "text/tokenizer/added.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/config.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/json.h"
#include "text/tokenizer/text.h"

namespace fidelio {
namespace tokenization {
namespace {

// This is a part of the post-processor's template: the text's ids, or constant ids between or around them.
struct TemplatePart {
  bool is_text;
  std::vector<int32_t> ids;
};

std::vector<TextPiece> whole_text(std::string_view text) {
  std::vector<TextPiece> pieces;
  pieces.push_back({replace_ill_formed_utf8(text), -1, true});
  if (TextPiece& all = pieces.front(); !all.text.empty()) code_point_at(all.text, 0, &all.first);
  return pieces;
}

const char* const kPost = "tokenizer.json: post_processor";

TemplatePart read_template_part(const Json& part, const Json& special_tokens) {
  if (const Json* sequence = find_field(part, "Sequence", std::string(kPost) + ".single")) {
    const std::string& id = string_field(*sequence, "id", std::string(kPost) + ".single");
    check(id == "A", "{}.single: expected the sequence A, found '{}'", kPost, id);
    return {true, {}};
  }
  const Json& special = field(part, "SpecialToken", std::string(kPost) + ".single");
  const std::string& name = string_field(special, "id", std::string(kPost) + ".single");
  const std::string where = std::string(kPost) + ".special_tokens";
  TemplatePart result{false, {}};
  for (const Json& id : array_field(field(special_tokens, name.c_str(), where), "ids", where))
    result.ids.push_back(index_of(id, kTokenIdLimit, where));
  return result;
}

void read_post_processor(const Json& config, int depth, std::vector<TemplatePart>& parts) {
  check(depth < kNestingLimit, "{}: Sequences are nested deeper than {}", kPost, kNestingLimit);
  const std::string& type = string_field(config, "type", kPost);
  if (type == "Sequence") {
    for (const Json& part : array_field(config, "processors", kPost)) read_post_processor(part, depth + 1, parts);
  } else if (type == "TemplateProcessing") {
    check(parts.empty(), "{}: more than one TemplateProcessing is not supported", kPost);
    for (const Json& part : array_field(config, "single", kPost))
      parts.push_back(read_template_part(part, field(config, "special_tokens", kPost)));
  } else if (type != "ByteLevel") {  // ByteLevel moves offsets only.
    throw Error("{} '{}' is not supported; supported: TemplateProcessing, ByteLevel, Sequence", kPost, type);
  }
}

}  // namespace
}  // namespace tokenization

using namespace tokenization;

struct Tokenizer::Parts {
  explicit Parts(const Json& file)
      : model(field(file, "model", "tokenizer.json")),
        normalizer(file.value("normalizer", Json())),
        pre_tokenizer(file.value("pre_tokenizer", Json())),
        added(file.value("added_tokens", Json()), model, normalizer),
        decoder(std::make_shared<const std::vector<DecoderStep>>(read_decoder(file.value("decoder", Json())))) {
    vocab_size = model.id_bound();
    for (const auto& [id, token] : added.by_id()) {
      vocab_size = std::max(vocab_size, id + 1);
      added_ids.emplace(token.content, id);
      if (token.special) special_contents.emplace(token.content, id);
    }
    if (const Json* post = find_field(file, "post_processor", "tokenizer.json"))
      read_post_processor(*post, 0, post_template);
    for (const TemplatePart& part : post_template)
      for (int32_t id : part.ids) check(text_of(id) != nullptr, "{}: no token has the id {}", kPost, id);
  }

  std::optional<int32_t> configured_token(const Json& config, const char* key) const;

  // Returns the text of a token as the decoder gets it, or null for an id without a token.
  const std::string* text_of(int32_t id) const {
    auto token = added.by_id().find(id);
    return token == added.by_id().end() ? model.text_of(id) : &token->second.decoded;
  }
  const std::string* text_to_decode(int32_t id, bool skip_special) const {
    const std::string* text = text_of(id);
    return text && skip_special && special_contents.contains(*text) ? nullptr : text;
  }

  BpeModel model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokens added;
  std::shared_ptr<const std::vector<DecoderStep>> decoder;
  std::vector<TemplatePart> post_template;  // If it is empty, the ids stay as they are.
  std::unordered_map<std::string, int32_t> added_ids, special_contents;
  int32_t vocab_size = 0;
  std::optional<int32_t> bos, eos;
  bool split_special = false;  // If true, special tokens in a text are plain text.
  std::optional<std::vector<std::string>> chat_control_tokens;
};

std::optional<int32_t> Tokenizer::Parts::configured_token(const Json& config, const char* key) const {
  const std::string where = "tokenizer_config.json";
  const Json* value = find_field(config, key, where);
  if (!value) return std::nullopt;
  const std::string& text = text_of_token(*value, where + ": " + key);
  auto own = added_ids.find(text);
  return own != added_ids.end() ? std::optional(own->second) : model.id_of(text);
}

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json) {
  Json file = parse_json(tokenizer_json, "tokenizer.json");
  expect_type(file.is_object(), file, "tokenizer.json", "an object");
  return Tokenizer(std::make_shared<const Parts>(file));
}

Tokenizer Tokenizer::load(const TextFiles& files) {
  const std::string text = tokenizer_json(files);
  try {
    const Json config = tokenizer_config(files);
    auto parts = std::make_shared<Parts>(complete_tokenizer(text, config, files));
    parts->bos = parts->configured_token(config, "bos_token");
    parts->eos = parts->configured_token(config, "eos_token");
    parts->split_special = bool_field(config, "split_special_tokens", false, "tokenizer_config.json");
    if (const Json* listed = find_field(config, "chat_control_tokens", "tokenizer_config.json")) {
      const std::string where = "tokenizer_config.json: chat_control_tokens";
      expect_type(listed->is_array(), *listed, where, "an array of texts");
      parts->chat_control_tokens.emplace();
      for (const Json& token : *listed) parts->chat_control_tokens->push_back(string_of(token, where));
    }
    return Tokenizer(std::move(parts));
  } catch (const Error& e) {
    throw Error("{}: {}", files.name(), e.what());
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  return *encode_at_most(std::numeric_limits<size_t>::max(), text, add_special);
}

std::optional<std::vector<int32_t>> Tokenizer::encode_at_most(size_t most, std::string_view text,
                                                              bool add_special) const {
  // A tokenizer may split, replace and repeat as it likes, but not without end. Beside the limits of every file, a few
  // steps and 64 bytes are allowed for each byte of the text.
  Meter meter("the tokenizer", kMaxWork + 4 * text.size(), kMaxMemory / 2 + 64 * text.size());
  std::vector<TextPiece> pieces = whole_text(text);
  const bool special = !parts_->split_special;
  parts_->added.extract(pieces, false, special);
  for (TextPiece& piece : pieces)
    if (piece.id < 0) parts_->normalizer.apply(piece, meter);
  parts_->added.extract(pieces, true, special);
  parts_->pre_tokenizer.apply(pieces, meter);
  std::vector<int32_t> ids;
  BpeModel::Workspace workspace;
  for (const TextPiece& piece : pieces) {
    if (piece.id >= 0)
      ids.push_back(piece.id);
    else if (!parts_->model.encode(piece.text, workspace, ids, most))
      return std::nullopt;
  }
  if (parts_->post_template.empty()) return ids.size() <= most ? std::optional(std::move(ids)) : std::nullopt;
  std::vector<int32_t> result;
  for (const TemplatePart& part : parts_->post_template) {
    const std::vector<int32_t>& source = part.is_text ? ids : part.ids;
    meter.memory(4 * source.size());
    if (part.is_text || add_special) result.insert(result.end(), source.begin(), source.end());
  }
  return result.size() <= most ? std::optional(std::move(result)) : std::nullopt;
}

std::vector<int32_t> Tokenizer::encode_as_text(std::string_view text) const {
  Meter meter("the tokenizer", kMaxWork + 4 * text.size(), kMaxMemory / 2 + 64 * text.size());
  std::vector<TextPiece> pieces = whole_text(text);
  parts_->normalizer.apply(pieces.front(), meter);
  parts_->pre_tokenizer.apply(pieces, meter);
  std::vector<int32_t> ids;
  BpeModel::Workspace workspace;
  for (const TextPiece& piece : pieces)
    parts_->model.encode(piece.text, workspace, ids, std::numeric_limits<size_t>::max());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  DecoderRun run(parts_->decoder);
  std::string text;
  for (int32_t id : ids)
    if (const std::string* token = parts_->text_to_decode(id, skip_special)) run.push(*token, text);
  run.finish(text);
  return text;
}

std::string Tokenizer::decode_inside(int32_t id) const {
  DecoderRun run(parts_->decoder);
  run.begin_inside();
  std::string text;
  if (const std::string* token = parts_->text_to_decode(id, false)) run.push(*token, text);
  run.finish(text);
  return text;
}

int32_t Tokenizer::vocab_size() const { return parts_->vocab_size; }

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  auto own = parts_->added_ids.find(std::string(token));
  return own != parts_->added_ids.end() ? std::optional(own->second) : parts_->model.id_of(token);
}

std::string Tokenizer::token_text(int32_t id) const {
  auto own = parts_->added.by_id().find(id);
  if (own != parts_->added.by_id().end()) return own->second.content;
  const std::string* text = parts_->model.text_of(id);
  check(text != nullptr, "no token has the id {}; the vocabulary ends at {}", id, vocab_size() - 1);
  return *text;
}

bool Tokenizer::is_special(int32_t id) const {
  auto own = parts_->added.by_id().find(id);
  return own != parts_->added.by_id().end() && own->second.special;
}

std::optional<int32_t> Tokenizer::bos_id() const { return parts_->bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return parts_->eos; }

std::vector<std::pair<int32_t, std::string>> Tokenizer::added_tokens() const {
  std::vector<std::pair<int32_t, std::string>> tokens;
  for (const auto& [id, token] : parts_->added.by_id()) tokens.emplace_back(id, token.content);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}
const std::optional<std::vector<std::string>>& Tokenizer::chat_control_tokens() const {
  return parts_->chat_control_tokens;
}

std::vector<int32_t> Tokenizer::leading_ids() const {
  std::vector<int32_t> ids;
  for (const TemplatePart& part : parts_->post_template) {
    if (part.is_text) break;
    ids.insert(ids.end(), part.ids.begin(), part.ids.end());
  }
  return ids;
}

std::vector<int32_t> Tokenizer::trailing_ids() const {
  std::vector<int32_t> ids;
  for (const TemplatePart& part : parts_->post_template) {
    if (part.is_text) ids.clear();
    ids.insert(ids.end(), part.ids.begin(), part.ids.end());
  }
  return ids;
}

struct StreamingDetokenizer::State {
  std::shared_ptr<const Tokenizer::Parts> parts;
  bool skip_special;
  DecoderRun run;
};

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special,
                                           std::span<const int32_t> before)
    : state_(new State{tokenizer.parts_, skip_special, DecoderRun(tokenizer.parts_->decoder)}) {
  for (const int32_t id : before) push(id);
  settle();
}
StreamingDetokenizer::~StreamingDetokenizer() = default;
StreamingDetokenizer::StreamingDetokenizer(StreamingDetokenizer&&) noexcept = default;
StreamingDetokenizer& StreamingDetokenizer::operator=(StreamingDetokenizer&&) noexcept = default;

std::string StreamingDetokenizer::push(int32_t id) {
  std::string text;
  if (const std::string* token = state_->parts->text_to_decode(id, state_->skip_special))
    state_->run.push(*token, text);
  return text;
}

std::string StreamingDetokenizer::finish() {
  std::string text;
  state_->run.finish(text);
  state_->run = DecoderRun(state_->parts->decoder);
  return text;
}

std::string StreamingDetokenizer::settle() {
  std::string text;
  state_->run.settle(text);
  return text;
}

bool StreamingDetokenizer::pending() const { return state_->run.pending(); }

}  // namespace fidelio
