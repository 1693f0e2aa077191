#include "serve/http/http.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "serve/http/session.h"

namespace fidelio::serve {
namespace {

namespace net = boost::asio;
using Code = boost::beast::error_code;

constexpr std::chrono::milliseconds kRetry{100};
// This many connections beyond the limit are accepted, which may ask for the vital path.
constexpr int64_t kSpare = 16;

}  // namespace

template <typename Acceptor>
void HttpServer::Loop::accept(Acceptor& acceptor) {
  acceptor.async_accept([this, &acceptor](Code error, auto socket) {
    if (stopping || error == net::error::operation_aborted) return;
    if (!error) {
      took(Wire::Socket(std::move(socket)));
      return accept(acceptor);
    }
    retry_timer.expires_after(kRetry);  // One reason is that no descriptor is free.
    retry_timer.async_wait([this, &acceptor](Code cancelled) {
      if (!cancelled && !stopping) accept(acceptor);
    });
  });
}

template <typename End>
void HttpServer::Loop::took(End&& end) {
  while (open >= limits.connections && make_room(false)) {
  }
  if (open >= limits.connections + kSpare) make_room(true);
  const auto session = std::make_shared<Session>(*this, std::forward<End>(end));
  if (open <= limits.connections) return session->read();
  if (open <= limits.connections + kSpare) return session->read_vital();
  session->refuse({503, fmt::format("the server has {} connections, which is all it takes", limits.connections)});
}

// Closes an idle connection to make room for a new one: the one that was silent for the longest time. With
// `of_answered` it may also be one that only waits for its client to take the last answer. Returns false where there is
// none.
bool HttpServer::Loop::make_room(bool of_answered) {
  Session* least = nullptr;
  for (Session* session : sessions) {
    const Session::Worth worth = session->worth();
    if (worth == Session::Worth::closed || worth == Session::Worth::needed) continue;
    if (worth == Session::Worth::answered && !of_answered) continue;
    if (least == nullptr || std::pair(worth, session->since()) < std::pair(least->worth(), least->since()))
      least = session;
  }
  if (least != nullptr) least->close();
  return least != nullptr;
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

void HttpServer::Loop::left(Session* session) {
  sessions.erase(session);
  if (stopping && sessions.empty()) io.stop();
}

HttpServer::HttpServer(HttpLimits limits, Handler handler)
    : loop_(std::make_unique<Loop>(std::move(limits), std::move(handler))) {}

HttpServer::~HttpServer() {
  for (const std::string& path : loop_->socket_files) ::unlink(path.c_str());
  loop_->stopping = false;  // Sessions that are destroyed with the loop do not stop it.
}

int HttpServer::listen(const std::string& host, int port) {
  Code error;
  const auto address = net::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
  check(!error, "--host {}: expected an address such as 127.0.0.1, ::1 or 0.0.0.0", host);
  check(port >= 0 && port <= 65535, "--port {}: expected 0 to 65535", port);
  loop_->reach = address.is_loopback() ? Reach::machine : Reach::network;
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

void HttpServer::listen_unix(const std::string& path, mode_t mode) {
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
  check(!error, "cannot listen on {}: {}", path, error.message());
  loop_->socket_files.push_back(path);
  // Nobody can connect before listen(), so the mode that umask left cannot be used.
  check(::chmod(path.c_str(), mode) == 0, "--socket {}: cannot set its mode to {:o}: {}", path, mode,
        std::strerror(errno));
  acceptor->listen(net::socket_base::max_listen_connections, error);
  check(!error, "cannot listen on {}: {}", path, error.message());
  loop_->local_acceptors.push_back(std::move(acceptor));
  loop_->accept(*loop_->local_acceptors.back());
}

void HttpServer::run() {
  loop_->io.run();
  const std::vector<Session*> all(loop_->sessions.begin(), loop_->sessions.end());
  for (Session* session : all) session->close();  // These have not been answered in time.
}
void HttpServer::converse(MemoryClient& client) {
  loop_->took(client);
  loop_->io.poll();
  const std::vector<Session*> all(loop_->sessions.begin(), loop_->sessions.end());
  for (Session* session : all) session->close();  // The answers of these are not ready, and their client has left.
  loop_->io.poll();
}
void HttpServer::post(std::function<void()> work) { net::post(loop_->io, std::move(work)); }
void HttpServer::stop() {
  net::post(loop_->io, [this] { loop_->begin_stop(); });
}
bool HttpServer::stopping() const { return loop_->stopping; }
int64_t HttpServer::connections() const { return static_cast<int64_t>(loop_->sessions.size()); }

}  // namespace fidelio::serve
