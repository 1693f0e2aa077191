// This file is the verb `tokenize`, which prints the token ids of a text.
#include "app/options/common.h"
#include "core/file.h"

namespace fidelio::app {

void add_tokenize(CLI::App& app) {
  struct Options {
    std::string model, text, file, json;
    bool no_special = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("tokenize", "Print the token ids of a text as a JSON list");
  verb->footer("Example:\n  fidelio tokenize models/quill-26m --text \"Hello world\"");
  verb->add_option("MODEL", o->model, "Model folder or .gguf file")->required()->check(model_folder());
  auto* text = verb->add_option("--text", o->text, "The text");
  verb->add_option("--file", o->file, "A file holding the text")->excludes(text);
  verb->add_flag("--no-special", o->no_special, "Without the tokens the tokenizer adds by itself (such as <s>)");
  add_json(*verb, o->json);
  verb->callback([o, text] {
    check_can_write({o->json});
    check(text->count() > 0 || !o->file.empty(), "tokenize: give --text S or --file F");
    const Tokenizer tokenizer = Tokenizer::load(open_text_files(o->model));
    const std::string source = o->file.empty() ? o->text : read_text_file(o->file);
    const std::vector<int32_t> ids = tokenizer.encode(source, !o->no_special);
    write_json(o->json, {{"ids", ids}});
    if (!quiet(o->json)) fmt::print("{}\n", nlohmann::json(ids).dump());
  });
}

}  // namespace fidelio::app
