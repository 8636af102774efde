"""Choose the artifact for a profile, with a reason against each of the others.

    choice = choose("raspberry-pi-4", candidates, ChoiceLimits(max_drop=0.05, budget_ms=100), installable(profile))
    choice.chosen, choice.alternates, [(refusal.recipe, refusal.code) for refusal in choice.refused]

A candidate is refused, by the first that applies, if
- no engine for its format installs on the board (`runtime-unavailable`), its conversion failed (`conversion-failed`),
  or the tools for it are not installed (`missing-extra`);
- that engine would not load it, or would answer wrongly (the barrier's code, see `needs`);
- it is INT8 in name only (`not-int8`): none of its multiplications are, or it is larger than the float file of its
  format and not known to be faster;
- its `Fidelity.loss` is above the limit (`drop`); it needs more memory than the board leaves to it (`memory`);
- the high end of its latency range is above the budget, or not known (`budget`);
- it is quantized and certainly slower than float in the same runtime (`slower`).

Of the rest, the fastest and those whose range overlaps its own are equals: INT8 first, then TFLite (or the lower time,
if all were measured), the lower middle, the smaller file. A quantized one that may be slower than float (ranges
overlap and its middle is higher, by 3 % if both were measured) is chosen only if nothing else is left. The next in
that order that may turn out faster than the chosen one are its alternates; the others are refused (`not-preferred`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgekit_converters.data.dataset import FEWEST_APART
from edgekit_converters.fidelity.result import Decisions, Fidelity, OutputDrift
from edgekit_converters.formats.needs import Barrier, BarrierCode
from edgekit_profiles.estimate import Estimate, milliseconds
from edgekit_profiles.wheels import RuntimeSupport

RefusalCode = Literal[
    BarrierCode, "runtime-unavailable", "conversion-failed", "missing-extra", "not-int8", "drop", "memory", "budget",
    "slower", "not-preferred",
]  # fmt: skip

TRAIN = "To keep it in 8 bits, train the Keras model that it was made from a little more: edgekit compress"
"""Advice if INT8 itself loses too much."""

MAX_DROP = 0.05
"""The default limit on the loss."""

FASTER = "To make it faster, take channels out of the Keras model that it was made from: edgekit compress --budget-ms"
"""Advice if INT8 itself takes too long."""

_MOSTLY = 0.9
# A drop is a difference of two fractions, so one that equals the limit may come out this much above it.
NOISE = 1e-9

_SAME = 1.03
"""Two times on one machine whose ratio is below this are the same time."""

_OF_THE_FIRST_OUTPUT = ("top1", "top5", "f1", "mae")
OURS = 0.5
"""The share of a board's memory that inference may take."""


@dataclass(frozen=True)
class Candidate:
    """One artifact that could be shipped.

    estimate: on this profile, in its runtime; None if there is none, and then why_no_estimate says why.
    failed: why there is no artifact; advice: what to do about that.
    memory_bytes: weights, arena and runtime together, None if not known.
    missing_extra: the tools for it are not installed.
    barriers: what stops the profile's runtime.
    variant: the recipe that was made because of them, or "".
    """

    recipe: str
    format: str
    precision: str
    size_bytes: int = 0
    fidelity: Fidelity | None = None
    estimate: Estimate | None = None
    failed: str | None = None
    why_no_estimate: str = ""
    memory_bytes: int | None = None
    missing_extra: bool = False
    barriers: tuple[Barrier, ...] = ()
    variant: str = ""
    advice: str = ""


@dataclass(frozen=True)
class ChoiceLimits:
    """The limits of a choice; None is no limit.

    max_drop: 0..1, on `Fidelity.loss`.
    ram_mb: the board's.
    alternates: the most runners-up to keep.
    """

    max_drop: float | None = None
    budget_ms: float | None = None
    ram_mb: int | None = None
    alternates: int = 0

    def allow(self, drop: float) -> bool:
        """Whether a drop is at most the limit."""
        return self.max_drop is None or drop <= self.max_drop + NOISE


