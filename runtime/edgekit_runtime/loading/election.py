"""The rule by which a board's candidate is elected, and the file that keeps the verdict.

    verdict = choose_verdict(tried, champion, memory_mb=None, budget_ms=40.0)
    verdict.why     # "the fastest by p50 and p99: p50 3.2 ms, p99 3.4 ms, 3.1 ms of processor; the next: p50 ..."

Rules:
- who crashed, hung or missed a golden answer cannot be elected, nor who does not fit into the memory;
- the budget that the bundle was built for goes first: if the p99 of some keeps it, only these can be elected, and the
  least product of p99 and processor time is;
- without a budget, or if none keeps it, time is the geometric mean of p50 and p99. Of those within LEAST_GAIN of the
  fastest the least product is elected;
- products within ALIKE of the least are equal: then the race's champion is elected, or the first that was offered;
- tails differ if one candidate has more slow runs than chance would give it: else p99 follows the medians;
- processor time is that of all threads and of the pause behind a request, so threads that spin there count;
- a stored verdict holds for one bundle, board, runtime and set of engines. The memory limit is applied at each opening.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, lgamma, sqrt
from pathlib import Path

from edgekit_runtime.loading.candidates import CandidateTrial, TuningCandidate, TuningVerdict
from edgekit_runtime.system.files import read_own
from edgekit_runtime.system.records import replace
from edgekit_runtime.system.sealed import read_sealed, write_sealed
from edgekit_runtime.system.strict_json import json_text, read_json

LEAST_GAIN = 0.05
"""What counts as faster: a smaller share is within the noise."""
ALIKE = 0.1
"""Of the product of p99 and processor time."""
SLOW = 1.5
"""Times the median: a run that takes so long is slow."""
CHANCE = 0.05
"""At which a share of slow runs counts as another one: others' bursts slow several runs of one candidate at once."""
_MOST_BYTES = 1 << 20


def p99(seconds: Sequence[float]) -> float:
    """What all but one in a hundred stayed below, and one in any case."""
    return sorted(seconds)[int(0.99 * (len(seconds) - 1))]


def tail_ratio(champion_s: Sequence[float], challenger_s: Sequence[float]) -> float:
    """The challenger's p99 by the champion's, of runs in turn.

    It is that of their medians, unless one has more slow runs (of SLOW times its median) than chance would give:
    Fisher's exact test, one-sided, at CHANCE.
    """
    pair = (list(champion_s), list(challenger_s))
    slow = [sum(one > SLOW * _middle(runs) for one in runs) for runs in pair]
    more = int(slow[1] * len(pair[0]) > slow[0] * len(pair[1]))
    runs, drawn, both = len(pair[0]) + len(pair[1]), len(pair[more]), sum(slow)
    ways = (_log_ways(both, k) + _log_ways(runs - both, drawn - k) for k in range(slow[more], min(both, drawn) + 1))
    chance = sum(exp(one - _log_ways(runs, drawn)) for one in ways)
    how = p99 if chance < CHANCE else _middle
    return how(pair[1]) / max(how(pair[0]), 1e-9)


def _log_ways(of: int, drawn: int) -> float:
    """Of drawing so many of so many; minus infinity if there are fewer."""
    return lgamma(of + 1) - lgamma(drawn + 1) - lgamma(of - drawn + 1) if 0 <= drawn <= of else -inf


def _middle(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]


def time_ms(one: CandidateTrial) -> float:
    """The geometric mean of p50 and p99."""
    p50_ms = one.p50_ms or 0.0
    return sqrt(p50_ms * (p50_ms if one.p99_ms is None else one.p99_ms))


