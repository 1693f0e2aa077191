// This file defines one connection, and the loop that all connections share. Only http.cc and session.cc include it.
#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "serve/http/http.h"
#include "serve/http/wire.h"

namespace fidelio::serve {

class Session;

struct HttpServer::Loop {
  Loop(HttpLimits l, Handler h) : limits(std::move(l)), handler(std::move(h)) {}
  template <typename Acceptor>
  void accept(Acceptor& acceptor);
  template <typename End>
  void took(End&& end);
  bool make_room(bool of_answered);
  void begin_stop();
  void left(Session* session);

  HttpLimits limits;
  Handler handler;
  Reach reach = Reach::here;
  std::unordered_set<Session*> sessions;
  int64_t open = 0;  // It counts the sessions that are not closed.
  bool stopping = false;
  // The context is declared after the members that its handlers refer to when they are destroyed with it.
  boost::asio::io_context io{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
  std::vector<std::unique_ptr<boost::asio::ip::tcp::acceptor>> acceptors;
  std::vector<std::unique_ptr<boost::asio::local::stream_protocol::acceptor>> local_acceptors;
  std::vector<std::string> socket_files;
  boost::asio::steady_timer drain_timer{io}, retry_timer{io};
};

// This is one connection: a request is read, its answer written, and then the next request. Reading and writing
// alternate, so one timer of the stream covers both.
class Session : public std::enable_shared_from_this<Session> {
 public:
  using Code = boost::beast::error_code;
  using Clock = std::chrono::steady_clock;

  // `end` is a socket or a client in memory.
  template <typename End>
  Session(HttpServer::Loop& loop, End&& end) : loop_(loop), stream_(loop.io, std::forward<End>(end)), watch_(loop.io) {
    loop_.sessions.insert(this);
    ++loop_.open;
  }
  ~Session();

  void read();
  // The connection exceeds the limit of the server. It may ask for HttpLimits::vital and is answered 503 otherwise.
  void read_vital() {
    spare_ = true;
    read();
  }
  void refuse(const Refusal& refusal);
  void finish_if_idle() {
    if (exchange_ == nullptr && queue_.empty() && !receiving_) close();
  }
  void close();
  // The connection with the lowest worth is closed first to make room; since() is the time when it came into that
  // state.
  enum class Worth : uint8_t { closed, silent, slow, answered, needed };
  Worth worth() const;
  Clock::time_point since() const { return since_; }

 private:
  friend class SessionExchange;
  void received_header(Code error);
  Refusal refusal();  // It judges the header.
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
  boost::beast::flat_buffer buffer_{1 << 20};
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  std::deque<std::string> queue_;
  // These are the bytes of the queue, and the bytes of its first entry that are written.
  size_t queued_ = 0, written_ = 0;
  size_t empty_line_ = 0;  // It counts the bytes of an empty line that were skipped.
  std::shared_ptr<class SessionExchange> exchange_;
  std::string cors_;  // These are header lines of the answer.
  boost::asio::steady_timer watch_;
  int silent_ = 0;                          // It counts the periods of kWatch since a probe was written.
  Clock::time_point said_{};                // This is when something was last sent.
  Clock::time_point since_ = Clock::now();  // Since this time a request is awaited, or read.
  bool writing_ = false, keep_alive_ = false, old_client_ = false, head_only_ = false, receiving_ = false,
       lingering_ = false, spare_ = false, closed_ = false;
};

}  // namespace fidelio::serve
