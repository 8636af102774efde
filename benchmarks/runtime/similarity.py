"""What answering from similar pictures would cost in correctness, and save in time, on the user's own frames.

    python benchmarks/runtime/similarity.py net.ekb frames/
    python benchmarks/runtime/similarity.py net.ekb frames/ --frames-per-s 25 --json

Rules:
- every frame is really inferred once; for each threshold the tier of the runtime itself is asked, in the order of the
  frames' names (numbers in them count as numbers), with nothing else in the way;
- an answer agrees where the best class is the same; for models that do not classify, where every output has a cosine of
  0.99 or more with the true one;
- an age limit needs the frames' rate; without one, every frame is young enough;
- frames that cannot be read are left out, counted and named.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.bench.inputs import InputsError, list_files, load
from edgekit_runtime import Answer, EdgekitError, Model, open_bundle
from edgekit_runtime.cache.similar import PictureMark, Similar, SimilarHit
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.spec import Contract

THRESHOLDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_ALIKE_COSINE = 0.99
_GOOD_ENOUGH = 0.99
_ALWAYS_S = 1e18

Outputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _Frame:
    name: str
    answer: Answer
    mark: PictureMark


@dataclass
class _Trial:
    """One threshold, and how it went so far."""

    threshold: float
    tier: Similar
    names: dict[int, str] = field(default_factory=dict)
    agreed: list[bool] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)
    worst: dict[str, Any] | None = None

    def see(self, frame: _Frame) -> None:
        """Answer from likeness if the tier would, else let the true answer be remembered."""
        hit = self.tier.find(frame.mark)
        if hit is None:
            self.tier.remember(frame.mark, frame.answer.outputs)
            return
        cosine = _cosine(hit.outputs, frame.answer.outputs)
        agrees = _agrees(hit.outputs, frame.answer, cosine)
        self.agreed.append(agrees)
        self.cosines.append(cosine)
        self.distances.append(hit.distance)
        if self.worst is None or (agrees, cosine) < (self.worst["agrees"], self.worst["cosine"]):
            self.worst = {"frame": frame.name, "agrees": agrees, "cosine": cosine, "distance": hit.distance}

    def as_json(self, frames: int, infer_ms: float, look_ms: float) -> dict[str, Any]:
        answered = len(self.agreed)
        share = answered / frames if frames else 0.0
        return {
            "threshold": self.threshold,
            "answered": answered,
            "share": share,
            "agreement": float(np.mean(self.agreed)) if answered else None,
            "agreement_low": _lower_bound(sum(self.agreed), answered) if answered else None,
            "wrong": answered - sum(self.agreed),
            "cosine_mean": float(np.mean(self.cosines)) if answered else None,
            "cosine_min": min(self.cosines) if answered else None,
            "distance_mean": float(np.mean(self.distances)) if answered else None,
            "saved_ms": share * infer_ms - look_ms,
            "worst": self.worst,
        }


def measure_similarity(
    bundle_path: Path,
    folder: Path,
    thresholds: Sequence[float] = THRESHOLDS,
    *,
    frames_per_s: float | None = None,
    opened: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """For each threshold, how much would be answered, and how rightly.

    infer_ms: median of what a hit saves, look_ms: median of what asking costs; saved_ms: a frame, on average over all
    frames.
    changes: percentiles of the distance from one frame to the next, in the thresholds' unit. agreement_low: with 95 %
    confidence the agreement is at least this. suggested: the largest threshold up to which 99 % agree, None for none.
    opened: options of `open_bundle`. Raises InputsError where there is no such folder, the model keeps state or there
    are fewer than two frames, and what opening the bundle raises.
    """
    clock = _FrameClock()
    max_age_s = _ALWAYS_S if frames_per_s is None else 2.0
    trials = [_Trial(t, Similar(t, max_age_s=max_age_s, clock=clock)) for t in sorted(set(thresholds))]
    seen = _Seen()
    if not folder.is_dir():
        raise InputsError("there is no such folder", where=str(folder), do="Name a folder with frames of a video")
    given = list(list_files([str(folder)]))
    files = sorted((one for one in given if isinstance(one, str)), key=_by_number)
    closed = [one for one in given if isinstance(one, InputsError)]
    if not files:
        raise closed[0]
    seen.unreadable += [{"file": error.where, "why": error.what} for error in closed]
    with open_bundle(bundle_path, cache=False, **opened) as model:
        if model.contract.state != "none":
            raise InputsError(
                "the model keeps state, and an answer that depends on earlier frames is never another frame's",
                where=str(bundle_path),
                do="Leave similar= out",
            )
        looker = _Looker(model.contract)
        for file in files:
            frame = seen.look(looker, model, file)
            if frame is not None:
                for trial in trials:
                    trial.see(frame)
                clock.now += 1.0 / (frames_per_s or 1.0)
        described = model.describe()
    if seen.frames < 2:
        raise InputsError(
            f"{seen.frames} of {len(files)} files are pictures that can be read",
            where=str(folder),
            do="Put frames of a video there, named so that their order is the video's",
        )
    infer_ms, look_ms = float(np.median(seen.infer_ms)), float(np.median(seen.look_ms))
    rows = [trial.as_json(seen.frames, infer_ms, look_ms) for trial in trials]
    return {
        "bundle": str(bundle_path),
        "recipe": described["recipe"],
        "frames": seen.frames,
        "unreadable": seen.unreadable,
        "task": model.contract.task,
        "infer_ms": infer_ms,
        "look_ms": look_ms,
        "changes": dict(zip(("p50", "p90", "p99"), np.percentile(seen.changes, [50, 90, 99]).tolist(), strict=True)),
        "thresholds": rows,
        "suggested": _suggested(rows),
    }


@dataclass
class _Seen:
    """What the frames showed, whatever threshold. changes: distances from one frame to the next."""

    infer_ms: list[float] = field(default_factory=list)
    look_ms: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    unreadable: list[dict[str, str]] = field(default_factory=list)
    before: PictureMark | None = None

    @property
    def frames(self) -> int:
        return len(self.infer_ms)

    def look(self, looker: _Looker, model: Model, file: str) -> _Frame | None:
        """Answer and compare the next frame; None where the file cannot be read."""
        try:
            frame, took_ms = looker.frame(model, file)
        except InputsError:
            raise
        except EdgekitError as error:
            self.unreadable.append({"file": file, "why": error.what})
            return None
        self.infer_ms.append(_saved_by_a_hit(frame.answer))
        self.look_ms.append(took_ms)
        if self.before is not None:
            self.changes.append(frame.mark.distance(self.before))
        self.before = frame.mark
        return frame


def _suggested(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The last threshold before the first that is not good enough. rows: by rising threshold."""
    suggested = None
    for row in rows:
        if not row["answered"]:
            continue
        if row["agreement"] < _GOOD_ENOUGH:
            break
        suggested = float(row["threshold"])
    return suggested


