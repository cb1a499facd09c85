"""Measures the quality of the complexity score on prompts that it never saw, and the cost of a decision.

python -m benchmarks.router [--data FILE] [--seeds N] [--picture FILE]

Quality: APGR, CPT50 and CPT80 by benchmark with 95 % intervals, cross-validated (whole MMLU subjects are held out, and
GSM8K in 5 folds by question; each fold's model is trained without that fold). They are compared with random order, the
prompt's length, and a TF-IDF logistic regression on the same folds. Cost: microseconds to score and decide a prompt of
2,000 characters, over 1, 50, 500 and 1,000 replicas. Prints one JSON line; exits 1 below a gate.
"""

import argparse
import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from benchmarks.router_picture import draw
from protocol.messages import UserMessage
from router.complexity import chat_complexity, floor_of
from router.features import Reading, read
from router.fleet import Fleet, Member, Pool
from router.policy import RouteRequest, TierPolicy, decide
from router.weights import Weights
from tiergate.routing.folds import make_folds
from tiergate.routing.graded import Graded, read_graded
from tiergate.routing.quality import SHARES, apgr, calibration_error, cpt, interval, recovered_at
from tiergate.routing.train import calibration, fit
from tiergate.routing.trees import Plan

Floats = NDArray[np.float64]
DATA = Path("../shared/router-eval/train.jsonl.gz")
NUM_FOLDS = 5
GATES = {"mmlu": 0.64, "gsm8k": 0.60}
MAX_ECE = 0.05
P50_US, P99_US = 100.0, 200.0
REPLICAS = (1, 50, 500, 1000)
GATED_REPLICAS = 50
PROMPT_CHARS = 2000


def held_out_scores(graded: Graded, seed: int, *, by_question: bool) -> tuple[dict[str, Floats], Floats]:
    """For each rule, the score of each row by a model that never saw the row's fold; and our probabilities, calibrated
    without that fold too."""
    prompts = graded.prompts()
    readings = [read(prompt) for prompt in prompts]
    floors = np.array([floor_of(*each) for each in zip(prompts, readings, strict=True)])
    sources = np.full(len(readings), "") if by_question else graded.sources
    folds = make_folds(sources, NUM_FOLDS, seed=seed)
    raw, plain = np.zeros(len(folds)), np.zeros(len(folds))
    for fold in range(NUM_FOLDS):
        inside = folds != fold
        raw[~inside] = _ours(graded.where(inside), readings, inside)
        plain[~inside] = _tfidf(graded, inside)
    # The ranking uses one calibration curve, since curves of several folds would mix it up. The probabilities of a fold
    # use a curve from the other folds.
    ranking = np.maximum(np.interp(raw, *calibration(raw, graded)), floors)
    sure = np.zeros(len(folds))
    for fold in range(NUM_FOLDS):
        inside = folds != fold
        sure[~inside] = np.interp(raw[~inside], *calibration(raw[inside], graded.where(inside)))
    lengths = np.array([float(len(prompt.text)) for prompt in prompts])
    chance = np.random.default_rng(seed).random(len(folds))
    rules = {"ours": ranking, "length": lengths, "tfidf": plain, "random": chance}
    return rules, np.maximum(sure, floors)


def _ours(inside_rows: Graded, readings: list[Reading], inside: NDArray[np.bool_]) -> Floats:
    known = [reading for reading, is_in in zip(readings, inside, strict=True) if is_in]
    weights = Weights(fit(inside_rows, known, Plan(), ""))
    return np.array([weights.raw_score(reading) for reading, is_in in zip(readings, inside, strict=True) if not is_in])


def _tfidf(graded: Graded, inside: NDArray[np.bool_]) -> Floats:
    texts = np.array([row.prompt for row in graded.rows], dtype=object)
    terms = TfidfVectorizer(sublinear_tf=True, min_df=3)
    known = terms.fit_transform(texts[inside])
    model = LogisticRegression(max_iter=200).fit(known, graded.labels[inside])
    return np.asarray(model.decision_function(terms.transform(texts[~inside])))


def quality(name: str, graded: Graded, runs: list[dict[str, Floats]], probabilities: list[Floats]) -> dict[str, Any]:
    """Means over runs, with bootstrap intervals that draw the same rows for every rule."""
    gains, labels = graded.gains, graded.labels

    def mean_apgr(rule: str, rows: NDArray[np.intp] | slice) -> float:
        return float(np.mean([apgr(run[rule][rows], gains[rows]) for run in runs]))

    report: dict[str, Any] = {"prompts": len(gains)}
    for rule in runs[0]:
        report[rule] = {
            "apgr": round(mean_apgr(rule, slice(None)), 3),
            "apgr_95": _rounded(interval(functools.partial(mean_apgr, rule), len(gains))),
            "cpt50": round(float(np.mean([cpt(run[rule], gains, 0.5) for run in runs])), 3),
            "cpt80": round(float(np.mean([cpt(run[rule], gains, 0.8) for run in runs])), 3),
        }
    report["above_length_95"] = _rounded(
        interval(lambda rows: mean_apgr("ours", rows) - mean_apgr("length", rows), len(gains))
    )
    report["ece"] = round(float(np.mean([calibration_error(each, labels) for each in probabilities])), 3)
    print(f"{name}: {report}", file=sys.stderr)
    return report


