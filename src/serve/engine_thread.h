// This file runs an Engine in a thread of its own, which the event loop talks to.
//
//   event loop ── submit, cancel ──▶ orders ──▶ engine thread: add, cancel, step
//       ▲                                              │
//       └── listeners hear ◀── post(drain) ◀── news ◀──┘   one post for all that a step brought
//
// Listeners stay with the event loop, and the engine thread knows only their numbers. A client that leaves thus removes
// its listener at once, and later messages about that number are ignored.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "serve/forms/answer_format.h"
#include "serve/http/request_error.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio::serve {

// This holds everything that is needed to read requests. It is immutable once loaded, and several threads read it.
struct ServedModel {
  std::string name;
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat{};
  std::vector<int32_t> stop_ids{};
  GenerationDefaults defaults{};
  int64_t context = 0, vocabulary = 0;
  std::shared_ptr<const grammar::TokenTree> tokens{};
  std::shared_ptr<AnswerFormats> formats{};
  // If true, control tokens in messages are plain text, whatever a request says (text/control_tokens.h).
  bool sanitize_control_tokens = false;
  // The fingerprint identifies weights and version: if it, the seed and the request are equal, the answers have the
  // same bytes.
  std::string fingerprint{};
  std::string family{}, digest{};  // The family is "llama", for example, and the digest is the hash of the weights.
  int64_t parameters = 0, bytes = 0;
};

struct Loaded {
  std::shared_ptr<const ServedModel> model;
  std::unique_ptr<Runner> runner;
  std::shared_ptr<void> draft{};  // It lives as long as the engine.
  std::unique_ptr<Engine> engine;
};

// This is a token as a listener receives it.
struct Piece {
  int32_t id = 0;
  float logprob = 0;
  std::string text{};
  std::vector<TokenScore> best{};
  bool drafted = false;
  bool scored = true;    // It is false for the first token of a prompt.
  bool thought = false;  // If true, the token is not a part of the answer's text.
  int64_t offset = 0;    // It is the place of the token's text in the completion's text, in characters.
};
struct Listener {
  // This is called where the prompt's logprobs are requested.
  std::function<void(std::vector<ScoredToken>&&)> on_prompt{};
  std::function<void(Piece&&)> on_token{};
  std::function<void(Generation&&)> on_finish{};
  std::function<void(const RequestError&)> on_error{};
};

struct EngineStatus {
  int64_t running = 0, waiting = 0, free_pages = 0, pages = 0;
  // Slots for the states of sequences, of models that keep some (step/state.h): all, those that no sequence holds, and
  // those of these that hold a snapshot of a prefix.
  int64_t state_slots = 0, free_states = 0, snapshots = 0;
  EngineCounters counters{};
};

class EngineThread {
 public:
  using Post = std::function<void(std::function<void()>)>;
  // Loads the model in its own thread. Then `loaded` is called on the event loop, with the model or with the reason why
  // there is none. At most `most` requests are running or waiting.
  EngineThread(Post post, std::function<Loaded()> load, int64_t most,
               std::function<void(std::shared_ptr<const ServedModel>, const std::string& error)> loaded);
  ~EngineThread();  // It ends the requests in progress.
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // The functions below are called on the event loop. They throw RequestError (503) if there are too many requests or
  // the engine has failed. Listeners are called later, never by these three functions.
  int64_t submit(GenerationRequest request, Listener listener);
  void cancel(int64_t ticket);
  void end(int64_t ticket);  // It acts as cancel, but the listener hears of the end.
  int64_t under_way() const { return static_cast<int64_t>(listeners_.size()); }
  bool failed() const { return failed_; }
  EngineStatus status() const;

 private:
  struct Order {
    int64_t ticket;
    std::optional<GenerationRequest> request;  // If it is empty, the request is ended.
  };
  using What = std::variant<Piece, Generation, RequestError, std::vector<ScoredToken>>;
  struct News {
    int64_t ticket;
    What what;
  };
  void run(const std::function<Loaded()>& load,
           const std::function<void(std::shared_ptr<const ServedModel>, const std::string&)>& loaded);
  void serve(Loaded& loaded);
  void obey(Engine& engine, Order& order);
  void tell(int64_t ticket, What what);
  void hand_over();
  void drain();
  void fail(const std::string& why);

  Post post_;
  int64_t most_;
  // The event loop owns these.
  std::map<int64_t, Listener> listeners_;
  int64_t next_ticket_ = 0;
  bool failed_ = false;
  // Both threads use these, under the mutex.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Order> orders_;
  std::vector<News> news_;
  EngineStatus status_;
  bool ending_ = false, posted_ = false;
  // The engine thread owns these.
  std::map<int64_t, int64_t> numbers_;  // It maps tickets to numbers of the engine.
  std::vector<News> fresh_;
  std::thread thread_;  // It comes last, as it uses the others.
};

}  // namespace fidelio::serve
