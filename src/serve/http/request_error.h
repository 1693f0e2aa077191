// serve: what is told to a client whose request cannot be answered, in OpenAI's form, or in Anthropic's.
#pragma once
#include <string>
#include <string_view>

#include "core/error.h"
#include "serve/http/http.h"

namespace fidelio::serve {

// An Error that is the client's doing or that a client can wait out, with its HTTP status. Any other Error that meets a
// client's request while it is read is one of its content: 400.
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

// {"error": {"message", "type", "param", "code"}}; what a stranger wrote in the message stands there in visible form.
std::string error_body(int status, std::string_view message, const std::string& param = "",
                       const std::string& code = "");
// {"type": "error", "error": {"type", "message"}}
std::string messages_error_body(int status, std::string_view message);

// This is Ollama's form: {"error": message}.
std::string ollama_error_body(std::string_view message);

// The error is told in the form of whoever asks at this path: Anthropic's for /v1/messages and what is below, Ollama's for
// what is below /api/, else OpenAI's.
HttpResponse error_response(std::string_view path, const std::exception& error);

}  // namespace fidelio::serve
