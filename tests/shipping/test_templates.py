"""A program's template is filled wholly or not at all, and no bundle's text leaves its literal or comment."""

from __future__ import annotations

import json

import pytest

from edgekit.cli.deploy import EXPORT_TARGETS
from edgekit.shipping.programs import template
from edgekit.shipping.programs.export import TARGETS

HOSTILE = (
    "a,b",
    'Jürgen\'s "Käse"',
    "tabs\tand\nlines",
    "*/ int x;",
    "</script><b>",
    "\\",
    "??/",
    "${x}",
    "__WIDTH__",
    "\u2028日本",
)
"""Labels that end a string, a comment, a line or a script where they are not escaped."""


def filled(tmp_path, monkeypatch, text, texts, facts):
    (tmp_path / "templates").mkdir(exist_ok=True)
    (tmp_path / "templates" / "one").write_text(text)
    monkeypatch.setattr(template.importlib.resources, "files", lambda package: tmp_path)
    return template.fill("one", texts, facts)


def test_names_are_replaced_once_and_guarded_lines_follow_their_facts(tmp_path, monkeypatch):
    text = "a __A__\n//? big\n  b __B__\n  #? not small\nc\n#.\n//.\n<!--? small -->\nd\n<!--. -->\n"
    assert (
        filled(tmp_path, monkeypatch, text, {"A": "__B__", "B": "1"}, {"big": True, "small": False})
        == "a __B__\n  b 1\nc\n"
    )
    assert filled(tmp_path, monkeypatch, text, {"A": "2"}, {"big": False, "small": True}) == "a 2\nd\n"


@pytest.mark.parametrize("text", ["__C__\n", "//? odd\n//.\n"])
def test_an_unknown_name_or_fact_is_an_error(tmp_path, monkeypatch, text):
    with pytest.raises(KeyError):
        filled(tmp_path, monkeypatch, text, {"A": "1"}, {"big": True})


@pytest.mark.parametrize("label", HOSTILE)
def test_literals_hold_any_label(label):
    assert json.loads(template.js([label])) == [label]
    assert "</" not in template.js(label)
    text = template.c_text(label)
    assert text.isascii()
    assert text.encode().decode("unicode_escape").encode("latin-1").decode() == f'"{label}"'
    assert "\n" not in template.one_line(label)
    assert "*/" not in template.one_line(label)


def test_the_command_offers_every_target():
    assert tuple(TARGETS) == EXPORT_TARGETS
