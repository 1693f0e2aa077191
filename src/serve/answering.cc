#include "serve/answering.h"

#include <ctime>

namespace fidelio::serve {

Answering::Answering(Call call, std::shared_ptr<const ServedModel> model, EngineThread& engine, Metrics& metrics,
                     std::shared_ptr<Exchange> exchange)
    : call_(std::move(call)),
      model_(std::move(model)),
      engine_(engine),
      metrics_(metrics),
      exchange_(std::move(exchange)) {
  envelope_ = {new_id(call_.route), call_.model,       model_->fingerprint, static_cast<int64_t>(std::time(nullptr)),
               call_.route,         &model_->tokenizer};
  usage_.prompt_tokens = call_.prompt_tokens();
}

void Answering::start() {
  const auto self = shared_from_this();
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto answering = weak.lock()) answering->cancel();
  });
  try {
    for (size_t prompt = 0; prompt < call_.prompts.size(); ++prompt)
      for (int64_t i = 0; i < call_.n; ++i) {
        const size_t index = choices_.size();
        choices_.push_back({static_cast<int64_t>(index)});
        newest_.push_back(start_);
        if (call_.echo) choices_.back().text_bytes = call_.prompt_texts[prompt].size();
        tickets_.push_back(engine_.submit(choice_of(call_.prompts[prompt], i),
                                          {[self, index](Piece&& piece) { self->heard(index, std::move(piece)); },
                                           [self, index](Generation&& g) { self->finished(index, std::move(g)); },
                                           [self](const RequestError& error) { self->failed(error); }}));
      }
  } catch (const RequestError& error) {
    return failed(error);
  }
  open_ = choices_.size();
  if (!call_.stream) return;
  exchange_->begin_events();
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (call_.route == Route::chat) exchange_->send(opening_event(envelope_, choices_[i].index));
    if (call_.echo)
      exchange_->send(
          piece_event(envelope_, choices_[i].index, call_.prompt_texts[i / static_cast<size_t>(call_.n)], {}, 0));
  }
}

void Answering::heard(size_t index, Piece&& piece) {
  if (over_) return;
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - newest_[index]).count();
  newest_[index] == start_ ? metrics_.first_token(seconds) : metrics_.next_token(seconds);
  newest_[index] = now;
  Choice& choice = choices_[index];
  choice.text += piece.text;
  const size_t offset = choice.text_bytes;
  choice.text_bytes += piece.text.size();
  if (!call_.stream) {
    if (call_.logprobs()) choice.pieces.push_back(std::move(piece));
    return;
  }
  if (piece.text.empty() && !call_.logprobs()) return;
  const std::string text = piece.text;
  exchange_->send(piece_event(envelope_, choice.index, text,
                              call_.logprobs() ? std::vector{std::move(piece)} : std::vector<Piece>{}, offset));
}

void Answering::finished(size_t index, Generation&& generation) {
  if (over_) return;
  if (!generation.error.empty()) return failed(RequestError(500, generation.error));
  Choice& choice = choices_[index];
  choice.finish_reason = finish_reason_of(generation.finish_reason);
  metrics_.finished(choice.finish_reason, std::chrono::duration<double>(Clock::now() - start_).count(),
                    static_cast<int64_t>(call_.prompts[index / static_cast<size_t>(call_.n)].prompt.size()),
                    static_cast<int64_t>(generation.ids.size()));
  usage_.completion_tokens += static_cast<int64_t>(generation.ids.size());
  if (call_.stream) {
    if (generation.text.size() > choice.text.size())
      exchange_->send(piece_event(envelope_, choice.index, generation.text.substr(choice.text.size()), {}, 0));
    exchange_->send(finish_event(envelope_, choice));
  }
  choice.text = std::move(generation.text);
  if (--open_ == 0) complete();
}

void Answering::complete() {
  over_ = true;
  if (call_.stream) {
    if (call_.include_usage) exchange_->send(usage_event(envelope_, usage_));
    exchange_->send(done_event());
    return exchange_->end();
  }
  if (call_.echo)
    for (size_t i = 0; i < choices_.size(); ++i)
      choices_[i].text = call_.prompt_texts[i / static_cast<size_t>(call_.n)] + choices_[i].text;
  exchange_->respond({200, whole_answer(envelope_, choices_, usage_)});
}

void Answering::failed(const RequestError& error) {
  if (over_) return;
  const bool streaming = call_.stream && open_ > 0;
  cancel();
  if (!streaming) return exchange_->respond(error_response(error));
  exchange_->send("data: " + error_body(error.status(), error.what()) + "\n\n");
  exchange_->end();
}

void Answering::cancel() {
  over_ = true;
  for (const int64_t ticket : tickets_) engine_.cancel(ticket);
}

}  // namespace fidelio::serve
