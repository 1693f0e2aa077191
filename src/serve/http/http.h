// This file is the HTTP/1.1 server. One event loop reads, answers and streams; nothing here knows what a model is.
//
//   bytes ──parser (Boost.Beast)──▶ HttpRequest ──Handler──▶ ... ──Exchange::respond, or begin_stream send send end
//
// Every connection is bounded in the bytes it may send (header, body), in time (a slow request, a client that does not
// read) and in the bytes that wait for its client. A client beyond a bound is told so where that is possible and
// disconnected; nobody else waits. A client that leaves is noticed within two periods of kWatch, even while it waits
// for an answer.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serve/http/access.h"

namespace fidelio::serve {

struct HttpLimits {
  size_t header_bytes = 16 << 10;
  size_t body_bytes = 4 << 20;
  size_t unsent_bytes = 4 << 20;  // These bytes may wait for a slow client.
  // Beyond this number a new connection replaces an idle one. If none is idle, it is answered 503, unless it asks for
  // `vital`.
  int64_t connections = 256;
  std::string vital = "/health";
  // This is the time from the end of one request to the end of the next one's header, and the time for its body.
  std::chrono::milliseconds read{30'000};
  std::chrono::milliseconds write{30'000};    // This is the longest time in which the client takes no byte.
  std::chrono::milliseconds silence{10'000};  // A stream that is silent this long sends a sign of life.
  std::chrono::milliseconds drain{30'000};    // This is the time after stop() for requests in progress.
  Access access{};
};

struct HttpRequest {
  std::string method, path;            // The path has no query.
  std::string authorization, api_key;  // They are the headers "Authorization" and "X-Api-Key", or "" if there are none.
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers{};
};

// These are the type of a stream of server-sent events, and a comment in it, which readers ignore.
inline constexpr const char *kEvents = "text/event-stream; charset=utf-8", *kComment = ":\n\n";

// This is a request that waits for its answer. All members are called on the event loop. They do nothing when the
// client has left, or after the answer's end.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void respond(HttpResponse response) = 0;
  // Begins a stream of this type instead: 200, then the bytes that are sent, then the end. Where nothing is sent for a
  // while, as during a long prompt, `ping` is sent, so neither the client nor a proxy assumes that the connection is
  // dead.
  virtual void begin_stream(const std::string& type, std::string ping) = 0;
  virtual void send(std::string bytes) = 0;
  virtual void end() = 0;
  // The callback is called once if the client leaves before the end, and at once if it has already left.
  virtual void on_gone(std::function<void()> callback) = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, std::shared_ptr<Exchange>)>;
  HttpServer(HttpLimits limits, Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Listens on a port; port 0 takes a free one. Returns the port. Throws Error where listening is not possible.
  int listen(const std::string& host, int port);
  // Listens on a socket file, which only this server may create; the file of a dead server is replaced. Users who may
  // write to it by `mode` may connect.
  void listen_unix(const std::string& path, mode_t mode = 0600);

  // Serves one connection with a client in memory (serve/http/wire.h), on the caller's thread, while run() is not
  // active. It returns when everything is answered that can be at once.
  void converse(struct MemoryClient& client);

  void run();                             // It runs until stop() and throws nothing that a client caused.
  void post(std::function<void()> work);  // It runs `work` on the event loop and may be called from any thread.
  // Stops the server and may be called from any thread. No new connections are accepted, requests in progress are
  // answered, and run() returns.
  void stop();
  bool stopping() const;        // It is called on the event loop.
  int64_t connections() const;  // It is called on the event loop.

  struct Loop;  // It is internal to http.cc.

 private:
  std::unique_ptr<Loop> loop_;
};

}  // namespace fidelio::serve
