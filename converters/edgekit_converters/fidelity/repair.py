"""Search for the plan nearest to full INT8 that keeps a limit on the drop.

    found = repair(bench, check, RepairStart("tflite-int8", plan, 0.03), RepairTarget(0.01, "tflite-int8-mixed"))
    found.met, found.plan.float_layers, found.why

Rules:
- remedies in order: other ranges, the few layers that the explanation blames, other weight steps, float islands;
- noise on calibration samples decides what to try; `check` is called only for plans that the noise has chosen;
- the budget is processor time, and waiting counts a tenth; the best plan so far is returned when it is spent;
- the search stops at the first plan that keeps the limit, so the caller judges it by items that `check` never saw;
- a plan that fails to convert is one failed attempt;
- more than WANTED of the multiply-accumulates in float is reported, and more than MOST is not tried.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from edgekit_converters.fidelity.sensitivity import Unit, by_benefit, float_share, merge_units, stretches
from edgekit_converters.recipe.artifact import QuantizationPlan, RangeMethod, Step
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.recipe.progress import Progress, TimeIsOverError, silent, tick, time_limit
from edgekit_runtime.system.errors import EngineError

WANTED = 0.10
MOST = 0.50
METHODS: tuple[RangeMethod, ...] = ("minmax", "mse", "percentile", "entropy")
STEPS: tuple[tuple[Step, ...], ...] = (("round",), (), ("equalise", "round"))
BETTER = 0.95
"""A plan replaces the best one only if its noise is at most this share of the best."""
ALIKE = 1.1
"""Plans with up to this multiple of the least noise are also checked with the evaluation set."""
LOST = 1.0
"""Noise as loud as the signal: other ranges and weight steps cannot help, and their order is unknown."""
WORSE = 1.02
"""Noise may rise by this factor when an island goes back to int8."""
STRETCHES = 8
"""Stretches of the network that are measured first."""
WAITING = 0.1
"""What a second without the processor counts."""
QUIET = 0.02
"""A stretch with at most this share of all noise is not split."""
LOUD = 0.1
"""Stretches with at least this share of all noise are tried in float together at once."""
OFTEN = 4
"""The most sets of loud stretches that are tried before single layers."""
HARDLY = 0.8
"""Islands among all layers are searched if products alone make more than this share of the noise."""
SLACK = 1e-9
"""Rounding error of a difference of two fractions that equals the limit."""

Check = Callable[[str, QuantizationPlan], float]
"""(recipe, plan) -> the drop that the limit applies to, on the items that a search may choose by."""


class RepairBench(Protocol):
    """What a search measures with.

    Any method, as a Check, may raise ConversionError or EngineError.

    units: in the order of execution.
    """

    @property
    def units(self) -> Sequence[Unit]: ...

    def noise(self, recipe: str, plan: QuantizationPlan) -> float:
        """Noise over signal power at the outputs, on calibration samples, against the float model."""
        ...

    def noise_alone(self, recipe: str, plan: QuantizationPlan, unit: Unit) -> float:
        """The same with that unit alone in int8."""
        ...

    def blamed(self, recipe: str, plan: QuantizationPlan) -> Sequence[frozenset[str]]:
        """Sets of layers that remove a cause of the damage when in float, worst cause first."""
        ...


@dataclass(frozen=True)
class RepairStart:
    """The artifact that misses the limit."""

    recipe: str
    plan: QuantizationPlan
    drop: float


@dataclass(frozen=True)
class RepairTarget:
    """max_drop: 0..1.
    mixed: the recipe with layers in float.
    budget_s: processor time, None for no limit.
    """

    max_drop: float
    mixed: str
    budget_s: float | None = 300.0


@dataclass(frozen=True)
class RepairAttempt:
    """One plan that was tried.

    noise: on calibration samples, None if not measured.
    drop: on the evaluation set, None if not compared.
    float_macs: share of the multiply-accumulates in float, 0..1.
    """

    remedy: str
    recipe: str
    plan: QuantizationPlan
    noise: float | None = None
    drop: float | None = None
    float_macs: float = 0.0
    failed: str = ""


@dataclass(frozen=True)
class Repair:
    """The best plan that was found, or the start if nothing was better.

    what: the plan in words.
    why: whether the limit is kept, in words.
    cut_short: a search with more time might find more.
    """

    recipe: str
    plan: QuantizationPlan
    drop: float
    tried: tuple[RepairAttempt, ...]
    met: bool
    why: str
    what: str
    cut_short: bool


def repair(
    bench: RepairBench,
    check: Check,
    start: RepairStart,
    target: RepairTarget,
    progress: Progress = silent,
    clock: Callable[[], float] | None = None,
) -> Repair:
    """Search until the limit holds, the time is over or there is nothing left to try.

    clock: seconds, monotonic; None for this thread's `processor_seconds`.
    """
    search = _Search(bench, check, start, target, progress, clock or processor_seconds())
    try:
        with time_limit(search.in_time):
            search.run()
        over = False
    except TimeIsOverError:
        over = True
    return search.result(over)


def processor_seconds() -> Callable[[], float]:
    """A clock of the calling thread's processor time from now on; waiting counts WAITING."""
    own, begun = time.thread_time(), time.monotonic()
    return lambda: max(time.thread_time() - own, WAITING * (time.monotonic() - begun))


