"""A build with inputs that boards doubted says what it changes for them."""

from __future__ import annotations

import json

import numpy as np

import edgekit


def test_the_report_says_what_changed_for_the_inputs_of_the_field(digits_onnx, digits_model, tmp_path):
    """The boards' answers of half of the inputs were others than the original's."""
    data = np.load(digits_model.evaluation)
    x, y = data["x"].transpose(0, 3, 1, 2), data["y"]
    common = {"profiles": "x86-64", "evaluation": (x[60:100], y[60:100]), "max_drop": 0.5, "recipes": ["onnx-f32"],
              "cache": False, "say": lambda line: None}  # fmt: skip
    field = tmp_path / "field" / "digits"
    field.mkdir(parents=True)
    first = edgekit.build(digits_onnx, calibration=x[:60], output=tmp_path / "first", **common)
    with edgekit_model(first) as model:
        name = model.contract.inputs[0].name
        best = [int(np.argmax(next(iter(model.predict(one).outputs.values())))) for one in x[:20]]
    said = [{"why": "shadow" if n % 2 else "low-margin", "best": (one + n % 2) % 10} for n, one in enumerate(best)]
    np.savez(field / "samples.npz", **{name: x[:20]})
    (field / "samples.json").write_text(json.dumps({"samples": said}))
    second = edgekit.build(digits_onnx, calibration=str(field), output=tmp_path / "second", **common)
    (found,) = [one for one in second.findings if one.code == "field"]
    assert found.what == (
        "20 inputs come from boards (10 low-margin, 10 shadow); there the boards answered as the original does on 10, "
        "onnx-f32 now does on 20"
    )
    assert [one for one in first.findings if one.code == "field"] == []
    assert found.what in json.dumps(json.loads(second.report.read_text()))


def edgekit_model(result):
    from edgekit_runtime import open_bundle

    (bundle,) = result.bundles
    return open_bundle(bundle.path, cache=False)
