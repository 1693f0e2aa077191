"""Answers of scipy and numpy for src/eval/statistics/statistics_test.cc, written to src/eval/testdata/statistics.json.

    python3 tools/statistics_fixtures.py          needs numpy and scipy; the file made is committed, tests read only that
"""

import json
import pathlib

import numpy as np
import scipy
from scipy import stats

rng = np.random.default_rng(20260)


def wilcoxon_case(name, d):
    """Zeros dropped; up to 50 pairs exact given the ties (enumerated where scipy can), else the normal approximation."""
    d = np.asarray(d, float)
    nonzero = d[d != 0]
    ranks = stats.rankdata(np.abs(nonzero))
    tied = len(set(np.abs(nonzero))) < len(nonzero)
    if len(nonzero) > 50:
        p = stats.wilcoxon(d, zero_method="wilcox", correction=False, method="approx").pvalue
    elif not tied:
        p = stats.wilcoxon(nonzero, method="exact").pvalue
    else:  # all 2^n signs, as scipy's PermutationMethod does when it can
        assert len(nonzero) <= 18
        signs = (np.arange(2 ** len(nonzero))[:, None] >> np.arange(len(nonzero))) & 1
        sums = signs @ ranks
        observed = min(ranks[nonzero > 0].sum(), ranks[nonzero < 0].sum())
        p = min(1.0, 2 * np.mean(sums <= observed + 1e-9))
        if len(nonzero) <= 13:
            theirs = stats.wilcoxon(nonzero, method=stats.PermutationMethod(n_resamples=2**14)).pvalue
            assert abs(theirs - p) < 1e-9, (theirs, p)
    return dict(name=name, differences=d.tolist(), positive=float(ranks[nonzero > 0].sum()),
                negative=float(ranks[nonzero < 0].sum()), pairs=len(nonzero), exact=len(nonzero) <= 50, p=float(p))


cases = [
    wilcoxon_case("small without ties", rng.normal(0.4, 1, 11)),
    wilcoxon_case("fifty without ties", rng.normal(0.3, 1, 50)),
    wilcoxon_case("small with ties", [1, 1, -2, 3, 3, 3, -1, 2, 5, -4, 4]),
    wilcoxon_case("small with ties and zeros", [0, 1, 1, -2, 0, 3, 3, -3, 2, 0, 6, 4, 4, 1, 2]),
    wilcoxon_case("large without ties", rng.normal(0.1, 1, 200)),
    wilcoxon_case("large with ties and zeros", rng.integers(-4, 6, 300)),
    wilcoxon_case("one pair", [2.5]),
]
paired = rng.normal(0.2, 1.5, 40)
runs = rng.normal(100, 20, (12, 3))
values = rng.lognormal(0, 1, 37)
percents = [0, 5, 25, 50, 75, 90, 95, 99, 100]
wilson = [(0, 10), (10, 10), (7, 10), (287, 300), (1, 1)]
probabilities = [1e-300, 1e-12, 0.001, 0.025, 0.3, 0.5, 0.8, 0.975, 1 - 1e-9]
numerators = rng.lognormal(0, 1, 12)
denominators = rng.integers(5, 50, 12).astype(float)
bca = stats.bootstrap((numerators, denominators), lambda a, b, axis=-1: a.sum(axis) / b.sum(axis), paired=True, vectorized=True,
                      n_resamples=200000, method="BCa", random_state=1).confidence_interval
out = dict(
    made_by=f"tools/statistics_fixtures.py, scipy {scipy.__version__}, numpy {np.__version__}",
    wilcoxon=cases,
    cohens_d=dict(differences=paired.tolist(), d=float(paired.mean() / paired.std(ddof=1))),
    within_query_cv=dict(runs=runs.tolist(), cv=float(np.mean(runs.std(axis=1, ddof=1) / runs.mean(axis=1)))),
    percentiles=dict(values=values.tolist(), percents=percents, expected=np.percentile(values, percents).tolist()),
    wilson=[dict(right=k, total=n, low=float(ci.low), high=float(ci.high)) for k, n in wilson
            for ci in [stats.binomtest(k, n).proportion_ci(method="wilson")]],
    normal=[dict(p=p, z=float(stats.norm.ppf(p))) for p in probabilities],
    bca=dict(numerators=numerators.tolist(), denominators=denominators.tolist(), low=float(bca.low), high=float(bca.high)),
)
path = pathlib.Path(__file__).parent.parent / "src/eval/testdata/statistics.json"
path.write_text(json.dumps(out, indent=1) + "\n")
