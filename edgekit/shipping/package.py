"""A folder that installs a bundle on a board: no network, no compiler, from a USB stick.

    packed = pack(PackageRequest(Path("digits.ekb"), load("raspberry-pi-4"), Path("usb")))
    packed.engine_version, packed.wheels, packed.debian

Rules:
- everything is in the folder, and the SHA-256 of every file in `SHA256SUMS`;
- the same bundle, wheels and profile give the same bytes;
- an installer takes the folder whole or not at all, and foreign files in it are never lost;
- two shell scripts install on the board and undo it;
- the licences and texts of wheels are listed, not judged; those of Debian's packages are in the board's /usr/share/doc.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgekit.packaging.output_errors import OutputError
from edgekit.shipping.folder import RECORD, SUMS, board_script, check_free, draft, put
from edgekit.shipping.plan import DeployPlan, NoWheelError, ShippingError, plan_deploy, unit, user_name
from edgekit.shipping.wheelhouse import WheelFile, Wheelhouse, collect, metadata_of
from edgekit.shipping.wheels import sha256_of
from edgekit_profiles import Profile
from edgekit_runtime.bundle.reader import Bundle, read_bundle, read_verified
from edgekit_runtime.engines.registry import ENGINES

LIST = "LICENCES.txt"
_TEXT = re.compile(r"(^|/)(licen[cs]es?/|[^/]*(licen[cs]e|copying|notice|authors)[^/]*$)", re.IGNORECASE)
_HEAD = """\
What is in this package, and under which licence. As each package states it; the texts are next to this list.
"""


_UNSIGNED = (
    "no key signed the bundle, so a board refuses it: sign it (edgekit keys sign BUNDLE --sign KEY), or pass "
    "--allow-unsigned here or to the package's install.sh"
)


@dataclass(frozen=True)
class Licence:
    """says: the licence in the wheel's own words. texts: path in its dist-info -> text."""

    name: str
    version: str
    says: str
    home: str
    texts: dict[str, bytes]


def of_wheel(wheel: Path) -> Licence:
    """A wheel's licence: License-Expression (PEP 639), else License, else classifiers."""
    metadata = metadata_of(wheel)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        folder = next(n for n in names if n.endswith(".dist-info/METADATA") and n.count("/") == 1)[: -len("METADATA")]
        inside = sorted(n for n in names if n.startswith(folder) and not n.endswith("/"))
        texts = {n.removeprefix(folder): archive.read(n) for n in inside if _TEXT.search(n.removeprefix(folder))}
    classifiers = [c for c in metadata.get_all("Classifier", []) if c.startswith("License ::")]
    short = (metadata["License"] or "").strip().splitlines()
    says = "; ".join(c.rpartition(" :: ")[2] for c in classifiers) or "it does not say"
    if short and len(short[0]) <= 80 and short[0].upper() != "UNKNOWN":
        says = short[0]
    says = str(metadata["License-Expression"] or says)
    links = [metadata["Home-page"], *(url.partition(",")[2].strip() for url in metadata.get_all("Project-URL", []))]
    home = next((link for link in links if link), "")
    return Licence(metadata["Name"], metadata["Version"], says, home, texts)


def write(folder: Path, wheels: Sequence[Path], debian: Sequence[str], model: str) -> list[Licence]:
    """Fill `folder`, which is made, with the list and the texts. model: the bundle's line."""
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted((of_wheel(wheel) for wheel in wheels), key=lambda one: one.name.lower())
    lines = [_HEAD, f"model   {model}"]
    for one in found:
        names = {name: f"{one.name}-{one.version}/{name.replace('/', '_')}" for name in one.texts}
        for name, text in one.texts.items():
            (folder / names[name]).parent.mkdir(exist_ok=True)
            (folder / names[name]).write_bytes(text)
        lines.append(f"\n{one.name} {one.version}: {one.says}")
        lines += [f"    {one.home}"] if one.home else []
        lines.append(f"    {', '.join(names.values()) or 'its wheel carries no text'}")
    lines += [f"\n{name}: from Debian, see /usr/share/doc/{name}/copyright on the board" for name in debian]
    (folder / LIST).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return found


_SHORT = 12
Approve = Callable[[Path, Profile, str, str], None]
_README = """\
{title}

Install it on the board, from here or from a copy of this folder (no network, no compiler, no pip is needed there):

    sh install.sh

It checks every file, the board, its Python and glibc, makes an environment of the wheels in wheels/, \
and has `edgekit install`
put the bundle into an install root: signature, number, golden examples, trial. It says where; \
sh uninstall.sh in that place
removes all of it again.

for        {profile}: {arch}, Python {python}, glibc {glibc} or later
model      bundle/{bundle}
engine     {engine} {engine_version}
Debian's   {debian}
licences   licences/{list}
"""


