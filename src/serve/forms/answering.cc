#include "serve/forms/answering.h"

#include <algorithm>
#include <ctime>

#include "serve/forms/messages.h"

namespace fidelio::serve {
namespace {

std::unique_ptr<AnswerForm> form_of(const Call& call, std::shared_ptr<const ServedModel> model) {
  Envelope envelope{"",    call.model,         model->fingerprint, static_cast<int64_t>(std::time(nullptr)),
                    model, call.include_usage, call.repeated};
  switch (call.route) {
    case Route::chat:
      envelope.id = new_id("chatcmpl-");
      return chat_form(std::move(envelope));
    case Route::responses:
      envelope.id = new_id("resp_");
      return responses_form(std::move(envelope));
    case Route::messages:
      envelope.id = new_id("msg_");
      return messages_form(std::move(envelope));
    case Route::ollama_chat:
    case Route::ollama_generate:
    case Route::ollama_raw:
      return ollama_form(std::move(envelope), call.route == Route::ollama_chat);
    default:
      envelope.id = new_id("cmpl-");
      return completion_form(std::move(envelope));
  }
}

// Errors have the form of this path.
std::string_view route_path(Route route) {
  return route == Route::messages ? "/v1/messages" : is_ollama(route) ? "/api/" : "";
}

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Answering::Answering(Call call, std::shared_ptr<const ServedModel> model, EngineThread& engine, Metrics& metrics,
                     std::shared_ptr<Exchange> exchange)
    : call_(std::move(call)),
      model_(std::move(model)),
      engine_(engine),
      metrics_(metrics),
      exchange_(std::move(exchange)),
      tools_(std::make_shared<const Tools>(call_.known_tools)),
      form_(form_of(call_, model_)) {
  usage_.prompt_tokens = call_.prompt_tokens();
}

void Answering::start() {
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto answering = weak.lock()) answering->cancel();
  });
  if (over_) return;  // The client left while its request was read.
  try {
    for (size_t prompt = 0; prompt < call_.prompts.size(); ++prompt)
      for (int64_t i = 0; i < call_.best_of; ++i) submit(prompt, i);
  } catch (const RequestError& error) {
    return failed(error);
  }
  open_ = choices_.size();
  if (!call_.stream) return;
  streaming_ = true;
  exchange_->begin_stream(form_->type(), form_->ping());
  for (Under& under : choices_) {
    exchange_->send(form_->opening(under.choice, usage_));
    if (call_.echo && !call_.logprobs) tell(under, {{Part::Kind::text, call_.prompt_texts[under.choice.prompt]}}, {});
  }
}

void Answering::submit(size_t prompt, int64_t number) {
  const auto self = shared_from_this();
  const size_t index = choices_.size();
  const GenerationRequest& request = call_.prompts[prompt];
  Under under{{}, AnswerParts({call_.thinking, call_.tools ? tools_ : nullptr, call_.one_call}), {}, start_};
  if (call_.logprobs && call_.route == Route::completions)
    under.offsets.emplace(*model_, request.special_in_text,
                          call_.echo ? std::span<const int32_t>() : std::span(request.prompt));
  under.choice.index = static_cast<int64_t>(index);
  under.choice.prompt = prompt;
  choices_.push_back(std::move(under));
  Listener listener;
  listener.on_prompt = [self, index](std::vector<ScoredToken>&& tokens) {
    self->heard_prompt(index, std::move(tokens));
  };
  listener.on_token = [self, index](Piece&& piece) { self->heard(index, std::move(piece)); };
  listener.on_finish = [self, index](Generation&& generation) { self->finished(index, std::move(generation)); };
  listener.on_error = [self](const RequestError& error) { self->failed(error); };
  tickets_.push_back(engine_.submit(choice_of(request, number), std::move(listener)));
}

// Returns the parts of a text: for completions the text by itself, for a conversation what it consists of.
std::vector<Part> Answering::parts_of(Under& under, const std::string& text, bool last) const {
  std::vector<Part> parts;
  if (is_bare(call_.route)) {
    append(parts, {Part::Kind::text, text});
    return parts;
  }
  parts = under.parts.push(text);
  if (last)
    for (Part& part : under.parts.finish()) append(parts, std::move(part));
  return parts;
}

// Sends new parts and tokens of a choice, and keeps them where the whole answer is sent at the end.
void Answering::tell(Under& under, std::vector<Part> parts, std::vector<Piece> pieces) {
  Choice& choice = under.choice;
  if (streaming_ && (!parts.empty() || !pieces.empty())) {
    std::string events = form_->delta(choice, parts, pieces);
    if (!events.empty()) exchange_->send(std::move(events));
  }
  for (Part& part : parts) {
    if (streaming_ && part.kind != Part::Kind::call) continue;
    append(choice.parts, std::move(part));
  }
  if (!streaming_)
    for (Piece& piece : pieces) choice.pieces.push_back(std::move(piece));
}

