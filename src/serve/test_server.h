// This file runs a server with quill-1m for tests.
#pragma once
#include <thread>

#include "io/checkpoint.h"
#include "serve/server.h"
#include "serve/test_client.h"
#include "text/tokenizer/token_bytes.h"

namespace fidelio::serve {

inline const char* const kTemplate =
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";

inline const Checkpoint& quill() {
  static const Checkpoint checkpoint = Checkpoint::open(FIDELIO_SOURCE_DIR "/models/quill-1m");
  return checkpoint;
}
inline const Tokenizer& tokenizer() {
  static const Tokenizer t = Tokenizer::load(quill().texts());
  return t;
}

inline std::unique_ptr<Runner> make_runner(int64_t cache_tokens = 8192) {
  RunnerOptions options;
  options.threads = 1;
  options.cache_tokens = cache_tokens;
  return make_cpu_runner(quill(), options);
}

struct Made {
  int64_t cache_tokens = 8192;
  bool speculates = false;  // If true, it drafts by 8-bit activations of the same weights, and by lookup.
};
inline Loaded load(const Made& made = {}) {
  auto model = std::make_shared<ServedModel>(ServedModel{"quill", tokenizer(), ChatTemplate(kTemplate), {2}, {}});
  Loaded loaded;
  loaded.runner = make_runner(made.cache_tokens);
  model->tokens = std::make_shared<grammar::TokenTree>(bytes_of_tokens(model->tokenizer));
  model->formats = std::make_shared<AnswerFormats>(model->tokens);
  model->vocabulary = loaded.runner->config().v;
  model->context = loaded.runner->config().max_positions;
  model->fingerprint = "fp_test";
  EngineOptions options;
  options.reading = Activations::a16;
  options.tokenizer = &model->tokenizer;
  if (made.speculates) {
    options.speculation.draft = loaded.runner.get();
    options.speculation.reading = Activations::a8;
    options.speculation.lookup = true;
    options.speculation.adapt = false;
    options.speculation.most = 3;
  }
  loaded.engine = std::make_unique<Engine>(*loaded.runner, std::move(options));
  loaded.model = std::move(model);
  return loaded;
}

// This is a server in a thread, which is stopped and joined at the end.
class Serving {
 public:
  explicit Serving(ServerOptions options = {}, const Made& made = {})
      : Serving(std::move(options), [made] { return load(made); }) {}
  Serving(ServerOptions options, std::function<Loaded()> loads) : server_(std::move(options), std::move(loads)) {
    port_ = server_.http().listen("127.0.0.1", 0);
    thread_ = std::thread([this] { server_.run(); });
    for (int i = 0; i < 600 && ask(get("/health")).status != 200; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ~Serving() {
    server_.http().stop();
    thread_.join();
  }
  int port() const { return port_; }
  Server& server() { return server_; }
  Reply ask(const std::string& request) {
    Client client(port_);
    client.send(request);
    return client.read();
  }
  Reply complete(const Json& body) { return ask(post("/v1/completions", body.dump())); }
  Reply chat(const Json& body) { return ask(post("/v1/chat/completions", body.dump())); }
  // Waits until the engine has nothing to do.
  bool idle() {
    for (int i = 0; i < kWaitMs / 10; ++i) {
      const EngineStatus s = server_.status();
      if (s.running + s.waiting == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  Server server_;
  int port_ = 0;
  std::thread thread_;
};

inline const Json kGreedy = {
    {"prompt", "The package contains"}, {"max_tokens", 24}, {"temperature", 0}, {"ignore_eos", true}};
inline Json with(Json body, const Json& more) {
  body.update(more);
  return body;
}

}  // namespace fidelio::serve