@dataclass(frozen=True)
class Refusal:
    """Why a candidate was not chosen.
    do: advice, if there is any.
    rule: the reason without figures of this recipe and board, or "".
    """

    recipe: str
    reason: str
    code: RefusalCode
    do: str = ""
    rule: str = ""


@dataclass(frozen=True)
class Choice:
    """The result of a choice.
    chosen: None if every candidate was refused.
    refused: in the candidates' order.
    notes: on the chosen one.
    alternates: the best first.
    """

    chosen: Candidate | None
    refused: tuple[Refusal, ...]
    notes: tuple[str, ...] = ()
    alternates: tuple[Candidate, ...] = ()


def choose(
    profile_name: str, candidates: Sequence[Candidate], limits: ChoiceLimits, support: Sequence[RuntimeSupport]
) -> Choice:
    """Choose the artifact for a profile. support: the verdicts of `installable` for it.

    Raises ValueError if two candidates share a recipe.
    """
    if len({candidate.recipe for candidate in candidates}) != len(candidates):
        raise ValueError("two candidates have the same recipe")
    refusals: dict[str, Refusal] = {}
    for candidate in candidates:
        refusal = (
            _unavailable(profile_name, candidate, support)
            or _in_name_only(candidate, candidates)
            or _too_far(candidate, limits)
            or _beyond_the_board(profile_name, candidate, limits)
            or _slower(candidate, candidates)
        )
        if refusal is not None:
            refusals[candidate.recipe] = refusal
    acceptable = [candidate for candidate in candidates if candidate.recipe not in refusals]
    if not acceptable:
        return Choice(None, tuple(refusals[candidate.recipe] for candidate in candidates))
    doubts = {one.recipe: rival for one in acceptable if (rival := _faster_float(one, acceptable)) is not None}
    equals = _equals([one for one in acceptable if one.recipe not in doubts])
    chosen = _preferred(equals)
    alternates = _runners_up(acceptable, chosen, limits.alternates)
    for other in acceptable:
        if other is not chosen and other not in alternates:
            rival = doubts.get(other.recipe)
            if rival is None:
                refusals[other.recipe] = _why_not(other, chosen, equals)
            else:
                rule = f"it may be slower than {rival.recipe} in the same runtime; the ranges overlap"
                refusals[other.recipe] = Refusal(other.recipe, _doubt(other, rival), "not-preferred", rule=rule)
    refused = tuple(refusals[candidate.recipe] for candidate in candidates if candidate.recipe in refusals)
    tried = (f"{one.recipe}: {_doubt(one, doubts[one.recipe])}" for one in alternates if one.recipe in doubts)
    return Choice(chosen, refused, (*_notes(chosen, limits), *tried), alternates)


def _unavailable(profile: str, candidate: Candidate, support: Sequence[RuntimeSupport]) -> Refusal | None:
    engines = [verdict for verdict in support if verdict.format == candidate.format]
    if not any(verdict.ok for verdict in engines):
        why = "; ".join(verdict.reason for verdict in engines) or "edgekit has no engine for it"
        reason = f"no {candidate.format} runtime installs on {profile}: {why}"
        rule = f"no {candidate.format} runtime installs on the board"
        return Refusal(candidate.recipe, reason, "runtime-unavailable", rule=rule)
    if candidate.failed is not None:
        code: RefusalCode = "missing-extra" if candidate.missing_extra else "conversion-failed"
        return Refusal(candidate.recipe, candidate.failed, code, candidate.advice)
    if candidate.barriers:
        first = candidate.barriers[0]
        instead = f"; {candidate.variant} was made instead" if candidate.variant else ""
        return Refusal(candidate.recipe, f"{first.what}{instead}", first.code)
    return None


