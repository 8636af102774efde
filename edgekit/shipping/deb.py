"""A package as a .deb that needs no pip on the board.

    pack_deb(PackageRequest(Path("digits.ekb"), load("raspberry-pi-4"), Path("debs"))).path

Rules:
- dpkg owns the environment, wheels unpacked, in /opt/edgekit/NAME/env;
- configuring runs `edgekit install` into /var/lib/edgekit/NAME/model, the target of /opt/edgekit/NAME/model, and fails
  if the bundle is refused; purging removes that folder, removing does not;
- Python, the C++ library and packages without a wheel are Depends;
- the same content gives the same bytes (SOURCE_DATE_EPOCH dates the files).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path, PurePosixPath

from edgekit.packaging.output_errors import OutputError
from edgekit.shipping import package
from edgekit.shipping.folder import board_script, draft
from edgekit.shipping.package import PackageRequest, PackageResult, pack
from edgekit.shipping.plan import DebError, user_name
from edgekit.shipping.wheels import WheelTarget

_EPOCH = "1580601600"
_LIBRARIES = ("libstdc++6", "libgcc-s1")  # what every manylinux wheel with C++ in it expects of the system: PEP 599
_START = "#!/opt/edgekit/{name}/env/bin/python3\nimport sys\n\nfrom edgekit.cli import main\n\nsys.exit(main())\n"


def pack_deb(request: PackageRequest) -> PackageResult:
    """`output`: the folder of the .deb. Raises what `pack` raises, and DebError."""
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise DebError(
            "dpkg-deb is not installed here",
            do="Run: sudo apt-get install dpkg (or brew install dpkg), or omit --deb to pack a directory",
        )
    output = request.output
    try:
        output.mkdir(parents=True, exist_ok=True)
        with draft(output) as folder:
            package_folder = folder / "package"
            try:
                packed = pack(replace(request, output=package_folder))
            except OutputError as error:  # it names the person's folder instead of the draft
                if error.where == os.path.realpath(package_folder):
                    raise OutputError(error.what, where=str(output), do=error.do) from error
                raise
            tree = folder / "tree"
            target = WheelTarget.of(request.profile)
            _fill_tree(tree, packed, target)
            made = _build_deb(tool, tree, folder / "made.deb")
            path = output / f"{_package_name(packed)}_{packed.version}_{target.debian_arch}.deb"
            size = made.stat().st_size
            made.replace(path)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(output)) from error
    return replace(packed, path=path, bytes=size, files=1)


def unpack_wheel(wheel: Path, site: Path) -> None:
    """Unpack a wheel's modules into `site`, without programs, headers and bytecode."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            name, parts = entry.filename, PurePosixPath(entry.filename).parts
            if name.endswith(".pyc") or entry.is_dir():
                continue
            if ".." in parts or name.startswith("/"):
                raise DebError("a wheel names a file outside of itself", where=name)
            if parts[0].endswith(".data"):
                if parts[1] not in ("purelib", "platlib"):
                    continue
                name = "/".join(parts[2:])
            place = site / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, place.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            place.chmod(0o755 if entry.external_attr >> 16 & 0o111 else 0o644)


