// This file defines the server, with its routes and its threads.
//
//   event loop   HTTP, one Answering for each call
//   readers      bodies to requests: JSON, chat template, tokenizer, so that a long prompt delays nobody's tokens
//   engine       EngineThread
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/engine_thread.h"
#include "serve/forms/openai_request.h"
#include "serve/http/http.h"
#include "serve/metrics.h"
#include "serve/reader.h"

namespace fidelio::serve {

struct ServerOptions {
  HttpLimits http{};
  int64_t max_requests = 256;        // It counts the requests that are running or waiting for the engine.
  std::string api_key{};             // If it is "", every client is served.
  std::vector<std::string> names{};  // These are further names by which requests may call the model.
};

class Server {
 public:
  // `load` runs in the engine's thread once run() has begun; until it has finished, /health answers 503. If it throws,
  // run() ends and throws its message.
  Server(ServerOptions options, std::function<Loaded()> load);
  ~Server();

  HttpServer& http() { return http_; }  // It is used to listen and to stop.
  void run();
  // The callback runs on the event loop after the model is loaded.
  void on_ready(std::function<void(const ServedModel&)> callback) { ready_ = std::move(callback); }
  // Answers a request that comes from this process and not from a connection. The exchange hears of it on the event
  // loop. Any thread may call it while run() is active.
  void ask(HttpRequest request, std::shared_ptr<Exchange> exchange);
  EngineStatus status() const { return engine_->status(); }

 private:
  using Answer = void (Server::*)(HttpRequest&&, const std::shared_ptr<Exchange>&);
  struct RouteTo {
    const char *method, *path;
    bool open;  // If true, the route needs no key.
    Answer answer;
  };
  static const std::vector<RouteTo>& routes();
  void handle(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  void dispatch(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  void check_key(const HttpRequest& request) const;
  void check_ready() const;
  void health(HttpRequest&&, const std::shared_ptr<Exchange>& exchange);
  void models(HttpRequest&&, const std::shared_ptr<Exchange>& exchange);
  void model_by_name(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void page(HttpRequest&&, const std::shared_ptr<Exchange>& exchange);
  void openapi(HttpRequest&&, const std::shared_ptr<Exchange>& exchange);
  void version(HttpRequest&&, const std::shared_ptr<Exchange>& exchange);
  void metrics(HttpRequest&&, const std::shared_ptr<Exchange>& exchange);
  void tokenize(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  void detokenize(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  void completions(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  void chat_completions(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  void messages(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  void responses(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  void ollama_chat(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  void ollama_generate(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  void ollama_tags_route(HttpRequest&&, const std::shared_ptr<Exchange>& exchange);
  void ollama_running_route(HttpRequest&&, const std::shared_ptr<Exchange>& exchange);
  void ollama_show_route(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  void ollama_version_route(HttpRequest&&, const std::shared_ptr<Exchange>& exchange);
  void count_tokens(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  void tokenizer_info(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  void call(Route route, HttpRequest&& request, const std::shared_ptr<Exchange>& exchange);
  // Passes the request's body to a reader thread for this work. An exception becomes the answer, in the form of the
  // path.
  void read(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange,
            std::function<void(const std::string&)> work);

  ServerOptions options_;
  std::function<Loaded()> load_;
  std::function<void(const ServedModel&)> ready_;
  std::shared_ptr<const ServedModel> model_;
  std::string failure_;
  std::vector<std::string> names_;
  int64_t started_;
  Metrics metrics_;
  HttpServer http_;
  Reader reader_;
  std::unique_ptr<EngineThread> engine_;  // It is destroyed first, as it posts to the loop.
};

}  // namespace fidelio::serve
