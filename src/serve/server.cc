#include "serve/server.h"

#include <openssl/crypto.h>

#include <cstring>
#include <ctime>

#include "core/foreign/foreign_text.h"
#include "core/foreign/json.h"
#include "serve/forms/answering.h"
#include "serve/forms/chat_prompt.h"
#include "serve/forms/messages.h"
#include "serve/page/embedded.h"

namespace fidelio::serve {

Worker::Worker()
    : thread_([this] {
        for (;;) {
          std::function<void()> work;
          {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return ending_ || !work_.empty(); });
            if (ending_) return;
            work = std::move(work_.front());
            work_.pop_front();
          }
          work();
        }
      }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Worker::add(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  wake_.notify_one();
}

Server::Server(ServerOptions options, std::function<Loaded()> load)
    : options_(std::move(options)),
      load_(std::move(load)),
      started_(static_cast<int64_t>(std::time(nullptr))),
      http_(options_.http,
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
  // What clients ask and delete of answers that OpenAI stores.
  if (request.path.starts_with("/v1/responses/")) {
    check_key(request);
    throw RequestError(
        404, fmt::format("there is no {}: responses are told to who asks for them, and not stored", request.path));
  }
  if (allowed.empty()) throw RequestError(404, fmt::format("there is no {}", request.path));
  HttpResponse response = error_response(
      request.path, RequestError(405, fmt::format("{} takes {}, not {}", request.path, allowed, request.method)));
  response.headers.push_back({"Allow", allowed});
  exchange->respond(std::move(response));
}

// Compared in time that does not depend on how much of the key is right.
void Server::check_key(const HttpRequest& request) const {
  const std::string& key = options_.api_key;
  if (key.empty()) return;
  const auto same = [&](std::string_view given) {
    return given.size() == key.size() && ::CRYPTO_memcmp(given.data(), key.data(), key.size()) == 0;
  };
  constexpr std::string_view scheme = "bearer ";
  const std::string_view given = request.authorization;
  const bool bears = lower_case(given.substr(0, scheme.size())) == scheme;
  // Anthropic's client sends both where both are in its environment.
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

// Everything the page needs is in it; the policy says so to the browser.
void Server::page(HttpRequest&&, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response{200, std::string(page_html), "text/html; charset=utf-8"};
  response.headers = {{"Content-Security-Policy",
                       "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
                       "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Cache-Control", "no-cache"}};
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
  if (std::find(names_.begin(), names_.end(), name) == names_.end())
    throw RequestError(404, fmt::format("there is no model \"{}\"; /v1/models lists what is served", name), "model",
                       "model_not_found");
  exchange->respond({200, card_of(*model_, started_).dump(-1, ' ', false, Json::error_handler_t::replace)});
}

void Server::metrics(HttpRequest&&, const std::shared_ptr<Exchange>& exchange) {
  check_ready();
  exchange->respond({200, metrics_.text(engine_->status(), model_->name), "text/plain; version=0.0.4; charset=utf-8"});
}

// {"prompt": text} or {"messages": [...]} to {"tokens", "count", "max_model_len"}, as vLLM has it.
void Server::tokenize(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  read(request, exchange, [this, exchange, body = std::move(request.body), model = model_] {
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

// {"tokens": [ids]} to {"prompt": text}.
void Server::detokenize(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  read(request, exchange, [this, exchange, body = std::move(request.body), model = model_] {
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

// What a client needs to count tokens as the server does, as vLLM has it.
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
  const auto count = [this, exchange, body = std::move(request.body), model = model_] {
    Json object = parse_ordered_json(body, "the body");
    if (object.is_object()) object["max_tokens"] = 1;
    const Json chat = chat_body_of_messages(object, body);
    const Json answer = {{"input_tokens", chat_prompt(Fields(chat), *model).ids.size()}};
    http_.post([exchange, text = answer.dump()] { exchange->respond({200, text}); });
  };
  read(request, exchange, count);
}

void Server::completions(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  call(Route::completions, std::move(request), exchange);
}

void Server::chat_completions(HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  call(Route::chat, std::move(request), exchange);
}

void Server::read(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange, std::function<void()> work) {
  check_ready();
  reader_.add([this, exchange, path = request.path, work = std::move(work)] {
    try {
      work();
    } catch (const std::exception& e) {
      http_.post([exchange, response = error_response(path, e)] { exchange->respond(response); });
    }
  });
}

void Server::call(Route route, HttpRequest&& request, const std::shared_ptr<Exchange>& exchange) {
  auto body = std::make_shared<const std::string>(std::move(request.body));
  read(request, exchange, [this, route, exchange, body, model = model_] {
    auto read = std::make_shared<Call>(read_call(route, *body, *model, names_));
    http_.post([this, exchange, model, read] {
      std::make_shared<Answering>(std::move(*read), model, *engine_, metrics_, exchange)->start();
    });
  });
}

}  // namespace fidelio::serve
