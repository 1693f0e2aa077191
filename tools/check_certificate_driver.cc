// The simulations of tools/check_certificate.py, made with the program's own intervals. Standard input is one request
// as JSON, standard output the counts as JSON. A population holds the documents of each domain; a repeat draws from
// it the documents of a certificate and those that plans are tried on.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compress/certificate/ladder_step.h"
#include "core/rng.h"
#include "eval/fidelity/domains.h"
#include "eval/statistics/clusters.h"

using namespace fidelio;
using nlohmann::json;

namespace {

struct Member {  // of a population
  double tokens = 0;
  std::vector<double> kl, loss;  // sums under each plan of the ladder; loss is 1 - EAR
};
using Population = std::map<std::string, std::vector<Member>>;
using Drawn = std::map<std::string, std::vector<size_t>>;

Population read_population(const json& request) {
  Population all;
  for (const auto& [domain, members] : request.at("population").items())
    for (const json& m : members) all[domain].push_back({m.at("tokens"), m.at("kl"), m.at("loss")});
  return all;
}

// Documents of a certificate and those that plans were tried on: drawn with replacement, or as passages are taken, the
// second a stretch of the text and the first the stretch that follows it.
struct Sets {
  Drawn certificate, trial;
};
Sets draw(const Population& population, size_t documents, size_t trial, bool contiguous, Rng& rng) {
  Sets sets;
  for (const auto& [domain, members] : population) {
    const size_t start = static_cast<size_t>(rng.below(members.size()));
    for (size_t i = 0; i < documents + trial; ++i) {
      const size_t at = contiguous ? (start + i) % members.size() : static_cast<size_t>(rng.below(members.size()));
      (i < trial ? sets.trial : sets.certificate)[domain].push_back(at);
    }
  }
  return sets;
}

std::vector<DocumentFidelity> documents_of(const Population& population, const Drawn& drawn, size_t plan) {
  std::vector<DocumentFidelity> all;
  for (const auto& [domain, places] : drawn)
    for (const size_t i : places) {
      const Member& m = population.at(domain)[i];
      all.push_back({domain, "", 1, static_cast<int64_t>(m.tokens), m.kl[plan], m.tokens - m.loss[plan], m.tokens});
    }
  return all;
}

// The intervals as they were made before documents were pooled: of every domain by its own documents alone.
std::vector<DomainFidelity> one_by_one(const std::vector<DocumentFidelity>& documents, double confidence) {
  std::map<std::string, std::vector<const DocumentFidelity*>> of;
  for (const DocumentFidelity& d : documents) of[d.domain].push_back(&d);
  std::vector<DomainFidelity> all;
  for (const auto& [name, own] : of) {
    std::vector<double> kl, loss, tokens;
    for (const DocumentFidelity* d : own) {
      tokens.push_back(static_cast<double>(d->tokens));
      kl.push_back(d->kl);
      loss.push_back(tokens.back() - d->ear);
    }
    DomainFidelity d;
    d.domain = name;
    d.kl = cluster_mean(kl, tokens, {.confidence = confidence});
    d.ear = complement(cluster_mean(loss, tokens, {.confidence = confidence}));
    d.document_kl = next_document(kl, tokens, confidence);
    d.document_ear = complement(next_document(loss, tokens, confidence));
    all.push_back(d);
  }
  return all;
}

struct Truth {
  double kl = 0, ear = 0;
};
std::map<std::string, Truth> truth_of(const Population& population, size_t plan) {
  std::map<std::string, Truth> all;
  for (const auto& [domain, members] : population) {
    double kl = 0, loss = 0, tokens = 0;
    for (const Member& m : members) kl += m.kl[plan], loss += m.loss[plan], tokens += m.tokens;
    all[domain] = {kl / tokens, 1 - loss / tokens};
  }
  return all;
}

// How often an interval is wrong on the promised side (the truth is worse), on the other one, and its mean width in
// units of the quantity.
struct Errors {
  double promised = 0, other = 0, width = 0;
  int64_t cases = 0;
  void add(const Interval& loss, double loss_there) {
    promised += loss_there > loss.high;
    other += loss_there < loss.low;
    width += (loss.high - loss.low) / loss_there;
    ++cases;
  }
  json as_json() const {
    const auto n = static_cast<double>(cases);
    return {{"promised", promised / n}, {"other", other / n}, {"width", width / n}};
  }
};

Interval loss_of(const Estimate& share) { return {1 - share.ci95.high, 1 - share.ci95.low}; }

json coverage(const json& request, const Population& population, bool pooled) {
  Rng rng(request.at("seed").get<uint64_t>());
  const std::map<std::string, Truth> truth = truth_of(population, 0);
  const int repeats = request.at("repeats");
  const double confidence = request.at("confidence");
  std::map<std::string, std::map<std::string, Errors>> errors;
  int some_mean = 0, some_document = 0, worst = 0;
  for (int r = 0; r < repeats; ++r) {
    const Sets sets = draw(population, request.at("documents"), request.at("trial"), request.at("contiguous"), rng);
    const std::vector<DocumentFidelity> own = documents_of(population, sets.certificate, 0);
    const auto domains = pooled ? by_domain(own, confidence) : one_by_one(own, confidence);
    bool mean_wrong = false, document_wrong = false;
    double least = 1, true_least = 1;
    for (const DomainFidelity& d : domains) {
      const Truth& t = truth.at(d.domain);
      auto& e = errors[d.domain];
      e["kl"].add(d.kl.ci95, t.kl);
      e["ear"].add(loss_of(d.ear), 1 - t.ear);
      const std::vector<Member>& members = population.at(d.domain);
      const Member& fresh = members[static_cast<size_t>(rng.below(members.size()))];
      e["document kl"].add(d.document_kl.ci95, fresh.kl[0] / fresh.tokens);
      e["document ear"].add(loss_of(d.document_ear), fresh.loss[0] / fresh.tokens);
      mean_wrong |= t.ear < d.ear.ci95.low;
      document_wrong |= 1 - fresh.loss[0] / fresh.tokens < d.document_ear.ci95.low;
      least = std::min(least, d.ear.ci95.low);
      true_least = std::min(true_least, t.ear);
    }
    some_mean += mean_wrong, some_document += document_wrong, worst += true_least < least;
  }
  const auto share = [&](int count) { return static_cast<double>(count) / repeats; };
  json answer = {{"some mean", share(some_mean)}, {"some document", share(some_document)}, {"worst", share(worst)}};
  for (const auto& [domain, figures] : errors)
    for (const auto& [figure, e] : figures) answer["domains"][domain][figure] = e.as_json();
  return answer;
}

// What a procedure did with one pair of sets.
struct Outcome {
  int plan = -1;  // certified; -1: none
  int tests = 0;
  double least = 0;  // the lowest lower end that is printed of it
};

double lowest_end(const std::vector<DomainFidelity>& domains) {
  double least = 1;
  for (const DomainFidelity& d : domains) least = std::min(least, d.ear.ci95.low);
  return least;
}

// The lowest end of EAR that is foreseen for the certificate's documents, by those that the plan was tried on.
double foreseen_end(const Population& population, const Sets& sets, double confidence, size_t plan) {
  double least = 1;
  for (const auto& [domain, places] : sets.trial) {
    std::vector<double> loss, tokens;
    for (const size_t i : places) {
      const Member& m = population.at(domain)[i];
      loss.push_back(m.loss[plan]);
      tokens.push_back(m.tokens);
    }
    const auto others = static_cast<int64_t>(sets.certificate.at(domain).size());
    least = std::min(least, 1 - foreseen_mean(loss, tokens, others, confidence).ci95.high);
  }
  return least;
}

// The smallest plan that is foreseen to pass a test, plan 0 being the largest.
int foreseen_plan(const Population& population, const Sets& sets, double aim, double confidence, int plans) {
  int low = 0, high = plans;  // the first that is not foreseen to pass lies in (low, high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (foreseen_end(population, sets, confidence, static_cast<size_t>(middle)) >= aim ? low : high) = middle;
  }
  return low;
}

