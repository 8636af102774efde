"""Vulkan drivers for tests: SwiftShader of Debian's chromium, a device in software, and the same with faults.

It proves answers and faults, and no speed. Vulkan's loader looks for drivers once, so what runs on them is a process of
its own, to which the variables go.
"""

from __future__ import annotations

import json
from pathlib import Path

from native import compiled
from parts import missing

LIBRARY = Path("/usr/lib/chromium/libvk_swiftshader.so")


def use_drivers(monkeypatch, folder: Path, *libraries: Path) -> None:
    """Vulkan's loader of a child finds these drivers, and no other."""
    files = [folder / f"driver-{number}.json" for number in range(len(libraries))]
    for file, library in zip(files, libraries, strict=True):
        icd = {"library_path": str(library), "api_version": "1.1.0"}
        file.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    monkeypatch.setenv("VK_DRIVER_FILES", ":".join(map(str, files)))
    monkeypatch.setenv("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")


def swiftshader() -> Path:
    """Its library. Never returns without one."""
    if not LIBRARY.is_file():
        missing("SwiftShader", "apt-get install chromium libvulkan1")
    return LIBRARY


def faulty_gpu(monkeypatch, folder: Path) -> Path:
    """The only driver is one that works until this file exists: it holds lost, full, hangs, dies, exits or wrong."""
    monkeypatch.setenv("FAULTY_GPU_OF", str(swiftshader()))
    monkeypatch.setenv("FAULTY_GPU", str(folder / "fault"))
    use_drivers(monkeypatch, folder, compiled(Path(__file__).with_name("faulty_gpu.c"), folder / "faulty_gpu.so"))
    return folder / "fault"