def curve(graded: Graded, run: dict[str, Floats]) -> dict[str, Any]:
    """The accuracy recovered at each share by each rule, ours with an interval."""
    gains, ours = graded.gains, run["ours"]
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, len(gains), len(gains)) for _ in range(300)]
    spread = np.quantile([recovered_at(ours[rows], gains[rows], SHARES) for rows in draws], [0.025, 0.975], axis=0)
    lines = {rule: recovered_at(run[rule], gains, SHARES).tolist() for rule in ("ours", "length", "tfidf")}
    return {"shares": SHARES.tolist(), "low": spread[0].tolist(), "high": spread[1].tolist(), **lines}


def decision_us(num_replicas: int, *, num_rounds: int = 3000) -> dict[str, float]:
    """Microseconds to score and decide a different prompt each time, as in a gateway.

    The `cpu_` figures are CPU time, without the time that other processes take on a shared machine.
    """
    fleet = Fleet(pools={name: _pool(name, max(1, num_replicas // 2)) for name in ("small", "large")})
    words = [
        "the",
        "quick",
        "brown",
        "fox",
        "of",
        "12",
        "rivers,",
        "which",
        "(perhaps)",
        "jumps",
        "over",
        "a",
        "lazy",
        "dog",
        "=",
        "3",
        "times?",
        "",
    ]
    rng = np.random.default_rng(0)
    prompts = [" ".join(rng.choice(words, 700).tolist())[:PROMPT_CHARS] for _ in range(200)]
    tier = TierPolicy(name="pro")
    spent: list[float] = []
    computed: list[float] = []
    for place in range(num_rounds):
        messages = [UserMessage(content=prompts[place % len(prompts)])]
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        found = chat_complexity(messages)
        request = RouteRequest(
            request_id=f"r{place}",
            model="auto",
            complexity=found.score,
            needs_large=found.needs_large,
            prompt_tokens=500,
        )
        decide(request, tier, fleet)
        ended_cpu, ended = time.thread_time(), time.perf_counter()
        spent.append((ended - begun) * 1e6)
        computed.append((ended_cpu - begun_cpu) * 1e6)
    told: dict[str, float] = {}
    for kind, times in (("", spent), ("cpu_", computed)):
        p50, p99 = np.quantile(times[num_rounds // 10 :], [0.5, 0.99])
        told |= {f"{kind}p50_us": round(float(p50), 1), f"{kind}p99_us": round(float(p99), 1)}
    return told


def _pool(name: str, num_replicas: int) -> Pool:
    members = tuple(
        Member(worker_id=f"{name}-{place}", url=f"http://{name}-{place}", model_name=name)
        for place in range(num_replicas)
    )
    return Pool(name=name, model_id=name, context_window=8192, members=members)


def _rounded(ends: tuple[float, float]) -> list[float]:
    return [round(end, 3) for end in ends]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.router", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, help="graded prompts")
    parser.add_argument("--seeds", type=int, default=2, help="how many times the folds are drawn")
    parser.add_argument("--picture", type=Path, help="write quality against share here, as SVG")
    parser.add_argument("--by-question", action="store_true", help="hold questions out, not subjects: a bound, no gate")
    parser.add_argument("--only-cost", action="store_true", help="leave the quality out")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"benchmark": "router"}
    failed = []
    cost = {str(count): decision_us(count) for count in REPLICAS}
    report["decision"] = cost | {"gates": {"replicas": GATED_REPLICAS, "p50_us": P50_US, "p99_us": P99_US}}
    gated = cost[str(GATED_REPLICAS)]
    if gated["cpu_p50_us"] > P50_US or gated["cpu_p99_us"] > P99_US:
        failed.append("decision")
    if not arguments.only_cost:
        graded = read_graded([arguments.data])
        runs, sure = zip(
            *[held_out_scores(graded, seed, by_question=arguments.by_question) for seed in range(arguments.seeds)],
            strict=True,
        )
        groups = np.array([source.partition("/")[0] for source in graded.sources.tolist()])
        report["quality"], curves = {}, {}
        for name in sorted(set(groups.tolist())):
            part = groups == name
            rows, part_runs = graded.where(part), [{rule: run[rule][part] for rule in run} for run in runs]
            found = report["quality"][name] = quality(name, rows, part_runs, [each[part] for each in sure])
            curves[name] = curve(rows, part_runs[0])
            if found["ours"]["apgr"] < GATES.get(name, 0.5):
                failed.append(f"{name}: apgr below {GATES.get(name, 0.5)}")
            if found["ece"] > MAX_ECE:
                failed.append(f"{name}: ece above {MAX_ECE}")
            if name == "mmlu" and found["above_length_95"][0] <= 0:
                failed.append("mmlu: the interval does not exclude the length rule")
        report["gates"] = {"apgr": GATES, "ece": MAX_ECE}
        if arguments.picture:
            arguments.picture.write_text(draw(curves), encoding="utf-8")
    report["failed"] = failed
    print(json.dumps(report))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