def elect(
    passed: Sequence[CandidateTrial], champion: TuningCandidate | None, budget_ms: float | None
) -> tuple[CandidateTrial, str]:
    """The elected one, and why: of those that ran a round beside the champion, if any did."""
    passed = [one for one in passed if one.ratio is not None] or passed
    keep = [one for one in passed if budget_ms is not None and (one.p99_ms or one.p50_ms or 0.0) <= budget_ms]
    fastest = min(passed, key=time_ms)
    level = keep or [one for one in passed if time_ms(one) <= (1 + LEAST_GAIN) * time_ms(fastest)]
    least = min(map(_product, level))
    equal = [one for one in level if _product(one) <= (1 + ALIKE) * least]
    elected = next((one for one in equal if one.candidate == champion), equal[0])
    least_product = f"the least p99 x processor time, give or take {ALIKE:.0%}"
    if keep:
        return elected, f"of {len(keep)} that keep the budget of {budget_ms:g} ms {least_product}"
    why = "the fastest by p50 and p99"
    if elected is not fastest:
        why = f"of those within {LEAST_GAIN:.0%} of the fastest {least_product}"
    return elected, why if budget_ms is None else f"none keeps the budget of {budget_ms:g} ms, {why}"


def _product(one: CandidateTrial) -> float:
    """Of p99 and processor time, which is that of busy threads where it was not measured."""
    p50_ms = one.p50_ms or 0.0
    cpu_ms = p50_ms * one.candidate.threads if one.cpu_ms is None else one.cpu_ms
    return (p50_ms if one.p99_ms is None else one.p99_ms) * cpu_ms


def _figures(one: CandidateTrial) -> str:
    shown = [f"{name} {ms:.3g} ms" for name, ms in (("p50", one.p50_ms), ("p99", one.p99_ms)) if ms is not None]
    return ", ".join(shown if one.cpu_ms is None else [*shown, f"{one.cpu_ms:.3g} ms of processor"])


def choose_verdict(
    tried: Sequence[CandidateTrial],
    champion: TuningCandidate | None,
    memory_mb: float | None,
    settled: bool = True,
    budget_ms: float | None = None,
) -> TuningVerdict | None:
    """The verdict over the tried candidates that fit into memory_mb; None if none passed."""
    passed = [one for one in tried if one.p50_ms is not None]
    fitting = [one for one in passed if memory_mb is None or (one.memory_mb or 0.0) <= memory_mb]
    if not fitting:
        return None
    best, why = elect(fitting, champion, budget_ms)
    raced = [one for one in fitting if one is not best and (one.ratio is not None or best.ratio is None)]
    longer = sum((one.refused or {}).get("code") == "slow" for one in tried)
    longer += sum(one not in raced and (one.p50_ms or 0.0) > (best.p50_ms or 0.0) for one in fitting)
    settled = settled or (len(fitting) == 1 and all(one.had_turn for one in tried))
    why = f"{why if len(passed) > 1 or longer else 'the only one that passed'}: {_figures(best)}"
    if raced:
        why += f"; the next: {_figures(elect(raced, champion, budget_ms)[0])}"
    if longer:
        why += f"; {longer} more took longer at first"
    if not settled:
        why += "; the board was busy or it was close, so a later opening measures again"
    if len(tried) == 1:
        why = "it is the only candidate"
    if len(fitting) < len(passed) and (better := elect(passed, champion, budget_ms)[0]) not in fitting:
        why += f"; {better.candidate.label} does not fit into {memory_mb:.0f} MB"
    return TuningVerdict(best.candidate, "measured", why, tuple(tried), settled=settled)


def store(file: Path, verdict: TuningVerdict) -> TuningVerdict:
    """Keep it, unless the folder is read-only or open to other users."""
    try:
        write_sealed(file, json_text(verdict).encode())
    except OSError:
        return replace(verdict, kept=False)
    return replace(verdict, kept=read_own(file, _MOST_BYTES) is not None)


def read(
    file: Path, offered: Sequence[TuningCandidate], memory_mb: float | None, budget_ms: float | None = None
) -> TuningVerdict | None:
    """The stored verdict; None if absent, of other candidates or open to other users."""
    try:
        stored = read_json(TuningVerdict, read_sealed(file, _MOST_BYTES) or b"", "the verdict")
    except ValueError:
        return None
    passed = {one.candidate for one in stored.tried if one.p50_ms is not None}
    if {one.candidate for one in stored.tried} != set(offered) or stored.chosen not in passed:
        return None
    found = choose_verdict(stored.tried, stored.chosen, memory_mb, stored.settled, budget_ms)
    if found is None:
        return None
    return replace(found, how="stored", seconds=stored.seconds, kept=True, openings=stored.openings)
