"""What no reader would open is not written, and the refusal says what to mend."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny

from edgekit.packaging.assemble import assemble
from edgekit.packaging.output_errors import PackagingError
from edgekit.packaging.writer import write_bundle
from edgekit_runtime.bundle.manifest import Promise
from edgekit_runtime.engines.registry import available

pytestmark = pytest.mark.skipif("litert" not in available(), reason="needs LiteRT")


@pytest.fixture
def refused(tmp_path):
    def write(why, **changes):
        draft, manifest = assemble(tiny.content())
        with pytest.raises(PackagingError, match=why) as caught:
            write_bundle(tmp_path / "x.ekb", draft, replace(manifest, **changes))
        assert caught.value.do
        assert not [*tmp_path.iterdir()]

    return write


def test_a_tolerance_that_proves_nothing(refused):
    _, manifest = assemble(tiny.content())
    (answer,) = manifest.golden[0].answers
    lax = replace(answer, tolerance=replace(answer.tolerance, steps=10**9))
    refused("1,000,000,000 steps proves nothing", golden=(replace(manifest.golden[0], answers=(lax,)),))


def test_names_numbers_and_texts_beyond_what_a_reader_takes(refused):
    refused("is not a name of a bundle", name="../x")
    refused("a promised figure is not positive", promise=Promise(p99_ms=-1.0))
    refused("is invisible", version="1\u202e0")
    refused("a character is escaped", licence="a\nb")


def test_a_manifest_that_is_too_long(refused):
    refused("more than the 1,048,576 that a reader takes", tools={"x": "y" * (1 << 20)})


def test_a_golden_answer_that_is_no_number_ends_the_build(monkeypatch):
    """The engine's answer is made NaN on its way: no small network here divides by zero by itself."""
    from edgekit_runtime.loading.replay import Stepper

    real = Stepper.raw
    monkeypatch.setattr(Stepper, "raw", lambda self, item: [np.full_like(v, np.nan) for v in real(self, item)])
    with pytest.raises(PackagingError, match="'probs' of tflite-f32 answers NaN or infinity"):
        assemble(tiny.content("tflite-f32"))
