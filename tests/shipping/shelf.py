"""Small wheels and an index of them in a folder, so that a real uv resolves and nothing leaves this machine."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

EDGEKIT = (
    "click>=8.1",
    "numpy>=1.24",
    "xxhash>=3.2",
    "cryptography>=38",
    "ai-edge-litert>=2.1.3; extra == 'litert'",
    "tflite-runtime>=2.14; python_version < '3.12' and extra == 'tflite'",
    "numpy<2; python_version < '3.12' and extra == 'tflite'",
    "onnxruntime>=1.17; extra == 'onnx'",
    "pillow>=9.4; extra == 'image'",
)


class Shelf:
    """A folder of wheels that uv takes for the whole index."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        settings = folder.with_suffix(".toml")
        settings.write_text(f"no-index = true\nfind-links = [{str(folder)!r}]\n")
        monkeypatch.setenv("UV_CONFIG_FILE", str(settings))
        self.put("pip", "26.3")

    def put(
        self,
        name: str,
        version: str,
        tag: str = "py3-none-any",
        needs: tuple[str, ...] = (),
        python: str = "",
        **files: str,
    ) -> Path:
        """A wheel that holds one module of its name, and `files` in its dist-info. python: its Requires-Python."""
        stem = f"{name.replace('-', '_')}-{version}"
        path, info = self.folder / f"{stem}-{tag}.whl", f"{stem}.dist-info"
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {n}" for n in needs),
            *([f"Requires-Python: {python}"] if python else []),
        ]
        extras = sorted({need.split("extra == '")[1].split("'")[0] for need in needs if "extra ==" in need})
        lines += [f"Provides-Extra: {extra}" for extra in extras]
        content = {
            f"{name.replace('-', '_')}.py": f"version = {version!r}\n",
            f"{info}/METADATA": "\n".join(lines) + "\n",
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: {str('any' in tag).lower()}\nTag: {tag}\n",
        }
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in content.items():
                archive.writestr(zipfile.ZipInfo(file), text)
            archive.writestr(
                zipfile.ZipInfo(f"{info}/RECORD"), "".join(f"{file},,\n" for file in [*content, f"{info}/RECORD"])
            )
        return path

    def edgekit(self) -> Path:
        return self.put("edgekit-deploy", "0.1.0", needs=EDGEKIT)

    def base(self, *tags: str) -> None:
        """What edgekit's base install needs: click for any machine, the compiled ones for these platforms."""
        self.put("click", "8.1.8")
        for platform in tags:
            for name, version in (("numpy", "1.26.4"), ("numpy", "2.4.6"), ("xxhash", "3.5.0"), ("pillow", "11.0.0")):
                self.put(name, version, f"cp311-cp311-{platform}")
            self.put("cryptography", "43.0.0", f"cp39-abi3-{platform}", needs=("cffi>=1.12",))
            self.put("cffi", "1.17.1", f"cp311-cp311-{platform}")

    def stock(self) -> None:
        """An engine for 64-bit and one for 32-bit boards with CPython 3.11, and what they need."""
        arm = "manylinux_2_28_aarch64"
        self.base(arm, "manylinux_2_28_x86_64")
        self.put("ai-edge-litert", "2.3.0", f"cp311-cp311-{arm}", needs=("numpy>=1.23", "tqdm"))
        self.put("tqdm", "4.70.1")
        for platform in ("manylinux_2_34_aarch64", "manylinux_2_34_armv7l", "manylinux2014_x86_64"):
            self.put("tflite-runtime", "2.14.0", f"cp311-cp311-{platform}", needs=("numpy>=1.23.2",))
