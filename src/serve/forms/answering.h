// This file handles one call from its requests to its last byte. An Answering lives on the event loop and is kept alive
// by its exchange and its listeners. It ends when all choices are complete, when the client leaves, or when one choice
// fails.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "serve/engine_thread.h"
#include "serve/forms/answer_form.h"
#include "serve/forms/text_offsets.h"
#include "serve/http/http.h"
#include "serve/metrics.h"

namespace fidelio::serve {

class Answering : public std::enable_shared_from_this<Answering> {
 public:
  Answering(Call call, std::shared_ptr<const ServedModel> model, EngineThread& engine, Metrics& metrics,
            std::shared_ptr<Exchange> exchange);
  void start();

 private:
  using Clock = std::chrono::steady_clock;
  struct Under {  // This is a choice in progress.
    Choice choice;
    AnswerParts parts;
    std::optional<TextOffsets> offsets;  // It exists where offsets are requested.
    Clock::time_point newest;            // This is the time of the newest token, or start_ if there is none.
    double logprob = 0;                  // It is the sum over its tokens.
    int64_t tokens = 0;
    int64_t counted = 0;  // It is known of so many of its tokens whether they are a part of a thought.
    bool cut = false;     // If true, the choice has all its parts, whatever the engine may still generate.
  };
  void submit(size_t prompt, int64_t number);
  void heard_prompt(size_t index, std::vector<ScoredToken>&& prompt);
  void heard(size_t index, Piece&& piece);
  void finished(size_t index, Generation&& generation);
  void tell(Under& under, std::vector<Part> parts, std::vector<Piece> pieces);
  void failed(const RequestError& error);
  void cancel();
  void complete();
  void keep_the_best();
  std::vector<Part> parts_of(Under& under, const std::string& text, bool last) const;

  Call call_;
  std::shared_ptr<const ServedModel> model_;
  EngineThread& engine_;
  Metrics& metrics_;
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<const Tools> tools_;
  std::unique_ptr<AnswerForm> form_;
  std::vector<Under> choices_;
  std::vector<int64_t> tickets_;
  Usage usage_;
  Clock::time_point start_ = Clock::now();
  size_t open_ = 0;
  bool over_ = false, streaming_ = false;
};

}  // namespace fidelio::serve
