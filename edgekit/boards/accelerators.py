"""Check a bundle for phones and browsers: what accelerators leave to the processor.

    report = check_accelerators(Path("net.ekb"), "android")
    report.networks[0].splits[0].taken

Rule: nothing runs, and nothing here is an error, because the processor takes what an accelerator leaves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgekit.boards.catalogue import CheckFinding, finding
from edgekit.boards.subject import open_subjects
from edgekit_converters.formats.delegates import Division, delegates_for, read_network, split


@dataclass(frozen=True)
class NetworkDivisions:
    """One artifact and every accelerator of the target for its format."""

    artifact: str
    format: str
    operators: int
    splits: tuple[Division, ...]


@dataclass(frozen=True)
class AcceleratorReport:
    target: str
    networks: tuple[NetworkDivisions, ...]
    findings: tuple[CheckFinding, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "for": self.target,
            "ok": True,
            "findings": [found.as_json() for found in self.findings],
            "artifacts": [
                {
                    "artifact": one.artifact,
                    "format": one.format,
                    "operators": one.operators,
                    "accelerators": [_split_json(each) for each in one.splits],
                }
                for one in self.networks
            ],
        }


def _split_json(one: Division) -> dict[str, Any]:
    of = one.delegate
    names = {"name": of.name, "title": of.title, "source": of.source, "note": of.note}
    left = [asdict(each) for each in one.left]
    counts = {"taken": one.taken, "parts": one.parts, "share": one.share}
    return {**names, **counts, "left": left, "conditional": list(one.conditional)}


def check_accelerators(path: Path, target: str, secret: str | None = None) -> AcceleratorReport:
    """path: a bundle, a .tflite or an .onnx file. target: of `delegates.TARGETS`.
    Raises BundleError, ConversionError, SecretError."""
    networks, findings = [], []
    for one in open_subjects(path, secret):
        network = read_network(one.format, one.data)
        splits = tuple(split(delegate, network) for delegate in delegates_for(target, one.format))
        networks.append(NetworkDivisions(one.name, one.format, len(network.nodes), splits))
        if network.free:
            what = f"'{network.free[0]}' has a size that is only known at run time"
            findings.append(finding("free-shape", what, artifact=one.name))
        if network.wide:
            what = f"'{network.wide[0]}' is of 64-bit integers"
            findings.append(finding("wide-integers", what, artifact=one.name))
    return AcceleratorReport(target, tuple(networks), tuple(findings))
