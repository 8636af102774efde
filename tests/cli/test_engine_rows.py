"""Everything about an engine follows from its row in ENGINES; what cannot follow by itself is held against it here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from edgekit_runtime.engines.registry import ENGINES, EngineSetup, load_with
from edgekit_runtime.system.board import Cpu
from edgekit_runtime.system.errors import EngineError

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
APP = (ROOT / "docs" / "app-developer.md").read_text(encoding="utf-8")


def test_no_two_engines_share_a_distribution_or_an_extra():
    for field in ("distribution", "extra"):
        assert len({getattr(kind, field) for kind in ENGINES.values()}) == len(ENGINES)


@pytest.mark.parametrize("name", ENGINES)
def test_its_extra_installs_its_distribution(name):
    wanted = PROJECT["project"]["optional-dependencies"][ENGINES[name].extra]
    assert any(re.match(rf"{ENGINES[name].distribution}\W", line) for line in wanted)


@pytest.mark.parametrize("name", ENGINES)
def test_it_is_imported_by_nothing_but_its_loader(name):
    top = ENGINES[name].module.partition(".")[0]
    assert top in PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-module-level-imports"]
    assert f"{top}.*" in PROJECT["tool"]["mypy"]["overrides"][0]["module"]


@pytest.mark.parametrize("name", ENGINES)
def test_the_guide_names_its_extra_and_the_engine_option(name):
    kind = ENGINES[name]
    (row,) = [line for line in APP.splitlines() if line.startswith(f"| `{kind.extra}` |")]
    assert kind.distribution in row
    (option,) = [line for line in APP.splitlines() if line.startswith("| `engine` |")]
    assert f'`"{name}"`' in option


@pytest.mark.parametrize("command", ["run", "bench", "verify"])
def test_commands_offer_every_engine(in_process, command):
    text = in_process(command, "--help").out
    assert all(name in text for name in ENGINES)


@pytest.mark.parametrize("command", ["estimate", "deploy"])
def test_commands_about_boards_offer_the_engines_that_have_wheels_for_one(in_process, command):
    from edgekit.cli.options import BOARD_ENGINES
    from edgekit_profiles.wheels import wheels

    assert set(BOARD_ENGINES) == {row.engine for row in wheels()}
    text = in_process(command, "--help").out
    assert [name for name in ENGINES if name in text] == list(BOARD_ENGINES)


@pytest.mark.parametrize("name", ENGINES)
def test_doctor_finds_it_and_says_what_it_is_for(name):
    from edgekit.cli.doctor import examine

    kind = ENGINES[name]
    installed = {"numpy": "1.26.4", "ai-edge-litert": "2.3.0", kind.distribution: "9.9"}
    found = examine(installed.get, Cpu("aarch64"))
    assert found["problems"] == []
    extra = found["extras"][kind.extra]
    assert (extra["installed"], extra["versions"], extra["use"]) == (True, {kind.distribution: "9.9"}, kind.use)


@pytest.mark.parametrize("name", [name for name, kind in ENGINES.items() if kind.numpy_1_below])
def test_an_old_version_beside_numpy_2_is_refused_and_doctor_says_why(name, monkeypatch):
    from edgekit.cli.doctor import examine

    kind = ENGINES[name]
    found = examine({"numpy": "2.1.0", kind.distribution: "0.9"}.get, Cpu("aarch64"))
    assert f"{kind.distribution} cannot make an interpreter with NumPy 2.1.0" in [
        one["what"] for one in found["problems"]
    ]
    monkeypatch.setattr("edgekit_runtime.engines.registry.version_of", lambda distribution: "0.9")
    monkeypatch.setattr("numpy.__version__", "2.1.0")
    with pytest.raises(EngineError, match=r"cannot make an interpreter with NumPy 2\.1\.0"):
        load_with(name, kind.formats[0], b"", EngineSetup())


@pytest.mark.parametrize(
    ("name", "version", "numpy"),
    [
        ("tflite-runtime", "2.14.0", "numpy<2"),
        ("litert", "1.0.1", "numpy<2"),
        ("litert", "1.1.0", "numpy"),
        ("onnxruntime", "1.18.1", "numpy<2"),
        ("onnxruntime", "1.19.0", "numpy"),
        ("onnxruntime", "1.20.0.dev1", "numpy"),
    ],
)
def test_the_numpy_that_a_version_takes(name, version, numpy):
    assert ENGINES[name].numpy_for(version) == numpy


@pytest.mark.parametrize("name", ENGINES)
def test_its_kernels_and_formats_are_its_own(name):
    kind = ENGINES[name]
    assert kind.kernels[0] == "default"
    assert kind.portable in kind.kernels
    with pytest.raises(EngineError, match=f"runs {' and '.join(kind.formats)}, not pickle"):
        load_with(name, "pickle", b"", EngineSetup())


def test_doctor_names_the_drivers_of_vulkan_and_what_is_tried_with_them():
    from edgekit.cli.doctor import doctor_lines, examine

    vulkan = {"drivers": ["/etc/vulkan/icd.d/a.json"], "engines": {"ncnn": "1.0"}}
    gpu = {"name": None, "why_none": "", "paths": [], "vulkan": vulkan}
    lines = doctor_lines(examine({"numpy": "2"}.get, Cpu("x86_64"), (), gpu))
    assert "  GPU by Vulkan (/etc/vulkan/icd.d/a.json): tried with ncnn" in lines
