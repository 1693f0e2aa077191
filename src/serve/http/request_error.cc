#include "serve/http/request_error.h"

#include <nlohmann/json.hpp>

#include "core/foreign/foreign_text.h"

namespace fidelio::serve {
namespace {

// OpenAI's words: a wrong key and a model that is not there are invalid requests, told apart by status and code.
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

HttpResponse error_response(const std::exception& error) {
  HttpResponse response;
  if (const auto* request = dynamic_cast<const RequestError*>(&error)) {
    response.status = request->status();
    response.body = error_body(request->status(), request->what(), request->param(), request->code());
    if (response.status == 503) response.headers.push_back({"Retry-After", "1"});
    return response;
  }
  response.status = dynamic_cast<const Error*>(&error) != nullptr ? 400 : 500;
  response.body = error_body(response.status, error.what());
  return response;
}

}  // namespace fidelio::serve
