#include "app/options/served.h"

#include "app/options/answer.h"
#include "text/tokenizer/token_bytes.h"

namespace fidelio::app {
namespace {

constexpr int64_t kCacheTokens = 16384;  // unless the command line says otherwise, and no more than all could use

}  // namespace

serve::Loaded load_served(const ServedOptions& o) {
  TextModel opened = open_model(o.run.model);
  const ModelConfig& config = opened.checkpoint.config();
  auto model = std::make_shared<serve::ServedModel>(
      serve::ServedModel{o.name.empty() ? folder_name(o.run.model) : o.name, opened.tokenizer, opened.chat,
                         opened.stop_ids, GenerationDefaults::load(opened.checkpoint.texts())});
  RunnerOptions options = runner_options(o.run);
  options.cache_tokens =
      o.cache_tokens > 0 ? o.cache_tokens : std::min<int64_t>(kCacheTokens, config.max_positions * o.max_sequences);
  serve::Loaded loaded;
  std::vector<std::string> tokens = bytes_of_tokens(model->tokenizer);
  tokens.resize(static_cast<size_t>(std::max<int64_t>(config.v, std::ssize(tokens))));
  model->tokens = std::make_shared<grammar::TokenTree>(std::move(tokens));
  model->formats = std::make_shared<serve::AnswerFormats>(model->tokens);
  loaded.runner = make_runner(o.run, opened.checkpoint, options);
  const auto draft = std::make_shared<Draft>(open_draft(o.draft, *loaded.runner, o.run));
  loaded.draft = draft;
  model->vocabulary = config.v;
  model->context = std::min<int64_t>(config.max_positions, options.cache_tokens);
  model->fingerprint = fmt::format("fp_{}_{}", opened.checkpoint.weights_sha256().substr(0, 16), FIDELIO_VERSION);
  EngineOptions how;
  how.reading = options.mode;
  how.max_sequences = o.max_sequences;
  how.tokenizer = &model->tokenizer;
  how.speculation = draft->how;
  loaded.engine = std::make_unique<Engine>(*loaded.runner, std::move(how));
  loaded.model = std::move(model);
  return loaded;
}

}  // namespace fidelio::app
