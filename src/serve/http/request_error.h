// This file defines the errors that are sent to a client whose request cannot be answered, in OpenAI's, Anthropic's or
// Ollama's form.
#pragma once
#include <string>
#include <string_view>

#include "core/error.h"
#include "serve/http/http.h"

namespace fidelio::serve {

// A RequestError is caused by the client, or can be waited out by it, and has an HTTP status. Any other Error that is
// thrown while a request is read is about its content and becomes 400.
class RequestError : public Error {
 public:
  RequestError(int status, const std::string& message, std::string param = "", std::string code = "")
      : Error("{}", message), status_(status), param_(std::move(param)), code_(std::move(code)) {}
  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  int status_;
  std::string param_, code_;
};

// Returns {"error": {"message", "type", "param", "code"}}. A stranger's text in the message is made visible (escaped).
std::string error_body(int status, std::string_view message, const std::string& param = "",
                       const std::string& code = "");
// Returns Anthropic's form: {"type": "error", "error": {"type", "message"}}.
std::string messages_error_body(int status, std::string_view message);

// This is Ollama's form: {"error": message}.
std::string ollama_error_body(std::string_view message);

// Returns the error in the form of the path: Anthropic's for /v1/messages and below, Ollama's below /api/, and OpenAI's
// elsewhere.
HttpResponse error_response(std::string_view path, const std::exception& error);

}  // namespace fidelio::serve
