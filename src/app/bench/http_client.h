// This file has an HTTP client for measurements, with one blocking connection. It reports when each event of a stream
// arrives.
#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace fidelio::app {

struct ServerAddress {
  std::string host, port = "80", base;  // These are the parts of http://HOST:PORT/base.
};
ServerAddress parse_address(const std::string& url);  // It throws Error for another form.

class HttpClient {
 public:
  explicit HttpClient(ServerAddress address) : address_(std::move(address)) {}
  ~HttpClient() { close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Returns the status. `body` gets the answer, and `event` is called with each line "data: ..." as it arrives. Throws
  // Error where the server cannot be reached or closes the connection.
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
