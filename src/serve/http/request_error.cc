#include "serve/http/request_error.h"

#include <nlohmann/json.hpp>

#include "core/foreign/foreign_text.h"

namespace fidelio::serve {
namespace {

// These are OpenAI's words. A wrong key and a missing model are invalid requests, told apart by status and code.
std::string_view type_of(int status) { return status >= 500 ? "server_error" : "invalid_request_error"; }

}  // namespace

std::string error_body(int status, std::string_view message, const std::string& param, const std::string& code) {
  const auto or_null = [](const std::string& text) { return text.empty() ? nlohmann::json() : nlohmann::json(text); };
  const nlohmann::json body = {{"error",
                                {{"message", foreign(message, Lines::kept, 2000)},
                                 {"type", type_of(status)},
                                 {"param", or_null(param)},
                                 {"code", or_null(code)}}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string messages_error_body(int status, std::string_view message) {
  const char* type = status == 401   ? "authentication_error"
                     : status == 404 ? "not_found_error"
                     : status == 413 ? "request_too_large"
                     : status == 503 ? "overloaded_error"
                     : status >= 500 ? "api_error"
                                     : "invalid_request_error";
  const nlohmann::json body = {{"type", "error"},
                               {"error", {{"type", type}, {"message", foreign(message, Lines::kept, 2000)}}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ollama_error_body(std::string_view message) {
  const nlohmann::json body = {{"error", foreign(message, Lines::kept, 2000)}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

HttpResponse error_response(std::string_view path, const std::exception& error) {
  const auto* request = dynamic_cast<const RequestError*>(&error);
  HttpResponse response;
  response.status = request != nullptr ? request->status() : dynamic_cast<const Error*>(&error) != nullptr ? 400 : 500;
  if (path.starts_with("/v1/messages"))
    response.body = messages_error_body(response.status, error.what());
  else if (path.starts_with("/api/"))
    response.body = ollama_error_body(error.what());
  else if (request != nullptr)
    response.body = error_body(response.status, request->what(), request->param(), request->code());
  else
    response.body = error_body(response.status, error.what());
  if (response.status == 503) response.headers.push_back({"Retry-After", "1"});
  if (response.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

}  // namespace fidelio::serve
