// This file makes a model whose greedy answer is a script, for tests: after the prompt's end each token is followed by
// the script's next piece.
#pragma once
#include <algorithm>
#include <map>

#include "runtime/fake_runner.h"
#include "serve/test_server.h"

namespace fidelio::serve {

struct Script {
  std::vector<std::string> pieces;         // Each text is a token; after them the answer ends.
  std::vector<std::string> specials = {};  // These, among the pieces and others, are special tokens.
  std::string prompt_end = {};             // The template writes this after <|go|>, where the answer begins.
  std::string template_note = {};          // The template has this in a comment.
  std::vector<std::string> stops = {};     // The answer ends at these special tokens, too.
};

// Returns ByteLevel's spelling of a byte.
inline std::string spelling_of(int byte) {
  const auto shown = [](int b) { return (b > 32 && b < 127) || (b > 160 && b != 173); };
  int code = byte;
  if (!shown(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += shown(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// This is byte-level BPE without merges. Bytes come first, then special tokens and pieces, each by its text in `ids`.
inline nlohmann::json scripted_tokenizer(const Script& script, std::map<std::string, int>& ids) {
  using nlohmann::json;
  json tokenizer = json::parse(R"({"version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "fuse_unk": false, "byte_fallback": false, "vocab": {}, "merges": []}})");
  tokenizer["decoder"] = tokenizer["pre_tokenizer"];
  for (int byte = 0; byte < 256; ++byte) {
    tokenizer["model"]["vocab"][spelling_of(byte)] = byte;
    ids[std::string(1, static_cast<char>(byte))] = byte;
  }
  std::vector<std::string> specials = {"<|eos|>", "<|start|>", "<|go|>"}, texts = specials;
  specials.insert(specials.end(), script.specials.begin(), script.specials.end());
  texts.insert(texts.end(), script.pieces.begin(), script.pieces.end());
  texts.insert(texts.end(), specials.begin(), specials.end());
  for (const std::string& text : texts) {
    if (!ids.emplace(text, static_cast<int>(ids.size())).second) continue;
    const bool special = std::find(specials.begin(), specials.end(), text) != specials.end();
    json token = {{"id", ids[text]}, {"content", text}, {"special", special}};
    for (const char* flag : {"normalized", "lstrip", "rstrip", "single_word"}) token[flag] = false;
    tokenizer["added_tokens"].push_back(std::move(token));
  }
  return tokenizer;
}

// This says the pieces one after the other, from the newest <|go|> and the `skipped` tokens behind it on.
class ScriptedRunner final : public FakeRunner {
 public:
  ScriptedRunner(Shape shape, RunnerOptions options, std::vector<int32_t> script, int32_t go, size_t skipped)
      : FakeRunner(shape, std::move(options)), script_(std::move(script)), go_(go), skipped_(skipped) {}

 private:
  void append_logits_after(std::span<const int32_t> history, uint64_t) override {
    const auto from_go = static_cast<size_t>(std::find(history.rbegin(), history.rend(), go_) - history.rbegin());
    std::vector<float> row(static_cast<size_t>(config().v));
    if (from_go >= skipped_) row[static_cast<size_t>(script_[std::min(from_go - skipped_, script_.size() - 1)])] = 3;
    logits_.insert(logits_.end(), row.begin(), row.end());
  }
  std::vector<int32_t> script_;
  int32_t go_;
  size_t skipped_;
};

// Starts a server of the model. Its template shows tools, then the content of each message, and arguments of calls by
// tojson.
inline std::unique_ptr<Serving> serve_script(const Script& script) {
  return std::make_unique<Serving>(ServerOptions{}, [script] {
    std::map<std::string, int> ids;
    const Tokenizer own = Tokenizer::from_json(scripted_tokenizer(script, ids).dump());
    const std::string text =
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls "
        "or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ "
        "\"<|go|>" +
        script.prompt_end + "\" }}{% endif %}{#" + script.template_note + "#}";
    auto model =
        std::make_shared<ServedModel>(ServedModel{"scripted", own, ChatTemplate(text), {*own.id_of("<|eos|>")}, {}});
    for (const std::string& stop : script.stops) model->stop_ids.push_back(*own.id_of(stop));
    model->defaults.do_sample = false;
    std::vector<int32_t> said;
    for (const std::string& piece : script.pieces) said.push_back(ids[piece]);
    said.push_back(ids["<|eos|>"]);
    Loaded loaded;
    RunnerOptions options;
    options.cache_tokens = 4096;
    const FakeRunner::Shape shape{.vocabulary = static_cast<int>(ids.size()), .context = 4096};
    loaded.runner = std::make_unique<ScriptedRunner>(shape, options, std::move(said), ids["<|go|>"],
                                                     own.encode(script.prompt_end, false).size());
    model->tokens = std::make_shared<grammar::TokenTree>(bytes_of_tokens(model->tokenizer));
    model->formats = std::make_shared<AnswerFormats>(model->tokens);
    model->vocabulary = loaded.runner->config().v;
    model->context = 4096;
    model->fingerprint = "fp_test";
    EngineOptions how;
    how.reading = Activations::a16;
    how.tokenizer = &model->tokenizer;
    loaded.engine = std::make_unique<Engine>(*loaded.runner, std::move(how));
    loaded.model = std::move(model);
    return loaded;
  });
}

}  // namespace fidelio::serve
