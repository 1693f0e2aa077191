#include "app/bench/http_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "core/error.h"
#include "core/foreign/foreign_text.h"

namespace fidelio::app {

ServerAddress parse_address(const std::string& url) {
  constexpr std::string_view scheme = "http://";
  check(url.starts_with(scheme), "{}: expected http://HOST:PORT", url);
  std::string rest = url.substr(scheme.size());
  ServerAddress a;
  if (const size_t slash = rest.find('/'); slash != std::string::npos) {
    a.base = rest.substr(slash);
    rest.resize(slash);
    while (a.base.ends_with('/')) a.base.pop_back();
  }
  if (const size_t colon = rest.rfind(':'); colon != std::string::npos && rest.find(']', colon) == std::string::npos) {
    a.port = rest.substr(colon + 1);
    rest.resize(colon);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  a.host = rest;
  check(!a.host.empty() && !a.port.empty(), "{}: expected http://HOST:PORT", url);
  return a;
}

void HttpClient::connect() {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = ::getaddrinfo(address_.host.c_str(), address_.port.c_str(), &hints, &found);
  check(error == 0, "{}: {}", address_.host, ::gai_strerror(error));
  for (const addrinfo* a = found; a != nullptr && socket_ < 0; a = a->ai_next) {
    socket_ = ::socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (socket_ >= 0 && ::connect(socket_, a->ai_addr, a->ai_addrlen) != 0) close();
  }
  ::freeaddrinfo(found);
  check(socket_ >= 0, "cannot connect to {}:{}: {}", address_.host, address_.port, std::strerror(errno));
  const int on = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void HttpClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
  held_.clear();
}

void HttpClient::more() {
  char bytes[16384];
  const ssize_t n = ::recv(socket_, bytes, sizeof bytes, 0);
  if (n <= 0) {
    close();
    throw Error("the server closed the connection");
  }
  held_.append(bytes, static_cast<size_t>(n));
}

std::string HttpClient::line() {
  size_t end;
  while ((end = held_.find("\r\n")) == std::string::npos) more();
  std::string text = held_.substr(0, end);
  held_.erase(0, end + 2);
  return text;
}

void HttpClient::take(size_t bytes, std::string& to) {
  while (held_.size() < bytes) more();
  to += held_.substr(0, bytes);
  held_.erase(0, bytes);
}

int HttpClient::ask(const std::string& method, const std::string& path, const std::string& key,
                    const std::string& request, std::string& body,
                    const std::function<void(std::string_view data)>& event) {
  if (socket_ < 0) connect();
  std::string bytes =
      fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n", method,
                  address_.base, path, address_.host, request.size());
  if (!key.empty()) bytes += "Authorization: Bearer " + key + "\r\n";
  bytes += "\r\n" + request;
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::send(socket_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    check(n > 0, "the server closed the connection");
    at += static_cast<size_t>(n);
  }
  const std::string first = line();
  check(first.size() > 12 && first.starts_with("HTTP/1."), "the server does not speak HTTP: {}", first);
  const int status = std::stoi(first.substr(9, 3));
  size_t length = 0;
  bool chunked = false, ends = false;
  for (std::string header = line(); !header.empty(); header = line()) {
    header = lower_case(header);
    if (header.starts_with("content-length:")) length = std::stoull(header.substr(15));
    chunked = chunked || header == "transfer-encoding: chunked";
    ends = ends || header == "connection: close";
  }
  body.clear();
  size_t told = 0;
  const auto tell = [&] {  // It passes on whole lines only.
    for (size_t end; event && (end = body.find('\n', told)) != std::string::npos; told = end + 1) {
      const std::string_view text(body.data() + told, end - told);
      if (text.starts_with("data: ")) event(text.substr(6));
    }
  };
  if (!chunked) take(length, body);
  while (chunked) {
    const size_t size = std::stoull(line(), nullptr, 16);
    take(size, body);
    line();
    tell();
    if (size == 0) break;
  }
  if (ends) close();
  return status;
}

}  // namespace fidelio::app
