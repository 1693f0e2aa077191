// These tests send random requests over a socket and drop a third of the clients: in the middle of the request, before
// the first byte of the answer, within the answer or after it. The server drafts, and its cache is too small for all.
// Clients that stay are answered as if they were alone, and at the end the engine has nothing to do and all of its
// pages are free.
#include <gtest/gtest.h>

#include <list>

#include "core/rng.h"
#include "serve/test_server.h"

namespace fidelio::serve {
namespace {

struct Sent {
  std::string path;
  Json body;
};

// Returns the request that a number stands for, so it can be repeated alone. Some requests cannot be answered.
Sent asked(uint64_t number) {
  Rng rng(31, number);
  const std::string words = "Number " + std::to_string(rng.below(40)) + std::string(rng.below(60), '.');
  Json body = {{"max_tokens", 1 + rng.below(number % 32 < 12 ? 90 : 20)},
               {"seed", number},
               {"temperature", 0.5 * static_cast<double>(rng.below(3))},
               {"ignore_eos", rng.below(2) == 0},
               {"stream", rng.below(2) == 0}};
  if (rng.below(4) == 0) body["stop"] = {"e", " the"};
  if (rng.below(5) == 0) body["frequency_penalty"] = rng.uniform();
  if (rng.below(5) == 0) body["top_p"] = 0.5;
  if (rng.below(25) == 0) body["temperature"] = -1;
  if (rng.below(25) == 0) body["max_tokens"] = 0;
  if (rng.below(3) == 0) {
    body["messages"] = {{{"role", "user"}, {"content", words}}};
    if (rng.below(3) == 0) body.update({{"logprobs", true}, {"top_logprobs", rng.below(4)}});
    return {"/v1/chat/completions", body};
  }
  body["prompt"] = words;
  if (rng.below(6) == 0) body["n"] = 2 + rng.below(2);
  if (rng.below(6) == 0) body["logprobs"] = rng.below(3);
  if (rng.below(8) == 0) body["regex"] = "[A-C]{3}-\\d{2}";
  return {"/v1/completions", body};
}

// Returns the parts of an answer that depend on its request alone; for a refusal only the status.
Json substance(const Json& body, const Reply& reply) {
  if (reply.status != 200) return {{"status", reply.status}};
  Json all = Json::array();
  if (body["stream"]) {
    for (uint64_t i = 0; i < body.value("n", uint64_t{1}); ++i)
      all.push_back(streamed_text(reply, static_cast<int64_t>(i)));
    return all;
  }
  const Json answer = reply.json();
  for (const Json& choice : answer["choices"])
    all.push_back(choice.contains("text") ? choice["text"] : choice["message"]["content"]);
  return all;
}

class Leaving {
 public:
  explicit Leaving(Serving& serving) : serving_(serving), rng_(77) {}

  void ask(uint64_t requests) {
    for (uint64_t next = 0; next < requests || !open_.empty();) {
      while (next < requests && open_.size() < 12) begin(next++);
      auto it = open_.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(rng_.below(open_.size())));
      end(*it);
      open_.erase(it);
    }
  }
  int64_t dropped() const { return dropped_; }
  int64_t answered() const { return answered_; }
  int64_t compared() const { return compared_; }

 private:
  struct Open {
    uint64_t number;
    std::unique_ptr<Client> client;
    bool whole = true;  // If true, the whole request was sent.
  };

  void begin(uint64_t number) {
    const Sent request = asked(number);
    const std::string bytes = post(request.path, request.body.dump());
    Open open{number, std::make_unique<Client>(serving_.port())};
    if (rng_.below(40) == 0) open.whole = false;
    open.client->send(open.whole ? bytes : bytes.substr(0, rng_.below(bytes.size())));
    // The client leaves before the request is admitted, perhaps before it is read.
    if (open.whole && rng_.below(15) == 0) return void(++dropped_);
    open_.push_back(std::move(open));
  }

  void end(Open& open) {
    const bool drops = !open.whole || rng_.below(4) == 0;
    const Sent request = asked(open.number);
    if (drops) {
      ++dropped_;
      // The client leaves at the first bytes, which may be the whole answer.
      if (open.whole && rng_.below(3) > 0) open.client->more();
      std::this_thread::sleep_for(std::chrono::microseconds(rng_.below(5000)));
      return;
    }
    const Reply reply = open.client->read();
    if (reply.status == 200) {
      ++answered_;
    } else {
      EXPECT_EQ(reply.status, 400) << reply.body;
      EXPECT_TRUE(reply.json().contains("error"));
    }
    if (open.number % 16 != 0) return;
    ++compared_;
    const Reply again = serving_.ask(post(request.path, request.body.dump()));
    EXPECT_EQ(substance(request.body, reply), substance(request.body, again)) << request.body;
  }

  Serving& serving_;
  Rng rng_;
  std::list<Open> open_;
  int64_t dropped_ = 0, answered_ = 0, compared_ = 0;
};

void ask_and_leave(uint64_t requests) {
  Serving serving({}, {.cache_tokens = 448, .speculates = true});
  Leaving crowd(serving);
  crowd.ask(requests);
  ASSERT_TRUE(serving.idle());
  // The requests of the last clients to leave are cancelled when the server finds their connections closed.
  EngineStatus status = serving.server().status();
  for (int i = 0; i < kWaitMs / 10 && status.free_pages != status.pages; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    status = serving.server().status();
  }
  EXPECT_EQ(status.free_pages, status.pages);
  fmt::print("{} dropped, {} answered, {} compared, {} tokens, {} preempted\n", crowd.dropped(), crowd.answered(),
             crowd.compared(), status.counters.tokens, status.counters.preemptions);
  EXPECT_TRUE(serving.idle());
  EXPECT_EQ(serving.ask(get("/health")).status, 200);
  EXPECT_GT(crowd.dropped(), static_cast<int64_t>(requests / 6));
  EXPECT_GT(crowd.answered(), static_cast<int64_t>(requests / 2));
  EXPECT_GT(crowd.compared(), static_cast<int64_t>(requests / 40));
  EXPECT_GT(status.counters.preemptions + status.counters.reused_tokens, 0);
  EXPECT_GT(status.counters.accepted, 0);
}

TEST(Dropped, ClientsLoseNothingOfTheOthersNorOfTheCache) { ask_and_leave(200); }

// This runs ten thousand requests, which takes some minutes with sanitizers:
//   build-tsan/serve_test --gtest_also_run_disabled_tests --gtest_filter='Dropped.*InFull'
TEST(Dropped, DISABLED_ClientsLoseNothingInFull) { ask_and_leave(10'000); }

}  // namespace
}  // namespace fidelio::serve
