#include "serve/http/http.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <optional>
#include <unordered_set>

#include "core/error.h"
#include "serve/http/header.h"
#include "serve/http/request_error.h"
#include "serve/http/wire.h"

namespace fidelio::serve {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Code = beast::error_code;

constexpr std::chrono::milliseconds kWatch{200}, kLinger{2000}, kRetry{100};
constexpr int kProbe = 5;  // of kWatch

struct Refusal {
  int status = 0;  // 0: there is none
  std::string message{};
};

// Of a header whose body would be misread. Where a body ends that is coded in another way than a proxy before us takes
// it to be, its rest would be read as a request of its own, which the proxy has not seen.
Refusal refusal_of(const http::request_parser<http::string_body>& parser) {
  const auto& header = parser.get();
  const size_t codings = header.count(http::field::transfer_encoding);
  if (codings > 1 || (codings == 1 && !beast::iequals(header[http::field::transfer_encoding], "chunked")))
    return {400, "Transfer-Encoding: expected chunked alone, or Content-Length instead"};
  const beast::string_view packed = header[http::field::content_encoding];
  if (!packed.empty() && !beast::iequals(packed, "identity"))
    return {415, "Content-Encoding: expected none: bodies are read as they are, send this one unpacked"};
  return {};
}

}  // namespace

class Session;

struct HttpServer::Loop {
  Loop(HttpLimits l, Handler h) : limits(std::move(l)), handler(std::move(h)) {}
  template <typename Acceptor>
  void accept(Acceptor& acceptor);
  template <typename End>
  void took(End&& end);
  void begin_stop();
  void closed(Session* session);

  HttpLimits limits;
  Handler handler;
  std::unordered_set<Session*> sessions;
  bool stopping = false;
  net::io_context io{1};  // after what its handlers refer to when they go with it
  net::executor_work_guard<net::io_context::executor_type> work{io.get_executor()};
  std::vector<std::unique_ptr<net::ip::tcp::acceptor>> acceptors;
  std::vector<std::unique_ptr<net::local::stream_protocol::acceptor>> local_acceptors;
  std::vector<std::string> socket_files;
  net::steady_timer drain_timer{io}, retry_timer{io};
};

// One connection: a request is read, its answer written, and then the next. Reading and writing alternate, so that one
// timer of the stream watches both.
class Session : public std::enable_shared_from_this<Session> {
 public:
  // `end` is a socket or a client in memory.
  template <typename End>
  Session(HttpServer::Loop& loop, End&& end) : loop_(loop), stream_(loop.io, std::forward<End>(end)), watch_(loop.io) {
    loop_.sessions.insert(this);
  }
  ~Session() { loop_.closed(this); }

  void read();
  void refuse(int status, std::string_view message);
  void finish_if_idle() {
    if (exchange_ == nullptr && queue_.empty() && !receiving_) close();
  }
  void close();

 private:
  friend class SessionExchange;
  void received_header(Code error);
  bool skip_empty_line();
  void read_body();
  void received(Code error);
  void handle();
  void answer_preflight(const std::string& headers);
  void failed_to_read(Code error);
  void watch();
  bool left();
  void enqueue(std::string bytes);
  void write();
  void ended();
  void linger();
  void discard();

  HttpServer::Loop& loop_;
  Wire stream_;
  beast::flat_buffer buffer_{1 << 20};
  std::optional<http::request_parser<http::string_body>> parser_;
  std::deque<std::string> queue_;
  size_t queued_ = 0, written_ = 0;  // bytes of the queue, and of its front those that are gone
  size_t empty_line_ = 0;            // bytes of one that were passed over
  std::shared_ptr<class SessionExchange> exchange_;
  std::string cors_;  // header lines of the answer
  net::steady_timer watch_;
  int silent_ = 0;                                // watches since a probe was written
  std::chrono::steady_clock::time_point said_{};  // something last
  bool writing_ = false, keep_alive_ = false, old_client_ = false, head_only_ = false, receiving_ = false,
       closed_ = false;
};

