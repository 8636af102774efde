"""What exists is in the pages, and what the pages point at exists."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
RECORDS = sorted((DOCS / "adr").glob("[0-9]*.md"))
REFERENCE, DEVELOPER, FORMAT, CODES = (
    DOCS / f"{name}.md" for name in ("builder-reference", "app-developer", "bundle-format", "codes")
)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def prose(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def lacking(page: Path, words: list[str]) -> list[str]:
    """The words that the page never writes as code."""
    return [
        word for word in words if not re.search(rf"`[^`\n]*(?<![\w-]){re.escape(word)}(?![\w-])[^`\n]*`", prose(page))
    ]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings."""
    titles = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", prose(page), flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@every_page
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@every_page
def test_nobody_is_told_to_install_another_authors_package(page: Path):
    assert not re.search(r"pip install\s+(-\S+\s+)*['\"]?edgekit(?!-deploy)\b", prose(page))


def test_the_page_of_commands_lists_every_command():
    from edgekit.cli.main import COMMANDS

    page = prose(DOCS / "reference" / "commands.md")
    assert set(re.findall(r"^\| `edgekit ([a-z]+)", page, re.MULTILINE)) == set(COMMANDS)


def test_the_readme_stays_short():
    assert len(prose(ROOT / "README.md").split()) <= 500


def test_the_page_of_figures_stays_short():
    """Beside the table that a benchmark writes."""
    written = re.sub(
        r"<!-- runtime figures -->.*?<!-- /runtime figures -->", "", prose(DOCS / "figures.md"), flags=re.DOTALL
    )
    assert len(written.splitlines()) <= 40


def test_the_builders_reference_names_every_key_recipe_and_refusal():
    from edgekit_converters.choose import RefusalCode
    from edgekit_converters.data.contract_tasks import DETECTION_KEYS, EMBEDDING_KEYS
    from edgekit_converters.data.describe_contract import IMAGE_KEYS
    from edgekit_converters.recipe.artifact import RECIPES
    from edgekit_profiles import Grade

    keys = ["task", "labels", "scores", "input", "inputs", "kind", *IMAGE_KEYS, *DETECTION_KEYS, *EMBEDDING_KEYS]
    assert lacking(REFERENCE, [*keys, *RECIPES, *get_args(RefusalCode), *get_args(Grade)]) == []


def test_the_builders_reference_names_every_option_of_build():
    from edgekit.cli.build import build

    assert lacking(REFERENCE, [max(option.opts, key=len) for option in build.params if option.name != "model"]) == []


def test_the_page_of_codes_has_every_finding():
    found = codes_in(r"(?:Finding|Note)\(\s*\"([a-z0-9-]+)\"", ROOT / "converters", ROOT / "edgekit")
    assert len(found) >= 18
    assert lacking(CODES, found) == []


def test_the_page_of_codes_has_every_cause_of_damage():
    found = codes_in(r"Cause\(\s*[^,]+,\s*\"([a-z-]+)\"", ROOT / "converters" / "edgekit_converters" / "fidelity")
    assert len(found) >= 15
    assert lacking(CODES, found) == []


def codes_in(pattern: str, *folders: Path) -> list[str]:
    sources = (path.read_text(encoding="utf-8") for folder in folders for path in sorted(folder.rglob("*.py")))
    return sorted({code for source in sources for code in re.findall(pattern, source)})


def test_the_developers_page_names_every_option_and_variable():
    import inspect

    from edgekit_runtime import open_bundle

    options = [name for name in inspect.signature(open_bundle).parameters if name != "path"]
    sources = (path.read_text() for path in (ROOT / "runtime" / "edgekit_runtime").rglob("*.py"))
    variables = {name for source in sources for name in re.findall(r"EDGEKIT_[A-Z_]+", source)}
    assert lacking(DEVELOPER, [*options, *sorted(variables)]) == []


def test_the_format_page_names_every_field():
    from edgekit_runtime.bundle.manifest import (
        ArtifactEntry,
        BlobEntry,
        GoldenExample,
        GoldenOutputs,
        Manifest,
        Target,
        Tolerance,
    )
    from edgekit_runtime.contract.spec import (
        Contract,
        ImageSpec,
        InputContract,
        OutputContract,
        Quantization,
        TensorSpec,
    )

    parts = (
        Manifest, Target, ArtifactEntry, TensorSpec, Quantization, GoldenExample, GoldenOutputs, Tolerance, BlobEntry,
        Contract, InputContract, ImageSpec, OutputContract,
    )  # fmt: skip
    assert lacking(FORMAT, [field.name for part in parts for field in fields(part)]) == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_has_its_three_parts_and_stands_in_the_index(record: Path):
    titles = re.findall(r"^## (.*)$", prose(record), re.MULTILINE)
    assert titles == ["Context", "Decision", "Consequences"]
    assert f"({record.name})" in prose(DOCS / "adr" / "README.md")
