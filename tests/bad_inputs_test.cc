// These tests check what the program says to bad inputs, and that it leaves nothing behind. Exit code 2 is for the
// command line itself, and 1 for everything else. docs/bad-inputs.md is the table of these messages, which
// tools/make_bad_inputs.py writes from the output of this test. Each test also checks its row in that page, so the page
// cannot become stale.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "models.h"

namespace fidelio {
namespace {

struct BadInput {
  std::string name;     // It is the name of the test.
  std::string title;    // It says for the table what is wrong.
  std::string prepare;  // This shell command runs first, in a process of its own; "" is nothing.
  std::string command;  // The table shows it.
  int code;
  std::vector<std::string> names;  // The message must name these.
  std::string limit = {};          // This shell command runs first, in the same process.
};

std::ostream& operator<<(std::ostream& out, const BadInput& bad) { return out << bad.command; }

// In the test's folder `model` is quill-1m, `large` is quill-26m, `text.txt` is a text of some 2000 tokens, and
// ids.json holds a few ids. edit KEY VALUE changes the copy `bad` of the model's config.json.
constexpr const char* kSetting = R"(
  models=$1
  for name in 1m:model 26m:large; do
    mkdir ${name#*:}
    for file in "$models"/quill-${name%:*}/*; do
      case $file in *.safetensors) ln -s "$file" ${name#*:}/ ;; *) cp "$file" ${name#*:}/ ;; esac
    done
  done
  head -c 6000 "$models"/data/docs-heldout.txt > text.txt
  echo '[1, 600, 1070]' > ids.json
)";
constexpr const char* kShell = R"(
  copy() { cp -rP ${1:-model} bad; }
  edit() { copy; sed -i "s|\"$1\": [^,]*|\"$1\": $2|" bad/config.json; }
)";

// The table has one input a line.
// clang-format off
const std::vector<BadInput> kBadInputs = {
    // These rows are about the command line itself.
    {"NoVerb", "no verb", "", "fidelio", 2, {"verb"}},
    {"UnknownVerb", "an unknown verb", "", "fidelio squeeze model", 2, {"squeeze"}},
    {"MissingOption", "a required option left out", "", "fidelio quantize model -o out", 2, {"--format"}},
    {"MissingModel", "no model", "", "fidelio inspect", 2, {"MODEL"}},
    {"UnknownOption", "an unknown option", "", "fidelio eval model --text text.txt --contxt 512", 2, {"--contxt"}},
    {"NotANumber", "a word for a number", "", "fidelio eval model --text text.txt --context many", 2, {"--context", "many"}},
    {"ThreadsOutOfRange", "a negative number of threads", "", "fidelio eval model --text text.txt --threads -1", 2, {"--threads", "-1"}},
    {"ContextOfOne", "a window of one token", "", "fidelio eval model --text text.txt --context 1", 2, {"--context", "1"}},
    {"BadBatch", "a list of numbers with a word in it", "", "fidelio bench model model --batch 1,two", 2, {"--batch", "two"}},
    {"EarAboveOne", "a share above 1", "", "fidelio compress model --ear 1.5 -o out", 2, {"--ear", "1.5", "0 to 1"}},
    {"EarNotANumber", "a share that is no number", "", "fidelio compress model --ear nan -o out", 2, {"--ear", "nan"}},
    {"NoBits", "a size of nothing", "", "fidelio compress model --bits 0 -o out", 2, {"--bits", "above 0"}},
    {"TextAndFile", "options that exclude each other", "", "fidelio tokenize model --text x --file text.txt", 2, {"--text", "--file"}},
    {"OptionOfTasks", "an option that needs another", "", "fidelio eval model --text text.txt --limit 3", 2, {"--limit", "--tasks"}},
    {"DraftsOfNothing", "how many tokens are drafted, and nothing that drafts", "", "fidelio generate model --prompt Hi --drafts 4", 2, {"--drafts", "--draft"}},
    {"FixedDraftsOfNothing", "the same of a fixed number", "", "fidelio serve model --fixed-drafts", 2, {"--fixed-drafts", "--draft"}},
    {"BatchBeyondReason", "more sequences side by side than numbers of bytes fit 64 bits", "", "fidelio bench model model --batch 9223372036854775807", 2, {"--batch", "1048576"}},
    {"AnswersBeyondReason", "the same of answers", "", "fidelio bench speculate model --prompts text.txt --batch 9223372036854775807", 2, {"--batch", "1048576"}},
    {"CacheBeyondReason", "a cache of more tokens than that", "", "fidelio serve model --cache-tokens 9223372036854775807", 2, {"--cache-tokens", "1099511627776"}},
    {"EmptySocket", "a socket without a name", "", "fidelio serve model --socket ''", 2, {"--socket", "found nothing"}},
    {"TextAndTasks", "perplexity and accuracy at once", "", "fidelio eval model --text text.txt --tasks tasks.jsonl", 2, {"--text", "--tasks"}},
    // These rows are about values of options.
    {"NeitherTextNorFile", "nothing to tokenise", "", "fidelio tokenize model", 1, {"--text", "--file"}},
    {"NeitherTextNorTasks", "nothing to evaluate on", "", "fidelio eval model", 1, {"--text", "--tasks"}},
    {"SeedsOfGreedy", "several seeds of greedy answers", "echo '{\"id\": \"a\", \"task\": \"sums\", \"question\": \"1 + 1?\", \"answer\": \"2\"}' > tasks.jsonl", "fidelio eval model --tasks tasks.jsonl --plain --seeds 3", 1, {"--seeds 3", "--temperature"}},
    {"NameTooLong", "an output whose name no file system takes", "", "fidelio quantize model --method rtn --format int8g64zs8 -o $(printf %0300d 0)", 1, {"cannot use 0000", "File name too long"}},
    {"UnknownFormat", "an unknown format", "", "fidelio quantize model --method rtn --format int9g128 -o out", 1, {"int9g128"}},
    {"UnknownGroup", "a group size there is not", "", "fidelio quantize model --method rtn --format int4g100z -o out", 1, {"int4g100z"}},
    {"BadEmbeddingFormat", "an unknown format of the embedding", "", "fidelio quantize model --method rtn --format int4g32 --embedding q4 -o out", 1, {"q4"}},
    {"UnknownMethod", "an unknown method", "", "fidelio quantize model --method awq --format int4g128z -o out", 1, {"--method", "awq"}},
    {"UnknownStep", "an unknown step of the quantiser", "", "fidelio quantize model --format int4g32 --calibration text.txt --steps refit,magic -o out", 1, {"magic", "act-order"}},
    {"TwoSteps", "steps that exclude each other", "", "fidelio quantize model --format int4g32 --calibration text.txt --steps feedback,source-inputs -o out", 1, {"source-inputs", "feedback"}},
    {"MoreSamplesThanTokens", "more samples than calibration tokens", "", "fidelio quantize model --format int4g32 --calibration text.txt --calibration-tokens 512 --calibration-samples 1024 -o out", 1, {"1024", "512"}},
    {"FormatTwice", "a format offered twice", "", "fidelio compress model --ear 0.9 --formats int4g64,int4g64 -o out", 1, {"--formats", "int4g64", "twice"}},
    {"FewCalibrationTokens", "fewer calibration tokens than a sequence has", "", "fidelio quantize model --format int4g32 --calibration text.txt --calibration-tokens 1 -o out", 1, {"1 tokens", "512"}},
    {"FewSearchTokens", "fewer search tokens than a sequence has", "", "fidelio compress model --ear 0.9 --search-tokens 1 -o out", 1, {"1 tokens", "512"}},
    {"EmbeddingTwice", "an embedding both kept and quantised", "", "fidelio quantize model --format int4g32 --keep-embedding --embedding int8g64 -o out", 1, {"--keep-embedding", "--embedding int8g64"}},
    {"FormatOfLlama", "a format of another program", "", "fidelio quantize model --method rtn --format Q4_K_M -o out", 1, {"Q4_K_M", "int4g32zs8"}},
    {"FormatThatIsOnlyRead", "a format that is only read", "", "fidelio quantize model --method rtn --format int4g32zk -o out", 1, {"int4g32zk", "int4g32zs8"}},
    {"FormatInCapitals", "a format in capitals", "", "fidelio quantize model --method rtn --format Int4G128 -o out", 1, {"small letters, int4g128"}},
    {"ExportToAReader", "an export named by who reads it", "", "fidelio export model --to vLLM -o out", 1, {"--to compressed-tensors --profile vllm"}},
    {"ExportMisspelt", "a misspelt export", "", "fidelio export model --to ggfu -o out", 1, {"did you mean gguf"}},
    {"NameOnTheHub", "a name on the hub for a folder", "", "fidelio inspect Qwen/Qwen3-0.6B", 2, {"hf download Qwen/Qwen3-0.6B"}},
    {"UnknownActivations", "an unknown kind of activations", "", "fidelio eval model --text text.txt --activations f64", 1, {"--activations", "f64"}},
    {"UnknownCache", "an unknown cache format", "", "fidelio eval model --text text.txt --kv i3", 1, {"--kv", "i3"}},
    {"UnknownIsa", "an unknown instruction set", "", "fidelio eval model --text text.txt --isa neon", 1, {"neon"}},
    {"UnknownDevice", "an unknown device", "", "fidelio eval model --text text.txt --device tpu", 1, {"--device", "tpu", "cuda"}},
    {"IsaOfGpu", "CPU kernels chosen for a GPU", "", "fidelio eval model --text text.txt --device cuda --isa avx2", 1, {"--isa", "--device cuda"}},
    {"UnknownShape", "an unknown shape", "", "fidelio synth llama-9-1b -o out", 1, {"llama-9-1b", "tinyllama-1.1b"}},
    {"NegativeTemperature", "a negative temperature", "", "fidelio generate model --prompt Hi --max-tokens 4 --temperature -1", 1, {"temperature", "-1"}},
    // These rows are about model folders.
    {"NoFolder", "no such model", "", "fidelio inspect nowhere", 1, {"there is no nowhere"}},
    {"EmptyFolder", "an empty folder", "mkdir bad", "fidelio inspect bad", 1, {"bad is no model's folder"}},
    {"FileForFolder", "a file instead of a folder", "", "fidelio inspect text.txt", 1, {"text.txt is a file"}},
    {"TensorsForFolder", "the file of weights instead of its folder", "", "fidelio inspect model/model.safetensors", 1, {"such as model,"}},
    {"ConfigNotJson", "config.json is not JSON", "copy; rm bad/config.json; echo '{\"hidden_size\": 12' > bad/config.json", "fidelio inspect bad", 1, {"bad/config.json"}},
    {"Architecture", "an architecture that is not supported", "copy; sed -i 's/LlamaForCausalLM/GPT2LMHeadModel/' bad/config.json", "fidelio inspect bad", 1, {"GPT2LMHeadModel", "nearest that works", "SmolLM2", "CONTRIBUTING.md"}},
    {"ArchitectureUnknown", "an architecture that nobody here has heard of", "copy; sed -i 's/LlamaForCausalLM/NovelForCausalLM/' bad/config.json", "fidelio inspect bad", 1, {"NovelForCausalLM", "supported are LlamaForCausalLM", "CONTRIBUTING.md"}},
    {"AnotherHead", "a model that classifies and writes nothing", "copy; sed -i 's/LlamaForCausalLM/LlamaForSequenceClassification/' bad/config.json", "fidelio inspect bad", 1, {"LlamaForSequenceClassification", "Supported is LlamaForCausalLM"}},
    {"NegativeSize", "a size below zero in config.json", "edit hidden_size -128", "fidelio inspect bad", 1, {"hidden_size", "-128"}},
    {"SizesDisagree", "config.json and weights disagree", "edit intermediate_size 320", "fidelio inspect bad", 1, {"gate_proj", "320", "352"}},
    {"HugeSize", "a size beyond reason in config.json", "edit vocab_size 2000000000", "fidelio inspect bad", 1, {"embed_tokens", "2000000000"}},
    {"OneLayerMore", "config.json promises a layer the weights lack", "edit num_hidden_layers 5", "fidelio inspect bad", 1, {"model.layers.4"}},
    {"HugeContext", "a context beyond all memory, and an answer that fills it", "edit max_position_embeddings 2000000000", "fidelio generate bad --prompt Hi --max-tokens 1900000000", 1, {"out of memory"}},
    {"QuantisedByOthers", "a checkpoint quantised by another program", "edit use_cache 'true, \"quantization_config\": {\"quant_method\": \"hqq\"}'", "fidelio inspect bad", 1, {"hqq", "quantization_config"}},
    {"QuantisedInFp8", "a config that says FP8, and weights that are not", "edit use_cache 'true, \"quantization_config\": {\"quant_method\": \"fp8\"}'", "fidelio inspect bad", 1, {"fp8", "no linear has tensors of it"}},
    {"NoWeights", "no weights", "copy; rm bad/model.safetensors", "fidelio inspect bad", 1, {"bad", "safetensors"}},
    {"PickledWeights", "weights in PyTorch's own form", "copy; mv bad/model.safetensors bad/pytorch_model.bin", "fidelio inspect bad", 1, {"pytorch_model.bin", "save_pretrained"}},
    {"TruncatedWeights", "truncated weights", "copy; rm bad/model.safetensors; head -c 1000000 model/model.safetensors > bad/model.safetensors", "fidelio inspect bad", 1, {"bad/model.safetensors"}},
    {"HeaderTooLong", "a header longer than the file", "copy; rm bad/model.safetensors; printf '\\377\\377\\377\\003\\000\\000\\000\\000{}' > bad/model.safetensors", "fidelio inspect bad", 1, {"bad/model.safetensors"}},
    {"NotSafetensors", "weights that are something else", "copy; rm bad/model.safetensors; cp text.txt bad/model.safetensors", "fidelio inspect bad", 1, {"bad/model.safetensors"}},
    {"MissingShard", "a shard is missing", "copy large; rm bad/model-00002-of-00004.safetensors", "fidelio inspect bad", 1, {"model-00002-of-00004.safetensors"}},
    {"NotFinite", "weights that are not finite", "copy; rm bad/model.safetensors; cp model/model.safetensors bad/; printf '\\300\\177%.0s' $(seq 4096) | dd of=bad/model.safetensors bs=1 seek=300000 conv=notrunc 2>/dev/null", "fidelio eval bad --text text.txt", 1, {"finite"}},
    {"NotFiniteAnswer", "the same, asked for an answer", "copy; rm bad/model.safetensors; cp model/model.safetensors bad/; printf '\\300\\177%.0s' $(seq 512) | dd of=bad/model.safetensors bs=1 seek=1200000 conv=notrunc 2>/dev/null", "fidelio generate bad --prompt Hello --max-tokens 4", 1, {"finite"}},
    {"NotFiniteQuantised", "the same, quantised", "copy; rm bad/model.safetensors; cp model/model.safetensors bad/; printf '\\300\\177%.0s' $(seq 512) | dd of=bad/model.safetensors bs=1 seek=1200000 conv=notrunc 2>/dev/null", "fidelio quantize bad --method rtn --format int4g32 -o out", 1, {"layers.", "finite"}},
    {"NotFiniteGamma", "the same, its ranges looked at", "copy; rm bad/model.safetensors; cp model/model.safetensors bad/; printf '\\300\\177%.0s' $(seq 512) | dd of=bad/model.safetensors bs=1 seek=1200000 conv=notrunc 2>/dev/null", "fidelio gamma bad", 1, {"bad", "layers.", "NaN"}},
    {"NotFiniteRow", "one NaN, in a row of the embedding that no text here needs", "copy; rm bad/model.safetensors; cp model/model.safetensors bad/; printf '\\300\\177' | dd of=bad/model.safetensors bs=1 seek=1052496 conv=notrunc 2>/dev/null", "fidelio generate bad --prompt Hello --max-tokens 1", 1, {"bad: embedding", "row 2047", "finite"}},
    {"NestedConfig", "config.json nested 300000 deep", "copy; { printf '{\"a\": '; head -c 300000 /dev/zero | tr '\\0' '['; } > bad/config.json", "fidelio inspect bad", 1, {"bad/config.json", "nested"}},
    {"EscapesInConfig", "a name in config.json that would rename the terminal's window", "copy; printf '{\"architectures\": [\"\\\\u001b]0;owned\\\\u0007\\\\u202e\"], \"model_type\": \"x\"}' > bad/config.json", "fidelio inspect bad", 1, {"\\x1b]0;owned\\x07\\u202e"}},
    {"PipeForConfig", "a pipe under the name of config.json", "copy; rm bad/config.json; mkfifo bad/config.json", "fidelio inspect bad", 1, {"bad/config.json", "not a regular file"}},
    {"LinkOut", "a link out of the model's folder, whose copy would be published", "copy; echo private > secret; ln -s ../secret bad/merges.txt", "fidelio quantize bad --method rtn --format int4g32 -o out", 1, {"bad/merges.txt", "outside"}},
    {"GreedyPattern", "a tokenizer's pattern that looks at all of the text from each place of it", "copy; sed -i 's/\"pre_tokenizer\": null/\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?=a*b)c|a\"}, \"behavior\": \"Isolated\", \"invert\": false}/' bad/tokenizer.json; head -c 400000 /dev/zero | tr '\\0' a > text.txt", "fidelio eval bad --text text.txt", 1, {"tokenizer"}},
    {"NoTokenizer", "no tokenizer", "copy; rm bad/tokenizer.json", "fidelio tokenize bad --text Hello", 1, {"bad/tokenizer.json"}},
    {"DamagedTokenizer", "a truncated tokenizer", "copy; rm bad/tokenizer.json; head -c 5000 model/tokenizer.json > bad/tokenizer.json", "fidelio tokenize bad --text Hello", 1, {"bad", "tokenizer.json"}},
    {"UnknownTokenizer", "a tokenizer model that is not supported", "copy; sed -i 's/\"BPE\"/\"WordPiece\"/' bad/tokenizer.json", "fidelio tokenize bad --text Hello", 1, {"bad", "tokenizer.json", "WordPiece"}},
    {"DamagedMetadata", "damaged metadata of a compressed checkpoint", "fidelio quantize model --method rtn --format int4g32 -o bad >/dev/null 2>&1; sed -i 's/\\(layers.0.q[^:]*:[^i]*\\)int4g32/\\1int4g33/' bad/model.safetensors", "fidelio inspect bad", 1, {"int4g33"}},
    // These rows are about texts and ids.
    {"NoText", "a text that is not there", "", "fidelio eval model --text nothing.txt", 1, {"nothing.txt"}},
    {"TextIsFolder", "a folder as text", "", "fidelio eval model --text model", 1, {"model"}},
    {"EmptyText", "an empty text", ": > empty.txt", "fidelio eval model --text empty.txt", 1, {"empty.txt"}},
    {"TextTooShort", "a text of one token", "printf a > one.txt", "fidelio eval model --text one.txt", 1, {"one.txt"}},
    {"ContextTooLong", "windows longer than the model's context", "", "fidelio eval model --text text.txt --context 1024", 1, {"--context 1024", "512"}},
    {"CalibrationContextTooLong", "calibration sequences longer than the model's context", "", "fidelio quantize model --format int4g32 --calibration text.txt --calibration-context 1024 -o out", 1, {"--calibration-context 1024", "512"}},
    {"CompressContextTooLong", "windows of a search longer than the model's context", "", "fidelio compress model --ear 0.9 --context 1024 -o out", 1, {"--context 1024", "512"}},
    {"NoiseContextTooLong", "the same under noise", "", "fidelio noise model --text text.txt --context 1024", 1, {"--context 1024", "512"}},
    {"OtherVocabulary", "a reference of another vocabulary", "", "fidelio eval model --reference large --text text.txt", 1, {"large", "8192", "2048"}},
    {"NoCalibrationFile", "calibration data that is not there", "", "fidelio quantize model --format int4g128z --calibration nothing.txt -o out", 1, {"nothing.txt"}},
    {"EmptyCalibration", "empty calibration data", ": > empty.txt", "fidelio quantize model --format int4g128z --calibration empty.txt -o out", 1, {"empty.txt"}},
    {"ZerosInText", "a text in UTF-16", "iconv -t UTF-16LE text.txt > wide.txt", "fidelio compress model --ear 0.9 --text wide.txt -o out", 1, {"wide.txt", "UTF-8"}},
    {"BadCalibrationLine", "a damaged line of calibration data", "printf '{\"text\": \"one two three\"}\\n{\"text\": 4\\n' > lines.jsonl", "fidelio quantize model --format int4g128z --calibration lines.jsonl -o out", 1, {"lines.jsonl", "2"}},
    {"NoMessages", "messages for a model without chat template", "echo '{\"messages\": []}' > lines.jsonl", "fidelio quantize model --format int4g128z --calibration lines.jsonl -o out", 1, {"lines.jsonl line 1", "chat template"}},
    {"IdsNotJson", "ids that are not JSON", "echo '[1, 2' > bad.json", "fidelio logits model --ids bad.json -o out.npy", 1, {"bad.json"}},
    {"IdsNotNumbers", "ids that are not numbers", "echo '[1, \"two\"]' > bad.json", "fidelio logits model --ids bad.json -o out.npy", 1, {"bad.json"}},
    {"NoIds", "no ids", "echo '[]' > bad.json", "fidelio logits model --ids bad.json -o out.npy", 1, {"bad.json"}},
    {"IdTooLarge", "an id outside the vocabulary", "echo '[1, 2048]' > bad.json", "fidelio logits model --ids bad.json -o out.npy", 1, {"2048"}},
    {"IdTooLargeFor32Bits", "an id beyond 32 bits", "echo '[1, 4294967297]' > bad.json", "fidelio logits model --ids bad.json -o out.npy", 1, {"4294967297"}},
    {"NegativeId", "a negative id", "echo '[1, -1]' > bad.json", "fidelio logits model --ids bad.json -o out.npy", 1, {"-1"}},
    {"TooManyIds", "more ids than the context", "echo \"[$(seq -s, 513)]\" > bad.json", "fidelio logits model --ids bad.json -o out.npy", 1, {"bad.json", "513", "512"}},
    {"PromptTooLong", "a prompt longer than the context", "", "fidelio generate model --prompt \"$(cat text.txt)\" --max-tokens 4", 1, {"512"}},
    {"PromptOfFileTooLong", "a prompt of a file longer than the context", "tr '\\n' ' ' < text.txt > prompts.txt", "fidelio bench speculate model --prompts prompts.txt", 1, {"prompts.txt: prompt 1", "512"}},
    {"NoChatTemplate", "a chat with a model that has no template", "", "fidelio generate model --chat --prompt Hi --max-tokens 4", 1, {"chat template"}},
    {"BenchTooDeep", "the same behind other tokens", "", "fidelio bench model model --pp 8 --tg 8 --mixed 16 --depth 500", 1, {"--mixed 16", "--depth 500", "512"}},
    {"BenchTooLong", "a benchmark longer than the context", "", "fidelio bench model model --pp 4096 --tg 0", 1, {"--pp 4096", "512"}},
    {"NoTasks", "questions that are not there", "", "fidelio eval model --tasks nothing.jsonl", 1, {"nothing.jsonl"}},
    {"UnknownTask", "a task that is not in the file", "echo '{\"id\": \"a\", \"task\": \"sums\", \"question\": \"1 + 1?\", \"answer\": \"2\"}' > tasks.jsonl", "fidelio eval model --tasks tasks.jsonl --task recall", 1, {"--task recall", "tasks.jsonl", "sums"}},
    {"TasksWithoutTemplate", "questions to a model without chat template", "echo '{\"id\": \"a\", \"task\": \"sums\", \"question\": \"1 + 1?\", \"answer\": \"2\"}' > tasks.jsonl", "fidelio eval model --tasks tasks.jsonl", 1, {"chat template", "--plain"}},
    {"QuestionTooLong", "a question longer than the context", "printf '{\"id\": \"a7\", \"task\": \"sums\", \"question\": \"%s\", \"answer\": \"2\"}\\n' \"$(seq -s' ' 400)\" > tasks.jsonl", "fidelio eval model --tasks tasks.jsonl --plain", 1, {"tasks.jsonl", "a7", "512"}},
    {"BadPrompt", "a line without a prompt", "echo '{\"text\": 1}' > prompts.jsonl", "fidelio compare model model --prompts prompts.jsonl --plain", 1, {"prompts.jsonl:1", "prompt"}},
    {"EmptyKey", "a key that is empty, of a variable that is not set", "", "fidelio serve model --api-key \"$UNSET\"", 1, {"--api-key", "leave it out"}},
    {"EmptyKeyInFile", "the same of a file", ": > key", "fidelio serve model --api-key-file key", 1, {"--api-key-file key", "leave it out"}},
    {"EmptyKeyInEnvironment", "the same in the environment", "", "export FIDELIO_API_KEY=; fidelio serve model", 1, {"FIDELIO_API_KEY", "leave it out"}},
    {"KeyOfTwoWords", "a key that no header holds", "", "fidelio serve model --api-key 'two words'", 1, {"--api-key", "blanks"}},
    {"SocketMode", "a mode that is none", "", "fidelio serve model --socket here --socket-mode rw", 1, {"--socket-mode rw", "660"}},
    {"CompareOtherVocabulary", "a comparison with a model of another vocabulary", "", "fidelio compare model large --prompts text.txt --plain", 1, {"large", "8192", "2048"}},
    // These rows are about outputs.
    {"OutputExists", "an output folder that exists", "mkdir out", "fidelio quantize model --method rtn --format int4g32 -o out", 1, {"out", "exists"}},
    {"OutputIsLink", "an output name that is a link to nothing, which no folder can take the place of", "ln -s nowhere out", "fidelio compress model --ear 0.9 -o out", 1, {"out", "exists"}},
    {"OutputToStandardOutput", "a model written to standard output", "", "fidelio quantize model --method rtn --format int4g32 -o -", 1, {"-o -", "name"}},
    {"NoOutputName", "an output folder without a name", "", "fidelio compress model --ear 0.9 -o ''", 1, {"-o"}},
    {"PageFolderMissing", "a page about a plan in a folder that is not there", "", "fidelio compress model --ear 0.9 -o out --report nowhere/page.html", 1, {"nowhere/page.html"}},
    {"ReportIsFolder", "a folder as report", "", "fidelio eval model --text text.txt --json model", 1, {"model", "folder"}},
    {"SynthExists", "the same for synth", "mkdir out", "fidelio synth tinyllama-1.1b -o out", 1, {"out", "exists"}},
    {"OutputBelowFile", "an output folder that cannot be made", "", "fidelio quantize model --method rtn --format int4g32 -o text.txt/out", 1, {"text.txt/out"}},
    {"OutputFolderMissing", "an output file in a folder that is not there", "", "fidelio logits model --ids ids.json -o nowhere/out.npy", 1, {"nowhere/out.npy"}},
    {"ReportFolderMissing", "a report in a folder that is not there", "", "fidelio inspect model --json nowhere/report.json", 1, {"nowhere/report.json"}},
    {"StandardOutputFull", "standard output on a full disk", "", "fidelio inspect model --json - > /dev/full", 1, {"standard output"}},
    {"ParentMissing", "an output folder in one that is not there", "", "fidelio quantize model --method rtn --format int4g32 -o new/out", 1, {"new/out"}},
    {"FileTooLarge", "a file larger than allowed (`ulimit -f 600`)", "", "fidelio quantize model --method rtn --format int8g32 -o out", 1, {"out", "File too large"}, "ulimit -f 600;"},
    {"DiskFull", "a full disk (a tmpfs of 600 kB)", "mkdir full", "fidelio quantize model --method rtn --format int8g32 -o full/out", 1, {"full/out", "are free there"}, "mount -t tmpfs -o size=600k none full &&"},
};
// clang-format on

// Returns a text as one line of a table, without progress and with the process's id in temporary names replaced.
std::string table_text(const std::string& text) {
  std::istringstream lines(text);
  std::string row, line;
  while (std::getline(lines, line)) {
    if (line.starts_with("-- ")) continue;
    if (!row.empty()) row += "<br>";
    for (const char c : line) row += c == '|' ? "\\|" : std::string(1, c);
  }
  const std::string ending = ".fidelio.tmp";
  for (size_t at = 0; (at = row.find(ending, at)) != std::string::npos; at += ending.size()) {
    const size_t id = row.find_last_not_of("0123456789", at - 1) + 1;
    row.replace(id, at - id, "PID");
    at = row.find(ending, id);
  }
  return row;
}

struct BadInputs : testing::TestWithParam<BadInput> {};
INSTANTIATE_TEST_SUITE_P(All, BadInputs, testing::ValuesIn(kBadInputs),
                         [](const auto& info) { return info.param.name; });

TEST_P(BadInputs, AreNamedAndLeaveNothing) {
  const BadInput& bad = GetParam();
  const TestFolder folder;
  ASSERT_EQ(run_command(folder.path(), "set -- '" + source_path("models") + "'" + kSetting).code, 0);
  const CommandResult prepared = run_command(folder.path(), kShell + bad.prepare);
  ASSERT_EQ(prepared.err, "");
  const std::vector<std::string> before = entries(folder.path());

  // A mount ends with the command that made it, so leftovers there are searched before that.
  std::string command = bad.limit + " " + bad.command;
  if (bad.limit.starts_with("mount")) {
    if (run_command(folder.path(), "unshare -rm true").code != 0)
      GTEST_SKIP() << "mounting needs user namespaces, not to be had here";
    command = fmt::format(
        "export PROGRAM='{}'; unshare -rm sh -c 'fidelio() {{ \"$PROGRAM\" \"$@\"; }}; {}; code=$?; find full "
        "-mindepth 1 >&2; exit $code'",
        FIDELIO_PROGRAM, command);
  }
  const CommandResult result = run_command(folder.path(), command);
  EXPECT_EQ(result.code, bad.code) << result.err;
  for (const std::string& name : bad.names) EXPECT_THAT(result.err, testing::HasSubstr(name));
  EXPECT_THAT(result.err, testing::Not(testing::HasSubstr("Sanitizer")));
  EXPECT_THAT(result.err, testing::Not(testing::HasSubstr("\nfull/")))
      << "the program left something behind on the full disk";
  EXPECT_EQ(entries(folder.path()), before) << "the program left something behind";

  const std::string row =
      fmt::format("| {} | `{}` | {} | {} |", bad.title, table_text(bad.command), result.code, table_text(result.err));
  RecordProperty("row", row);
  EXPECT_NE(read_text_file(source_path("docs/bad-inputs.md")).find(row + "\n"), std::string::npos)
      << "docs/bad-inputs.md lacks this row: " << row
      << "\ntools/make_bad_inputs.py writes this page; run it if the new message is meant";
}

}  // namespace
}  // namespace fidelio
