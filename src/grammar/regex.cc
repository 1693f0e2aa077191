#include "grammar/regex.h"

#include <memory>
#include <string>

#include "core/error.h"
#include "grammar/meet.h"
#include "text/tokenizer/unicode.h"

namespace fidelio::grammar {
namespace {

constexpr int64_t kMostRepeats = 10'000;
constexpr int kDeepestGroups = 100;

struct Tree {
  enum class Kind : uint8_t { characters, sequence, choice, repeat } kind = Kind::sequence;
  CharSet set{};
  std::vector<Tree> parts{};
  int64_t low = 0, high = 0;  // If high < 0, there is no upper limit.
};

class Reader {
 public:
  explicit Reader(std::string_view pattern) : text_(tokenization::replace_ill_formed_utf8(pattern)) {}

  struct Ahead {
    Tree tree{};
    Meet kind = Meet::both;
    bool to_end = false;
  };
  struct Expression {
    Tree tree{};
    std::vector<Ahead> ahead{};  // The text must begin with these, or must not.
    bool from_start = false, to_end = false;
  };

  // A look-ahead is accepted only at the beginning of the text, and that is where the match is known to begin there.
  Expression read(Match match) {
    Expression e;
    e.from_start = take('^');
    while ((e.from_start || match == Match::whole) && (starts("(?!") || starts("(?="))) e.ahead.push_back(look_ahead());
    // One $ may stand at the very end, unless it is escaped.
    size_t slashes = 0;
    while (slashes + 1 < text_.size() && text_[text_.size() - 2 - slashes] == '\\') ++slashes;
    e.to_end = text_.size() > at_ && text_.back() == '$' && slashes % 2 == 0;
    if (e.to_end) text_.pop_back();
    e.tree = choice(0);
    if (at_ < text_.size()) fail("an unmatched )");
    const bool bound = e.from_start || e.to_end || !e.ahead.empty();
    if (bound && e.tree.kind == Tree::Kind::choice) fail("^ or $ of one alternative alone: use a group");
    return e;
  }