@dataclass(frozen=True, kw_only=True)
class PackageOptions:
    """engine: None to choose
    service: a command for a systemd unit
    wheel: edgekit's own, None to build it
    extras: of edgekit, in addition to what the bundle needs (`telemetry`)
    approve: called with bundle, profile, engine and its version before the package is made; it raises to refuse
    trust: a root.json or public keys for the board's install root
    allow_unsigned: whether the board installs the bundle although no trusted key signed it
    """

    engine: str | None = None
    service: str | None = None
    wheel: Path | None = None
    extras: tuple[str, ...] = ()
    approve: Approve | None = None
    trust: tuple[Path, ...] = ()
    allow_unsigned: bool = False


@dataclass(frozen=True)
class PackageRequest(PackageOptions):
    """output: the folder to make, or to fill
    anchors: whether to include the network of `edgekit profiles measure`, 21 MB
    """

    bundle: Path
    profile: Profile
    output: Path
    anchors: bool = False


@dataclass(frozen=True)
class PackageResult:
    """path: the folder. release: a name of this content on a board. bytes: of all files."""

    path: Path
    name: str
    version: str
    profile: str
    arch: str
    python: str
    engine: str
    engine_version: str
    bundle_sha256: str
    wheels: tuple[WheelFile, ...]
    debian: tuple[str, ...]
    service: str
    release: str
    notes: tuple[str, ...]
    trust: tuple[str, ...] = ()
    allow_unsigned: bool = False
    files: int = 0
    bytes: int = 0
    delegate: str = ""
    device: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path), "wheels": [asdict(wheel) for wheel in self.wheels]}


def pack(request: PackageRequest) -> PackageResult:
    """Make the folder. Raises BundleError, MissingExtraError, ShippingError, OutputError."""
    bundle = read_bundle(request.bundle)
    plan = plan_deploy(bundle, request.profile, request.engine, request.extras)
    delegate = plan.accelerator.library if plan.accelerator else ""
    service = unit(plan.name, plan.title, request.service, delegate) if request.service else ""
    output = Path(os.path.realpath(request.output))  # a link to a folder stays one
    try:
        check_free(output)
        with draft(output) as folder:
            packed = _fill(folder / "package", request, plan, bundle, service)
            put(folder / "package", output)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(output)) from error
    return replace(packed, path=request.output)


def packed_files(folder: Path) -> dict[str, str]:
    """Path in the folder -> SHA-256, of SHA256SUMS and of that file itself."""
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    return listed | {SUMS: sha256_of(folder / SUMS)}


def _fill(folder: Path, request: PackageRequest, plan: DeployPlan, bundle: Bundle, service: str) -> PackageResult:
    house, more = _collect_wheels(request, plan, folder / "wheels")
    if request.approve is not None:
        request.approve(request.bundle, request.profile, plan.engine, house.engine_version)
    (folder / "bundle").mkdir(parents=True)
    if request.anchors:
        from edgekit_converters.zoo.mobilenet_v1 import anchor_files

        (folder / "anchors").mkdir()
        anchor_files(folder / "anchors", ENGINES[plan.engine].formats)
    file = f"{plan.name}.ekb"
    shutil.copyfile(bundle.path, folder / "bundle" / file)
    digest = sha256_of(folder / "bundle" / file)
    trust = _copy_trust(request, bundle, folder / "trust")
    unit_name = f"edgekit-{plan.name}.service" if service else ""
    if service:
        (folder / "service").mkdir()
        (folder / "service" / unit_name).write_text(service, encoding="utf-8")
    model = f"{bundle.manifest.name}: {bundle.manifest.licence or 'its bundle names no licence'}"
    write(folder / "licences", [house.folder / wheel.file for wheel in house.wheels], house.debian, model)
    for script in ("install", "uninstall"):
        (folder / f"{script}.sh").write_text(board_script(script), encoding="utf-8")
        (folder / f"{script}.sh").chmod(0o755)
    environment = _digest(house.requirements.read_bytes(), " ".join(house.debian).encode())
    trusted = " ".join([*(sha256_of(folder / "trust" / name) for name in trust), str(request.allow_unsigned)])
    release = _digest(digest.encode(), environment.encode(), service.encode(), trusted.encode())
    own = plan.accelerator
    package = own.debian.get(request.profile.os.debian) if own else None
    if own:
        set_it = f"EDGEKIT_DELEGATE={own.library}"
        more.append(f"{own.name} is tried first: the service has {set_it}, and other applications need it")
    packed = PackageResult(
        path=folder,
        name=plan.name,
        version=plan.version,
        profile=request.profile.name,
        arch=house.target.arch,
        python=house.target.python,
        engine=plan.engine,
        engine_version=house.engine_version,
        bundle_sha256=digest,
        wheels=house.wheels,
        debian=(*house.debian, *([package] if package else [])),
        service=unit_name,
        release=release,
        notes=(*plan.notes, *([] if bundle.signed_by or request.allow_unsigned else [_UNSIGNED]), *more),
        trust=trust,
        allow_unsigned=request.allow_unsigned,
        delegate=own.library if own else "",
        device=own.device if own else "",
    )
    _write_texts(packed, plan, house, environment)
    record = {key: value for key, value in packed.as_json().items() if key not in ("path", "files", "bytes")}
    (folder / RECORD).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    sums = "".join(f"{sha256_of(folder / name)}  {name}\n" for name in names)
    (folder / SUMS).write_text(sums, encoding="utf-8")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return replace(packed, files=len(names) + 1, bytes=size)


