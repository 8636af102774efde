"""edgekit verify: is a bundle trusted and correct here? check: will it run on a board?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_json, print_result, refuse_unwritable, write_json
from edgekit.cli.progress import console_progress
from edgekit_runtime.engines.registry import ENGINES
from edgekit_runtime.system.errors import EdgekitError, EngineError, SecretError

if TYPE_CHECKING:
    from edgekit.boards.accelerators import AcceleratorReport
    from edgekit.boards.catalogue import CheckFinding
    from edgekit.boards.checked import CheckReport
    from edgekit.boards.replay import ReplayResult
    from edgekit.boards.vela import VelaReport
    from edgekit.packaging.verifying import Verification


@click.command()
@click.argument("bundle", type=opt.BUNDLE, metavar="[BUNDLE|ROOT]", required=False)
@click.option(
    "--replay",
    is_flag=True,
    help="Also load it in a child process with memory and time limits, and replay its golden examples; then tune, "
    "replay and warm up as an application does.",
)
@opt.engine()
@opt.threads()
@opt.opening
@opt.profile(
    help="The board to check for. Default: the profile that ROOT remembers; else the detected one, as a note only."
)
@opt.output("RECORD", "Also write what --json prints to RECORD.")
@opt.as_json
def verify(bundle: Path | None, as_json: bool, output: Path | None, **options: Any) -> int:
    """Check BUNDLE, or the active one of an install ROOT, and print each check.

    Checks digests, signatures, dates and the clock, the board, the structure and the operators of every model file, and
    the golden examples.

    Without BUNDLE, the current folder must be an install root or hold one *.ekb. Exits 1 at the first failed check, or
    if --replay finds an answer out of tolerance. A machine without trusted keys needs --allow-unsigned.

    \b
    edgekit verify net.ekb --trust key.pub.pem
    edgekit verify /var/lib/edgekit/camera --replay
    """
    from edgekit.cli.install import board_of, remembered_profile, with_profile_hint
    from edgekit.packaging.verifying import Verification, VerifyOptions

    if not options["replay"] and (idle := opt.options_given("engine", "threads")):
        raise click.UsageError(f"Pass --replay with {' and '.join(idle)}: nothing is loaded without it.")
    if options["engine"] not in (None, *ENGINES):
        raise EngineError(f"unknown engine '{options['engine']}'", do=f"Engines: {', '.join(ENGINES)}")
    if output is not None:
        refuse_unwritable(output)
    bundle, profile = bundle or _here(), options["profile"]
    how = VerifyOptions(
        trust=options["trust"],
        allow_unsigned=options["allow_unsigned"],
        board=board_of(profile or remembered_profile(bundle), quiet=True),
        named=profile is not None,
        secret=options["secret"],
        replay=options["replay"],
    )
    verification = Verification(bundle, how)
    for check in verification:
        if not as_json:
            mark = {True: "ok", False: "REFUSED", None: "-"}[check.ok]
            click.echo(f"{mark:<8} {check.name:<18} {check.text}")
    replayed = _replayed(verification, options["engine"], options["threads"]) if options["replay"] else {}
    if verification.error is not None:
        with_profile_hint(verification.error, profile)
    record = verification.as_json() | replayed
    if (generation := verification.generation) is not None:
        record |= {"generation": generation.number, "state": verification.state}
        record |= {"unsigned": generation.unsigned, "vouched": generation.signature_text}
    if output is not None:
        write_json(output, record, indent=None)
    if as_json:
        print_json(record)
        return 0 if verification.error is None else 1
    if verification.error is not None:
        raise verification.error
    for line in _closing_lines(verification, replayed):
        click.echo(line)
    return 0


def _replayed(verification: Verification, engine: str | None, threads: int | None) -> dict[str, Any]:
    """The verification, with the error that opening the bundle as an application raises."""
    if verification.error is not None:
        return {}
    try:
        return verification.open_as_application(engine, threads)
    except SecretError:  # the missing key says nothing against the bundle
        raise
    except EdgekitError as error:
        verification.error = error
        return {}


def _closing_lines(verification: Verification, replayed: dict[str, Any]) -> Iterator[str]:
    """What the replay found, who signed what an install root holds, and the verdict."""
    made, manifest = verification.generation, verification.manifest
    if replayed and manifest is not None:
        examples = "1 golden example" if replayed["examples"] == 1 else f"{replayed['examples']} golden examples"
        by = "the engine that made them" if replayed["same_engine"] else "a different engine made them"
        engine = replayed["engine"]
        same = "" if engine["arithmetic"] == "exact" else " with the same bits on the golden examples"
        where = "" if made is None else f"generation {made.number}, {verification.state}: "
        yield (
            f"{where}{manifest.name} version {manifest.version}: {replayed['recipe']} gives its {examples} on "
            f"{engine['name']} {engine['version']}, {by}: at most {replayed['worst_steps']:.3g} steps apart, cosine "
            f"{replayed['worst_cosine']:.5f}, {engine['arithmetic']} arithmetic{same}"
        )
    if made is not None:
        yield made.signature_text
    rest = [one.name for one in verification.checks if one.ok is None and one.name != "signature"]
    aside = f"; see the lines marked - ({', '.join(rest)})" if rest else ""
    if verification.trusted and verification.trust_decision is not None:
        by_root = verification.trust_decision.by_the_root
        yield f"trusted{', by the keys that this root remembers; --trust names others' if by_root else ''}{aside}"
    else:
        yield f"not trusted: --allow-unsigned accepted it without a trusted signature; all else was checked{aside}"


def _here() -> Path:
    """This folder, if it is an install root, else its only bundle."""
    from edgekit_runtime.install import is_root

    folder = Path.cwd()
    found = [folder] if is_root(folder) else [one for one in sorted(folder.glob("*.ekb")) if one.is_file()]
    if len(found) != 1:
        there = f"it holds {len(found)} of them" if found else "it is not a root and holds none"
        raise click.UsageError(
            f"Name a BUNDLE or a ROOT. Without it, {folder} must be an install root or hold one *.ekb, and {there}."
        )
    click.echo(f"verifying {found[0]}", err=True)
    return found[0]


@click.command()
@click.argument("artifact", type=opt.BUNDLE, metavar="BUNDLE|ROOT|ARTIFACT")
@opt.profiles(
    help="The board: a name from `edgekit profiles list`, or a .toml file. Repeatable. Default: the bundle's own."
)
@opt.profile_path
@click.option(
    "--runtime",
    "runtimes",
    multiple=True,
    metavar="ENGINE==VERSION",
    help="The runtime version on the board, such as tflite-runtime==2.14.0. Default: what the profile installs.",
)
@click.option("--emulate", is_flag=True, help="Also install and replay it under QEMU, on the board's processor.")
@click.option("--no-replay", is_flag=True, help="Check the files only; run and download nothing.")
@click.option(
    "--for",
    "targets",
    type=click.Choice(
        ("android", "ios", "web", "ethos-u65-256", "ethos-u65-512", *(f"ethos-u85-{2**n}" for n in range(7, 12)))
    ),
    multiple=True,
    help="Instead of a board: count the operators that the GPU or NPU of a phone or browser, or an Ethos-U, leaves to "
    "the CPU. Repeatable.",
)
@opt.opening
@opt.as_json
def check(artifact: Path, as_json: bool, **asked: Any) -> int:
    """Predict whether a bundle loads on a board and gives the right answers there.

    The argument is a bundle, an install ROOT, a .tflite or an .onnx file.

    First the file is checked alone: operator versions, NumPy, wheels for the board's Python, memory. Then the golden
    examples are replayed with the board's version of the runtime, in an environment of its own that is kept. Each
    finding has a code; `edgekit doctor CODE` explains it. Exits 1 if a finding is an error.

    \b
    edgekit check net.ekb --profile raspberry-pi-4
    edgekit check net.tflite --profile raspberry-pi-4 --runtime tflite-runtime==2.14.0
    edgekit check net.ekb --for android --for ios
    """
    from edgekit.boards.accelerators import check_accelerators
    from edgekit.boards.checked import CheckRequest, runtime_named
    from edgekit.boards.checked import check as checked
    from edgekit.packaging.model_file import form_of
    from edgekit_runtime.bundle.reader import read_bundle

    if asked["emulate"] and asked["no_replay"]:
        raise click.UsageError("Pass either --emulate or --no-replay.")
    if asked["targets"] and (of_boards := opt.options_given("profiles", "runtimes", "emulate", "no_replay")):
        raise click.UsageError(f"--for only reads the file: leave out {' and '.join(of_boards)}.")
    artifact = opt.held_bundle(artifact, asked["trust"], asked["allow_unsigned"])
    if asked["targets"]:
        from edgekit.boards.vela import ACCELERATORS, VelaReport, check_ethos_u

        reports: list[AcceleratorReport | VelaReport] = [
            (check_ethos_u if one in ACCELERATORS else check_accelerators)(artifact, one, asked["secret"])
            for one in dict.fromkeys(asked["targets"])
        ]
        lines = (
            line
            for one in reports
            for line in (
                _vela_lines(one, artifact) if isinstance(one, VelaReport) else _accelerator_lines(one, artifact)
            )
        )
        several = {"ok": True, "checks": [one.as_json() for one in reports]}
        print_result(reports[0].as_json() if len(reports) == 1 else several, lines, as_json)
        return 0
    profiles = asked["profiles"]
    if not profiles:
        if form_of(artifact) != "bundle":
            raise click.UsageError("A model file names no board: pass --profile NAME.")
        profiles = (read_bundle(artifact).manifest.target.profile,)
    named = tuple(map(runtime_named, asked["runtimes"]))
    catalogue = opt.catalogue_of(asked["profile_paths"])
    boards = [catalogue.load(name) for name in dict.fromkeys(profiles)]
    with console_progress() as progress:
        how = (named, not asked["no_replay"], asked["emulate"], asked["secret"])
        found = [checked(CheckRequest(artifact, board, *how), progress) for board in boards]
    several = {"ok": all(one.ok for one in found), "checks": [one.as_json() for one in found]}
    lines = (line for one in found for line in _lines(one, artifact))
    print_result(found[0].as_json() if len(found) == 1 else several, lines, as_json)
    return 0 if all(one.ok for one in found) else 1


def _lines(checked: CheckReport, artifact: Path) -> Iterator[str]:
    errors = sum(found.level == "error" for found in checked.findings)
    missing = any(found.code in ("replay-unavailable", "replay-impossible") for found in checked.findings)
    if errors:
        verdict = f"{errors} error{'s' if errors > 1 else ''}"
    elif checked.replayed is None:  # what was not run is not known to be right
        verdict = "ok, not replayed"
    else:
        verdict = "ok, in part not replayed" if missing and checked.replayed.where == "native" else "ok"
    yield f"{artifact.name} on {checked.profile}: {verdict}"
    for replayed in checked.replays:
        yield f"  replayed {replay_line(replayed)}"
    yield from _finding_lines(checked.findings)


_WHY = {
    "operator": "not in its list",
    "version": "a later version",
    "axes": "too many or too few axes",
    "size": "a size known only at run time",
    "part": "in a part that it leaves out",
}


def _accelerator_lines(report: AcceleratorReport, artifact: Path) -> Iterator[str]:
    for network in report.networks:
        yield f"{artifact.name} for {report.target}: {network.artifact}, {network.operators} operators"
        for one in network.splits:
            parts = f" in {one.parts} part{'s' * (one.parts != 1)}" if one.parts else ""
            share = "" if one.share is None else f", {100 * one.share:.3g} % of the multiply-accumulates"
            yield f"  {one.delegate.title} takes {one.taken}{parts}{share if one.taken else ''}"
            left = [f"{each.count} {each.op} ({_WHY.get(each.why) or ', '.join(each.types)})" for each in one.left]
            if left:
                more = f" and {len(left) - 6} more kinds" if len(left) > 6 else ""
                yield f"    left behind: {', '.join(left[:6])}{more}"
            if one.conditional:
                yield f"    not checked: its conditions on {', '.join(one.conditional)}"
            yield f"    {one.delegate.note}"
    yield from _finding_lines(report.findings)


def _vela_lines(report: VelaReport, artifact: Path) -> Iterator[str]:
    for one in report.networks:
        yield f"{artifact.name} for {report.target}: {one.artifact}, compiled by Vela {report.version}"
        yield f"  {one.npu} operators on the NPU, {one.cpu} on the processor"
        for op, why, count in one.left[:6]:
            yield f"    left behind: {count} {op}: {why}"
        if one.npu:
            sizes = f"{one.sram_kib:,.0f} KiB of SRAM, {one.dram_kib:,.0f} KiB of DRAM"
            yield f"  {one.inference_ms:.3g} ms, {sizes}: Vela's estimate for {one.system}"


def _finding_lines(findings: Iterable[CheckFinding]) -> Iterator[str]:
    for found in findings:
        yield f"  {found.level} {found.code}: {f'{found.artifact}: ' if found.artifact else ''}{found.what}"
        if found.level == "error":
            yield f"    why: {found.why}"
        yield f"    do:  {found.do}"


def replay_line(one: ReplayResult) -> str:
    whose = f"{one.artifact} " if one.artifact else ""
    where = f"under QEMU, {one.cpu}, not on hardware" if one.where == "emulated" else "on this machine"
    worst = one.worst
    if worst is None:
        return f"{whose}with {one.runtime} {where}: no answer"
    cosine = "" if one.cosine is None else f", cosine {one.cosine:.4f}"
    count = f"{one.examples} golden examples, " if one.examples else ""
    # A step of float outputs is 1e-4 of the largest value, which says nothing to a reader.
    share = f"{worst * 1e-2:.2g} % of the largest value"
    furthest = f"{worst:.3g} step{'s' * (worst != 1)}" if one.quantized else share
    return f"{whose}with {one.runtime} {where}: {count}furthest {furthest}{cosine}"