def _fill_tree(tree: Path, packed: PackageResult, target: WheelTarget) -> None:
    home = tree / "opt" / "edgekit" / packed.name
    env = home / "env"
    site = env / "lib" / f"python{target.python}" / "site-packages"
    site.mkdir(parents=True)
    for wheel in packed.wheels:
        if wheel.name != "pip":
            unpack_wheel(packed.path / "wheels" / wheel.file, site)
    (home / "package").mkdir()
    shutil.copyfile(packed.path / "bundle" / f"{packed.name}.ekb", home / "package" / f"{packed.name}.ekb")
    (home / "model").symlink_to(f"../../../var/lib/edgekit/{packed.name}/model")
    for folder, place in (("trust", home / "package" / "trust"), ("anchors", home / "anchors")):
        if (packed.path / folder).is_dir():
            shutil.copytree(packed.path / folder, place)
    # A virtual environment: a link to Python, pyvenv.cfg, and the folder of modules
    (env / "bin").mkdir()
    (env / "bin" / f"python{target.python}").symlink_to(f"/usr/bin/python{target.python}")
    for name in ("python3", "python"):
        (env / "bin" / name).symlink_to(f"python{target.python}")
    start = env / "bin" / "edgekit"
    start.write_text(_START.format(name=packed.name), encoding="utf-8")
    start.chmod(0o755)
    system = "true" if any(name.startswith("python3-") for name in packed.debian) else "false"
    text = f"home = /usr/bin\ninclude-system-site-packages = {system}\nversion = {target.python}\n"
    (env / "pyvenv.cfg").write_text(text, encoding="utf-8")
    if packed.service:
        units = tree / "usr" / "lib" / "systemd" / "system"
        units.mkdir(parents=True)
        text = (packed.path / "service" / packed.service).read_text(encoding="utf-8")
        text = text.replace("@PREFIX@", f"/opt/edgekit/{packed.name}").replace("@USER@", user_name(packed.name))
        (units / packed.service).write_text(text, encoding="utf-8")
    documents = tree / "usr" / "share" / "doc" / _package_name(packed)
    shutil.copytree(packed.path / "licences", documents / "licences")
    shutil.copyfile(packed.path / "licences" / package.LIST, documents / "copyright")
    _write_control(tree, packed, target)
    for path in tree.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def _write_control(tree: Path, packed: PackageResult, target: WheelTarget) -> None:
    folder = tree / "DEBIAN"
    size = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file()) // 1024 + 1
    folder.mkdir()
    python = [f"python{target.python}", f"libc6 (>= {target.glibc})"]
    depends = [*python, *_LIBRARIES, *(["passwd"] if packed.service else []), *packed.debian]
    fields = (
        f"Package: {_package_name(packed)}\nVersion: {packed.version}\nArchitecture: {target.debian_arch}\n"
        "Maintainer: none <root@localhost>\nSection: misc\nPriority: optional\n"
        f"Installed-Size: {size}\nDepends: {', '.join(depends)}\n"
        f"Description: the model {packed.name} for {packed.profile}, with all that answers with it\n"
        f" {packed.engine} {packed.engine_version} and edgekit's runtime stand in /opt/edgekit/{packed.name}/env,\n"
        f" and applications open /opt/edgekit/{packed.name}/model.\n"
    )
    (folder / "control").write_text(fields, encoding="utf-8")
    filled = {"@NAME@": packed.name, "@PACKAGE@": _package_name(packed), "@SERVICE@": packed.service}
    filled |= {"@USER@": user_name(packed.name), "@TRUST@": " ".join(packed.trust)}
    filled |= {"@ALLOW_UNSIGNED@": "--allow-unsigned" if packed.allow_unsigned else ""}
    filled |= {"@DELEGATE@": packed.delegate, "@DEVICE@": packed.device}
    for script in ("postinst", "prerm", "postrm"):
        text = board_script(script)
        for word, value in filled.items():
            text = text.replace(word, value)
        (folder / script).write_text(text, encoding="utf-8")
        (folder / script).chmod(0o755)


def _build_deb(tool: str, tree: Path, path: Path) -> Path:
    """Pack with zstd, or with xz if this dpkg-deb has no zstd; one thread gives the same bytes."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", _EPOCH)}
    for options in (["-Zzstd", "-z9", "--threads-max=1"], ["-Zxz", "-z1"]):
        command = [tool, "--root-owner-group", *options, "--build", str(tree), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
        if done.returncode == 0:
            return path
    raise DebError(f"dpkg-deb failed: {' '.join(done.stderr.split())}", where=str(path))


def _package_name(packed: PackageResult) -> str:
    return f"edgekit-{packed.name}"
