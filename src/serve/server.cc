#include "serve/server.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>

#include "core/foreign/foreign_text.h"
#include "core/foreign/json.h"
#include "serve/forms/answering.h"
#include "serve/forms/chat_prompt.h"
#include "serve/forms/messages.h"
#include "serve/ollama/ollama_models.h"
#include "serve/page/embedded.h"
#include "serve/page_policy.h"

namespace fidelio::serve {

namespace {

// If there is a key, every client must know it, so the name that it uses for the server does not matter.
HttpLimits limits_of(const ServerOptions& options) {
  HttpLimits limits = options.http;
  limits.access.names = options.api_key.empty();
  return limits;
}

// Other servers have routes that a server of one text model lacks; `instead` says what to do.
struct Elsewhere {
  std::string_view path, instead;
};
constexpr std::string_view kEmbeddings =
    "this server writes text and makes no embeddings: serve an embedding model by a server for them (llama-server "
    "--embeddings, text-embeddings-inference, vLLM) and give its address to the client as that of the embeddings";
constexpr std::string_view kOneModel =
    "this server has the model it was started with and no others: start another `fidelio serve` for another model";
constexpr std::string_view kTextAlone = "this server reads and writes text alone";
constexpr Elsewhere kElsewhere[] = {
    {"/v1/embeddings", kEmbeddings},
    {"/embeddings", kEmbeddings},
    {"/embedding", kEmbeddings},
    {"/api/embed", kEmbeddings},
    {"/api/embeddings", kEmbeddings},
    {"/v1/rerank", kEmbeddings},
    {"/rerank", kEmbeddings},
    {"/v1/score", kEmbeddings},
    {"/score", kEmbeddings},
    {"/api/pull", kOneModel},
    {"/api/push", kOneModel},
    {"/api/create", kOneModel},
    {"/api/copy", kOneModel},
    {"/api/delete", kOneModel},
    {"/v1/images/generations", kTextAlone},
    {"/v1/audio/transcriptions", kTextAlone},
    {"/v1/audio/speech", kTextAlone},
    {"/v1/moderations", kTextAlone},
};

void refuse_elsewhere(const std::string& path) {
  for (const Elsewhere& one : kElsewhere)
    if (path == one.path) throw RequestError(404, fmt::format("there is no {}: {}", path, one.instead), "", "not_done");
}

}  // namespace

Server::Server(ServerOptions options, std::function<Loaded()> load)
    : options_(std::move(options)),
      load_(std::move(load)),
      started_(static_cast<int64_t>(std::time(nullptr))),
      http_(limits_of(options_),
            [this](HttpRequest request, std::shared_ptr<Exchange> exchange) { handle(std::move(request), exchange); }) {
}

Server::~Server() = default;

void Server::run() {
  engine_ = std::make_unique<EngineThread>([this](std::function<void()> work) { http_.post(std::move(work)); },
                                           std::move(load_), options_.max_requests,
                                           [this](std::shared_ptr<const ServedModel> model, const std::string& error) {
                                             model_ = std::move(model);
                                             failure_ = error;
                                             if (model_ == nullptr) return http_.stop();
                                             names_ = options_.names;
                                             names_.push_back(model_->name);
                                             for (size_t i = 0, n = names_.size(); i < n; ++i)
                                               names_.push_back(names_[i] + kOllamaTag);
                                             if (ready_) ready_(*model_);
                                           });
  http_.run();
  check(failure_.empty(), "{}", failure_);
}

const std::vector<Server::RouteTo>& Server::routes() {
  static const std::vector<RouteTo> all = {
      {"GET", "/health", true, &Server::health},
      {"GET", "/version", true, &Server::version},
      {"GET", "/metrics", true, &Server::metrics},
      {"GET", "/v1/models", false, &Server::models},
      {"POST", "/tokenize", false, &Server::tokenize},
      {"POST", "/detokenize", false, &Server::detokenize},
      {"POST", "/v1/completions", false, &Server::completions},
      {"POST", "/v1/chat/completions", false, &Server::chat_completions},
      {"POST", "/v1/responses", false, &Server::responses},
      {"POST", "/v1/messages", false, &Server::messages},
      {"POST", "/v1/messages/count_tokens", false, &Server::count_tokens},
      {"POST", "/api/chat", false, &Server::ollama_chat},
      {"POST", "/api/generate", false, &Server::ollama_generate},
      {"GET", "/api/tags", false, &Server::ollama_tags_route},
      {"GET", "/api/ps", false, &Server::ollama_running_route},
      {"POST", "/api/show", false, &Server::ollama_show_route},
      {"GET", "/api/version", true, &Server::ollama_version_route},
      {"GET", "/", true, &Server::page},
      {"GET", "/openapi.json", true, &Server::openapi},
      {"GET", "/tokenizer_info", false, &Server::tokenizer_info},
  };
  return all;
}

void Server::handle(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  const std::string path = request.path;
  try {
    dispatch(std::move(request), exchange);
  } catch (const std::exception& e) {
    exchange->respond(error_response(path, e));
  }
}

void Server::ask(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  http_.post([this, request = std::move(request), exchange = std::move(exchange)]() mutable {
    handle(std::move(request), exchange);
  });
}

void Server::dispatch(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  constexpr std::string_view model_path = "/v1/models/";
  const bool of_model = request.path.starts_with(model_path);
  std::string allowed = of_model ? "GET" : "";
  for (const RouteTo& route : routes()) {
    if (request.path != route.path) continue;
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
    if (request.method != route.method) continue;
    if (!route.open) check_key(request);
    return (this->*route.answer)(std::move(request), exchange);
  }
  if (of_model && request.method == "GET") {
    check_key(request);
    return model_by_name(request, exchange);
  }
  // Clients ask for, and delete, answers that OpenAI stores.
  if (request.path.starts_with("/v1/responses/")) {
    check_key(request);
    throw RequestError(
        404, fmt::format("there is no {}: responses are told to who asks for them, and not stored", request.path));
  }
  refuse_elsewhere(request.path);
  if (allowed.empty()) throw RequestError(404, fmt::format("there is no {}", request.path));
  HttpResponse response = error_response(
      request.path, RequestError(405, fmt::format("{} takes {}, not {}", request.path, allowed, request.method)));
  response.headers.push_back({"Allow", allowed});
  exchange->respond(std::move(response));
}

// The time of the comparison does not depend on how much of the key is right.
void Server::check_key(const HttpRequest& request) const {
  const std::string& key = options_.api_key;
  if (key.empty()) return;
  const auto same = [&](std::string_view given) {
    return given.size() == key.size() && ::CRYPTO_memcmp(given.data(), key.data(), key.size()) == 0;
  };
  constexpr std::string_view scheme = "bearer ";
  const std::string_view given = request.authorization;
  const bool bears = lower_case(given.substr(0, scheme.size())) == scheme;
  // Anthropic's client sends both if both are in its environment.
  if ((bears && same(given.substr(scheme.size()))) || same(request.api_key)) return;
  throw RequestError(401, "the key is missing or wrong: send \"Authorization: Bearer KEY\" or \"X-Api-Key: KEY\"", "",
                     "invalid_api_key");
}

void Server::check_ready() const {
  if (model_ == nullptr) throw RequestError(503, "the model is being loaded");
  if (http_.stopping()) throw RequestError(503, "the server is shutting down");
  if (engine_->failed()) throw RequestError(503, "the engine has failed; the server must be started again");
}

void Server::health(HttpRequest&&, const std::shared_ptr<Exchange>& exchange) {
  check_ready();
  exchange->respond({200, R"({"status":"ok"})"});
}

void Server::page(HttpRequest&&, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response{200, std::string(page_html), "text/html; charset=utf-8"};
  static const std::string policy = page_policy(page_html);
  response.headers = {
      {"Content-Security-Policy", policy}, {"X-Content-Type-Options", "nosniff"}, {"Cache-Control", "no-cache"}};
  exchange->respond(std::move(response));
}

void Server::openapi(HttpRequest&&, const std::shared_ptr<Exchange>& exchange) {
  exchange->respond({200, std::string(openapi_json)});
}

void Server::version(HttpRequest&&, const std::shared_ptr<Exchange>& exchange) {
  exchange->respond({200, Json{{"version", FIDELIO_VERSION}}.dump()});
}

namespace {

Json card_of(const ServedModel& model, int64_t created) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "fidelio"},
          {"root", model.name},
          {"max_model_len", model.context},
          {"fingerprint", model.fingerprint}};
}

}  // namespace

