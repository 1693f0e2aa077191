// These tests check model cards: what they take from the source's card, what they say, and that a stranger's words stay
// plain text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compress/card/card.h"
#include "compress/card/card_head.h"

namespace fidelio {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(Card, AHeadIsReadAsFarAsItIsPlain) {
  const auto head = read_card_head(
      "---\r\nlicense: apache-2.0  # permissive\nlanguage:\n- en\n  - \"zh\"\n# a comment\ntags: [chat, 'a, b', null]\n"
      "license_name: \"My: licence\"\nmodel-index:\n- name: x\n  results: 5\nwidget: {text: hi}\nempty:\n---\nlicense: "
      "mit\n");
  EXPECT_THAT(head.at("license"), ElementsAre("apache-2.0"));
  EXPECT_THAT(head.at("language"), ElementsAre("en", "zh"));
  EXPECT_THAT(head.at("license_name"), ElementsAre("My: licence"));
  EXPECT_EQ(head.at("tags").front(), "chat");
  EXPECT_THAT(head.at("model-index"), IsEmpty());
  EXPECT_THAT(head.at("widget"), IsEmpty());
  EXPECT_THAT(read_card_head("# No head\nlicense: mit\n"), IsEmpty());
  EXPECT_THAT(read_card_head("---\nlicense: mit\n"), IsEmpty()) << "it has no end";
  EXPECT_THAT(read_card_head(""), IsEmpty());
}

TEST(Card, ForeignTextIsNotObeyed) {
  EXPECT_EQ(yaml_text("a\"b\n- c: \x1b[2J"), R"("a\"b\\n- c: \\x1b[2J")");
  EXPECT_EQ(markdown_text("<b>[x](y)|`*_"), R"(\<b\>\[x\](y)\|\`\*\_)");
}

Certificate certificate() {
  const auto domain = [](const char* name, double ear, int64_t tokens) {
    DomainFidelity d;
    d.domain = name;
    d.documents = 40;
    d.windows = 50;
    d.tokens = tokens;
    d.ear = {ear, {ear - 0.001, ear + 0.001}};
    d.kl = {0.0123456, {0.011, 0.014}};
    d.top1 = {0.976, {0.974, 0.978}};
    d.document_ear = {ear, {0.9, 1}};
    d.document_kl = {0.01, {0.001, 0.1}};
    return d;
  };
  Certificate c;
  c.target.ear = 0.98;
  c.promised = {"docs", 0.95, {0.9812, {0.9802, 0.9822}}, {0.0123456, {0.011, 0.014}}, {0.976, {0.974, 0.978}}};
  c.met = true;
  c.all = domain("all", 0.9836, 50000);
  c.domains = {domain("docs", 0.9812, 25000), domain("code", 0.986, 25000)};
  c.context = 512;
  return c;
}

CardFacts facts() {
  CardFacts f;
  f.name = "tiny-98";
  f.source = "someone/tiny";
  f.source_file_bytes = 2'000'000;
  f.certificate = certificate();
  f.source_card = "---\nlicense: mit\nlanguage: [en, de]\npipeline_tag: text-generation\n---\n# Tiny\n";
  f.bytes = 750'000;
  f.parameters = 1'000'000;
  f.formats = {{"int4g32", 900}, {"int8g32", 100}};
  f.command = "fidelio compress tiny --ear 0.98 -o tiny-98";
  f.version = "fidelio 1";
  return f;
}

TEST(Card, SaysWhatTheModelIs) {
  const std::string card = model_card(facts());
  const auto head = read_card_head(card);
  EXPECT_THAT(head.at("base_model"), ElementsAre("someone/tiny"));
  EXPECT_THAT(head.at("base_model_relation"), ElementsAre("quantized"));
  EXPECT_THAT(head.at("license"), ElementsAre("mit"));
  EXPECT_THAT(head.at("language"), ElementsAre("en", "de"));
  EXPECT_THAT(head.at("library_name"), ElementsAre("fidelio"));
  EXPECT_THAT(head.at("pipeline_tag"), ElementsAre("text-generation"));
  EXPECT_THAT(
      card,
      AllOf(HasSubstr("6.000 bits a parameter"), HasSubstr("the original has 2.0 MB"),
            HasSubstr("| docs | 25000 | 0.98120 [0.98020, 0.98220] | 0.012346 [0.011000, 0.014000] | 97.60 "
                      "[97.40, 97.80] |"),
            HasSubstr("| all of it | 50000 | 0.98360"), HasSubstr("**Promised**: "), HasSubstr("| int4g32 | 90.0 |"),
            HasSubstr("fidelio compress tiny --ear 0.98 -o tiny-98"), HasSubstr("fidelio export tiny-98 --to gguf")));
}

// A card names no export that would be refused.
TEST(Card, AModelThatNoOtherProgramHoldsIsToBeMadeAnew) {
  CardFacts f = facts();
  f.made_anew = {"fidelio compress tiny --ear 0.98 --for vllm -o NEW",
                 "fidelio compress tiny --ear 0.98 --for llama.cpp -o NEW"};
  EXPECT_THAT(model_card(f), AllOf(HasSubstr("none holds all of its formats"), HasSubstr(f.made_anew[0] + "\n"),
                                   HasSubstr(f.made_anew[1] + "\n"), Not(HasSubstr("fidelio export tiny-98"))));
}

// Unknown facts are not claimed: there is no licence and no figure, and the name of a folder is marked as not being the
// Hub's.
TEST(Card, ClaimsNothingThatIsNotKnown) {
  CardFacts f = facts();
  f.source = "tiny.gguf";
  f.source_file_bytes.reset();
  f.certificate.reset();
  f.source_card = "";
  const std::string card = model_card(f);
  const auto head = read_card_head(card);
  EXPECT_THAT(head.at("base_model"), ElementsAre("tiny"));
  EXPECT_FALSE(head.contains("license"));
  EXPECT_THAT(card, AllOf(HasSubstr("# The original's name on the Hub"), HasSubstr("This has not been measured"),
                          Not(HasSubstr("EAR)"))));
  f.source = "";
  EXPECT_FALSE(read_card_head(model_card(f)).contains("base_model"));
}

// The checkpoint's own card says what an export was made from, whereas the way to run it is the export's own.
TEST(Card, AnExportIsRunByOthers) {
  CardFacts f = facts();
  f.source_card = model_card(facts());
  f.name = "tiny-ct";
  f.target = "compressed-tensors";
  f.source = "other";
  const auto head = read_card_head(model_card(f));
  EXPECT_THAT(head.at("base_model"), ElementsAre("someone/tiny"));
  EXPECT_THAT(head.at("license"), ElementsAre("mit"));
  EXPECT_THAT(head.at("library_name"), ElementsAre("transformers"));
  EXPECT_THAT(model_card(f), AllOf(HasSubstr("vllm serve tiny-ct"), HasSubstr("AutoModelForCausalLM"),
                                   Not(HasSubstr("fidelio serve"))));
  f.asymmetric = true;
  EXPECT_THAT(model_card(f), AllOf(HasSubstr("transformers does not yet"), Not(HasSubstr("AutoModelForCausalLM"))));
}

TEST(Card, AStrangersNameIsText) {
  CardFacts f = facts();
  f.name = "x`\n# <script>";
  f.source = "a/b\"\nlicense: stolen";
  const std::string card = model_card(f);
  EXPECT_THAT(card,
              AllOf(Not(HasSubstr("\nlicense: stolen")), Not(HasSubstr("<script>\n\n")), Not(HasSubstr("\n# <"))));
}

}  // namespace
}  // namespace fidelio
