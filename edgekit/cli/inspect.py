"""edgekit inspect: what is in a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit import scores
from edgekit.cli.inspect_text import made_lines, not_understood, terms_lines
from edgekit.cli.options import BUNDLE, as_json, print_json, trust
from edgekit.cli.output import say
from edgekit.cli.secret_options import secret
from edgekit.model_file import found_bundle
from edgekit_runtime.contract.kinds import kind_of

if TYPE_CHECKING:
    from edgekit_runtime.bundle import ArtifactEntry, Bundle, Manifest
    from edgekit_runtime.contract import Contract
    from edgekit_runtime.install import Generation, Root
    from edgekit_runtime.tensors import TensorSpec

__all__ = ["inspect"]


@click.command()
@click.argument("bundle", type=BUNDLE, metavar="BUNDLE|ROOT")
@trust
@secret
@click.option(
    "--sbom", is_flag=True, help="Print a software bill of materials instead: CycloneDX 1.6, one JSON object."
)
@as_json
def inspect(bundle: Path, trust: tuple[Path, ...], secret: str | None, sbom: bool, as_json: bool) -> None:
    """Check BUNDLE, or what answers in an install ROOT (every digest and its signature), and show what it holds.

    With --trust a bundle that is not signed as it asks is refused. Without, what this machine or the ROOT trusts is
    asked, and what it says is shown.

    \b
    edgekit inspect net.ekb
    edgekit inspect /var/lib/edgekit/camera --sbom
    """
    with found_bundle(bundle) as (path, root, generation):
        opened = _read(path, root, trust, secret)
    if sbom:
        from edgekit.packaging.sbom import sbom as bill

        print_json(bill(opened))
        return
    if as_json:
        print_json(_json(opened, root, generation))
        return
    if root is not None and generation is not None:
        click.echo(
            f"generation {generation.number} of {root.path}, installed from {generation.source} at {generation.at}"
        )
        say(generation.vouched)
    for line in _lines(opened):
        say(line)


def _json(opened: Bundle, root: Root | None, generation: Generation | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "manifest": opened.manifest.as_json(),
        "signed_by": list(opened.signed_by),
        "trusted": opened.trusted,
        "trust": opened.vouched.told,
        "encrypted": opened.manifest.encrypted_with is not None,
        "locked": opened.locked,
    }
    if root is not None and generation is not None:
        told["installed"] = {"root": str(root.path), "generation": generation.as_json()}
    return told


def _read(path: Path, root: Root | None, trust: tuple[Path, ...], secret: str | None) -> Bundle:
    """With what this machine, or the root, has to say about it; whatever that is, the bundle is shown."""
    from edgekit_runtime.bundle.reader import Opening, read_bundle, read_file
    from edgekit_runtime.install.reading import store_of
    from edgekit_runtime.trust import TrustPolicy

    if trust:
        return read_bundle(path, trust=trust, secret=secret)
    policy = TrustPolicy(store_of(root), new=root is None, mode="show")
    return Opening(path, policy, secret).read(partial(read_file, path))


def _lines(bundle: Bundle) -> Iterator[str]:
    manifest, contract = bundle.manifest, bundle.manifest.contract
    yield f"{manifest.name} version {manifest.version} for {manifest.target.profile} ({manifest.target.arch})"
    yield f"  file       {bundle.size:,} bytes, {len(manifest.blobs)} blobs, every SHA-256 checked"
    yield f"  digest     {bundle.digest}"
    yield f"  model      {manifest.model_id}"
    yield f"  signed     {_signed(bundle)}"
    if manifest.encrypted_with is not None:
        yield f"  encrypted  {_encrypted(bundle)}"
    yield from terms_lines(manifest)
    classes = f", {len(contract.labels)} labels" if contract.labels else ""
    yield f"  task       {contract.task}{classes}"
    for spec in contract.caller_inputs:
        yield f"  input      {spec.name}: {kind_of(spec).describe(spec)}"
    yield from _state_lines(contract)
    for entry in manifest.artifacts:
        yield from _artifact_lines(entry)
    yield f"  golden     {_golden(manifest)}, replayed when the bundle is opened"


def _state_lines(contract: Contract) -> Iterator[str]:
    if contract.state == "internal":
        yield "  state      inside the model; ask it through model.session()"
    for pair in contract.carried or ():
        first = (
            "zeros"
            if pair.initial is None
            else f"{pair.initial[0]:g} throughout"
            if len(pair.initial) == 1
            else "given values"
        )
        size = " x ".join(map(str, contract.input(pair.input).shape))
        yield (
            f"  state      {pair.output} is the next {pair.input} [{size}], {first} at first; "
            "ask it through model.session()"
        )
    if contract.hop is not None:
        yield f"  hop        a frame begins {contract.hop} samples after the last one"


def _golden(manifest: Manifest) -> str:
    frames = [golden.steps for golden in manifest.golden if golden.steps is not None]
    if not frames:
        return f"{len(manifest.golden)} example{'s' * (len(manifest.golden) != 1)}"
    each = str(frames[0]) if len(set(frames)) == 1 else f"{min(frames)} to {max(frames)}"
    return f"{len(frames)} sequence{'s' * (len(frames) != 1)} of {each} frames"


def _artifact_lines(entry: ArtifactEntry) -> Iterator[str]:
    yield f"  {entry.role:<10} {entry.recipe}, {entry.bytes:,} bytes"
    for tensor in entry.inputs:
        yield f"    in       {tensor.name}: {_tensor(tensor)}"
    for tensor in entry.outputs:
        yield f"    out      {tensor.name}: {_tensor(tensor)}"
    yield from made_lines(entry)
    for report, lines in (("fidelity", _fidelity), ("latency", _latency)):
        try:
            yield from list(lines(entry))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            yield not_understood(report)


def _fidelity(entry: ArtifactEntry) -> Iterator[str]:
    found = entry.fidelity
    if found is not None:
        drop = (
            "" if found["drop"] is None else (f"{scores.SHORT.get(found['metric'], found['metric'])} {_drop(found)}, ")
        )
        agrees = "" if found["agreement"] is None else f"agrees on {100 * found['agreement']:.1f} %, "
        items = f"{found['items']} items"
        if found.get("sequences"):
            items = f"{found['items']} frames of {found['sequences']} sequences"
        yield f"    fidelity {drop}{agrees}{_far(found)} on {items} with {found['engine']}"


def _latency(entry: ArtifactEntry) -> Iterator[str]:
    from edgekit_profiles import milliseconds

    expected = entry.estimate
    if expected is not None:
        mid, low, high = (milliseconds(expected[key]) for key in ("mid_ms", "low_ms", "high_ms"))
        yield f"    latency  {mid} ms ({low} to {high}), {expected['grade']}"


def _far(found: dict[str, Any]) -> str:
    """How far the answers are from the original's: the cosine, which of single numbers says nothing, or their error."""
    errors = [o["spread_error"] for o in found.get("outputs") or () if o.get("kind") in ("numbers", "probabilities")]
    if errors and len(errors) == len(found["outputs"]):
        return f"error {100 * max(errors):.1f} % of what the answers vary by"
    return f"cosine {found['cosine']:.4f}"