def _lower_bound(agreed: int, answered: int) -> float:
    """Of a share, with 95 % confidence on one side: E. B. Wilson, JASA 22 (1927) 209."""
    z = 1.645
    share, n = agreed / answered, answered
    middle = share + z * z / (2 * n)
    spread = z * ((share * (1 - share) + z * z / (4 * n)) / n) ** 0.5
    return float((middle - spread) / (1 + z * z / n))


class _FrameClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class _Looker:
    """Decodes as the runtime does, and takes a frame's mark."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._decoders = {spec.name: Decoder(spec) for spec in contract.inputs}
        self._tier = Similar(0.0)

    def frame(self, model: Model, file: str) -> tuple[_Frame, float]:
        """The frame, and the milliseconds that looking for a similar one takes. Raises InputError, InputsError."""
        given = load(file, self._contract)
        named = given if isinstance(given, Mapping) else {next(iter(self._decoders)): given}
        answer = model.predict(given)
        items = {name: self._decoders[name](value) for name, value in named.items()}
        start = perf_counter()
        mark = self._tier.mark(items)
        hit: SimilarHit | None = self._tier.find(mark) if mark is not None else None
        took_ms = (perf_counter() - start) * 1e3
        if mark is None:
            raise InputsError(
                "the model takes no pictures, and only pictures are compared", where=file, do="Leave similar= out"
            )
        if hit is None:
            self._tier.remember(mark, answer.outputs)
        return _Frame(file, answer, mark), took_ms


def _saved_by_a_hit(answer: Answer) -> float:
    """Milliseconds: everything after decoding."""
    return answer.timings["total"] - answer.timings.get("decode", 0.0) - answer.timings.get("identify", 0.0)


def _agrees(given: Outputs, true: Answer, cosine: float) -> bool:
    if true.contract.task != "classification":
        return cosine >= _ALIKE_COSINE
    scores = true.contract.outputs[0].name
    return int(np.argmax(given[scores])) == int(np.argmax(true.outputs[scores]))


def _cosine(given: Outputs, true: Outputs) -> float:
    """The least over the outputs; 0 where shapes differ."""
    return min((_cosine_of(given[name], true[name]) for name in true), default=1.0)


def _cosine_of(given: NDArray[Any], true: NDArray[Any]) -> float:
    if given.shape != true.shape:
        return 0.0
    a, b = given.astype(np.float64).ravel(), true.astype(np.float64).ravel()
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms > 0 else float(np.array_equal(a, b))


def _by_number(file: str) -> list[tuple[int, str]]:
    """frame2 before frame10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", file)]


