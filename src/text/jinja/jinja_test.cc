#include "text/jinja/jinja.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"
#include "text/chat_template.h"

namespace fidelio {
namespace {

using OrderedJson = nlohmann::ordered_json;
using ::testing::HasSubstr;

OrderedJson fixture(const std::string& name) {
  std::ifstream file(std::string(FIDELIO_SOURCE_DIR) + "/src/text/testdata/chat/" + name);
  return OrderedJson::parse(file);
}

std::tm fixed_now() {  // This is FIXED_NOW of tools/make_chat_fixtures.py.
  std::tm t{};
  t.tm_year = 124, t.tm_mon = 6, t.tm_mday = 6, t.tm_hour = 5, t.tm_min = 4, t.tm_sec = 3;
  return t;
}

// Returns the rendered text, or null with the message in `error`, in the way the fixtures note what jinja2 raised.
OrderedJson render(const std::string& source, const OrderedJson& messages, OrderedJson variables,
                   std::string* error = nullptr) {
  try {
    ChatTemplate t(source, {});
    t.set_clock(fixed_now);
    return t.render_json(messages, variables);
  } catch (const Error& e) {
    if (error) *error = e.what();
    return nullptr;
  }
}

std::string failure(const std::string& source, const jinja::Limits& limits = {}) {
  try {
    return "no error: " + jinja::Template(source).render({}, fixed_now, limits);
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(Jinja, LanguageMatchesJinja2) {
  OrderedJson data = fixture("language.json");
  ASSERT_GE(data["cases"].size(), 300u);
  for (const OrderedJson& c : data["cases"]) {
    std::string source = c[0], error;
    OrderedJson got = render(source, OrderedJson::array(), data["variables"], &error);
    EXPECT_EQ(got, c[1]) << source << "\n" << error;
  }
}

TEST(Jinja, FamiliesMatchJinja2) {
  OrderedJson data = fixture("families.json");
  ASSERT_GE(data["cases"].size(), 500u);
  for (const OrderedJson& c : data["cases"]) {
    OrderedJson variables = data["tokens"];
    variables.update(data["extras"][c[2].get<size_t>()]);
    std::string error;
    OrderedJson got =
        render(data["templates"][c[0].get<std::string>()], data["chats"][c[1].get<std::string>()], variables, &error);
    EXPECT_EQ(got, c[3]) << c[0] << " / " << c[1] << " / " << c[2] << "\n" << error;
  }
}

// A sequence made from a str lives as long as it is iterated. A fuzzer with ASan found that it did not.
TEST(Jinja, SequencesMadeOfAStrAreHeld) {
  EXPECT_EQ(render("{{ ', '.join('a longer text than fits into a small string') }}", OrderedJson::array(),
                   OrderedJson::object())
                .get<std::string>()
                .substr(0, 8),
            "a,  , l,");
  EXPECT_EQ(failure("{{ dict('ab') }}").find("no error"), std::string::npos);
}

TEST(Jinja, ErrorsNameTheLine) {
  EXPECT_THAT(failure("a\n{% if x %}\nb"), HasSubstr("line 3: the template ended before {% endif %}"));
  EXPECT_THAT(failure("a\n\n{{ x.y }}"), HasSubstr("line 3: 'x' is undefined"));
  EXPECT_THAT(failure("\n{{ 1 + }}"), HasSubstr("line 2: expected an expression, found '}}'"));
  EXPECT_THAT(failure("\n{% nope %}"), HasSubstr("line 2: the tag {% nope %}"));
  EXPECT_THAT(failure("\n\n{{ 1 | nope }}"), HasSubstr("line 3: unknown filter 'nope'"));
  EXPECT_THAT(failure("\n{{ raise_exception('no ' ~ 'way') }}"),
              HasSubstr("line 2: the template refuses these messages: no way"));
  EXPECT_THAT(failure("{{ 9223372036854775807 + 1 }}"), HasSubstr("does not fit in 64 bits"));
  EXPECT_THAT(failure("{% for x in y recursive %}{% endfor %}"), HasSubstr("recursive loops are not supported"));
}

std::string times(const std::string& s, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += s;
  return out;
}

TEST(Jinja, HostileTemplatesEndInAnError) {
  jinja::Limits small{200'000, 1 << 20};
  EXPECT_THAT(failure("{{ " + times("(", 100'000) + "1" + times(")", 100'000) + " }}"), HasSubstr("deep"));
  EXPECT_THAT(failure("{{ " + times("[", 100'000) + times("]", 100'000) + " }}"), HasSubstr("deep"));
  EXPECT_THAT(failure("{{ " + times("-", 100'000) + "1 }}"), HasSubstr("deep"));
  EXPECT_THAT(failure("{{ " + times("not ", 100'000) + "1 }}"), HasSubstr("deep"));
  EXPECT_THAT(failure("{{ 1" + times(" + 1", 100'000) + " }}"), HasSubstr("levels"));
  EXPECT_THAT(failure("{{ x" + times(".a", 100'000) + " }}"), HasSubstr("levels"));
  EXPECT_THAT(failure("{{ x" + times("|d", 100'000) + " }}"), HasSubstr("levels"));
  EXPECT_THAT(failure(times("{% if 1 %}", 100'000)), HasSubstr("deep"));
  EXPECT_THAT(failure("{% for " + times("(", 100'000) + "x" + times(")", 100'000) + " in y %}{% endfor %}"),
              HasSubstr("deep"));
  EXPECT_THAT(failure("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("recurses"));
  std::string deep = times("(", 40) + "f()" + times(")", 40) + times(" + 1", 200);
  EXPECT_THAT(failure("{% macro f() %}{{ " + deep + " }}{% endmacro %}{{ f() }}"), HasSubstr("recurses"));
  std::string loops = times("{% for x in range(99999) %}", 5) + times("{% endfor %}", 5);
  EXPECT_THAT(failure(loops, small), HasSubstr("more work"));
  std::string doubling = "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}";
  EXPECT_THAT(failure(doubling, small), HasSubstr("more work"));
  std::string listing = "{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}";
  EXPECT_THAT(failure(listing, small), HasSubstr("more work"));
  EXPECT_THAT(failure("{{ 'ab' * 999999999 }}", small), HasSubstr("more work"));
  EXPECT_THAT(failure("{% set n = namespace(s=1) %}{% for i in range(999) %}{% set n.s = [n.s] %}{% endfor %}"),
              HasSubstr("nested more than"));
  EXPECT_THAT(failure("{% set n = namespace() %}{% set n.s = [n] %}{{ n }}"), HasSubstr("nested more than"));
  EXPECT_THAT(failure("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", {jinja::Limits{}.work, 1 << 20}),
              HasSubstr("prints more"));
  EXPECT_THAT(failure("{{ '%999999999d' % 1 }}"), HasSubstr("width"));
  EXPECT_THAT(failure("{{ strftime_now('%9999d') }}"), HasSubstr("too long"));
}

// The real sources are edited at random. Any outcome other than text or Error fails (a crash, or under the asan preset
// a leak, a bad access or undefined behaviour). The limits keep each run short.
TEST(Jinja, MutatedTemplatesNeverCrash) {
  OrderedJson data = fixture("families.json");
  OrderedJson language = fixture("language.json");
  std::vector<std::string> sources;
  for (const auto& t : data["templates"]) sources.push_back(t);
  for (const auto& c : language["cases"]) sources.push_back(c[0]);
  jinja::Variables variables;
  variables.emplace_back("s", jinja::Value::text("a b\xff"));
  variables.emplace_back(
      "messages", jinja::Value::list({jinja::Value::dict({{jinja::Value::text("role"), jinja::Value::text("user")},
                                                          {jinja::Value::text("content"), jinja::Value::text("x")}})}));
  std::mt19937 random(1);
  auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  int rendered = 0, refused = 0;
  for (int i = 0; i < 6000; ++i) {
    std::string source = sources[below(sources.size())];
    for (size_t edits = 1 + below(4); edits > 0; --edits) {
      const std::string& other = sources[below(sources.size())];
      size_t at = below(source.size() + 1);
      size_t from = below(other.size());
      switch (below(3)) {
        case 0:
          source.erase(at, 1 + below(6));
          break;
        case 1:
          source.insert(at, other.substr(from, 1 + below(12)));
          break;
        default:
          source.replace(at, 1 + below(3), other.substr(from, 1 + below(3)));
      }
    }
    try {
      jinja::Template(source).render(variables, fixed_now, {20'000, 1 << 16});
      ++rendered;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(rendered, 500);  // The edits are so small that both outcomes are common.
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace fidelio