def _in_name_only(candidate: Candidate, candidates: Sequence[Candidate]) -> Refusal | None:
    """Refuse INT8 that gains nothing."""
    if candidate.precision != "int8" or candidate.fidelity is None:
        return None
    form = candidate.format
    if candidate.fidelity.int8_in_name_only:
        share = f"{100 * candidate.fidelity.quantized_macs:.2g} %"
        reason = f"it is INT8 in name only: {share} of its multiplications are in 8 bits"
        return Refusal(candidate.recipe, reason, "not-int8", f"Choose {form}-f32", "it is INT8 in name only")
    for rival in _float_rivals(candidate, candidates):
        known = candidate.estimate is not None and rival.estimate is not None
        if 0 < rival.size_bytes < candidate.size_bytes and not known:
            larger, so = f"its file is larger than that of {rival.recipe}", ", and it is not known to be faster"
            reason = f"{larger} ({candidate.size_bytes:,} against {rival.size_bytes:,} bytes){so}"
            rule = f"{larger}{so}"
            return Refusal(candidate.recipe, reason, "not-int8", f"Choose {form}-f32 or {form}-int8-dynamic", rule)
    return None


def _too_far(candidate: Candidate, limits: ChoiceLimits) -> Refusal | None:
    if limits.max_drop is None:
        return None
    fidelity = candidate.fidelity
    if fidelity is None:
        why = "it was not compared with the original, so the limit cannot be checked"
        return Refusal(candidate.recipe, why, "drop")
    if limits.allow(fidelity.loss):
        return None
    limit = limits.max_drop
    reason = f"{_loss_text(fidelity, limit)}, more than the {_points(limit)}{_unit(fidelity)} allowed"
    if fidelity.metric is None:
        reason += " (there are no labels to measure a drop with)"
    rule = f"it loses more than the {_points(limit)}{_unit(fidelity) or ' points'} allowed"
    do = TRAIN if candidate.precision == "int8" and fidelity.metric is not None else ""
    return Refusal(candidate.recipe, reason, "drop", do, rule)


def _beyond_the_board(profile: str, candidate: Candidate, limits: ChoiceLimits) -> Refusal | None:
    """Refuse what needs too much memory or may exceed the budget."""
    too_large = beyond_memory(profile, candidate.memory_bytes, limits.ram_mb)
    if too_large is not None:
        return Refusal(candidate.recipe, too_large, "memory", rule="it needs more memory than the board leaves to it")
    if limits.budget_ms is None:
        return None
    if candidate.estimate is None:
        why = f" ({candidate.why_no_estimate})" if candidate.why_no_estimate else ""
        reason = f"its latency cannot be estimated{why}, so the budget cannot be promised"
        return Refusal(candidate.recipe, reason, "budget")
    if candidate.estimate.busy or candidate.estimate.high_ms <= limits.budget_ms:
        return None
    reason = f"it may take {_range(candidate.estimate)}, above the budget of {limits.budget_ms:g} ms"
    rule = f"it may take longer than the budget of {limits.budget_ms:g} ms"
    return Refusal(candidate.recipe, reason, "budget", FASTER if candidate.precision == "int8" else "", rule)


def beyond_memory(profile: str, memory_bytes: int | None, ram_mb: int | None) -> str | None:
    """Say why inference needs more memory than a board leaves it, or None."""
    if ram_mb is None or memory_bytes is None:
        return None
    needed, left = memory_bytes / 2**20, OURS * ram_mb
    if needed <= left:
        return None
    may = f"of {profile}'s {ram_mb} MiB it may take {left:.0f}"
    return f"it needs about {needed:.0f} MiB for weights, arena and runtime; {may}"


def _slower(candidate: Candidate, candidates: Sequence[Candidate]) -> Refusal | None:
    """Refuse a quantized artifact slower than its format's float one, refused or not."""
    quantized = candidate.estimate
    for rival in _float_rivals(candidate, candidates):
        original = rival.estimate
        if quantized is None or original is None or quantized.busy or original.busy:
            continue
        if quantized.low_ms > original.high_ms:
            rule = f"it is slower than {rival.recipe} in the same runtime"
            return Refusal(candidate.recipe, f"it is slower than {_against(candidate, rival)}", "slower", rule=rule)
    return None


