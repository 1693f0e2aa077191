#include "sensitivity/players.h"

namespace fidelio {
namespace {

// Packs the results of a job for the other ranks: the number of results, then for each KL, loss, the number of
// sequences, and the values of each sequence.
void flatten(const std::vector<MeterResult>& results, std::vector<double>& to) {
  to.push_back(static_cast<double>(results.size()));
  for (const MeterResult& r : results) {
    to.insert(to.end(), {r.kl, r.loss, static_cast<double>(r.sequence_kl.size())});
    to.insert(to.end(), r.sequence_kl.begin(), r.sequence_kl.end());
    to.insert(to.end(), r.sequence_loss.begin(), r.sequence_loss.end());
  }
}

std::vector<MeterResult> unflatten(const double*& at) {
  std::vector<MeterResult> results(static_cast<size_t>(*at++));
  for (MeterResult& r : results) {
    r.kl = *at++;
    r.loss = *at++;
    const auto sequences = static_cast<size_t>(*at++);
    r.sequence_kl.assign(at, at + sequences);
    r.sequence_loss.assign(at + sequences, at + 2 * sequences);
    at += 2 * sequences;
  }
  return results;
}

}  // namespace

std::vector<std::vector<MeterResult>> Players::play(const std::vector<GameJob>& jobs) {
  const auto size = static_cast<size_t>(ranks_.size());
  std::vector<double> mine;
  for (auto j = static_cast<size_t>(ranks_.rank()); j < jobs.size(); j += size) {
    game_.place(jobs[j].place);
    flatten(jobs[j].play(game_), mine);
  }
  const std::vector<std::vector<double>> parts = ranks_.gather(mine);
  std::vector<const double*> at;
  for (const std::vector<double>& part : parts) at.push_back(part.data());
  std::vector<std::vector<MeterResult>> all;
  for (size_t j = 0; j < jobs.size(); ++j) all.push_back(unflatten(at[j % size]));
  return all;
}

}  // namespace fidelio