class SessionExchange final : public Exchange {
 public:
  explicit SessionExchange(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  void respond(HttpResponse r) override {
    if (session_ == nullptr) return;
    Session& s = *session_;
    std::string head = head_of(r.status, r.type, s.keep_alive_, s.old_client_) + s.cors_;
    for (const auto& [name, value] : r.headers) head += name + ": " + value + "\r\n";
    head += fmt::format("Content-Length: {}\r\n\r\n", r.body.size());
    s.enqueue(std::move(head));
    if (session_ != nullptr && !session_->head_only_ && !r.body.empty()) session_->enqueue(std::move(r.body));
    over();
  }

  // Chunks, or for HTTP/1.0, which has none, bytes up to the end of the connection.
  void begin_events(std::string ping) override {
    if (session_ == nullptr) return;
    ping_ = std::move(ping);
    Session& s = *session_;
    begun_ = true;
    if (s.old_client_) s.keep_alive_ = false;
    std::string head = head_of(200, "text/event-stream; charset=utf-8", s.keep_alive_, s.old_client_) + s.cors_;
    head += "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
    if (!s.old_client_) head += "Transfer-Encoding: chunked\r\n";
    s.enqueue(head + "\r\n");
  }
  void send(std::string bytes) override {
    if (session_ == nullptr || bytes.empty()) return;
    session_->enqueue(session_->old_client_ ? std::move(bytes) : fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes));
  }
  void end() override {
    if (session_ == nullptr) return;
    if (!session_->old_client_) session_->enqueue("0\r\n\r\n");
    over();
  }
  void on_gone(std::function<void()> callback) override { gone_ = std::move(callback); }

  // Writes something that says nothing, so that the connection of a client that has gone is reset: an empty interim
  // answer, or a comment in a stream. False where there is nothing of the kind.
  bool probe() {
    if (session_ == nullptr) return true;
    if (!begun_ && session_->old_client_) return false;
    begun_ ? send(ping_) : session_->enqueue("HTTP/1.1 100 Continue\r\n\r\n");
    return true;
  }

  // Of a stream that was silent for too long.
  void ping() { send(begun_ ? ping_ : ""); }

  // The connection was lost.
  void lost() {
    session_.reset();
    if (const auto callback = std::exchange(gone_, nullptr)) callback();
  }

 private:
  void over() {
    gone_ = nullptr;
    if (const auto session = std::exchange(session_, nullptr)) session->ended();
  }
  std::shared_ptr<Session> session_;
  std::function<void()> gone_;
  bool begun_ = false;  // a stream
  std::string ping_;
};

void Session::read() {
  if (closed_) return;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(loop_.limits.header_bytes));
  parser_->body_limit(loop_.limits.body_bytes);
  stream_.expires_after(loop_.limits.read);
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](Code error, size_t) { self->received_header(error); });
}

void Session::received_header(Code error) {
  if (closed_) return;
  if (error == http::error::bad_method && skip_empty_line()) return read();
  if (error) return failed_to_read(error);
  if (const Refusal refusal = refusal_of(*parser_); refusal.status != 0) return refuse(refusal.status, refusal.message);
  receiving_ = true;
  if (!beast::iequals(parser_->get()[http::field::expect], "100-continue")) return read_body();
  auto text = std::make_shared<std::string>("HTTP/1.1 100 Continue\r\n\r\n");
  stream_.expires_after(loop_.limits.write);
  net::async_write(stream_, net::buffer(*text), [self = shared_from_this(), text](Code failed, size_t) {
    failed ? self->close() : self->read_body();
  });
}

// Some clients end a body with a line's end that they do not count (RFC 9112, 2.2). One is passed over, byte by byte as it
// comes, and no more: whoever sends nothing else is not to be waited for anew each time.
bool Session::skip_empty_line() {
  constexpr std::string_view line = "\r\n";
  if (buffer_.size() == 0 || empty_line_ == line.size()) return false;
  if (*static_cast<const char*>(buffer_.data().data()) != line[empty_line_]) return false;
  buffer_.consume(1);
  return ++empty_line_ > 0;
}

void Session::read_body() {
  if (closed_) return;
  stream_.expires_after(loop_.limits.read);
  http::async_read(stream_, buffer_, *parser_,
                   [self = shared_from_this()](Code failed, size_t) { self->received(failed); });
}

void Session::received(Code error) {
  if (closed_) return;
  receiving_ = false;
  if (error) return failed_to_read(error);
  handle();
}

void Session::handle() {
  auto message = parser_->release();
  keep_alive_ = message.keep_alive() && !loop_.stopping;
  old_client_ = message.version() < 11;
  head_only_ = message.method() == http::verb::head;
  HttpRequest request;
  request.method = head_only_ ? "GET" : std::string(message.method_string());
  request.path = path_of(std::string(message.target()));
  request.authorization = std::string(message[http::field::authorization]);
  request.api_key = std::string(message["X-Api-Key"]);
  request.body = std::move(message.body());
  cors_ = cors_of(loop_.limits.origins, std::string(message[http::field::origin]));
  const bool preflight = !cors_.empty() && message.method() == http::verb::options &&
                         !message[http::field::access_control_request_method].empty();
  const std::string wanted_headers(message[http::field::access_control_request_headers]);
  parser_.reset();
  const std::string path = request.path;
  const auto exchange = std::make_shared<SessionExchange>(shared_from_this());
  exchange_ = exchange;
  silent_ = 0;
  empty_line_ = 0;
  stream_.expires_never();
  watch();
  if (preflight) return answer_preflight(wanted_headers);
  try {
    loop_.handler(std::move(request), exchange);
  } catch (const std::exception& e) {
    exchange->respond(error_response(path, e));
  }
}