def _faster_float(candidate: Candidate, acceptable: Sequence[Candidate]) -> Candidate | None:
    """Return the float artifact of its format that may be faster, or None.

    Compares the middles of overlapping ranges; a measured one is not compared with an unmeasured one.
    """
    quantized = candidate.estimate
    for rival in _float_rivals(candidate, acceptable):
        original = rival.estimate
        if quantized is None or original is None or (quantized.grade == "measured") != (original.grade == "measured"):
            continue
        if quantized.busy or original.busy:
            continue
        if quantized.mid_ms > original.mid_ms * (_SAME if original.grade == "measured" else 1.0):
            return rival
    return None


def _float_rivals(candidate: Candidate, candidates: Sequence[Candidate]) -> list[Candidate]:
    if candidate.precision == "float32":
        return []
    rivals = [other for other in candidates if (other.format, other.precision) == (candidate.format, "float32")]
    return sorted(rivals, key=lambda other: other.recipe)


def _doubt(candidate: Candidate, rival: Candidate) -> str:
    timed = rival.estimate is not None and rival.estimate.grade == "measured"
    overlap = "the ranges overlap" + ("" if timed else ", so only the board can decide")
    return f"it may be slower than {_against(candidate, rival)}; {overlap}"


def _against(candidate: Candidate, rival: Candidate) -> str:
    return f"{rival.recipe} in the same runtime: {_range(candidate.estimate)}, against {_range(rival.estimate)}"


def _equals(acceptable: Sequence[Candidate]) -> list[Candidate]:
    """Return those whose range overlaps the fastest one's; unknown and busy ones do."""
    timed = [one.estimate for one in acceptable if one.estimate is not None and not one.estimate.busy]
    if not timed:
        return list(acceptable)
    high = min(timed, key=lambda estimate: (estimate.mid_ms, estimate.high_ms)).high_ms
    return [one for one in acceptable if one.estimate is None or one.estimate.busy or one.estimate.low_ms <= high]


def _runners_up(acceptable: Sequence[Candidate], chosen: Candidate, most: int) -> tuple[Candidate, ...]:
    """Return the next candidates, by the same rules, that may prove faster on the board."""
    bound = None if chosen.estimate is None or chosen.estimate.busy else chosen.estimate
    others = (other for other in acceptable if other is not chosen)
    left = [one for one in others if bound is None or one.estimate is None or one.estimate.low_ms <= bound.high_ms]
    found: list[Candidate] = []
    while left and len(found) < most:
        found.append(_preferred(_equals(left)))
        left.remove(found[-1])
    return tuple(found)


def _preferred(equals: Sequence[Candidate]) -> Candidate:
    pool = _first_in_line(equals)
    timed = _all_measured(pool)
    return min(pool, key=lambda one: (not timed and one.format != "tflite", _middle(one), one.size_bytes, one.recipe))


def _first_in_line(equals: Sequence[Candidate]) -> list[Candidate]:
    int8 = [one for one in equals if one.precision == "int8"]
    return int8 or list(equals)


