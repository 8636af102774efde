"""edgekit inspect: what a bundle holds, how it was made, and where and when it may be used.

Rule: reading a bundle does not check its reports, so that later versions may add to them; a report that is not
understood is named, never guessed from.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_json, say
from edgekit.packaging.model_file import found_bundle
from edgekit.report import words
from edgekit.report.html import estimates_beside
from edgekit_profiles import milliseconds
from edgekit_runtime.contract.kinds import kind_of

if TYPE_CHECKING:
    from edgekit_runtime.bundle.manifest import ArtifactEntry, Manifest
    from edgekit_runtime.bundle.reader import Bundle
    from edgekit_runtime.contract.spec import TensorSpec


@click.command()
@click.argument("bundle", type=opt.BUNDLE, metavar="BUNDLE|ROOT")
@opt.opening
@click.option("--sbom", is_flag=True, help="Print a software bill of materials instead: CycloneDX 1.6 as JSON.")
@opt.as_json
def inspect(
    bundle: Path, trust: tuple[Path, ...], allow_unsigned: bool, secret: str | None, sbom: bool, as_json: bool
) -> None:
    """Show the contents of BUNDLE, or of the active one of an install ROOT.

    Checks the signature and every digest.

    With --trust, a bundle not signed by those keys is refused. Otherwise the output shows whether this machine or the
    ROOT trusts it.

    \b
    edgekit inspect net.ekb
    edgekit inspect /var/lib/edgekit/camera --sbom
    """
    from edgekit_runtime.bundle.reader import Opening, read_bundle, read_file, read_verified
    from edgekit_runtime.bundle.trust_finding import TrustPolicy
    from edgekit_runtime.install.root_objects import store_of

    with found_bundle(bundle) as (path, root, generation):
        if trust and allow_unsigned:
            opened = read_verified(path, trust, secret=secret, allow_unsigned=True)
        elif trust:
            opened = read_bundle(path, trust=trust, secret=secret)
        else:  # whatever this machine, or the root, has to say about it, the bundle is shown
            policy = TrustPolicy(store_of(root), new=root is None, mode="show")
            opened = Opening(path, policy, secret).read(partial(read_file, path))
    if sbom:
        from edgekit.packaging.sbom import sbom as bill

        print_json(bill(opened))
        return
    if as_json:
        reported = estimates_beside(opened)
        shown = {
            "manifest": opened.manifest.as_json(),
            "signed_by": list(opened.signed_by),
            "trusted": opened.trusted,
            "trust": opened.trust_decision.text,
            "encrypted": opened.manifest.encrypted_with is not None,
            "locked": opened.locked,
            "estimates": {
                entry.recipe: reported[entry.blob] for entry in opened.manifest.artifacts if entry.blob in reported
            },
        }
        if root is not None and generation is not None:
            shown["installed"] = {"root": str(root.path), "generation": generation.as_json()}
        print_json(shown)
        return
    if root is not None and generation is not None:
        click.echo(
            f"generation {generation.number} of {root.path}, installed from {generation.source} at {generation.at}"
        )
        say(generation.signature_text)
    for line in _lines(opened):
        say(line)


def _lines(bundle: Bundle) -> Iterator[str]:
    manifest, contract = bundle.manifest, bundle.manifest.contract
    yield f"{manifest.name} version {manifest.version} for {manifest.target.profile} ({manifest.target.arch})"
    yield f"  file       {bundle.size:,} bytes, {len(manifest.blobs)} blobs, every SHA-256 checked"
    yield f"  digest     {bundle.digest}"
    yield f"  model      {manifest.model_id}"
    yield f"  signed     {_signed(bundle)}"
    if manifest.encrypted_with is not None:
        opens = "not opened (give --secret)" if bundle.locked else "which is here and opens every blob"
        yield f"  encrypted  with the key {manifest.encrypted_with:.12}{';' if bundle.locked else ','} {opens}"
    yield from terms_lines(manifest)
    classes = f", {len(contract.labels)} labels" if contract.labels else ""
    yield f"  task       {contract.task}{classes}"
    for spec in () if contract.generation is not None else contract.caller_inputs:
        yield f"  input      {spec.name}: {kind_of(spec).describe(spec)}"
    if (text := contract.text) is not None:
        length, pooled = (
            contract.input(text.ids).shape[0],
            "" if text.pooling == "none" else f", {text.pooling} pooling",
        )
        longer = "refused" if text.truncation == "refuse" else f"cut on the {text.truncation}"
        yield f"  text       tokenizer {text.tokenizer:.12}, {length} tokens, longer texts are {longer}{pooled}"
    if (made := contract.generation) is not None:
        takes = "messages, or a text as one" if made.chat else "a text, which it continues"
        yield f"  generates  from {takes}; trained for {made.context:,} tokens; ask it through model.generate()"
    if contract.state == "internal":
        yield "  state      inside the model; ask it through model.session()"
    for pair in contract.carried or ():
        first = "zeros" if pair.initial is None else "given values"
        if pair.initial is not None and len(pair.initial) == 1:
            first = f"{pair.initial[0]:g} throughout"
        size = " x ".join(map(str, contract.input(pair.input).shape))
        carried = f"{pair.output} is the next {pair.input} [{size}], {first} at first"
        yield f"  state      {carried}; ask it through model.session()"
    if contract.hop is not None:
        yield f"  hop        a frame begins {contract.hop} samples after the last one"
    reported = estimates_beside(bundle)
    for entry in manifest.artifacts:
        yield from _artifact_lines(entry, reported.get(entry.blob))
    frames = [golden.steps for golden in manifest.golden if golden.steps is not None]
    examples = f"{len(manifest.golden)} example{'s' * (len(manifest.golden) != 1)}"
    if frames:
        each = str(frames[0]) if len(set(frames)) == 1 else f"{min(frames)} to {max(frames)}"
        examples = f"{len(frames)} sequence{'s' * (len(frames) != 1)} of {each} frames"
    yield f"  golden     {examples}, replayed when the bundle is opened"


def _artifact_lines(entry: ArtifactEntry, reported: Mapping[str, Any] | None) -> Iterator[str]:
    yield f"  {entry.role:<10} {entry.recipe}, {entry.bytes:,} bytes"
    for tensor in entry.inputs:
        yield f"    in       {tensor.name}: {_tensor(tensor)}"
    for tensor in entry.outputs:
        yield f"    out      {tensor.name}: {_tensor(tensor)}"
    yield from artifact_lines(entry)
    for report, lines in (("fidelity", _fidelity), ("latency", partial(_latency, reported=reported))):
        try:
            yield from list(lines(entry))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            yield not_understood(report)


def _fidelity(entry: ArtifactEntry) -> Iterator[str]:
    """The artifact's metric, its loss (points, or an error's own unit), and how far answers are."""
    found = entry.fidelity
    if found is None:
        return
    metric, parts = found["metric"], []
    if found["drop"] is not None:
        changes = (found["drop"], *found["ci95"])
        drop, below, above = (words.change(metric, each, found["original"]) for each in changes)
        lost = f"drop {drop} points" if words.is_share(metric) else drop
        value = words.score(found["artifact"], metric)
        parts.append(f"{words.SHORT.get(metric, metric)} {value}, {lost} (95 % interval {below} to {above})")
    boxes = found.get("decisions") is not None
    if found["agreement"] is not None:
        parts.append(f"agrees on {100 * found['agreement']:.1f} %{' of boxes' if boxes else ''}")
    if boxes and found["decisions"].get("scores"):
        parts.append("whose scores go from {:.2f} to {:.2f}".format(*found["decisions"]["scores"]))
    if not boxes:  # whose rows may change places
        parts.append(closeness(found))
    if found.get("rank_agreement") is not None:
        parts.append(f"puts the same of two items nearer in {100 * found['rank_agreement']:.1f} %")
    items = f"{found['items']} items"
    if found.get("sequences"):
        items = f"{found['items']} frames of {found['sequences']} sequences"
    yield f"    fidelity {', '.join(parts)} on {items} with {found['engine']}"


def _latency(entry: ArtifactEntry, reported: Mapping[str, Any] | None) -> Iterator[str]:
    """The latency range as in the build's summary, from the bundle's own report."""
    own = None if entry.estimate is None else _range(entry.estimate)
    if reported is not None:
        found = _range(reported)
        yield f"    latency  {found}" + ("" if own in (found, None) else ", with the times of the build's machine")
        if own not in (found, None):
            yield f"             in the bundle, without them: {own}"
    elif own is not None:
        alone = ", without the times of the build's machine: its report is not beside the bundle"
        yield f"    latency  {own}{alone if entry.estimate and entry.estimate['grade'] == 'anchored' else ''}"


def _range(found: Mapping[str, Any]) -> str:
    return f"{words.span(found)}, {found['grade']}"


def closeness(found: dict[str, Any]) -> str:
    """How close answers are to the original's, as a cosine; for single numbers their error."""
    errors = [o["spread_error"] for o in found.get("outputs") or () if o.get("kind") in ("numbers", "probabilities")]
    if errors and len(errors) == len(found["outputs"]):
        return f"error {100 * max(errors):.1f} % of what the answers vary by"
    return f"cosine {found['cosine']:.4f}"