// Until the pooled intervals: up to four tests, each at half the error of the last, of plans that the trials foresaw.
Outcome by_tests(const Population& population, const Sets& sets, double target, int plans) {
  Outcome o;
  double aim = target;
  for (o.tests = 1; o.tests <= 4; ++o.tests) {
    const double confidence = 1 - 0.05 * std::pow(0.5, o.tests - 1);
    const int plan = foreseen_plan(population, sets, aim, confidence, plans);
    o.least = lowest_end(one_by_one(documents_of(population, sets.certificate, static_cast<size_t>(plan)), confidence));
    if (o.least >= target) {
      o.plan = plan;
      return o;
    }
    aim += std::max(target - o.least, 0.05 * (1 - target));
  }
  return o;
}

// The ladder of compress/search/ladder.cc and its two levels: the plan that is foreseen to hold and every smaller one;
// where the first fails, those that are larger by `larger` steps. Each sequence goes down until a plan fails.
Outcome by_ladder(const Population& population, const Sets& sets, double target, int plans,
                  const std::vector<int>& larger) {
  Outcome o;
  const int start = foreseen_plan(population, sets, target, confidence_at(kExpectedLevel), plans);
  const auto holds = [&](int plan, double level) {
    ++o.tests;
    const auto own = documents_of(population, sets.certificate, static_cast<size_t>(plan));
    const double least = lowest_end(by_domain(own, confidence_at(level)));
    if (least < target) return false;
    o.plan = plan, o.least = least;
    return true;
  };
  for (int plan = start; plan < plans && holds(plan, kExpectedLevel);) ++plan;
  if (o.plan >= 0) return o;
  int before = -1;
  for (const int steps : larger) {
    const int plan = std::max(0, start - steps);
    if (plan == start || plan == before) continue;
    if (!holds(plan, kLargerLevel)) break;
    before = plan;
  }
  return o;
}