def _why_not(other: Candidate, chosen: Candidate, equals: Sequence[Candidate]) -> Refusal:
    """Say which rule preferred `chosen` to `other`."""
    fast, slow = chosen.estimate, other.estimate
    if fast is None and slow is None:  # as `_preferred` decides where no latency is known
        if chosen.precision == "int8" != other.precision:
            why = "is INT8, which comes first"
        elif chosen.format == "tflite" != other.format:
            why = "is TFLite, which comes before other formats"
        else:
            why = "is smaller" if chosen.size_bytes < other.size_bytes else "is its equal, and comes first by name"
        why += "; no latency is known of either"
        return Refusal(other.recipe, f"acceptable, but {chosen.recipe} {why}", "not-preferred")
    # the chosen one may be certainly faster though both overlap a third range that is wider
    apart = fast is not None and slow is not None and fast.high_ms < slow.low_ms
    named = chosen if apart or other in equals else min(equals, key=_high)  # the chosen one may overlap `other`
    if other not in equals or apart:
        why = "is faster, and the ranges do not overlap"
    elif chosen.precision == "int8" and other.precision != "int8":
        apart = fast is not None and slow is not None and slow.high_ms < fast.low_ms
        why = f"is INT8, which comes first where {'times do not decide' if apart else 'the ranges overlap'}"
    elif chosen.format == "tflite" != other.format and not _all_measured(_first_in_line(equals)):
        why = "is TFLite, which comes first where nothing measured separates them"
    elif _middle(chosen) < _middle(other):
        why = "has the lower middle of the range"
    elif chosen.size_bytes < other.size_bytes:
        why = "is as fast, and smaller"
    else:
        why = "is its equal, and comes first by name"
    rule = f"acceptable, but {named.recipe} {why}"
    reason = f"{rule} ({_range(named.estimate)}, against {_range(other.estimate)})"
    return Refusal(other.recipe, reason, "not-preferred", rule=rule)


def _notes(chosen: Candidate, limits: ChoiceLimits) -> tuple[str, ...]:
    notes = []
    if chosen.estimate is None:  # an estimate says itself of what grade it is
        notes.append(f"{chosen.recipe} has no latency estimate: {chosen.why_no_estimate or _range(None)}")
    elif chosen.estimate.busy:
        notes.extend(chosen.estimate.notes)
    fidelity = chosen.fidelity
    if fidelity is not None and fidelity.chosen_by:
        chosen_by = f"it was chosen by {fidelity.chosen_by} items of the evaluation set"
        apart = f"{chosen_by} and is judged by {fidelity.items} others"
        if fidelity.folds:
            crossed = f"each of {fidelity.items} items by a repair that was chosen without it"
            apart = f"it is judged by cross-fitting: {crossed}, in {fidelity.folds} parts"
        alike = (
            f"it was chosen and is judged by the same {fidelity.items} items, so others may lose more; the evaluation "
            f"set is divided where it has {2 * FEWEST_APART} items or more"
        )
        notes.append(f"{chosen.recipe} was repaired: {apart if fidelity.judged_apart else alike}")
    if fidelity is not None and fidelity.repaired and fidelity.quantized_macs < _MOSTLY and fidelity.metric is not None:
        share = _points(1 - fidelity.quantized_macs)
        notes.append(f"{share} % of its products stay in float to keep the limit. {TRAIN}")
    if limits.max_drop is not None and fidelity is not None:
        interval = fidelity.loss_ci95
        if interval is not None and not limits.allow(interval[1]):
            unit = _unit(fidelity) or (" point" if _points(limits.max_drop) == "1" else " points")
            notes.append(
                f"{fidelity.items} items are too few to be sure of the limit of {_points(limits.max_drop)}"
                f"{unit}: the {'drop' if fidelity.metric is not None else 'loss'} is {_points(fidelity.loss)}"
                f"{_interval(fidelity)}"
            )
        others = fidelity.outputs[1:] if fidelity.metric in _OF_THE_FIRST_OUTPUT else ()
        beside = max(others, key=lambda output: output.loss, default=None)
        if beside is not None and not limits.allow(beside.loss):
            notes.append(f"{fidelity.metric} is of one output, and {_of_output(fidelity, beside, limits.max_drop)}")
    return tuple(notes)


def _all_measured(pool: Sequence[Candidate]) -> bool:
    return all(candidate.estimate is not None and candidate.estimate.grade == "measured" for candidate in pool)


