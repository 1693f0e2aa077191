// serve: one call under way, from its requests to its last byte. Lives on the event loop, kept by its exchange and its
// listeners; it ends when all choices have, when the client goes, or when one fails.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "serve/engine_thread.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/openai_response.h"

namespace fidelio::serve {

class Answering : public std::enable_shared_from_this<Answering> {
 public:
  Answering(Call call, std::shared_ptr<const ServedModel> model, EngineThread& engine, Metrics& metrics,
            std::shared_ptr<Exchange> exchange);
  void start();

 private:
  void heard(size_t choice, Piece&& piece);
  void finished(size_t choice, Generation&& generation);
  void failed(const RequestError& error);
  void cancel();
  void complete();

  Call call_;
  std::shared_ptr<const ServedModel> model_;
  EngineThread& engine_;
  Metrics& metrics_;
  std::shared_ptr<Exchange> exchange_;
  Envelope envelope_;
  std::vector<Choice> choices_;
  std::vector<int64_t> tickets_;
  Usage usage_;
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  std::vector<Clock::time_point> newest_;  // token of each choice; start_ where there is none
  size_t open_ = 0;
  bool over_ = false;
};

}  // namespace fidelio::serve
