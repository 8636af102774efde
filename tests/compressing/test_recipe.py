"""`edgekit compress --recipe`: what is seldom given, in a file that is checked key by key."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgekit.cli.compress import compress
from edgekit.compressing.compress_request import CompressRequest, read_recipe
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.recipe.option import options_in

PAGE = Path(__file__).parents[2] / "docs" / "compress.md"
KEYS = [one for one in options_in(CompressRequest) if one.option.in_file]
EXAMPLES = {
    "batch": ("32", 32), "rate": ("3e-4", 3e-4), "seed": ("1", 1), "start": ('"new"', "new"),
    "input_size": ("[120, 160]", (120, 160)), "features": ('"map"', "map"),
    "temperature": ("8", 8.0), "alpha": ("0.9", 0.9),
    "sparsity": ("0.5", 0.5), "repair_s": ("60", 60.0),
    "shapes": ("{ image = [1, 3, 48, 192] }", {"image": (1, 3, 48, 192)}),
}  # fmt: skip


def written(folder: Path, text: str) -> Path:
    (folder / "net.toml").write_text(text, encoding="utf-8")
    return folder / "net.toml"


@pytest.mark.parametrize("one", KEYS, ids=lambda one: one.name)
def test_every_key_is_read_as_its_fields_type(one, tmp_path):
    if one.type is Path:
        text, value = ('["a"]', (tmp_path / "a",)) if one.repeats else ('"a"', tmp_path / "a")
    else:
        text, value = EXAMPLES[one.name]
    found = read_recipe(written(tmp_path, f"{one.name} = {text}"))
    assert found == {one.name: value}
    assert type(found[one.name]) is type(value)


@pytest.mark.parametrize(
    ("text", "key", "what", "do"),
    [
        ("rates = 1", "rates", "is not a key", "batch, rate, seed"),
        ("epochs = 3", "epochs", "is not a key", "--epochs"),
        ("trust_model = true", "trust_model", "is not a key", "--trust-model"),
        ('batch = "many"', "batch", "'many' is not an int", ""),
        ("batch = true", "batch", "True is not", ""),
        ("input_size = [160]", "input_size", "is not a list of 2", "height and width"),
        ('start = "old"', "start", "'old' is not one of sliced, new", ""),
        ('shapes = "image=1,3"', "shapes", "is not an object", ""),
        ('beside = "seed0"', "beside", "is not a list", ""),
    ],
)
def test_what_is_no_key_or_of_another_type_is_refused_by_file_and_key(tmp_path, text, key, what, do):
    with pytest.raises(CompressError) as error:
        read_recipe(written(tmp_path, text))
    assert error.value.code == "compress"
    assert error.value.where.startswith(f"{tmp_path / 'net.toml'}: {key}")
    assert what in error.value.what
    assert do in error.value.do


@pytest.mark.parametrize("text", ["batch = ", "batch = 1\nbatch = 2", None])
def test_what_is_no_toml_is_refused_by_the_file(tmp_path, text):
    file = tmp_path / "net.toml" if text is None else written(tmp_path, text)
    with pytest.raises(CompressError, match="cannot be read") as error:
        read_recipe(file)
    assert error.value.where == str(file)


def test_a_number_out_of_bounds_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = str(written(tmp_path, "alpha = 1.5"))
    asked = ["net.keras", "--train", "a", "--evaluation", "b", "--steps", "qat", "--recipe", file]
    error = CliRunner().invoke(compress, asked).exception
    assert isinstance(error, CompressError)
    assert "alpha is 1.5" in error.what
    assert not (tmp_path / "compressed").exists()


def test_the_pages_example_is_a_recipe(tmp_path):
    (example,) = re.findall(
        r"```toml\n(.*?)```",
        PAGE.read_text(encoding="utf-8").split("## The recipe file")[1].split("\n## ")[0],
        re.DOTALL,
    )
    found = read_recipe(written(tmp_path, example))
    assert len(found) >= 5
    assert found["beside"] == (tmp_path / "seed0",)
    assert found.keys() <= {one.name for one in fields(CompressRequest)}
