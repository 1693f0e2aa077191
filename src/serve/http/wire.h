// This file is the stream that a session reads from and writes to: a socket with time limits, or bytes in memory. Tests
// and fuzzers thus use the same server as clients do, without sockets, threads and waiting.
#pragma once
#include <poll.h>

#include <algorithm>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace fidelio::serve {

// This is a client in memory: everything it sends, in pieces of a given size, and everything that was answered.
struct MemoryClient {
  std::string_view says;
  size_t piece = SIZE_MAX;  // It is at least 1; an answer is taken in pieces of this size, too.
  std::string hears{};
};

// This is an AsyncStream in Asio's sense. Bytes in memory are never late, so only the socket has time limits.
class Wire {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using Code = boost::beast::error_code;
  using executor_type = boost::asio::io_context::executor_type;

  Wire(boost::asio::io_context& io, Socket socket) : executor_(io.get_executor()), socket_(std::move(socket)) {}
  // The client must outlive the wire.
  Wire(boost::asio::io_context& io, MemoryClient& client) : executor_(io.get_executor()), client_(&client) {}

  executor_type get_executor() const { return executor_; }

  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (socket_) return void(socket_->async_read_some(buffers, std::forward<Handler>(handler)));
    later(std::forward<Handler>(handler), [this, buffers](Code& error) -> size_t {
      if (boost::asio::buffer_size(buffers) == 0) return 0;
      if (client_->says.empty()) error = boost::asio::error::eof;
      const std::string_view next = client_->says.substr(0, client_->piece);
      const size_t count = boost::asio::buffer_copy(buffers, boost::asio::buffer(next.data(), next.size()));
      client_->says.remove_prefix(count);
      return count;
    });
  }

  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (socket_) return void(socket_->async_write_some(buffers, std::forward<Handler>(handler)));
    later(std::forward<Handler>(handler), [this, buffers](Code& error) -> size_t {
      if (shut_) error = boost::asio::error::broken_pipe;
      if (shut_) return 0;
      const size_t count = std::min(boost::asio::buffer_size(buffers), client_->piece), before = client_->hears.size();
      client_->hears.resize(before + count);
      return boost::asio::buffer_copy(boost::asio::buffer(&client_->hears[before], count), buffers);
    });
  }

  void expires_after(std::chrono::milliseconds time) {
    if (socket_) socket_->expires_after(time);
  }
  void expires_never() {
    if (socket_) socket_->expires_never();
  }
  void shutdown_send() {
    Code ignored;
    if (socket_) socket_->socket().shutdown(boost::asio::socket_base::shutdown_send, ignored);
    shut_ = true;
  }
  void close() {
    if (socket_) socket_->close();
    closed_ = true;
  }
  // This is the state of the other end, seen without reading. A client that has closed its connection and one that has
  // closed only its sending half both look `silent` until something is written to them; then the first one's system
  // resets.
  enum class End : uint8_t { here, silent, gone };
  End other_end() {
    if (!socket_) return End::here;
    pollfd descriptor{socket_->socket().native_handle(), POLLRDHUP, 0};
    if (::poll(&descriptor, 1, 0) <= 0) return End::here;
    return (descriptor.revents & (POLLHUP | POLLERR)) != 0 ? End::gone : End::silent;
  }

 private:
  // An operation ends on the event loop, never in the call that began it. The handler keeps the session alive, and
  // thereby the wire.
  template <typename Handler, typename Work>
  void later(Handler&& handler, Work work) {
    boost::asio::post(executor_, [this, work, handler = std::forward<Handler>(handler)]() mutable {
      Code error;
      size_t count = 0;
      if (closed_)
        error = boost::asio::error::operation_aborted;
      else
        count = work(error);
      handler(error, count);
    });
  }

  executor_type executor_;
  std::optional<boost::beast::basic_stream<boost::asio::generic::stream_protocol>> socket_{};
  MemoryClient* client_ = nullptr;
  bool shut_ = false, closed_ = false;
};

}  // namespace fidelio::serve