// A browser asks whether it may ask, with which headers. It may: the key is checked when it does.
void Session::answer_preflight(const std::string& headers) {
  HttpResponse response{200, "", "text/plain"};
  response.headers = {{"Access-Control-Allow-Methods", "GET, POST"}, {"Access-Control-Max-Age", "600"}};
  if (!headers.empty()) response.headers.push_back({"Access-Control-Allow-Headers", headers});
  exchange_->respond(std::move(response));
}

// What the client did is told to it, unless it is gone or was silent.
void Session::failed_to_read(Code error) {
  if (error == http::error::body_limit)
    return refuse(413, fmt::format("the body is larger than {} bytes", loop_.limits.body_bytes));
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return refuse(431, fmt::format("the header is larger than {} bytes", loop_.limits.header_bytes));
  if (error.category() == make_error_code(http::error::bad_method).category() && error != http::error::end_of_stream &&
      error != http::error::partial_message)
    return refuse(400, "the request is not HTTP: " + error.message());
  close();
}

void Session::refuse(int status, std::string_view message) {
  keep_alive_ = false;
  cors_.clear();
  exchange_ = std::make_shared<SessionExchange>(shared_from_this());
  const std::string path = parser_ ? path_of(std::string(parser_->get().target())) : "";
  exchange_->respond(error_response(path, RequestError(status, std::string(message))));
}

// One that says nothing more may still wait for its answer. That is asked again and again: it may leave later, which
// nothing but a write tells.
bool Session::left() {
  const Wire::End end = stream_.other_end();
  if (end != Wire::End::silent) return end == Wire::End::gone;
  const auto exchange = exchange_;  // a write may end it
  return silent_++ % kProbe == 0 && !exchange->probe();
}

// While a client waits nothing is read from it, and it may be gone, or think that we are.
void Session::watch() {
  watch_.expires_after(kWatch);
  watch_.async_wait([self = weak_from_this()](Code error) {
    const auto session = self.lock();
    if (error || session == nullptr || session->closed_ || session->exchange_ == nullptr) return;
    if (session->left()) return session->close();
    const auto exchange = session->exchange_;  // a write may end it
    if (exchange != nullptr && std::chrono::steady_clock::now() - session->said_ >= session->loop_.limits.silence)
      exchange->ping();
    session->watch();
  });
}

void Session::enqueue(std::string bytes) {
  if (closed_) return;
  queued_ += bytes.size();
  said_ = std::chrono::steady_clock::now();
  // One answer may be larger than what a stream may leave unread; it is bounded by what was asked for.
  if (!queue_.empty() && queued_ > loop_.limits.unsent_bytes) return close();
  queue_.push_back(std::move(bytes));
  if (!writing_) write();
}

void Session::write() {
  writing_ = true;
  stream_.expires_after(loop_.limits.write);
  stream_.async_write_some(net::buffer(queue_.front()) + written_,
                           [self = shared_from_this()](Code error, size_t count) {
                             if (self->closed_) return;
                             if (error) return self->close();
                             self->queued_ -= count;
                             self->written_ += count;
                             if (self->written_ < self->queue_.front().size()) return self->write();
                             self->written_ = 0;
                             self->queue_.pop_front();
                             if (!self->queue_.empty()) return self->write();
                             self->writing_ = false;
                             self->stream_.expires_never();
                             if (self->exchange_ == nullptr) self->ended();
                           });
}

// The answer is complete; the next request may be read when it has been written.
void Session::ended() {
  exchange_.reset();
  watch_.cancel();
  if (closed_ || writing_) return;
  if (!keep_alive_ || loop_.stopping) return linger();
  net::post(loop_.io, [self = shared_from_this()] { self->read(); });
}

// A connection closed with bytes unread is reset, and the client would lose the answer: what it still sends is read
// for a while.
void Session::linger() {
  stream_.shutdown_send();
  stream_.expires_after(kLinger);
  discard();
}

void Session::discard() {
  if (closed_) return;
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(64 << 10),
                          [self = shared_from_this()](Code error, size_t) { error ? self->close() : self->discard(); });
}

void Session::close() {
  if (std::exchange(closed_, true)) return;
  const auto self = shared_from_this();
  watch_.cancel();
  stream_.close();
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->lost();
}

// --- the loop -------------------------------------------------------------------------------------------------------

template <typename Acceptor>
void HttpServer::Loop::accept(Acceptor& acceptor) {
  acceptor.async_accept([this, &acceptor](Code error, auto socket) {
    if (stopping || error == net::error::operation_aborted) return;
    if (!error) {
      took(Wire::Socket(std::move(socket)));
      return accept(acceptor);
    }
    retry_timer.expires_after(kRetry);  // no descriptor is free, for one
    retry_timer.async_wait([this, &acceptor](Code cancelled) {
      if (!cancelled && !stopping) accept(acceptor);
    });
  });
}

