#include "app/options/common.h"
#include "app/quantize/quantize.h"

namespace fidelio::app {
namespace {

// Adds the options that transform a model so that few bits can hold its activations.
void add_activation_flags(CLI::App& verb, const std::shared_ptr<Quantize>& o) {
  verb.add_flag("--rotate", o->rotate,
                "Turn activations by Hadamard matrices and weights against them, as QuaRot does: the same function "
                "without outliers, for activations of 4 bits (--activations a4, --draft a4)");
  verb.add_flag("--atom", o->atom,
                "Keep the group of columns with most energy of every input in 8 bits, and put the others in order of "
                "theirs, as Atom does: for the same (int4g128, int4g64 or int4g32)")
      ->excludes("--rotate");
}

// These options have an effect only with calibration, so giving one asks for it.
class Calibrating {
 public:
  CLI::Option* operator()(CLI::Option* option) {
    options.push_back(option);
    return option;
  }
  std::vector<CLI::Option*> options;
};

void add_calibration_text(CLI::App& verb, Quantize& o, Calibrating& calibrating) {
  calibrating(
      verb.add_option("--calibration", o.calibration,
                      "Calibration text; .jsonl holds a text or conversation a line; may be repeated (default: the "
                      "documentation text that comes with fidelio)"));
  calibrating(verb.add_option("--calibration-tokens", o.tokens,
                              "Tokens of calibration text that are used (default: 131072; fewer above 30 million "
                              "parameters, on a GPU above 750 million, 32768 at least)"))
      ->check(above_zero());
  calibrating(verb.add_option("--calibration-samples", o.samples,
                              "How many of the calibration tokens the model writes itself, at temperature 1, each "
                              "sequence begun with a few tokens of the text"))
      ->check(zero_or_more());
  verb.add_option("--seed", o.seed, "Of those samples, and of --rotate");
  calibrating(
      verb.add_option("--steps", o.steps,
                      "Refinements of GPTQ: some of act-order, range-search, descent, refit, feedback, source-inputs, "
                      "curvature, or none (default: the first five; docs/formats.md says what each does)"))
      ->delimiter(',');
}

void add_code_options(CLI::App& verb, Quantize& o, Calibrating& calibrating) {
  CLI::Option* paper = calibrating(verb.add_option(
      "--paper", o.paper,
      "Vector codes as SCVQ has them, without feedback and descent: which vectors have corrections (outliers, salient, "
      "residuals) and whether k-means weights them by salience (weights)"));
  paper->delimiter(',');
  verb.add_option("--alpha", o.alpha, "Of --paper: the power of salience in the choice of residuals")
      ->check(from_to(0, 4))
      ->needs(paper);
  calibrating(verb.add_option("--gradient-tokens", o.gradient_tokens,
                              "Of --paper and --steps curvature: tokens whose gradients are used"))
      ->check(above_zero());
  calibrating(verb.add_option("--calibration-context", o.context,
                              "Length of a calibration sequence (default: 512, or the model's context if that is "
                              "shorter)"))
      ->check(CLI::Range(16, 1 << 20));
  CLI::Option* view = calibrating(verb.add_option(
      "--view-bits", o.view_bits, "Choose codes so that this many of their high bits are a good weight too: a draft"));
  verb.add_option("--view-weight", o.view_weight, "How much the loss of that view counts beside the whole weight's")
      ->check(from_to(0, 1000))
      ->needs(view);
  view->needs(verb.get_option("--view-weight"));
  verb.add_flag("--fresh", o.fresh, "Begin anew even if OUTPUT.journal holds the work of a run that was interrupted");
}

}  // namespace

void add_quantize(CLI::App& app) {
  auto o = std::make_shared<Quantize>();
  CLI::App* verb = app.add_subcommand("quantize", "Put every weight matrix of a model into one format");
  verb->footer(
      "Examples:\n  fidelio quantize models/quill-26m --format int4g64zs8 -o quill-int4\n"
      "  fidelio quantize models/quill-26m --format int4g64zs8 --method gptq -o quill-int4\n"
      "  fidelio quantize models/quill-26m --format int4g128 --keep-embedding --calibration my.txt -o quill-int4\n"
      "  fidelio quantize models/quill-1m --format int8g64 --method rtn --embedding int8g64 -o quill-int8\n"
      "  fidelio quantize models/quill-26m --format int4g128 --embedding bf16 --rotate -o quill-quarot\n"
      "  fidelio quantize models/quill-26m --format int4g128 --embedding bf16 --atom -o quill-atom");
  add_model(*verb, o->run);
  verb->add_option("--format", o->format, "Format of the weight matrices, as int4g128z, int5g64zs8 or lut4g64")
      ->required();
  verb->add_option("--embedding", o->embedding,
                   fmt::format("Format of the embedding and the head (default: {})", kEmbeddingFormat));
  verb->add_flag("--keep-embedding", o->keep_embedding, "Leave embedding and head as they are, as some engines need");
  verb->add_option("--predictor", o->predictor,
                   fmt::format("Format of the model's own block that predicts a token more, which drafts are made by "
                               "(default: {}; bf16 leaves it as it is)",
                               kPredictorFormat));
  add_activation_flags(*verb, o);
  verb->add_option("--method", o->method,
                   "rtn: round to nearest, in seconds; gptq: calibrate on text, which stays closer to the original and "
                   "says first how long it takes (default: rtn, or gptq where an option about calibration is given)");
  Calibrating calibrating;
  add_calibration_text(*verb, *o, calibrating);
  add_code_options(*verb, *o, calibrating);
  calibrating(verb->get_option("--atom"));
  add_device(*verb, o->run);
  verb->add_option("-o,--output", o->out, "Folder to write; it appears complete or not at all")->required();
  add_json(*verb, o->json);
  verb->callback([o, of_gptq = calibrating.options] {
    o->calibrated =
        std::any_of(of_gptq.begin(), of_gptq.end(), [](CLI::Option* option) { return option->count() > 0; });
    quantize(*o);
  });
}

}  // namespace fidelio::app
