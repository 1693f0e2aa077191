#include "serve/http/session.h"

#include <algorithm>
#include <boost/asio/write.hpp>

#include "core/error.h"
#include "serve/http/header.h"
#include "serve/http/request_error.h"

namespace fidelio::serve {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

constexpr std::chrono::milliseconds kWatch{200}, kLinger{2000};
constexpr int kProbe = 5;  // It counts periods of kWatch.
// A request that takes longer to arrive may be given up for a new connection.
constexpr std::chrono::milliseconds kSlow{2000};

std::string_view view_of(beast::string_view text) { return {text.data(), text.size()}; }

// Refuses a header whose body could be misread. If the body is encoded in another way than a proxy before us assumes,
// its rest would be read as a request of its own, which the proxy has not seen.
Refusal refusal_of_coding(const http::request_header<>& header) {
  const size_t codings = header.count(http::field::transfer_encoding);
  if (codings > 1 || (codings == 1 && !beast::iequals(header[http::field::transfer_encoding], "chunked")))
    return {400, "Transfer-Encoding: expected chunked alone, or Content-Length instead"};
  const beast::string_view packed = header[http::field::content_encoding];
  if (!packed.empty() && !beast::iequals(packed, "identity"))
    return {415, "Content-Encoding: expected none: bodies are read as they are, send this one unpacked"};
  return {};
}

}  // namespace

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

  // Sends chunks or, for HTTP/1.0, which has none, bytes up to the end of the connection.
  void begin_stream(const std::string& type, std::string ping) override {
    if (session_ == nullptr) return;
    ping_ = std::move(ping);
    Session& s = *session_;
    begun_ = true;
    if (s.old_client_) s.keep_alive_ = false;
    std::string head = head_of(200, type, s.keep_alive_, s.old_client_) + s.cors_;
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
  void on_gone(std::function<void()> callback) override {
    if (lost_) return callback();
    gone_ = std::move(callback);
  }

  // Writes something without content, so the connection of a client that has left is reset: an empty interim answer, or
  // a comment in a stream. Returns false where nothing of the kind exists.
  bool probe() {
    if (session_ == nullptr) return true;
    if (!begun_ && session_->old_client_) return false;
    begun_ ? send(ping_) : session_->enqueue("HTTP/1.1 100 Continue\r\n\r\n");
    return true;
  }

  // Sends a sign of life in a stream that was silent for too long.
  void ping() { send(begun_ ? ping_ : ""); }

  // The connection was lost.
  void lost() {
    session_.reset();
    lost_ = true;
    if (const auto callback = std::exchange(gone_, nullptr)) callback();
  }

 private:
  void over() {
    gone_ = nullptr;
    if (const auto session = std::exchange(session_, nullptr)) session->ended();
  }
  std::shared_ptr<Session> session_;
  std::function<void()> gone_;
  bool begun_ = false;  // If true, a stream has begun.
  bool lost_ = false;
  std::string ping_;
};

Session::~Session() {
  if (!closed_) --loop_.open;
  loop_.left(this);
}

Session::Worth Session::worth() const {
  if (closed_) return Worth::closed;
  if (lingering_) return Worth::answered;
  if (exchange_ != nullptr || !queue_.empty()) return Worth::needed;
  const bool begun = receiving_ || buffer_.size() > 0 || (parser_ && parser_->got_some());
  if (!begun) return Worth::silent;
  return Clock::now() - since_ < kSlow ? Worth::needed : Worth::slow;
}

void Session::read() {
  if (closed_) return;
  cors_.clear();
  since_ = Clock::now();
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
  if (const Refusal found = refusal(); found.status != 0) return refuse(found);
  receiving_ = true;
  if (!beast::iequals(parser_->get()[http::field::expect], "100-continue")) return read_body();
  auto text = std::make_shared<std::string>("HTTP/1.1 100 Continue\r\n\r\n");
  stream_.expires_after(loop_.limits.write);
  net::async_write(stream_, net::buffer(*text), [self = shared_from_this(), text](Code failed, size_t) {
    failed ? self->close() : self->read_body();
  });
}

Refusal Session::refusal() {
  const auto& header = parser_->get();
  const std::string path = path_of(std::string(header.target()));
  const std::string_view origin = view_of(header[http::field::origin]);
  cors_ = cors_of(loop_.limits.access.origins, origin);
  if (spare_ && path != loop_.limits.vital)
    return {503, fmt::format("the server has {} connections, which is all it takes", loop_.limits.connections)};
  if (Refusal found = refusal_of_coding(header); found.status != 0) return found;
  if (header.count(http::field::host) > 1) return {400, "Host: expected one, found several"};
  return refusal_of(loop_.limits.access, loop_.reach,
                    {view_of(header.method_string()), path, view_of(header[http::field::host]), origin,
                     view_of(header["Sec-Fetch-Site"]), view_of(header[http::field::content_type])});
}

