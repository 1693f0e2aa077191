// serve: the way in over HTTP/1.1. One event loop reads, answers and streams; nothing here knows what a model is.
//
//   bytes ──parser (Boost.Beast)──▶ HttpRequest ──Handler──▶ ... ──Exchange::respond, or begin_stream send send end
//
// Every connection is bounded in what it may send (header, body), in time (a request that comes slowly, a reader that does
// not read) and in what may wait for its reader. Whoever is beyond a bound is told so where that is possible, and let
// go; nobody else waits. A client that goes away is noticed within two of kWatch, also while it waits for an answer.
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
  size_t unsent_bytes = 4 << 20;  // that wait for a slow reader
  // Beyond these a new connection takes the place of one on which nothing is asked; where there is none it is told 503,
  // unless it asks for `vital`.
  int64_t connections = 256;
  std::string vital = "/health";
  std::chrono::milliseconds read{
      30'000};  // from the end of one request to that of the next one's header, and of its body
  std::chrono::milliseconds write{30'000};    // without a byte that the reader took
  std::chrono::milliseconds silence{10'000};  // of a stream, after which it says that it is still there
  std::chrono::milliseconds drain{30'000};    // after stop(), for what is being answered
  Access access{};
};

struct HttpRequest {
  std::string method, path;            // path without the query
  std::string authorization, api_key;  // of the headers "Authorization" and "X-Api-Key"; "" if there are none
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers{};
};

// These are the type of a stream of server-sent events, and a comment in it, which says nothing to any reader.
inline constexpr const char *kEvents = "text/event-stream; charset=utf-8", *kComment = ":\n\n";

// A request that waits for its answer. All members are called on the event loop; when the client has gone, or after the
// answer's end, they do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void respond(HttpResponse response) = 0;
  // Or a stream of this type: 200, then what is sent, then the end. Where nothing is sent for a while, as when a long
  // prompt is computed, it is `ping`, so that neither the client nor a proxy takes it for dead.
  virtual void begin_stream(const std::string& type, std::string ping) = 0;
  virtual void send(std::string bytes) = 0;
  virtual void end() = 0;
  // Called once if the client goes away before the end; at once if it has gone already.
  virtual void on_gone(std::function<void()> callback) = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, std::shared_ptr<Exchange>)>;
  HttpServer(HttpLimits limits, Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Throws Error where this cannot be listened on. Port 0 takes a free one; returns the port.
  int listen(const std::string& host, int port);
  // A file that this server alone may make; one that a dead server left is replaced. Whom `mode` lets write to it may
  // connect.
  void listen_unix(const std::string& path, mode_t mode = 0600);

  // One connection with a client in memory (serve/http/wire.h), on the caller's thread, where run() is not at work:
  // comes back when all is answered that can be at once.
  void converse(struct MemoryClient& client);

  void run();                             // until stop(); throws nothing that a client caused
  void post(std::function<void()> work);  // to the event loop, from any thread
  void stop();                  // from any thread: no new connections, those under way are answered, run() returns
  bool stopping() const;        // on the event loop
  int64_t connections() const;  // on the event loop

  struct Loop;  // http.cc's own

 private:
  std::unique_ptr<Loop> loop_;
};

}  // namespace fidelio::serve