@dataclass
class _Search:
    bench: RepairBench
    check: Check
    start: RepairStart
    target: RepairTarget
    progress: Progress
    clock: Callable[[], float]
    tried: list[RepairAttempt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begun = self.clock()
        self._cut_short = False
        self._plan = self.start.plan
        self._best = (self.start.recipe, self.start.plan, self.start.drop)
        self._loud = list[QuantizationPlan]()
        self._drops = {self.start.plan: self.start.drop}

    def run(self) -> None:
        def other_ranges() -> None:
            plans = [replace(self._plan, ranges=method) for method in METHODS if method != self._plan.ranges]
            self._by_noise([(f"ranges by {plan.ranges}", plan) for plan in plans])

        def other_steps() -> None:
            if self._noise("as it is", self.start.recipe, self._plan) > LOST:
                return
            plans = [replace(self._plan, steps=steps) for steps in STEPS if steps != self._plan.steps]
            self._by_noise([(f"weights: {', '.join(plan.steps) or 'as they are'}", plan) for plan in plans])

        for remedy in (other_ranges, self._named, other_steps):
            if not self._met:
                self._for_half_the_time(remedy)
        if not self._met:
            self._islands()

    def _for_half_the_time(self, remedy: Callable[[], None]) -> None:
        """Run a remedy for at most half of the remaining time, so that islands are always tried."""
        until = self._half_remaining()

        def in_time() -> None:
            self.in_time()
            if self.clock() >= until:
                raise TimeIsOverError

        try:
            with time_limit(in_time):
                remedy()
        except TimeIsOverError:
            self.in_time()  # raises again where it was the search's own time
            self._cut_short = True

    def in_time(self) -> None:
        """Raises TimeIsOverError when the budget is spent."""
        if self.target.budget_s is not None and self.clock() - self._begun >= self.target.budget_s:
            raise TimeIsOverError

    def result(self, over: bool) -> Repair:
        recipe, plan, drop = self._best
        what, cut_short = self._what(recipe, plan), over or self._cut_short
        return Repair(recipe, plan, drop, tuple(self.tried), self._met, self._why(over), what, cut_short)

    @property
    def _met(self) -> bool:
        return self._best[2] <= self.target.max_drop + SLACK

    # --- remedies

    def _by_noise(self, plans: Sequence[tuple[str, QuantizationPlan]]) -> None:
        """Continue with the plan of least noise; among similar ones, with the one of the least drop."""
        least = self._noise("as it is", self.start.recipe, self._plan)
        found = [(least * BETTER, self._plan)]
        for remedy, plan in plans:
            noise = self._noise(remedy, self.start.recipe, plan)
            least = min(least, noise)
            if noise <= min(least * ALIKE, LOST):
                self._check(remedy, self.start.recipe, plan)
                if self._met:
                    return
            found.append((noise, plan))
            alike = [one for one in found if one[0] <= least * ALIKE]
            drops = self._drops if least <= LOST else {}
            self._plan = min(alike, key=lambda one: (drops.get(one[1], math.inf), one[0]))[1]

    def _named(self) -> None:
        """The few layers in float that the explanation blames."""
        ranked = list[Unit]()
        units, left = list(self.bench.units), WANTED
        self._tick("what explains the damage")
        try:
            blamed = self.bench.blamed(self.start.recipe, self._plan)
        except (ConversionError, EngineError):
            return
        for layers in blamed:
            together = [unit for unit in units if unit.layers & layers]
            share = sum(unit.macs for unit in together)
            if together and share <= left + SLACK:
                left -= share
                units = [unit for unit in units if unit not in together]
                ranked.append(merge_units(together))
        self._fewest(ranked)

    def _islands(self) -> None:
        """The fewest layers in float, among those without products if products alone may be in int8."""
        cheap = [unit for unit in self.bench.units if not unit.macs]
        enough = self._products_alone(cheap)
        ranked = self._ranked(cheap if enough else self.bench.units)
        self._fewest(_fitting(ranked, MOST))

    def _fewest(self, ranked: Sequence[Unit]) -> None:
        """As few of the first of `ranked` in float as keep the limit."""
        failing, meeting = 0, 0
        for size in _growing(len(ranked)):
            if self._check_islands(ranked[:size]):
                meeting = size
                break
            failing = size
        while meeting - failing > 1:
            middle = (failing + meeting) // 2
            if self._check_islands(ranked[:middle]):
                meeting = middle
            else:
                failing = middle
        if meeting:
            self._without_needless(ranked[:meeting])

    def _without_needless(self, stretches: Sequence[Unit]) -> None:
        """Return islands that the noise does not need to int8, the costliest first."""
        chosen = [unit for unit in self.bench.units if any(unit.layers <= one.layers for one in stretches)]
        if len(chosen) < 2:
            return
        kept = list(chosen)
        least = self._noise("islands", self.target.mixed, self._with(kept))
        for unit in sorted(chosen, key=lambda unit: -unit.cost):
            fewer = [other for other in kept if other is not unit]
            if fewer and self._noise(f"without {unit.name}", self.target.mixed, self._with(fewer)) <= least * WORSE:
                kept = fewer
        if len(kept) < len(chosen):
            self._check_islands(kept)

    def _loudest(self, noise: Mapping[Unit, float]) -> None:
        """Try the loudest stretches in float together, if they are cheap, as an early answer."""
        finite = [value for value in noise.values() if math.isfinite(value)]
        floor = min(finite, default=0.0)
        loud = LOUD * sum(value - floor for value in finite)
        known = {unit.name: value for unit, value in noise.items() if math.isfinite(value) and value - floor >= loud}
        chosen = _fitting(by_benefit([*noise], known), MOST / 2)
        plan = self._with(chosen)
        if chosen and not self._met and plan not in self._drops and len(self._loud) < OFTEN:
            self._loud.append(plan)
            self._check_islands(chosen)

    def _products_alone(self, others: Sequence[Unit]) -> bool:
        """Whether the limit holds with products in int8 and everything else in float."""
        if not others or len(others) == len(self.bench.units):
            return False
        remedy = "products alone in int8"
        noise = self._noise(remedy, self.target.mixed, self._with(others))
        if noise > HARDLY * self._noise("as it is", self.start.recipe, self._plan):
            return False
        plans = [replace(self._plan, ranges=method) for method in METHODS]
        noises = (self._noise(remedy, self.target.mixed, self._with(others, plan)) for plan in plans)
        found = sorted((noise, place) for place, noise in enumerate(noises))
        for noise, place in found:
            alike = noise <= found[0][0] * ALIKE
            if alike and self._check(remedy, self.target.mixed, self._with(others, plans[place])):
                self._plan = plans[place]
                return True
        return False

    # --- measuring

    def _ranked(self, among: Sequence[Unit]) -> tuple[Unit, ...]:
        """Stretches of the network in the order of their use as islands.

        Noisy ones are split until single units are left, so a search that is cut short has still measured all of it.
        """
        until = self._half_remaining()
        noise: dict[Unit, float] = {}
        parts = {merge_units(units): units for units in stretches(among, STRETCHES)}
        waiting = list(parts)
        while waiting:
            if self.clock() >= until:
                self._cut_short = True  # islands from among those that were measured
                break
            self.progress("measuring how sensitive layers are", len(noise), len(noise) + len(waiting))
            unit = waiting.pop(0)
            try:
                alone = self.bench.noise_alone(self.target.mixed, self._plan, unit)
            except (ConversionError, EngineError):
                alone = math.inf  # cannot be parted from its neighbours: no island of its own
            noise[unit] = math.inf if math.isnan(alone) else alone
            if waiting:
                continue
            self._loudest(noise)
            # the stretch that is worth parting most, if it makes a noticeable part of the noise
            finite = [value for value in noise.values() if math.isfinite(value)]
            floor = min(finite, default=0.0)
            whole = [(value, unit.cost, unit.name, unit) for unit, value in noise.items() if len(parts[unit]) > 1]
            loudest = max(whole, default=None)
            if loudest is None or loudest[0] - floor <= QUIET * sum(value - floor for value in finite):
                continue
            noisy = loudest[3]
            del noise[noisy]
            halves = {merge_units(units): units for units in stretches(parts.pop(noisy), 2)}
            parts |= halves
            waiting.extend(halves)
        known = {unit.name: value for unit, value in noise.items() if math.isfinite(value)}
        return by_benefit([*noise], known)

    def _half_remaining(self) -> float:
        if self.target.budget_s is None:
            return math.inf
        now = self.clock()
        return now + (self._begun + self.target.budget_s - now) / 2

    def _noise(self, remedy: str, recipe: str, plan: QuantizationPlan) -> float:
        self._tick(remedy)
        try:
            noise = self.bench.noise(recipe, plan)
        except (ConversionError, EngineError) as error:
            self._remember(remedy, recipe, plan, failed=error.what)
            return math.inf
        noise = math.inf if math.isnan(noise) else noise
        self._remember(remedy, recipe, plan, noise=noise)
        return noise

    def _check(self, remedy: str, recipe: str, plan: QuantizationPlan) -> bool:
        self._tick(remedy)
        try:
            drop = self.check(recipe, plan)
        except (ConversionError, EngineError) as error:
            self._remember(remedy, recipe, plan, failed=error.what)
            return False
        self._remember(remedy, recipe, plan, drop=drop)
        self._drops[plan] = drop
        met = drop <= self.target.max_drop + SLACK
        cheaper = self._cost(plan) < self._cost(self._best[1])
        if (met and (cheaper or not self._met)) or (not self._met and drop < self._best[2] - SLACK):
            self._best = (recipe, plan, drop)
        return met

    def _cost(self, plan: QuantizationPlan) -> float:
        return sum(unit.cost for unit in self.bench.units if unit.layers <= plan.float_layers)

    def _check_islands(self, units: Sequence[Unit]) -> bool:
        count = len(units)
        return self._check(f"{count} island{'s' * (count > 1)} in float", self.target.mixed, self._with(units))

    def _with(self, units: Sequence[Unit], plan: QuantizationPlan | None = None) -> QuantizationPlan:
        return replace(plan or self._plan, float_layers=frozenset().union(*(unit.layers for unit in units)))

    def _tick(self, remedy: str) -> None:
        spent = self.clock() - self._begun
        budget = self.target.budget_s
        self.progress(f"repair: {remedy}", int(spent), None if budget is None else int(budget))
        tick()

    def _remember(self, remedy: str, recipe: str, plan: QuantizationPlan, **found: Any) -> None:
        share = float_share(self.bench.units, plan.float_layers)
        self.tried.append(RepairAttempt(remedy, recipe, plan, float_macs=share, **found))

    # --- words

    def _why(self, over: bool) -> str:
        recipe, plan, drop = self._best
        limit = f"the limit of {percent(self.target.max_drop)}"
        what = self._what(recipe, plan)
        if self._met:
            return f"{what} keeps {limit}: the drop is {percent(drop)}"
        if over and all(attempt.drop is None for attempt in self.tried):
            done = "was compared" if self.tried else "was measured"
            return (
                f"{limit} is not kept: the drop is {percent(drop, self.target.max_drop)}, and the time was "
                f"over before anything else {done}"
            )
        end = "the time was over" if over or self._cut_short else "nothing else is left to try"
        changed = plan != self.start.plan or recipe != self.start.recipe
        best = f"the best found is {what}" if changed else "nothing was better than the start"
        return f"{limit} is not kept: {best}, with a drop of {percent(drop, self.target.max_drop)}, and {end}"

    def _what(self, recipe: str, plan: QuantizationPlan) -> str:
        units = [unit for unit in self.bench.units if unit.layers <= plan.float_layers]
        if not units:
            return recipe
        share = float_share(self.bench.units, plan.float_layers)
        more = f", more than the {percent(WANTED)} that is wanted" if share > WANTED else ""
        count = f"{len(units)} of {len(self.bench.units)}"
        return f"{recipe} with {count} layers in float ({percent(share)} of the work{more})"


def _fitting(ranked: Sequence[Unit], left: float) -> list[Unit]:
    """Units that fit into the share `left` of the multiply-accumulates; others are skipped."""
    fitting = list[Unit]()
    for unit in ranked:
        if unit.macs <= left + SLACK:
            fitting.append(unit)
            left -= unit.macs
    return fitting


def _growing(count: int) -> Iterator[int]:
    """1, 2, 3, 5, 8, 12, 18 ... and the whole."""
    size = 1
    while size < count:
        yield size
        size = max(size + 1, size * 3 // 2)
    if count:
        yield count


def percent(share: float, beside: float | None = None) -> str:
    """Format with two digits, or as many as it takes to differ from `beside`."""
    digits = 2
    while beside not in (None, share) and digits < 10 and f"{share:.{digits + 2}f}" == f"{beside:.{digits + 2}f}":
        digits += 1
    return f"{share * 100:.{digits}f}".rstrip("0").rstrip(".") + " %"
