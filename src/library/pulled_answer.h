// This file holds the answer to one request until somebody in another thread takes it.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>

#include "serve/http/http.h"

namespace fidelio::library {

// The event loop writes it and one thread reads it. Whoever writes keeps it alive, so it may be dropped at any time.
class PulledAnswer final : public serve::Exchange {
 public:
  enum class Next : uint8_t { piece, nothing_yet, over, closed };

  // Waits for the next piece.
  Next next(std::chrono::milliseconds wait, std::string& piece);
  int status() const;
  // Tells a reader that nothing more comes, because the model is closed.
  void close();
  // Tells the writer that nobody reads any more. It is called on the event loop.
  void leave();

  void respond(serve::HttpResponse response) override;
  void begin_stream(const std::string& type, std::string ping) override;
  void send(std::string bytes) override;
  void end() override;
  void on_gone(std::function<void()> callback) override;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> pieces_;
  int status_ = 0;
  bool over_ = false, closed_ = false;
  // The event loop owns these.
  std::function<void()> gone_;
  bool left_ = false;
};

}  // namespace fidelio::library
