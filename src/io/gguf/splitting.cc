#include "io/gguf/splitting.h"

#include <array>

namespace fidelio::gguf {
namespace {

constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Marks belong to words here, as in Qwen3.5 and its successors.
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// An exporter uses the first name of a splitting.
constexpr std::array<Splitting, 18> kSplittings = {{{"qwen2", kQwen2, false, false, true, false},
                                                    {"deepseek-r1-qwen", kQwen2, false, false, true, false},
                                                    {"stablelm2", kQwen2, false, false, true, false},
                                                    {"qwen35", kQwen35, false, false, true, false},
                                                    {"llama-bpe", kLlama3, false, true, false, true},
                                                    {"llama3", kLlama3, false, true, false, true},
                                                    {"llama-v3", kLlama3, false, true, false, true},
                                                    {"dbrx", kLlama3, false, false, false, false},
                                                    {"smaug-bpe", kLlama3, false, false, false, false},
                                                    {"tekken", kTekken, false, true, false, true},
                                                    {"gpt-4o", kGpt4o, false, false, false, false},
                                                    // The files that transformers makes of tiktoken's have this option.
                                                    {"gpt-4o", kGpt4o, false, true, false, false},
                                                    {"gpt-2", "", false, false, false, false},
                                                    {"olmo", "", false, false, false, false},
                                                    {"phi-2", "", false, false, false, false},
                                                    {"smollm", "", true, false, false, false},
                                                    {"refact", "", true, false, false, false},
                                                    {"starcoder", "", true, false, false, false}}};

}  // namespace

std::span<const Splitting> splittings() { return kSplittings; }

}  // namespace fidelio::gguf
