#include "app/options/served.h"

#include <spdlog/spdlog.h>

#include "app/options/answer.h"
#include "arch/model_weights.h"
#include "compress/certificate/certificate.h"
#include "text/tokenizer/token_bytes.h"

namespace fidelio::app {
namespace {

// This is the size of the cache unless the command line says otherwise, and never more than all sequences could use. On
// a CPU it is kCacheTokens. On a GPU it is kCacheTokensEach a sequence, with which a full server seldom has to preempt,
// within half of the memory that the weights leave.
constexpr int64_t kCacheTokens = 16384, kCacheTokensEach = 2048;

int64_t default_cache_tokens(const ServedOptions& o, const Checkpoint& checkpoint, const RunnerOptions& options) {
  const ModelConfig& c = checkpoint.config();
  const int64_t all = int64_t{c.max_positions} * o.max_sequences, least = std::min(kCacheTokens, all);
  if (!on_gpu(o.run)) return least;
  const int64_t bytes_each = int64_t{2} * cached_values(c) * (options.kv == KvFormat::f32 ? 4 : 2);
  const int64_t room = (cuda_memory(options.gpu).free - checkpoint.file_bytes()) / 2 / bytes_each;
  return std::clamp(kCacheTokensEach * o.max_sequences, least, std::max(least, std::min(room, all)));
}

// Returns the slots for states of a server on a GPU whose model keeps them: as many as all sequences can use, within
// half of the memory that is left when everything else is loaded.
int64_t default_state_slots(const ServedOptions& o, const Runner& runner, const SpeculationOptions& drafts) {
  const int64_t bytes_each = runner.program().state.floats() * int64_t{sizeof(float)};
  if (bytes_each == 0 || !runner.gpu()) return 0;
  return std::clamp<int64_t>(cuda_memory(*runner.gpu()).free / 2 / bytes_each, 2,
                             drafts.states_of_sequence() * o.max_sequences);
}

}  // namespace

void add_served(CLI::App& verb, ServedOptions& o) {
  verb.add_flag("--sanitize-control-tokens", o.sanitize_control_tokens,
                "Control tokens that stand in messages are text: who writes <|im_end|> does not end his turn");
  verb.add_option("--max-sequences", o.max_sequences, "Answers computed side by side")->check(CLI::Range(1, 128));
  verb.add_option("--cache-tokens", o.cache_tokens,
                  "Tokens the cache holds in all; 0 = 16384, on a GPU with room 2048 for each of --max-sequences, or "
                  "as many as "
                  "needed")
      ->check(from_to(0, kMostCacheTokens));
  verb.add_option("--state-slots", o.state_slots,
                  "Slots for the states of models with delta nets, at least one for each answer side by side; 0 = with "
                  "room for shared prefixes and drafts, within 2 GiB, on a GPU within half of the free memory")
      ->check(from_to(0, kMostCacheTokens));
  add_draft(verb, o.draft);
  add_run_options(verb, o.run);
}

serve::Loaded load_served(const ServedOptions& o) {
  TextModel opened = open_model(o.run.model);
  const ModelConfig& config = opened.checkpoint.config();
  auto model = std::make_shared<serve::ServedModel>(
      serve::ServedModel{o.name.empty() ? folder_name(o.run.model) : o.name, opened.tokenizer, opened.chat,
                         opened.stop_ids, GenerationDefaults::load(opened.checkpoint.texts())});
  RunnerOptions options = runner_options(o.run);
  prepare_for_drafts(options, {&o.draft.draft, 1}, o.run, config.v);
  options.cache_tokens = o.cache_tokens > 0 ? o.cache_tokens : default_cache_tokens(o, opened.checkpoint, options);
  serve::Loaded loaded;
  std::vector<std::string> tokens = bytes_of_tokens(model->tokenizer);
  tokens.resize(static_cast<size_t>(std::max<int64_t>(config.v, std::ssize(tokens))));
  model->tokens = std::make_shared<grammar::TokenTree>(std::move(tokens));
  model->formats = std::make_shared<serve::AnswerFormats>(model->tokens);
  loaded.runner = make_runner(o.run, opened.checkpoint, options);
  const auto draft = std::make_shared<Draft>(open_draft(o.draft, *loaded.runner, o.run));
  loaded.draft = draft;
  model->sanitize_control_tokens = o.sanitize_control_tokens;
  model->vocabulary = config.v;
  model->context = std::min<int64_t>(config.max_positions, options.cache_tokens);
  model->digest = opened.checkpoint.weights_sha256();
  model->fingerprint = fmt::format("fp_{}_{}", model->digest.substr(0, 16), FIDELIO_VERSION);
  model->family = family_of(config.architecture).model_type;
  model->parameters = opened.checkpoint.parameters();
  model->bytes = opened.checkpoint.file_bytes();
  say_if_not_as_certified(opened.checkpoint, options, model->context);
  EngineOptions how;
  how.reading = options.mode;
  how.max_sequences = o.max_sequences;
  how.tokenizer = &model->tokenizer;
  how.speculation = draft->how;
  how.state_slots = o.state_slots > 0 ? o.state_slots : default_state_slots(o, *loaded.runner, draft->how);
  loaded.engine = std::make_unique<Engine>(*loaded.runner, std::move(how));
  loaded.model = std::move(model);
  return loaded;
}

std::string otherwise_than_certified(const RunAs& certified, const RunAs& run) {
  const bool other_kernels = run.other_kernels_than(certified), longer = run.context > certified.context;
  if (!other_kernels && !longer) return "";
  std::string differs = other_kernels ? fmt::format("{}, {}", run.activations, run.kv) : "";
  if (longer) differs += fmt::format("{}up to {} tokens", other_kernels ? " and " : "", run.context);
  return fmt::format("certified for {}, {} and {} tokens; this is {}", certified.activations, certified.kv,
                     certified.context, differs);
}

void say_if_not_as_certified(const Checkpoint& checkpoint, const RunnerOptions& options, int64_t context) {
  const nlohmann::json provenance = nlohmann::json::parse(checkpoint.provenance());
  if (!provenance.is_object() || !provenance.contains("certificate")) return;
  RunAs certified;
  try {
    const Certificate c = read_certificate(checkpoint);
    certified = {c.activations, c.kv, c.context};
  } catch (const Error&) {  // `inspect` and `certify` report what is wrong with a certificate.
    return;
  }
  const RunAs run{std::string(name_of(options.mode)), std::string(name_of(options.kv)), context};
  const std::string words = otherwise_than_certified(certified, run);
  if (words.empty()) return;
  spdlog::log(run.other_kernels_than(certified) ? spdlog::level::warn : spdlog::level::info, "{}: {}",
              folder_name(checkpoint.folder()), words);
}

}  // namespace fidelio::app
