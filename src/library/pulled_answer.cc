#include "library/pulled_answer.h"

#include <utility>

namespace fidelio::library {

PulledAnswer::Next PulledAnswer::next(std::chrono::milliseconds wait, std::string& piece) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, wait, [this] { return !pieces_.empty() || over_ || closed_; });
  if (!pieces_.empty()) {
    piece = std::move(pieces_.front());
    pieces_.pop_front();
    return Next::piece;
  }
  return over_ ? Next::over : closed_ ? Next::closed : Next::nothing_yet;
}

int PulledAnswer::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void PulledAnswer::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void PulledAnswer::leave() {
  left_ = true;
  if (const auto gone = std::exchange(gone_, nullptr)) gone();
}

void PulledAnswer::respond(serve::HttpResponse response) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  status_ = response.status;
  pieces_.push_back(std::move(response.body));
  over_ = true;
  changed_.notify_all();
}

void PulledAnswer::begin_stream(const std::string&, std::string) {
  const std::lock_guard lock(mutex_);
  status_ = 200;
}

void PulledAnswer::send(std::string bytes) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  pieces_.push_back(std::move(bytes));
  changed_.notify_all();
}

void PulledAnswer::end() {
  const std::lock_guard lock(mutex_);
  over_ = true;
  changed_.notify_all();
}

void PulledAnswer::on_gone(std::function<void()> callback) {
  if (left_) return callback();
  gone_ = std::move(callback);
}

}  // namespace fidelio::library