json procedure(const json& request, const Population& population, bool ladder) {
  Rng rng(request.at("seed").get<uint64_t>());
  const double target = request.at("target"), step = request.at("step");
  const int repeats = request.at("repeats"), plans = request.at("plans");
  std::vector<double> worst;  // of each plan, in truth
  for (int k = 0; k < plans; ++k) {
    worst.push_back(1);
    for (const auto& [domain, t] : truth_of(population, static_cast<size_t>(k)))
      worst.back() = std::min(worst.back(), t.ear);
  }
  int best = 0;
  while (best + 1 < plans && worst[static_cast<size_t>(best) + 1] >= target) ++best;
  int certified = 0, below = 0, end_wrong = 0, tests = 0;
  double larger = 0;
  std::vector<double> by;  // how far a wrong printed end lies above the truth
  for (int r = 0; r < repeats; ++r) {
    const Sets sets = draw(population, request.at("documents"), request.at("trial"), request.at("contiguous"), rng);
    const Outcome o = ladder ? by_ladder(population, sets, target, plans, request.at("larger"))
                             : by_tests(population, sets, target, plans);
    tests += o.tests;
    if (o.plan < 0) continue;
    ++certified;
    const double truth = worst[static_cast<size_t>(o.plan)];
    below += truth < target;
    end_wrong += truth < o.least;
    if (truth < o.least) by.push_back(o.least - truth);
    larger += (best - o.plan) * step;
  }
  std::sort(by.begin(), by.end());
  const double n = repeats;
  return {{"certified", certified / n},
          {"below", below / n},
          {"end wrong", end_wrong / n},
          {"by", by.empty() ? 0 : by[by.size() / 2]},
          {"by at most", by.empty() ? 0 : by.back()},
          {"tests", tests / n},
          {"larger", larger / std::max(certified, 1)}};
}

}  // namespace

int main() {
  const json request = json::parse(std::cin);
  const Population population = read_population(request);
  json answer = json::object();
  for (const auto& [name, now] : {std::pair{"before", false}, std::pair{"now", true}})
    answer[name] =
        request.at("mode") == "coverage" ? coverage(request, population, now) : procedure(request, population, now);
  std::cout << answer.dump() << "\n";
}