// Some clients end a body with a line end that they do not count (RFC 9112, 2.2). One such line end is skipped, byte by
// byte as it arrives, and no more, so a client that sends nothing else cannot restart the wait each time.
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
  keep_alive_ = message.keep_alive() && !loop_.stopping && !spare_;
  old_client_ = message.version() < 11;
  head_only_ = message.method() == http::verb::head;
  HttpRequest request;
  request.method = head_only_ ? "GET" : std::string(message.method_string());
  request.path = path_of(std::string(message.target()));
  request.authorization = std::string(message[http::field::authorization]);
  request.api_key = std::string(message["X-Api-Key"]);
  request.body = std::move(message.body());
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

// A browser asks in advance whether a page may ask, and with which headers. It may, as the key is checked with the
// request.
void Session::answer_preflight(const std::string& headers) {
  HttpResponse response{200, "", "text/plain"};
  response.headers = {{"Access-Control-Allow-Methods", "GET, POST"}, {"Access-Control-Max-Age", "600"}};
  if (!headers.empty()) response.headers.push_back({"Access-Control-Allow-Headers", headers});
  exchange_->respond(std::move(response));
}

// Tells the client what was wrong with its request, unless it has left or was silent.
void Session::failed_to_read(Code error) {
  if (error == http::error::body_limit) {  // The limit may be exceeded already by the header, which is complete then.
    cors_ = cors_of(loop_.limits.access.origins, view_of(parser_->get()[http::field::origin]));
    return refuse({413, fmt::format("the body is larger than {} bytes", loop_.limits.body_bytes)});
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return refuse({431, fmt::format("the header is larger than {} bytes", loop_.limits.header_bytes)});
  if (error.category() == make_error_code(http::error::bad_method).category() && error != http::error::end_of_stream &&
      error != http::error::partial_message)
    return refuse({400, "the request is not HTTP: " + error.message()});
  close();
}

void Session::refuse(const Refusal& refusal) {
  keep_alive_ = false;
  exchange_ = std::make_shared<SessionExchange>(shared_from_this());
  const std::string path = parser_ ? path_of(std::string(parser_->get().target())) : "";
  exchange_->respond(error_response(path, RequestError(refusal.status, refusal.message, "", refusal.code)));
}

// A client that sends nothing more may still wait for its answer. The test is repeated, as the client may leave later,
// which only a write reveals.
bool Session::left() {
  const Wire::End end = stream_.other_end();
  if (end != Wire::End::silent) return end == Wire::End::gone;
  const auto exchange = exchange_;  // A copy is held, because a write may end the exchange.
  return silent_++ % kProbe == 0 && !exchange->probe();
}

// While a client waits, nothing is read from it. It may have left, or think that we have.
void Session::watch() {
  watch_.expires_after(kWatch);
  watch_.async_wait([self = weak_from_this()](Code error) {
    const auto session = self.lock();
    if (error || session == nullptr || session->closed_ || session->exchange_ == nullptr) return;
    if (session->left()) return session->close();
    const auto exchange = session->exchange_;  // A copy is held, because a write may end the exchange.
    if (exchange != nullptr && std::chrono::steady_clock::now() - session->said_ >= session->loop_.limits.silence)
      exchange->ping();
    session->watch();
  });
}

void Session::enqueue(std::string bytes) {
  if (closed_) return;
  queued_ += bytes.size();
  said_ = std::chrono::steady_clock::now();
  // One answer may be larger than the limit for unread bytes of a stream, as it is bounded by the request.
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

// The answer is complete. The next request may be read when it has been written.
void Session::ended() {
  exchange_.reset();
  watch_.cancel();
  if (closed_ || writing_) return;
  if (!keep_alive_ || loop_.stopping) return linger();
  net::post(loop_.io, [self = shared_from_this()] { self->read(); });
}

// A connection that is closed with unread bytes is reset, and the client would lose the answer. Its remaining bytes are
// read for a while.
void Session::linger() {
  lingering_ = true;
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
  --loop_.open;
  const auto self = shared_from_this();
  watch_.cancel();
  stream_.close();
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->lost();
}

}  // namespace fidelio::serve
