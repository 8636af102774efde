"""`edgekit.build`: the build in a notebook, with arrays in and a table out."""

from __future__ import annotations

from html.parser import HTMLParser
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

import edgekit
from edgekit.cli.build import build as command
from edgekit_runtime import open_bundle
from edgekit_runtime.system.errors import EdgekitError


class Cells(HTMLParser):
    """The texts of a page, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def result(digits_onnx, digits_model, tmp_path_factory):
    data = np.load(digits_model.evaluation)
    x, y = data["x"].transpose(0, 3, 1, 2), data["y"]
    folder = tmp_path_factory.mktemp("api")
    return edgekit.build(
        digits_onnx,
        profiles="x86-64",
        calibration=x[60:100],
        evaluation=(x[:60], y[:60]),
        max_drop=0.5,
        recipes=["onnx-f32"],
        output=folder,
        cache=False,
        say=lambda line: None,
    )


def test_arrays_go_in_and_a_bundle_comes_out(result):
    assert result.complete
    (bundle,) = result.bundles
    assert bundle.path.is_file()
    with open_bundle(bundle.path) as model:
        assert model.describe()["recipe"] == "onnx-f32"
    assert result.candidates[0]["fidelity"]["metric"] == "top1"  # the labels came along


def test_a_notebook_shows_a_table_and_print_the_summary(result):
    page = Cells(result._repr_html_())
    assert page.tags.count("tr") == 2
    assert {"artifact", "size", "onnx-f32"} <= set(page.texts)
    assert f"x86-64: onnx-f32 -> {result.bundles[0].path}" in page.texts[-1]
    assert "onnx-f32" in str(result)


def test_what_a_name_says_is_escaped(result):
    from dataclasses import replace

    hostile = replace(result, candidates=({**result.candidates[0], "recipe": "<script>"},))
    assert "script" not in Cells(hostile._repr_html_()).tags


def test_mistakes_are_those_of_the_command(tmp_path, digits_onnx):
    with pytest.raises(EdgekitError, match="raspbery-pi-4"):
        edgekit.build(digits_onnx, profiles=["raspbery-pi-4"], output=tmp_path)
    with pytest.raises(EdgekitError, match="--shape"):
        edgekit.build(digits_onnx, profiles="x86-64", shapes={"image": (0, 3)}, output=tmp_path)
    with pytest.raises(ValueError, match="not 3 arrays"):
        edgekit.build(digits_onnx, profiles="x86-64", evaluation=(1, 2, 3), output=tmp_path)
    assert not list(Path(tmp_path).iterdir())


def test_every_option_of_the_command_is_a_parameter():
    elsewhere = {"as_json", "help", "no_cache", "signer", "passphrase_file"}
    assert {param.name for param in command.params} - elsewhere <= set(signature(edgekit.build).parameters)