void Server::models(HttpRequest&&, const std::shared_ptr<Exchange>& exchange) {
  check_ready();
  const Json list = {{"object", "list"}, {"data", Json::array({card_of(*model_, started_)})}};
  exchange->respond({200, list.dump(-1, ' ', false, Json::error_handler_t::replace)});
}

void Server::model_by_name(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  check_ready();
  // Clients spell the slash of "owner/model" as %2F.
  const std::string name = percent_decoded(std::string_view(request.path).substr(std::strlen("/v1/models/")));
  check_model(name, names_);
  exchange->respond({200, card_of(*model_, started_).dump(-1, ' ', false, Json::error_handler_t::replace)});
}

void Server::metrics(HttpRequest&&, const std::shared_ptr<Exchange>& exchange) {
  check_ready();
  exchange->respond({200, metrics_.text(engine_->status(), model_->name), "text/plain; version=0.0.4; charset=utf-8"});
}

// Answers {"prompt": text} or {"messages": [...]} with {"tokens", "count", "max_model_len"}, as vLLM does.
void Server::tokenize(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  read(std::move(request), exchange, [this, exchange, model = model_](const std::string& body) {
    const Json object = parse_ordered_json(body, "the body");
    const Fields fields(object);
    std::vector<int32_t> ids;
    if (fields.find("messages") != nullptr)
      ids = chat_prompt(fields, *model).ids;
    else if (const auto text = fields.text("prompt"))
      ids = model->tokenizer.encode(*text, fields.boolean("add_special_tokens", true));
    else
      fields.refuse("prompt", "a string");
    const Json answer = {{"count", ids.size()}, {"max_model_len", model->context}, {"tokens", ids}};
    http_.post([exchange, text = answer.dump()] { exchange->respond({200, text}); });
  });
}

