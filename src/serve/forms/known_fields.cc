#include "serve/forms/known_fields.h"

namespace fidelio::serve {
namespace {

constexpr uint8_t kC = kOfCompletions, kH = kOfChat, kR = kOfResponses, kM = kOfMessages, kTalk = kH | kR | kM,
                  kEach = kC | kTalk, kLc = kOfOllamaChat, kLg = kOfOllamaGenerate, kL = kLc | kLg,
                  kLo = kOfOllamaOptions;
constexpr std::string_view kNone = "it is not done here", kForm = "grammars are not read: give a schema or a regex",
                           kBudget = "a thought is as long as the model makes it",
                           kElsewhere = "this route has no such field";

constexpr KnownField kKnownFields[] = {
    // These fields are supported, each on the routes that its line names.
    {"temperature", kEach | kLo, "", ""},
    {"top_p", kEach | kLo, "", ""},
    {"top_k", kEach | kLo, "", ""},
    {"min_p", kEach | kLo, "", ""},
    {"seed", kEach | kLo, "", ""},
    {"repetition_penalty", kEach, "", ""},
    {"presence_penalty", kEach | kLo, "", ""},
    {"frequency_penalty", kEach | kLo, "", ""},
    {"logit_bias", kEach, "", ""},
    {"stop_token_ids", kEach, "", ""},
    {"ignore_eos", kEach, "", ""},
    {"skip_special_tokens", kEach, "", ""},
    {"min_tokens", kEach, "", ""},
    {"regex", kEach, "", ""},
    {"structured_outputs", kEach, "", ""},
    {"guided_json", kEach, "", ""},
    {"guided_regex", kEach, "", ""},
    {"guided_choice", kEach, "", ""},
    {"json_schema", kEach, "", ""},
    {"stop", kC | kH | kR | kLo, "", "give stop_sequences"},
    {"stop_sequences", kM, "", "give stop"},
    {"max_tokens", kC | kH | kM, "", "give max_output_tokens"},
    {"max_completion_tokens", kC | kH, "", "give max_tokens, or max_output_tokens to /v1/responses"},
    {"max_output_tokens", kR, "", "give max_tokens"},
    {"n", kC | kH, "1", "one answer is given"},
    {"best_of", kC | kH, "1", "one answer is given"},
    {"echo", kC, "", kElsewhere},
    {"logprobs", kC | kH | kL, "", "give top_logprobs to /v1/responses"},
    {"top_logprobs", kH | kR | kL, "0", "give logprobs to /v1/completions"},
    {"add_special_tokens", kC, "", "the chat template writes them"},
    {"response_format", kC | kH | kM, "{\"type\":\"text\"}", "give text.format"},
    {"text", kR, "", "give response_format"},
    {"output_config", kM, "", "give response_format"},
    {"output_format", kM, "", "give response_format"},
    {"prompt", kC | kR | kLg, "", "give messages"},
    {"messages", kH | kM | kLc, "", "give prompt, or input to /v1/responses"},
    {"input", kR, "", "give messages or prompt"},
    {"system", kM | kLg, "", "give a message of the role system"},
    {"instructions", kR, "", "give a message of the role system"},
    {"tools", kTalk | kLc, "", "give them to /v1/chat/completions"},
    {"tool_choice", kTalk, "\"none\"", "give it to /v1/chat/completions"},
    {"parallel_tool_calls", kH | kR, "true", "give tool_choice.disable_parallel_tool_use"},
    {"chat_template_kwargs", kTalk, "", "a text is continued as it is"},
    {"sanitize_control_tokens", kTalk | kL, "", "a text is continued as it is"},
    {"add_generation_prompt", kH, "true", "the prompt asks for an answer, or a last message is continued"},
    {"continue_final_message", kH, "", "under /v1/messages an assistant's last message is continued"},
    {"reasoning_effort", kH, "", "give reasoning.effort, or thinking"},
    {"reasoning", kR, "", "give reasoning_effort, or thinking"},
    {"thinking", kH | kM, "", "give reasoning.effort"},
    {"enable_thinking", kH, "true", "give reasoning.effort, or thinking"},
    {"include", kR, "", "give logprobs"},
    {"format", kL, "", "give response_format"},
    {"options", kL, "", "give its fields by themselves"},
    {"think", kL, "", "give reasoning_effort"},
    {"num_predict", kLo, "-1", "give max_tokens"},
    {"previous_response_id", kR, "", "nothing is stored here"},
    {"conversation", kR, "", "nothing is stored here"},
    // These fields belong to other routes, services and programs.
    {"suffix", 0, "", kNone},
    {"functions", 0, "", "give them as tools"},
    {"function_call", 0, "\"none\"", "give tools and tool_choice"},
    {"web_search_options", 0, "", kNone},
    {"audio", 0, "", kNone},
    {"modalities", 0, "[\"text\"]", "text alone is written"},
    {"guided_grammar", 0, "", kForm},
    {"guided_whitespace_pattern", 0, "", kNone},
    {"grammar", 0, "", kForm},
    {"ebnf", 0, "", kForm},
    {"structural_tag", 0, "", kForm},
    {"repeat_penalty", 0, "1", "give repetition_penalty"},
    {"repeat_last_n", 0, "-1", kNone},
    {"penalty_last_n", 0, "-1", kNone},
    {"n_predict", 0, "-1", "give max_tokens"},
    {"max_new_tokens", 0, "", "give max_tokens"},
    {"min_new_tokens", 0, "0", "give min_tokens"},
    {"max_length", 0, "", "give max_tokens"},
    {"n_probs", 0, "0", "give logprobs"},
    {"top_n_tokens", 0, "0", "give logprobs"},
    {"n_keep", 0, "0", kNone},
    {"n_indent", 0, "0", kNone},
    {"t_max_predict_ms", 0, "0", kNone},
    {"samplers", 0, "", kNone},
    {"sampler_order", 0, "", kNone},
    {"random_seed", 0, "", "give seed"},
    {"do_sample", 0, "true", "give temperature 0"},
    {"num_beams", 0, "1", kNone},
    {"num_return_sequences", 0, "1", "give n"},
    {"return_full_text", 0, "", "give echo to /v1/completions"},
    {"prompt_logprobs", 0, "", "give echo and logprobs to /v1/completions"},
    {"return_tokens_as_token_ids", 0, "", kNone},
    {"return_token_ids", 0, "", kNone},
    {"return_hidden_states", 0, "", kNone},
    {"chat_template", 0, "", "the checkpoint's is used"},
    {"prompt_mode", 0, "", "give reasoning_effort or chat_template_kwargs"},
    {"safe_prompt", 0, "", "give a message of the role system"},
    {"include_reasoning", 0, "true", "what was thought is told apart from what is said"},
    {"separate_reasoning", 0, "true", "what was thought is told apart from what is said"},
    {"reasoning_format", 0, "\"auto\"", "what was thought is told apart from what is said"},
    {"thinking_budget", 0, "", kBudget},
    {"thinking_budget_tokens", 0, "-1", kBudget},
    {"thinking_token_budget", 0, "", kBudget},
    {"reasoning_budget", 0, "-1", kBudget},
    {"truncate_prompt_tokens", 0, "-1", kNone},
    {"allowed_token_ids", 0, "", kNone},
    {"bad_words", 0, "", "give logit_bias"},
    {"bad_words_ids", 0, "", "give logit_bias"},
    {"force_words_ids", 0, "", "give logit_bias"},
    {"banned_tokens", 0, "", "give logit_bias"},
    {"custom_token_bans", 0, "", "give logit_bias"},
    {"logits_processors", 0, "", kNone},
    {"custom_logit_processor", 0, "", kNone},
    {"custom_params", 0, "", kNone},
    {"vllm_xargs", 0, "", kNone},
    {"include_stop_str_in_output", 0, "", kNone},
    {"no_stop_trim", 0, "", kNone},
    {"stop_regex", 0, "", "give stop"},
    {"spaces_between_special_tokens", 0, "true", kNone},
    {"documents", 0, "", "give chat_template_kwargs.documents"},
    {"lora", 0, "", kNone},
    {"lora_path", 0, "", kNone},
    {"use_beam_search", 0, "0", kNone},
    {"early_stopping", 0, "", kNone},
    {"length_penalty", 0, "1", kNone},
    {"guidance_scale", 0, "1", kNone},
    {"negative_prompt", 0, "", kNone},
    {"penalty_alpha", 0, "0", kNone},
    {"typical_p", 0, "1", kNone},
    {"tfs_z", 0, "1", kNone},
    {"top_a", 0, "0", kNone},
    {"eta_cutoff", 0, "0", kNone},
    {"epsilon_cutoff", 0, "0", kNone},
    {"top_n_sigma", 0, "-1", kNone},
    {"mirostat", 0, "0", kNone},
    {"mirostat_mode", 0, "0", kNone},
    {"dry_multiplier", 0, "0", kNone},
    {"xtc_probability", 0, "0", kNone},
    {"dynatemp_range", 0, "0", kNone},
    {"smoothing_factor", 0, "0", kNone},
    {"watermark", 0, "", kNone},
    {"mcp_servers", 0, "", "the server calls nothing itself"},
    {"container", 0, "", "the server runs nothing itself"},
    {"context_management", 0, "", "a conversation is taken as it is given"},
};

bool says_nothing(const Json& value, const KnownField& field) {
  const Json neutral = *field.neutral == '\0' ? Json() : Json::parse(field.neutral);
  if (value.is_structured() && value.empty()) return true;
  if (value.is_number() && neutral.is_number()) return value.get<double>() == neutral.get<double>();
  return value == neutral || value == "" || (value == Json(false) && neutral != Json(true));
}

// Ollama's bodies have their own names for features of other routes.
std::string_view advice_for(const KnownField& field, uint8_t route) {
  if ((route & (kL | kLo)) == 0 || field.routes == 0) return field.advice;
  if (route == kLo) return (field.routes & kL) != 0 ? "it stands beside options" : "no option of this name is done";
  return (field.routes & kLo) != 0 ? "give it in options" : "Ollama's form has no such field";
}

}  // namespace

uint8_t bit_of(Route route) {
  switch (route) {
    case Route::completions:
      return kOfCompletions;
    case Route::chat:
      return kOfChat;
    case Route::responses:
      return kOfResponses;
    case Route::messages:
      return kOfMessages;
    case Route::ollama_chat:
      return kOfOllamaChat;
    default:
      return kOfOllamaGenerate;
  }
}

std::span<const KnownField> known_fields() { return kKnownFields; }

void refuse_what_is_not_done(const Fields& fields, uint8_t route) {
  for (const KnownField& field : known_fields()) {
    if ((field.routes & route) != 0) continue;
    const Json* said = fields.find(field.name);
    if (said == nullptr || says_nothing(*said, field)) continue;
    fields.refuse(field.name, fmt::format("none: {}", advice_for(field, route)));
  }
}

}  // namespace fidelio::serve