 private:
  Ahead look_ahead() {
    Ahead one;
    one.kind = text_[at_ + 2] == '=' ? Meet::both : Meet::without;
    at_ += 3;
    const bool from_start = take('^');  // It has no effect, as the match is at the start already.
    looking_ahead_ = true;
    one.tree = choice(1);
    looking_ahead_ = false;
    one.to_end = take('$');
    if (!take(')')) fail("a group without end");
    if ((from_start || one.to_end) && one.tree.kind == Tree::Kind::choice)
      fail("^ or $ of one alternative alone: use a group");
    return one;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error("the regular expression has {} at byte {}: it cannot be imposed on an answer", what, at_);
  }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool at(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool starts(std::string_view with) const { return std::string_view(text_).substr(at_).starts_with(with); }
  char32_t character() {
    if (at_ >= text_.size()) fail("an end too early");
    size_t length = 0;
    const char32_t c = tokenization::code_point_at(text_, at_, &length);
    at_ += length;
    return c;
  }

  Tree choice(int depth) {
    if (depth > kDeepestGroups) fail("too many nested groups");
    Tree all{Tree::Kind::choice};
    do all.parts.push_back(sequence(depth));
    while (take('|'));
    return all.parts.size() == 1 ? std::move(all.parts[0]) : all;
  }

  Tree sequence(int depth) {
    Tree all{Tree::Kind::sequence};
    const bool may_end = looking_ahead_ && depth == 1;
    while (at_ < text_.size() && !at('|') && !at(')') && !(may_end && starts("$)")))
      all.parts.push_back(repeated(depth));
    return all;
  }

  // Reads an atom with at most one quantifier, as JavaScript and Python do. A row of them would be nested as deeply as
  // it is long.
  Tree repeated(int depth) {
    Tree one = atom(depth);
    int64_t low = 0, high = -1, again = 0;
    if (take('+'))
      low = 1;
    else if (take('?'))
      high = 1;
    else if (!take('*') && !counts(low, high))
      return one;
    take('?');  // This is the mark of a lazy quantifier.
    if (at('+')) fail("a possessive quantifier");
    if (at('*') || at('?') || counts(again, again))
      fail("a quantifier behind another, without a group around the first");
    Tree many{Tree::Kind::repeat};
    many.low = low, many.high = high;
    many.parts.push_back(std::move(one));
    return many;
  }

  // Reads {m}, {m,} or {m,n}; any other brace is a character.
  bool counts(int64_t& low, int64_t& high) {
    if (!at('{')) return false;
    const size_t begin = at_++;
    const auto number = [&](int64_t& value) {
      const size_t first = at_;
      for (value = 0; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
        value = std::min<int64_t>(value * 10 + (text_[at_] - '0'), kMostRepeats + 1);
      return at_ > first;
    };
    bool good = number(low);
    high = low;
    if (good && take(',') && !number(high)) high = -1;
    good = good && take('}');
    if (!good) {
      at_ = begin;
      return false;
    }
    if (low > kMostRepeats || high > kMostRepeats || (high >= 0 && high < low))
      fail("a count that is too large or turned round");
    return true;
  }

  static Tree characters(CharSet set) {
    Tree one{Tree::Kind::characters};
    one.set = normalised(std::move(set));
    return one;
  }

  Tree atom(int depth) {
    if (take('(')) return group(depth);
    if (take('[')) return char_class();
    if (take('.')) return characters(complement({{'\n', '\n'}, {'\r', '\r'}}));
    if (at('*') || at('+') || at('?')) fail("a quantifier behind nothing");
    if (at('^') || at('$')) fail("^ or $ inside");
    if (take('\\')) return characters(escape(false));
    const char32_t c = character();
    return characters({{c, c}});
  }

  Tree group(int depth) {
    if (take('?')) {
      if (take('P') || at('<')) {
        if (!take('<') || at('=') || at('!')) fail("a look-behind");
        while (at_ < text_.size() && !at('>')) ++at_;
        if (!take('>')) fail("a group without end");
      } else if (!take(':')) {
        fail("a look-ahead that does not stand at the beginning, or a flag");
      }
    }
    Tree inside = choice(depth + 1);
    if (!take(')')) fail("a group without end");
    return inside;
  }

  CharSet escape(bool in_class) {
    const CharSet digits = {{'0', '9'}}, word = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                  space = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                           {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    const char32_t c = character();
    const auto only = [](char32_t x) { return CharSet{{x, x}}; };
    switch (c) {
      case 'd':
        return digits;
      case 'D':
        return complement(digits);
      case 'w':
        return word;
      case 'W':
        return complement(word);
      case 's':
        return space;
      case 'S':
        return complement(space);
      case 'n':
        return only('\n');
      case 'r':
        return only('\r');
      case 't':
        return only('\t');
      case 'f':
        return only('\f');
      case 'v':
        return only('\v');
      case '0':
        return only(0);
      case 'x':
        return only(hexadecimal(2));
      case 'u':
        return only(take('{') ? braced() : hexadecimal(4));
      case 'b':
        if (in_class) return only('\b');
        [[fallthrough]];
      default:
        if ((c >= '1' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
          fail(std::string("\\") + static_cast<char>(c));
        return only(c);
    }
  }

  char32_t hexadecimal(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = character();
      const std::string_view all = "0123456789abcdefABCDEF";
      const size_t digit = c < 0x80 ? all.find(static_cast<char>(c)) : std::string_view::npos;
      if (digit == std::string_view::npos) fail("a code that is not hexadecimal");
      value = value * 16 + static_cast<char32_t>(digit < 16 ? digit : digit - 6);
    }
    return value;
  }
  char32_t braced() {
    char32_t value = 0;
    for (int i = 0; i < 6 && !at('}'); ++i) value = value * 16 + hexadecimal(1);
    if (!take('}') || value > 0x10FFFF) fail("a code that is no character");
    return value;
  }

  Tree char_class() {
    const bool inverted = take('^');
    CharSet set;
    for (bool first = true; first || !at(']'); first = false) {
      if (at_ >= text_.size()) fail("a class without end");
      if (first && at(']')) break;
      CharSet low = take('\\') ? escape(true) : single();
      if (low.size() == 1 && low[0].low == low[0].high && at('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        const CharSet high = take('\\') ? escape(true) : single();
        if (high.size() != 1 || high[0].low != high[0].high || high[0].low < low[0].low) fail("a range turned round");
        low[0].high = high[0].low;
      }
      set.insert(set.end(), low.begin(), low.end());
    }
    if (!take(']')) fail("a class without end");
    return characters(inverted ? complement(set) : set);
  }
  CharSet single() {
    const char32_t c = character();
    return {{c, c}};
  }

  std::string text_;
  size_t at_ = 0;
  bool looking_ahead_ = false;
};

Fragment build(Grammar& g, const Tree& tree, Writing writing) {
  switch (tree.kind) {
    case Tree::Kind::characters:
      return one_of(g, tree.set, writing);
    case Tree::Kind::choice: {
      std::vector<Fragment> all;
      for (const Tree& part : tree.parts) all.push_back(build(g, part, writing));
      return g.choice(all);
    }
    case Tree::Kind::repeat:
      return g.repeat([&] { return build(g, tree.parts[0], writing); }, tree.low, tree.high);
    default: {
      Fragment all = g.empty();
      for (const Tree& part : tree.parts) all = g.sequence(all, build(g, part, writing));
      return all;
    }
  }
}

// Every character is written in one way only, so the same text is read alike by all expressions.
Fragment any_text(Grammar& g, Writing writing) { return g.star(one_of(g, every_character(), writing)); }

}  // namespace

Fragment add_regex(Grammar& g, std::string_view pattern, Match match, Writing writing) {
  const Reader::Expression e = Reader(pattern).read(match);
  Fragment all = build(g, e.tree, writing);
  const auto anything = [&] {
    return writing == Writing::json_string && e.ahead.empty() ? g.star(string_character(g)) : any_text(g, writing);
  };
  if (match == Match::part && !e.from_start) all = g.sequence(anything(), all);
  if (match == Match::part && !e.to_end) all = g.sequence(all, anything());
  for (const Reader::Ahead& one : e.ahead) {
    Fragment begins = build(g, one.tree, writing);
    if (!one.to_end) begins = g.sequence(begins, any_text(g, writing));
    const auto both = meet(g, all, begins, one.kind);
    check(both.has_value(), "no text at all fits all that is asked of it");
    all = *both;
  }
  return all;
}

}  // namespace fidelio::grammar
