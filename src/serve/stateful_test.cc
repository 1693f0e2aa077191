// This test asks a server whose model keeps a state for each sequence and drafts with its own predictor: conversations
// that begin alike, with tools, with thoughts and without. Every answer must be the one that a server without drafts,
// with room for everything, gives to the same request alone.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "core/file.h"
#include "io/hybrid_fixture.h"
#include "serve/test_server.h"

namespace fidelio::serve {
namespace {

constexpr int kCrowdClients = 16;
constexpr auto kCrowdTime = std::chrono::seconds(3);

const Checkpoint& hybrid_model() {
  static const Checkpoint checkpoint = [] {
    const std::string folder = ::testing::TempDir() + "stateful_" + std::to_string(::getpid());
    write_hybrid(folder, true, {{"max_position_embeddings", 1024}});
    Checkpoint opened = Checkpoint::open(folder);
    std::filesystem::remove_all(folder);  // The files are mapped.
    return opened;
  }();
  return checkpoint;
}

// The server with drafts also has little room: sequences are preempted, and so are snapshots of prefixes.
Loaded load_stateful(bool drafts) {
  auto model = std::make_shared<ServedModel>(ServedModel{
      "hybrid", tokenizer(), ChatTemplate(read_text_file(FIDELIO_SOURCE_DIR "/tools/hybrid_template.jinja")), {2}, {}});
  RunnerOptions options;
  options.threads = 1;
  options.predictor = drafts;
  options.cache_tokens = drafts ? 1536 : 8192;
  Loaded loaded;
  loaded.runner = make_cpu_runner(hybrid_model(), options);
  model->tokens = std::make_shared<grammar::TokenTree>(bytes_of_tokens(model->tokenizer));
  model->formats = std::make_shared<AnswerFormats>(model->tokens);
  model->vocabulary = loaded.runner->config().v;
  model->context = loaded.runner->config().max_positions;
  model->fingerprint = "fp_test";
  EngineOptions how;
  how.reading = Activations::a16;
  how.tokenizer = &model->tokenizer;
  if (drafts) {
    std::shared_ptr<Runner> predictor = loaded.runner->make_predictor(hybrid_model());
    how.speculation.draft = predictor.get();
    how.speculation.reading = how.reading;
    how.speculation.lookup = true;
    how.speculation.adapt = false;
    how.speculation.most = 2;
    how.state_slots = 40;
    loaded.draft = predictor;
  }
  loaded.engine = std::make_unique<Engine>(*loaded.runner, std::move(how));
  loaded.model = std::move(model);
  return loaded;
}

const Json kNoteTools =
    Json::parse(R"([{"type": "function", "function": {"name": "save_note", "description": "Keeps a note",
    "parameters": {"type": "object", "properties": {"text": {"type": "string", "maxLength": 12},
    "weight": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["text", "weight"]}}}])");

// Two thirds share one of two long beginnings, longer than the chunks that states are kept at.
std::vector<Json> conversations_asked() {
  const std::string beginnings[] = {"You answer briefly. The package contains a program and its documentation. ",
                                    "You keep notes. Every note has a text and a weight, and nothing else. "};
  std::vector<Json> all;
  for (int i = 0; i < 24; ++i) {
    Json messages = Json::array();
    std::string system;
    for (int k = 0; i % 3 > 0 && k < 6; ++k) system += beginnings[i % 2];
    if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
    messages.push_back({{"role", "user"}, {"content", "Number " + std::to_string(i / 3 * i)}});
    if (i % 4 == 3) {
      messages.push_back({{"role", "assistant"}, {"content", "It is so."}});
      messages.push_back({{"role", "user"}, {"content", "And then?"}});
    }
    Json body = {{"messages", messages},
                 {"max_tokens", i % 3 == 2 ? 90 : 8 + i},
                 {"seed", i},
                 {"temperature", i % 2 == 0 ? 0.0 : 0.8},
                 {"stream", i % 4 >= 2},
                 {"chat_template_kwargs", {{"enable_thinking", i % 5 < 3}}}};
    if (i % 3 == 2) body.update({{"tools", kNoteTools}, {"tool_choice", i % 2 == 0 ? "required" : "auto"}});
    all.push_back(std::move(body));
  }
  return all;
}

// Returns what an answer says, without what depends on other requests: names of answers and calls, and times.
Json told_by(const Json& body, const Reply& reply) {
  const bool streamed = body["stream"];
  Json said = {{"content", ""}, {"thought", ""}, {"calls", Json::object()}, {"end", nullptr}};
  const auto add = [&](Json& to, const Json& part, const char* key) {
    if (part.contains(key) && part[key].is_string()) to = to.get<std::string>() + part[key].get<std::string>();
  };
  for (const Json& event : streamed ? reply.events() : std::vector<Json>{reply.json()})
    for (const Json& choice : event["choices"]) {
      const Json& part = choice[streamed ? "delta" : "message"];
      add(said["content"], part, "content");
      add(said["thought"], part, "reasoning_content");
      if (part.contains("tool_calls"))
        for (const Json& call : part["tool_calls"]) {
          Json& whole = said["calls"][std::to_string(call.value("index", 0))];
          if (whole.is_null()) whole = {{"name", ""}, {"arguments", ""}};
          add(whole["name"], call["function"], "name");
          add(whole["arguments"], call["function"], "arguments");
        }
      if (choice.contains("finish_reason") && choice["finish_reason"].is_string())
        said["end"] = choice["finish_reason"];
    }
  return said;
}

TEST(Stateful, EveryAnswerInACrowdIsTheOneAlone) {
  const std::vector<Json> bodies = conversations_asked();
  std::vector<Json> expected;
  {
    Serving alone({}, [] { return load_stateful(false); });
    for (const Json& body : bodies) {
      const Reply reply = alone.chat(body);
      ASSERT_EQ(reply.status, 200) << reply.body;
      expected.push_back(told_by(body, reply));
    }
  }
  EXPECT_TRUE(std::ranges::any_of(expected, [](const Json& e) { return !e["calls"].empty(); }));
  Serving crowd({}, [] { return load_stateful(true); });
  std::atomic<int> answers = 0;
  std::vector<std::thread> clients;
  const auto end = std::chrono::steady_clock::now() + kCrowdTime;
  for (int number = 0; number < kCrowdClients; ++number)
    clients.emplace_back([&, number] {
      Rng rng(static_cast<uint64_t>(number));
      while (std::chrono::steady_clock::now() < end) {
        const size_t i = rng.below(bodies.size());
        const Reply reply = crowd.chat(bodies[i]);
        EXPECT_EQ(reply.status, 200) << reply.body;
        EXPECT_EQ(told_by(bodies[i], reply), expected[i]) << bodies[i];
        ++answers;
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_GE(answers, kCrowdClients);
  ASSERT_TRUE(crowd.idle());
  const EngineStatus status = crowd.server().status();
  EXPECT_EQ(status.free_pages, status.pages);
  EXPECT_GT(status.counters.drafted, 0);
  EXPECT_GT(status.counters.reused_tokens, 0);
  EXPECT_GT(status.counters.preemptions, 0);
}

}  // namespace
}  // namespace fidelio::serve