def _signed(bundle: Bundle) -> str:
    from edgekit_runtime.bundle.trust_finding import BY_THE_ROOT

    names = "by " + ", ".join(name[:16] for name in bundle.signed_by) if bundle.signed_by else "no"
    if bundle.trusted:
        return f"{names}, {BY_THE_ROOT if bundle.trust_decision.by_the_root else 'trusted here'}"
    if bundle.trust_decision.code:
        return f"{names}; {bundle.trust_decision.text}"
    return f"{names}; not checked (give --trust FILE)" if bundle.signed_by else names


def _tensor(tensor: TensorSpec) -> str:
    shape = " x ".join("any" if n == -1 else str(n) for n in tensor.shape)
    q = tensor.quantization
    return f"{tensor.dtype} [{shape}]" + (f", scale {q.scale:.6g}, zero-point {q.zero_point}" if q else "")


_WIDTH = 120


def terms_lines(manifest: Manifest) -> Iterator[str]:
    """Licence, boards, roll-out, dates, promise, and what a reader needs."""
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
    promise = manifest.promise
    if promise is not None:
        times = (("p50", promise.p50_ms), ("p99", promise.p99_ms))
        parts = [f"{name} at most {milliseconds(value)} ms" for name, value in times if value is not None]
        parts += [f"memory at most {promise.peak_mb:.3g} MB"] if promise.peak_mb is not None else []
        yield f"  promise    {', '.join(parts) or 'nothing'}"
    needs = "".join(f", that knows {name}" for name in manifest.requires)
    yield f"  reader     edgekit {manifest.min_runtime} or newer{needs}"
    if manifest.tools:
        yield from _wrapped("  packed by  ", (f"{name} {version}" for name, version in sorted(manifest.tools.items())))


def artifact_lines(entry: ArtifactEntry) -> Iterator[str]:
    """With which operators, tools and settings."""
    if entry.ops is not None:
        yield from _wrapped("    ops      ", entry.ops)
    if entry.tools:
        yield from _wrapped("    made by  ", (f"{name} {version}" for name, version in sorted(entry.tools.items())))
    settings = []
    for name, value in sorted((entry.settings or {}).items()):
        if value is True:
            settings.append(name)
        elif isinstance(value, list) and value:
            more = f" and {len(value) - 4} more" if len(value) > 4 else ""
            settings.append(f"{name} {' '.join(map(str, value[:4]))}{more}")
        elif value not in (False, [], "", None):
            settings.append(f"{name} {value}")
    if settings:
        yield from _wrapped("    settings ", settings)


def not_understood(report: str) -> str:
    return f"    {report:<8} not understood by this version: see --json"


def _wrapped(head: str, parts: Iterable[str]) -> Iterator[str]:
    text = ", ".join(parts)
    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False
    )