void Answering::heard_prompt(size_t index, std::vector<ScoredToken>&& prompt) {
  if (over_ || !call_.logprobs) return;
  Under& under = choices_[index];
  std::vector<Piece> pieces(1);
  pieces[0].id = call_.prompts[under.choice.prompt].prompt[0];
  pieces[0].scored = false;
  for (ScoredToken& token : prompt) pieces.push_back({token.token.id, token.token.logprob, "", std::move(token.best)});
  for (Piece& piece : pieces) piece.offset = under.offsets->next(piece.id);
  std::vector<Part> parts;
  if (streaming_) parts.push_back({Part::Kind::text, call_.prompt_texts[under.choice.prompt]});
  tell(under, std::move(parts), std::move(pieces));
}

void Answering::heard(size_t index, Piece&& piece) {
  Under& under = choices_[index];
  if (over_ || under.cut) return;
  const auto now = Clock::now();
  const double seconds = seconds_between(under.newest, now);
  under.newest == start_ ? metrics_.first_token(seconds) : metrics_.next_token(seconds);
  if (usage_.first_seconds == 0) usage_.first_seconds = seconds;
  under.newest = now;
  under.choice.text += piece.text;
  under.logprob += static_cast<double>(piece.logprob);
  ++under.tokens;
  const bool thought_before = under.parts.thinks(), header_before = under.parts.in_header();
  std::vector<Part> parts = parts_of(under, piece.text, false);
  const bool thought = thought_before || under.parts.thinks();
  piece.thought = thought || header_before || under.parts.in_header();
  // All tokens since the newest text, or since the beginning, belong to the thought or to its mark.
  if (thought) usage_.thought += under.tokens - under.counted;
  if (thought || !parts.empty()) under.counted = under.tokens;
  std::vector<Piece> pieces;
  if (call_.logprobs) {
    if (under.offsets) piece.offset = under.offsets->next(piece.id);
    pieces.push_back(std::move(piece));
  }
  tell(under, std::move(parts), std::move(pieces));
  under.cut = under.parts.over();
  if (under.cut) engine_.end(tickets_[index]);
}

// If the answer was cut, the engine may have generated more. The client gets none of that, so the answer is the same
// however soon the engine stops.
void Answering::finished(size_t index, Generation&& generation) {
  if (over_) return;
  if (!generation.error.empty()) return failed(RequestError(500, generation.error));
  Under& under = choices_[index];
  Choice& choice = under.choice;
  const bool cut = under.cut;
  choice.finish_reason = cut || generation.finish_reason == FinishReason::stop ? "stop" : "length";
  const GenerationRequest& request = call_.prompts[choice.prompt];
  if (!cut && generation.stop_string >= 0)
    choice.stop = request.stop_strings[static_cast<size_t>(generation.stop_string)];
  const int64_t tokens = cut ? under.tokens : static_cast<int64_t>(generation.ids.size());
  metrics_.finished(choice.finish_reason, seconds_between(start_, Clock::now()),
                    static_cast<int64_t>(request.prompt.size()), tokens);
  usage_.completion_tokens += tokens;
  usage_.seconds = seconds_between(start_, Clock::now());
  // Reused tokens are counted as the prompt is: once for all choices. Only the first choice may have had to compute it.
  if (static_cast<int64_t>(index) % call_.best_of == 0) usage_.reused += generation.reused;
  usage_.drafted += generation.drafted;
  usage_.accepted += generation.accepted;
  if (!cut) {
    const size_t known = std::min(choice.text.size(), generation.text.size());
    tell(under, parts_of(under, generation.text.substr(known), true), {});
    choice.text = std::move(generation.text);
  }
  if (streaming_) exchange_->send(form_->finish(choice, usage_));
  if (--open_ == 0) complete();
}

// Keeps, for each prompt, the n choices whose tokens are likeliest on average, in that order.
void Answering::keep_the_best() {
  const auto mean = [](const Under& u) { return u.logprob / static_cast<double>(std::max<int64_t>(1, u.tokens)); };
  std::stable_sort(choices_.begin(), choices_.end(), [&](const Under& a, const Under& b) {
    return a.choice.prompt != b.choice.prompt ? a.choice.prompt < b.choice.prompt : mean(a) > mean(b);
  });
  std::vector<Under> kept;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (static_cast<int64_t>(i) % call_.best_of >= call_.n) continue;
    choices_[i].choice.index = std::ssize(kept);
    kept.push_back(std::move(choices_[i]));
  }
  choices_ = std::move(kept);
}

void Answering::complete() {
  over_ = true;
  if (streaming_) {
    exchange_->send(form_->end(usage_));
    return exchange_->end();
  }
  if (call_.best_of > call_.n) keep_the_best();
  std::vector<Choice> all;
  for (Under& under : choices_) {
    Choice& choice = under.choice;
    if (call_.echo) {
      const std::string text = choice.parts.empty() ? "" : choice.parts[0].text;
      choice.parts = {{Part::Kind::text, call_.prompt_texts[choice.prompt] + text}};
    }
    all.push_back(std::move(choice));
  }
  exchange_->respond({200, form_->whole(all, usage_)});
}

void Answering::failed(const RequestError& error) {
  if (over_) return;
  cancel();
  if (!streaming_) return exchange_->respond(error_response(route_path(call_.route), error));
  exchange_->send(form_->error(error));
  exchange_->end();
}

void Answering::cancel() {
  over_ = true;
  for (const int64_t ticket : tickets_) engine_.cancel(ticket);
}

}  // namespace fidelio::serve