def _drop(found: dict[str, Any]) -> str:
    """The artifact's metric and what it lost: a share in points, an error in its own unit."""
    low, high = found["ci95"]
    drop, below, above = (
        scores.change(found["metric"], each, found["original"]) for each in (found["drop"], low, high)
    )
    value = scores.value(found["metric"], found["artifact"])
    if not scores.is_share(found["metric"]):
        return f"{value}, {drop} (95 % interval {below} to {above})"
    return f"{value}, drop {drop} points (95 % interval {below} to {above})"


def _signed(bundle: Bundle) -> str:
    from edgekit_runtime.trust.vouching import BY_THE_ROOT

    names = "by " + ", ".join(name[:16] for name in bundle.signed_by) if bundle.signed_by else "no"
    if bundle.trusted:
        return f"{names}, {BY_THE_ROOT if bundle.vouched.by_the_root else 'trusted here'}"
    if bundle.vouched.code:
        return f"{names}; {bundle.vouched.told}"
    return f"{names}; not checked (give --trust FILE)" if bundle.signed_by else names


def _encrypted(bundle: Bundle) -> str:
    key = f"with the key {bundle.manifest.encrypted_with:.12}"
    return f"{key}; not opened (give --secret)" if bundle.locked else f"{key}, which is here and opens every blob"


def _tensor(tensor: TensorSpec) -> str:
    shape = " x ".join("any" if n == -1 else str(n) for n in tensor.shape)
    q = tensor.quantization
    return f"{tensor.dtype} [{shape}]" + (f", scale {q.scale:.6g}, zero-point {q.zero_point}" if q else "")