// Answers {"tokens": [ids]} with {"prompt": text}.
void Server::detokenize(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  read(std::move(request), exchange, [this, exchange, model = model_](const std::string& body) {
    const Json object = parse_ordered_json(body, "the body");
    const Fields fields(object);
    const Json* list = fields.find("tokens");
    if (list == nullptr || !list->is_array()) fields.refuse("tokens", "an array of token ids");
    std::vector<int32_t> ids;
    for (const Json& id : *list) {
      if (!id.is_number_integer() || id < 0 || id >= model->vocabulary)
        fields.refuse("tokens", fmt::format("token ids from 0 to {}", model->vocabulary - 1));
      ids.push_back(id.get<int32_t>());
    }
    const Json answer = {{"prompt", model->tokenizer.decode(ids, false)}};
    http_.post([exchange, text = answer.dump()] { exchange->respond({200, text}); });
  });
}

// Returns what a client needs to count tokens as the server does, in vLLM's form.
void Server::tokenizer_info(HttpRequest&&, const std::shared_ptr<Exchange>& exchange) {
  check_ready();
  const Tokenizer& tokenizer = model_->tokenizer;
  const auto text_of = [&](std::optional<int32_t> id) { return id ? Json(tokenizer.token_text(*id)) : Json(nullptr); };
  const Json info = {{"tokenizer_class", "fidelio"},
                     {"vocab_size", tokenizer.vocab_size()},
                     {"model_max_length", model_->context},
                     {"bos_token", text_of(tokenizer.bos_id())},
                     {"eos_token", text_of(tokenizer.eos_id())},
                     {"eos_token_ids", model_->stop_ids},
                     {"chat_template", model_->chat ? Json(model_->chat->source()) : Json(nullptr)}};
  exchange->respond({200, json_text(info)});
}

void Server::messages(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  call(Route::messages, std::move(request), exchange);
}

void Server::responses(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  call(Route::responses, std::move(request), exchange);
}

void Server::count_tokens(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  read(std::move(request), exchange, [this, exchange, model = model_](const std::string& body) {
    Json object = parse_ordered_json(body, "the body");
    if (object.is_object()) object["max_tokens"] = 1;
    const Json chat = chat_body_of_messages(object, body);
    const Json answer = {{"input_tokens", chat_prompt(Fields(chat), *model).ids.size()}};
    http_.post([exchange, text = answer.dump()] { exchange->respond({200, text}); });
  });
}

void Server::ollama_chat(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  call(Route::ollama_chat, std::move(request), exchange);
}

void Server::ollama_generate(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  call(Route::ollama_generate, std::move(request), exchange);
}

void Server::ollama_tags_route(HttpRequest&&, const std::shared_ptr<Exchange>& exchange) {
  check_ready();
  exchange->respond({200, json_text(ollama_tags(*model_, started_))});
}

void Server::ollama_running_route(HttpRequest&&, const std::shared_ptr<Exchange>& exchange) {
  check_ready();
  exchange->respond({200, json_text(ollama_running(*model_, started_))});
}

void Server::ollama_show_route(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  read(std::move(request), exchange, [this, exchange, model = model_](const std::string& body) {
    const Json object = parse_ordered_json(body, "the body");
    const Fields fields(object);
    const auto name = fields.text("model") ? fields.text("model") : fields.text("name");
    if (!name) fields.refuse("model", "the name of a model");
    check_model(*name, names_);
    http_.post([exchange, text = json_text(ollama_show(*model, started_))] { exchange->respond({200, text}); });
  });
}

void Server::ollama_version_route(HttpRequest&&, const std::shared_ptr<Exchange>& exchange) {
  exchange->respond({200, ollama_version().dump()});
}

void Server::completions(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  call(Route::completions, std::move(request), exchange);
}

void Server::chat_completions(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  call(Route::chat, std::move(request), exchange);
}

void Server::read(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange,
                  std::function<void(const std::string&)> work) {
  check_ready();
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  exchange->on_gone([gone] { *gone = true; });
  const auto asked = std::make_shared<const HttpRequest>(std::move(request));
  reader_.add(asked->body.size(), [this, exchange, gone, asked, path = asked->path, work = std::move(work)] {
    if (*gone) return;
    try {
      work(asked->body);
    } catch (const std::exception& e) {
      http_.post([exchange, response = error_response(path, e)] { exchange->respond(response); });
    }
  });
}

void Server::call(Route route, HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  read(std::move(request), exchange, [this, route, exchange, model = model_](const std::string& body) {
    auto read = std::make_shared<Call>(read_call(route, body, *model, names_));
    http_.post([this, exchange, model, read] {
      if (read->prompts.empty())
        return exchange->respond({200, json_text(ollama_loaded(read->model, read->route == Route::ollama_chat))});
      std::make_shared<Answering>(std::move(*read), model, *engine_, metrics_, exchange)->start();
    });
  });
}

}  // namespace fidelio::serve