def _high(one: Candidate) -> float:
    return float("inf") if one.estimate is None or one.estimate.busy else one.estimate.high_ms


def _middle(candidate: Candidate) -> float:
    return float("inf") if candidate.estimate is None else candidate.estimate.mid_ms


def _range(estimate: Estimate | None) -> str:
    if estimate is None:
        return "no estimate"
    return f"{milliseconds(estimate.low_ms)} to {milliseconds(estimate.high_ms)} ms, {estimate.grade}"


def _points(fraction: float, beside: float | None = None) -> str:
    """Format as a percentage with two digits, or more to differ from `beside`; never "-0"."""
    for digits in range(2, 12):
        shown = f"{round(100 * fraction, digits) + 0.0:.{max(6, digits + 4)}g}"
        if beside is None or fraction == beside or round(100 * fraction, digits) != round(100 * beside, digits):
            return shown
    return shown


def _loss_text(fidelity: Fidelity, limit: float) -> str:
    lost, items = _points(fidelity.loss, limit), f"{fidelity.items} items"
    if fidelity.metric is not None and fidelity.is_error:
        return f"{fidelity.metric} grows by {lost} % of the original's{_interval(fidelity)} on {items}"
    if fidelity.metric is not None:
        return f"{fidelity.metric} drops by {lost} points{_interval(fidelity)} on {items}"
    output = fidelity.decisive
    if fidelity.decisions is not None and not fidelity.coarse_outputs:
        found = fidelity.decisions
        new = found.artifact - found.kept
        return (
            f"it keeps {found.kept} of the original's {found.original} boxes and adds {new} on "
            f"{items}{_interval(fidelity)}: {lost} % of decisions differ{_scores(found)}"
        )
    if output is not None:
        return _of_output(fidelity, output, limit)
    if fidelity.agreement is not None:
        return f"{lost} % of {items} get another answer than the original's"
    return f"its answers' cosine with the original's is {_short(fidelity.loss)} on {items}: {lost} % short of 1"


def _of_output(fidelity: Fidelity, output: OutputDrift, limit: float) -> str:
    """Describe what one output lost, by the measure that decided."""
    lost, items, name = _points(output.loss, limit), f"{fidelity.items} items", f"'{output.name}'"
    several = len(fidelity.outputs) > 1
    whose = f"the answers of {name} have" if several else "its answers have"
    short = f"{_short(output.loss)} with the original's on {items}: {lost} % short of 1"
    match output.measure:
        case "agreement":
            return f"{lost} % of {items} get another answer than the original's{f' in {name}' if several else ''}"
        case "spread":
            varies = f"what the original's answers vary by on {items} (rms over deviation)"
            return f"the error of {name} is {lost} % of {varies}"
        case "variance":
            return f"the error of {name} is {lost} % of the variance of the original's answers on {items}"
        case "offset":
            return f"{whose}, without what is the same for every item, a cosine of about {short}"
        case "channel":
            return f"{whose} in their worst channels a cosine of about {short}"
        case "levels":
            assert output.few_levels is not None
            return output.few_levels.describe(output.name)
        case "cosine":
            return f"{whose} a cosine of {short}"


def _short(loss: float) -> str:
    """Format 1 - loss with enough digits to differ from 1."""
    return f"{1.0 - loss:.4f}" if abs(loss) >= 0.00005 or loss == 0 else f"{1.0 - loss:.8f}".rstrip("0")


def _unit(fidelity: Fidelity) -> str:
    return "" if fidelity.metric is not None and not fidelity.is_error else " %"


def _scores(found: Decisions) -> str:
    if found.scores is None:
        return ""
    return f", and the scores of those kept go from {found.scores[0]:.2f} to {found.scores[1]:.2f}"


def _interval(fidelity: Fidelity) -> str:
    if fidelity.loss_ci95 is None:
        return ""
    low, high = fidelity.loss_ci95
    return f" (95 % interval {_points(low)} to {_points(high)})"
