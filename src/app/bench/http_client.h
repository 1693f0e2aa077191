// A client for measurements: one connection, blocking, that says when each event of a stream came.
#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace fidelio::app {

struct ServerAddress {
  std::string host, port = "80", base;  // http://HOST:PORT/base
};
ServerAddress parse_address(const std::string& url);  // throws Error

class HttpClient {
 public:
  explicit HttpClient(ServerAddress address) : address_(std::move(address)) {}
  ~HttpClient() { close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // The status; `body` gets what is answered, `event` each line "data: ..." as it comes. Throws Error where the
  // server cannot be reached or leaves.
  int ask(const std::string& method, const std::string& path, const std::string& key, const std::string& request,
          std::string& body, const std::function<void(std::string_view data)>& event = {});

 private:
  void connect();
  void close();
  void more();
  std::string line();
  void take(size_t bytes, std::string& to);

  ServerAddress address_;
  int socket_ = -1;
  std::string held_;
};

}  // namespace fidelio::app
