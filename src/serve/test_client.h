// This file has a client on sockets for tests. Every wait is bounded.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "serve/http/fields.h"

namespace fidelio::serve {

inline constexpr int kWaitMs = 60'000;
struct Reply {
  int status = 0;
  std::string head, body;
  Json json() const { return Json::parse(body); }
  std::vector<Json> events() const {  // It returns the events of a stream, without [DONE].
    std::vector<Json> all;
    for (size_t at = body.find("data: "); at != std::string::npos; at = body.find("data: ", at + 1)) {
      const std::string line = body.substr(at + 6, body.find('\n', at) - at - 6);
      if (line != "[DONE]") all.push_back(Json::parse(line));
    }
    return all;
  }
};

class Client {
 public:
  explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "cannot connect");
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void says_no_more() { ::shutdown(fd_, SHUT_WR); }
  void send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t n = ::send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      check(n > 0, "cannot send");
      at += static_cast<size_t>(n);
    }
  }
  // Returns false at the end of the connection.
  bool more() {
    pollfd descriptor{fd_, POLLIN, 0};
    check(::poll(&descriptor, 1, kWaitMs) == 1, "no answer within a minute; so far: {}", got_);
    char bytes[4096];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n > 0) got_.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }
  bool answered() const {  // It is true if an answer has begun to arrive.
    pollfd descriptor{fd_, POLLIN, 0};
    return ::poll(&descriptor, 1, 0) == 1;
  }
  void read_until(const std::string& mark) {
    while (got_.find(mark) == std::string::npos) check(more(), "the connection ended before {}", mark);
  }
  Reply read() {
    read_until("\r\n\r\n");
    Reply reply;
    const size_t end = got_.find("\r\n\r\n");
    reply.head = got_.substr(0, end + 2);
    got_.erase(0, end + 4);
    reply.status = std::stoi(reply.head.substr(9, 3));
    if (reply.status == 100) return reply;
    const size_t length = reply.head.find("Content-Length: ");
    if (length != std::string::npos) {
      const auto bytes = static_cast<size_t>(std::stoll(reply.head.substr(length + 16)));
      while (got_.size() < bytes) check(more(), "the body ended early");
      reply.body = got_.substr(0, bytes);
      got_.erase(0, bytes);
    } else {
      for (size_t size = 1; size > 0;) {
        read_until("\r\n");
        size = std::stoul(got_, nullptr, 16);
        got_.erase(0, got_.find("\r\n") + 2);
        while (got_.size() < size + 2) check(more(), "a chunk ended early");
        reply.body += got_.substr(0, size);
        got_.erase(0, size + 2);
      }
    }
    return reply;
  }
  bool ended() {  // It is true if nothing more arrives.
    while (more()) {
    }
    return got_.empty();
  }

 private:
  int fd_;
  std::string got_;
};

inline std::string get(const std::string& path, const std::string& header = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + header + "\r\n";
}
inline std::string post(const std::string& path, const std::string& body, const std::string& header = "") {
  return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: {}\r\n\r\n{}", path, header, body.size(),
                     body);
}

inline std::string streamed_text(const Reply& reply, int64_t index = 0) {
  std::string text;
  for (const Json& event : reply.events())
    for (const Json& choice : event["choices"])
      if (choice["index"] == index)
        text += choice.contains("text") ? choice["text"].get<std::string>() : choice["delta"].value("content", "");
  return text;
}

}  // namespace fidelio::serve
