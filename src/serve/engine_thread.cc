#include "serve/engine_thread.h"

#include <spdlog/spdlog.h>

#include "core/foreign/foreign_text.h"

namespace fidelio::serve {

EngineThread::EngineThread(Post post, std::function<Loaded()> load, int64_t most,
                           std::function<void(std::shared_ptr<const ServedModel>, const std::string&)> loaded)
    : post_(std::move(post)), most_(most) {
  thread_ = std::thread([this, load = std::move(load), loaded = std::move(loaded)] { run(load, loaded); });
}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

int64_t EngineThread::submit(GenerationRequest request, Listener listener) {
  if (failed_) throw RequestError(503, "the engine has failed; the server must be started again");
  if (under_way() >= most_)
    throw RequestError(503, fmt::format("{} requests are under way or wait, which is all the server takes", most_), "",
                       "overloaded");
  const int64_t ticket = next_ticket_++;
  listeners_.emplace(ticket, std::move(listener));
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back({ticket, std::move(request)});
  }
  wake_.notify_one();
  return ticket;
}

void EngineThread::cancel(int64_t ticket) {
  if (!listeners_.contains(ticket)) return;
  end(ticket);
  listeners_.erase(ticket);
}

void EngineThread::end(int64_t ticket) {
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back({ticket, {}});
  }
  wake_.notify_one();
}

EngineStatus EngineThread::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void EngineThread::run(const std::function<Loaded()>& load,
                       const std::function<void(std::shared_ptr<const ServedModel>, const std::string&)>& loaded) {
  std::optional<Loaded> all;
  try {
    all = load();
  } catch (const std::exception& e) {
    return post_([loaded, message = std::string(e.what())] { loaded(nullptr, message); });
  }
  post_([loaded, model = all->model] { loaded(model, ""); });
  try {
    serve(*all);
  } catch (const std::exception& e) {
    fail(e.what());
  }
}

void EngineThread::serve(Loaded& loaded) {
  Engine& engine = *loaded.engine;
  const int64_t pages = loaded.runner->cache_pages();
  bool idle = true;
  std::vector<Order> orders;
  for (;;) {
    orders.clear();
    {
      std::unique_lock lock(mutex_);
      if (idle) wake_.wait(lock, [&] { return ending_ || !orders_.empty(); });
      if (ending_) return;
      orders.swap(orders_);
    }
    for (Order& order : orders) obey(engine, order);
    idle = !engine.step();
    {
      const std::lock_guard lock(mutex_);
      status_ = {engine.running(),     engine.waiting(),     engine.free_pages(), pages,
                 engine.state_slots(), engine.free_states(), engine.snapshots(),  engine.counters()};
    }
    hand_over();
  }
}

void EngineThread::obey(Engine& engine, Order& order) {
  const int64_t ticket = order.ticket;
  if (!order.request) {
    const auto found = numbers_.find(ticket);
    if (found != numbers_.end()) engine.cancel(found->second);
    return;
  }
  RequestEvents events;
  events.on_token = [this, ticket](const NewToken& token) {
    tell(
        ticket,
        Piece{token.id, token.logprob, std::string(token.text), {token.best.begin(), token.best.end()}, token.drafted});
  };
  events.on_prompt = [this, ticket](int64_t, std::vector<ScoredToken>&& prompt) { tell(ticket, std::move(prompt)); };
  events.on_finish = [this, ticket](int64_t, Generation&& generation) {
    numbers_.erase(ticket);
    tell(ticket, std::move(generation));
  };
  try {
    numbers_[ticket] = engine.add(std::move(*order.request), std::move(events));
  } catch (const Error& e) {
    numbers_.erase(ticket);
    tell(ticket, RequestError(400, e.what()));
  }
}

void EngineThread::tell(int64_t ticket, What what) { fresh_.push_back({ticket, std::move(what)}); }

void EngineThread::hand_over() {
  if (fresh_.empty()) return;
  bool post = false;
  {
    const std::lock_guard lock(mutex_);
    for (News& news : fresh_) news_.push_back(std::move(news));
    post = !std::exchange(posted_, true);
  }
  fresh_.clear();
  if (post) post_([this] { drain(); });
}

void EngineThread::drain() {
  std::vector<News> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(news_);
    posted_ = false;
  }
  for (News& news : all) {
    const auto found = listeners_.find(news.ticket);
    if (found == listeners_.end()) continue;
    if (auto* piece = std::get_if<Piece>(&news.what)) {
      // This is a copy, because the call may cancel the request, which removes the listener.
      const auto hear = found->second.on_token;
      hear(std::move(*piece));
      continue;
    }
    if (auto* prompt = std::get_if<std::vector<ScoredToken>>(&news.what)) {
      if (const auto hear = found->second.on_prompt) hear(std::move(*prompt));
      continue;
    }
    const Listener listener = std::move(found->second);
    listeners_.erase(found);
    if (auto* generation = std::get_if<Generation>(&news.what))
      listener.on_finish(std::move(*generation));
    else
      listener.on_error(std::get<RequestError>(news.what));
  }
}

// The state of the engine cannot be trusted any more, so every listener is told, and no request is served.
void EngineThread::fail(const std::string& why) {
  spdlog::error("the engine failed: {}", foreign(why));
  post_([this] {
    failed_ = true;
    const auto listeners = std::exchange(listeners_, {});
    for (const auto& [ticket, listener] : listeners)
      listener.on_error(RequestError(500, "the engine failed while it computed; the server's log says why"));
  });
}

}  // namespace fidelio::serve