def _copy_trust(request: PackageRequest, bundle: Bundle, folder: Path) -> tuple[str, ...]:
    """The files' names in the package. Raises ShippingError, SignatureError."""
    if not request.trust:
        return ()
    if bundle.manifest.encrypted_with is None:
        read_verified(request.bundle, request.trust, allow_unsigned=request.allow_unsigned)
    roots = [path for path in request.trust if path.suffix == ".json"]
    if len(roots) > 1:
        raise ShippingError("a package holds one root.json", where="--trust", do="Name the newest one")
    keys = [path for path in request.trust if path.suffix != ".json"]
    named = dict(zip(["root.json"], roots, strict=False)) | {f"key-{n}.pem": path for n, path in enumerate(keys, 1)}
    folder.mkdir()
    for name, path in named.items():
        shutil.copyfile(path, folder / name)
    return tuple(named)


def _collect_wheels(request: PackageRequest, plan: DeployPlan, folder: Path) -> tuple[Wheelhouse, list[str]]:
    """Wheels with the engine's version that made the golden answers, else the newest."""
    profile = request.profile
    if plan.proven is None or plan.engine in profile.pins:
        return collect(profile, plan.engine, folder, wheel=request.wheel, extras=plan.extras), []
    pinned = replace(profile, pins={**profile.pins, plan.engine: plan.proven})
    try:
        house = collect(pinned, plan.engine, folder, wheel=request.wheel, extras=plan.extras)
    except NoWheelError:
        house = collect(profile, plan.engine, folder, wheel=request.wheel, extras=plan.extras)
    if house.engine_version == plan.proven:
        return house, []
    note = f"the golden answers were made by {plan.engine} {plan.proven}, and the board gets {house.engine_version}"
    return house, [f"{note}: the board compares them by similarity, not step by step"]


def _write_texts(packed: PackageResult, plan: DeployPlan, house: Wheelhouse, environment: str) -> None:
    """package.conf, which the shell scripts read, and README.txt."""
    bundle, target = f"{plan.name}.ekb", house.target
    values = {
        "NAME": packed.name,
        "TITLE": plan.title,
        "PROFILE": packed.profile,
        "ARCH": target.arch,
        "PYTHON": target.python,
        "GLIBC": target.glibc,
        "DEBIAN": " ".join(packed.debian),
        "BUNDLE": bundle,
        "ENV": environment,
        "TRUST": " ".join(packed.trust),
        "ALLOW_UNSIGNED": "yes" if packed.allow_unsigned else "",
        "WHEELS": str(len(packed.wheels) - 1),
        "PIP": house.pip.file,
        "SERVICE": packed.service,
        "USER_NAME": user_name(packed.name),
        "DELEGATE": packed.delegate,
        "DEVICE": packed.device,
    }
    conf = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    (packed.path / "package.conf").write_text(conf, encoding="utf-8")
    words = vars(packed) | {"title": plan.title, "glibc": target.glibc, "bundle": bundle, "list": LIST}
    words["debian"] = ", ".join(packed.debian) or "nothing but Python itself"
    (packed.path / "README.txt").write_text(_README.format(**words), encoding="utf-8")


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:_SHORT]
