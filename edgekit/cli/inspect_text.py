"""What `edgekit inspect` says of a bundle beside its model: where, when and how it may be used, and how it was made.

for line in terms_lines(bundle.manifest): click.echo(line)

Rule: what an artifact's reports hold is not checked when a bundle is read, so that later versions may say more; a
report that is not understood is pointed at, never guessed from.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit_runtime.bundle import ArtifactEntry, Manifest

__all__ = ["made_lines", "not_understood", "terms_lines"]

_WIDTH = 120


def terms_lines(manifest: Manifest) -> Iterator[str]:
    """Licence, boards, roll-out, dates, promise, and what a reader must be."""
    if manifest.licence is not None:
        yield f"  licence    {manifest.licence}"
    yield from _wrapped("  boards     ", manifest.compatible)
    if manifest.rollout_seq is not None:
        yield f"  roll-out   number {manifest.rollout_seq}"
    dates = [
        f"{word} {moment}" for word, moment in (("from", manifest.not_before), ("until", manifest.expires)) if moment
    ]
    if dates:
        yield f"  valid      {' '.join(dates)}"
    if manifest.promise is not None:
        yield f"  promise    {_promise(manifest)}"
    needs = "".join(f", that knows {name}" for name in manifest.requires)
    yield f"  reader     edgekit {manifest.min_runtime} or newer{needs}"
    if manifest.tools:
        yield from _wrapped("  packed by  ", (f"{name} {version}" for name, version in sorted(manifest.tools.items())))


def made_lines(entry: ArtifactEntry) -> Iterator[str]:
    """With which operators, tools and settings."""
    if entry.ops is not None:
        yield from _wrapped("    ops      ", entry.ops)
    if entry.tools:
        yield from _wrapped("    made by  ", (f"{name} {version}" for name, version in sorted(entry.tools.items())))
    if entry.settings:
        told = {name: value for name, value in sorted(entry.settings.items()) if value not in (False, [], "", None)}
        if told:
            yield from _wrapped("    settings ", (_setting(name, value) for name, value in told.items()))


def not_understood(report: str) -> str:
    return f"    {report:<8} not in the words of this version: see --json"


def _setting(name: str, value: object) -> str:
    if value is True:
        return name
    if isinstance(value, list):
        shown = " ".join(map(str, value[:4]))
        return f"{name} {shown}" + (f" and {len(value) - 4} more" if len(value) > 4 else "")
    return f"{name} {value}"


def _promise(manifest: Manifest) -> str:
    from edgekit_profiles import milliseconds

    promise = manifest.promise
    assert promise is not None
    parts = [
        f"{name} at most {milliseconds(value)} ms"
        for name, value in (("p50", promise.p50_ms), ("p99", promise.p99_ms))
        if value is not None
    ]
    if promise.peak_mb is not None:
        parts.append(f"memory at most {promise.peak_mb:.3g} MB")
    return ", ".join(parts) or "nothing"


def _wrapped(head: str, parts: Iterable[str]) -> Iterator[str]:
    text = ", ".join(parts)
    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False
    )