def lines_of(found: dict[str, Any]) -> list[str]:
    """One row a threshold: how many frames would be answered from likeness, and how rightly."""
    changes = found["changes"]
    lines = [
        f"{found['bundle']}: {found['recipe']} on {found['frames']:,} frames, an inference {found['infer_ms']:.3g} ms, "
        f"a look {found['look_ms']:.3g} ms",
        f"  from one frame to the next: p50 {changes['p50']:.3g}, p90 {changes['p90']:.3g}, p99 {changes['p99']:.3g}",
        f"  {'threshold':>9} {'answered':>9} {'share':>7} {'agree':>8} {'at least':>9} {'wrong':>6} {'cosine':>8} "
        f"{'least':>8} {'saved a frame':>14}",
    ]
    for row in found["thresholds"]:
        figures = [row["agreement"], row["agreement_low"], row["cosine_mean"], row["cosine_min"]]
        agree, low, mean, least = ("-" if f is None else f"{f:.4f}" for f in figures)
        lines.append(
            f"  {row['threshold']:>9g} {row['answered']:>9,} {100 * row['share']:>5.1f} % {agree:>8} {low:>9} "
            f"{row['wrong']:>6,} {mean:>8} {least:>8} {row['saved_ms']:>11.3g} ms"
        )
    worst = [row["worst"] for row in found["thresholds"] if row["worst"] and not row["worst"]["agrees"]]
    if worst:
        lines.append(
            f"  first wrong at {worst[0]['frame']}: distance {worst[0]['distance']:.3g}, cosine "
            f"{worst[0]['cosine']:.4f}"
        )
    if found["unreadable"]:
        lines.append(
            f"  left out: {len(found['unreadable']):,} that cannot be read, {found['unreadable'][0]['file']} the first"
        )
    best = found["suggested"]
    lines.append(
        "  no threshold at which 99 % of the answers agree"
        if best is None
        else f"  suggested: {best:g}, the largest at which 99 % of the answers agree"
    )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("frames", type=Path, help="a folder with frames of a video, named in its order")
    parser.add_argument(
        "--frames-per-s", type=float, help="how fast the frames came; without it every frame is young enough"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    opened = {"allow_unsigned": True}
    try:
        found = measure_similarity(options.bundle, options.frames, frames_per_s=options.frames_per_s, opened=opened)
    except EdgekitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2) if options.json else "\n".join(lines_of(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
