// This file makes a tiny Llama whose greedy answer is a script, for tests: each token is followed by the script's next
// piece, whatever precedes it. Embeddings are one-hot, attention and MLP give nothing, and the head is a permutation.
#pragma once
#include <filesystem>
#include <fstream>
#include <map>

#include "io/safetensors.h"
#include "serve/test_server.h"

namespace fidelio::serve {

struct Script {
  std::vector<std::string> pieces;         // Each text is a token, and no two are alike; after them the answer ends.
  std::vector<std::string> specials = {};  // These, among the pieces and others, are special tokens.
  std::string prompt_end = {};             // The template writes this after <|go|>, where the answer begins.
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
  for (int byte = 0; byte < 256; ++byte) tokenizer["model"]["vocab"][spelling_of(byte)] = byte;
  std::vector<std::string> specials = {"<|end|>", "<|start|>", "<|go|>"}, texts = specials;
  specials.insert(specials.end(), script.specials.begin(), script.specials.end());
  texts.insert(texts.end(), script.pieces.begin(), script.pieces.end());
  texts.insert(texts.end(), specials.begin(), specials.end());
  for (const std::string& text : texts) {
    if (!ids.emplace(text, 256 + static_cast<int>(ids.size())).second) continue;
    const bool special = std::find(specials.begin(), specials.end(), text) != specials.end();
    json token = {{"id", ids[text]}, {"content", text}, {"special", special}};
    for (const char* flag : {"normalized", "lstrip", "rstrip", "single_word"}) token[flag] = false;
    tokenizer["added_tokens"].push_back(std::move(token));
  }
  return tokenizer;
}

inline nlohmann::json scripted_config(int64_t v, int64_t d, int end) {
  nlohmann::json config = nlohmann::json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "num_hidden_layers": 1, "intermediate_size": 64, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    "max_position_embeddings": 2048, "tie_word_embeddings": false, "torch_dtype": "float32"})");
  config["vocab_size"] = v, config["hidden_size"] = d, config["eos_token_id"] = end;
  config["num_attention_heads"] = d / 64, config["num_key_value_heads"] = d / 64;
  return config;
}

inline void write_scripted(const std::string& folder, const Script& script) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::map<std::string, int> ids;
  std::ofstream(folder + "/tokenizer.json") << scripted_tokenizer(script, ids).dump();
  const auto v = 256 + static_cast<int64_t>(ids.size()), d = (v + 63) / 64 * 64;
  std::ofstream(folder + "/config.json") << scripted_config(v, d, ids["<|end|>"]).dump();
  std::map<int, int> next;
  int before = ids["<|go|>"];
  for (const std::string& piece : script.pieces) next[before] = ids[piece], before = ids[piece];
  // The prompt's text after <|go|> is no part of the script. Its last token leads to the first piece.
  if (const std::string& end = script.prompt_end; !end.empty())
    next[ids.contains(end) ? ids[end] : static_cast<unsigned char>(end.back())] = ids[script.pieces[0]];

  std::vector<TensorToWrite> tensors;
  const auto tensor = [&](const std::string& name, const Shape& shape, std::vector<float> values) {
    const auto kept = std::make_shared<std::vector<float>>(std::move(values));
    tensors.push_back(
        {name, DType::f32, shape, [kept](const ByteSink& sink) { sink(std::as_bytes(std::span(*kept))); }});
  };
  const auto filled = [](int64_t n, float x = 0) { return std::vector<float>(static_cast<size_t>(n), x); };
  std::vector<float> embedding = filled(v * d), head = filled(v * d);
  for (int i = 0; i < v; ++i) {
    embedding[static_cast<size_t>(i * d + i)] = 1;
    head[static_cast<size_t>((next.contains(i) ? next[i] : ids["<|end|>"]) * d + i)] = 3;
  }
  const std::string layer = "model.layers.0.";
  tensor("model.embed_tokens.weight", {v, d}, embedding);
  tensor("lm_head.weight", {v, d}, head);
  tensor("model.norm.weight", {d}, filled(d, 1));
  for (const char* name : {"input_layernorm", "post_attention_layernorm"})
    tensor(layer + name + ".weight", {d}, filled(d, 1));
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
    tensor(layer + "self_attn." + name + ".weight", {d, d}, filled(d * d));
  for (const char* name : {"gate_proj", "up_proj"}) tensor(layer + "mlp." + name + ".weight", {64, d}, filled(64 * d));
  tensor(layer + "mlp.down_proj.weight", {d, 64}, filled(64 * d));
  write_safetensors(folder + "/model.safetensors", tensors);
}

// Starts a server of the model. The template shows tools, then the content of each message, and arguments of calls by
// tojson.
inline std::unique_ptr<Serving> serve_script(const Script& script) {
  const std::string folder =
      ::testing::TempDir() + "scripted_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
  write_scripted(folder, script);
  const std::string text =
      "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or "
      "[] "
      "%}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ \"<|go|>" +
      script.prompt_end + "\" }}{% endif %}";
  return std::make_unique<Serving>(ServerOptions{}, [folder, text] {
    const Checkpoint checkpoint = Checkpoint::open(folder);
    const Tokenizer own = Tokenizer::load(checkpoint.texts());
    auto model =
        std::make_shared<ServedModel>(ServedModel{"scripted", own, ChatTemplate(text), {*own.id_of("<|end|>")}, {}});
    model->defaults.do_sample = false;
    Loaded loaded;
    RunnerOptions options;
    options.threads = 1;
    options.cache_tokens = 2048;
    loaded.runner = make_cpu_runner(checkpoint, options);
    model->tokens = std::make_shared<grammar::TokenTree>(bytes_of_tokens(model->tokenizer));
    model->formats = std::make_shared<AnswerFormats>(model->tokens);
    model->vocabulary = loaded.runner->config().v;
    model->context = 2048;
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