template <typename End>
void HttpServer::Loop::took(End&& end) {
  const auto session = std::make_shared<Session>(*this, std::forward<End>(end));
  if (static_cast<int64_t>(sessions.size()) > limits.connections)
    session->refuse(503, fmt::format("the server has {} connections, which is all it takes", limits.connections));
  else
    session->read();
}

void HttpServer::Loop::begin_stop() {
  if (std::exchange(stopping, true)) return;
  for (auto& acceptor : acceptors) acceptor->close();
  for (auto& acceptor : local_acceptors) acceptor->close();
  retry_timer.cancel();
  const std::vector<Session*> all(sessions.begin(), sessions.end());
  for (Session* session : all) session->finish_if_idle();
  drain_timer.expires_after(limits.drain);
  drain_timer.async_wait([this](Code error) {
    if (!error) io.stop();
  });
  if (sessions.empty()) io.stop();
}

void HttpServer::Loop::closed(Session* session) {
  sessions.erase(session);
  if (stopping && sessions.empty()) io.stop();
}

HttpServer::HttpServer(HttpLimits limits, Handler handler)
    : loop_(std::make_unique<Loop>(std::move(limits), std::move(handler))) {}

HttpServer::~HttpServer() {
  for (const std::string& path : loop_->socket_files) ::unlink(path.c_str());
  loop_->stopping = false;  // sessions that go with the loop do not stop it
}

int HttpServer::listen(const std::string& host, int port) {
  Code error;
  const auto address = net::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
  check(!error, "--host {}: expected an address such as 127.0.0.1, ::1 or 0.0.0.0", host);
  check(port >= 0 && port <= 65535, "--port {}: expected 0 to 65535", port);
  const net::ip::tcp::endpoint endpoint(address, static_cast<uint16_t>(port));
  auto acceptor = std::make_unique<net::ip::tcp::acceptor>(loop_->io);
  acceptor->open(endpoint.protocol(), error);
  if (!error) acceptor->set_option(net::socket_base::reuse_address(true), error);
  if (!error) acceptor->bind(endpoint, error);
  if (!error) acceptor->listen(net::socket_base::max_listen_connections, error);
  check(!error, "cannot listen on {} port {}: {}; --port and --host name others", host, port, error.message());
  loop_->acceptors.push_back(std::move(acceptor));
  loop_->accept(*loop_->acceptors.back());
  return loop_->acceptors.back()->local_endpoint().port();
}

void HttpServer::listen_unix(const std::string& path) {
  check(path.size() < 108, "--socket {}: a socket's path has at most 107 bytes", path);
  struct stat status = {};
  const bool there = ::lstat(path.c_str(), &status) == 0;
  check(!there || S_ISSOCK(status.st_mode), "--socket {}: there is a file of that name that is no socket", path);
  Code error;
  const net::local::stream_protocol::endpoint endpoint(path);
  if (there) {
    net::local::stream_protocol::socket probe(loop_->io);
    probe.connect(endpoint, error);
    check(bool(error), "--socket {}: a server listens there already", path);
    ::unlink(path.c_str());
  }
  auto acceptor = std::make_unique<net::local::stream_protocol::acceptor>(loop_->io);
  acceptor->open(endpoint.protocol(), error);
  if (!error) acceptor->bind(endpoint, error);
  if (!error) acceptor->listen(net::socket_base::max_listen_connections, error);
  check(!error, "cannot listen on {}: {}", path, error.message());
  loop_->socket_files.push_back(path);
  loop_->local_acceptors.push_back(std::move(acceptor));
  loop_->accept(*loop_->local_acceptors.back());
}

void HttpServer::run() {
  loop_->io.run();
  const std::vector<Session*> all(loop_->sessions.begin(), loop_->sessions.end());
  for (Session* session : all) session->close();  // those whose time to be answered is over
}
void HttpServer::converse(MemoryClient& client) {
  loop_->took(client);
  loop_->io.poll();
  const std::vector<Session*> all(loop_->sessions.begin(), loop_->sessions.end());
  for (Session* session : all) session->close();  // whose answer is not ready: the client has gone
  loop_->io.poll();
}
void HttpServer::post(std::function<void()> work) { net::post(loop_->io, std::move(work)); }
void HttpServer::stop() {
  net::post(loop_->io, [this] { loop_->begin_stop(); });
}
bool HttpServer::stopping() const { return loop_->stopping; }
int64_t HttpServer::connections() const { return static_cast<int64_t>(loop_->sessions.size()); }

}  // namespace fidelio::serve
