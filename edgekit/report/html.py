"""A build's JSON -> one self-contained page; the skeleton is other pages', too.

Rule: names of layers and labels come from models and files of others: what cannot be seen, or turns the writing round,
is shown escaped, in words as in figures.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgekit.report import words
from edgekit.report.figures import error_by_layer, histogram, tradeoff
from edgekit.report.view import ReportView
from edgekit_runtime.errors import MissingExtraError, visible


def html(report: Mapping[str, Any]) -> str:
    """report: the object of `edgekit build --json`.

    Raises MissingExtraError without jinja2 or plotly."""
    view = ReportView(report)
    return render(
        "build.html",
        report=view,
        tradeoffs=[(board, figure_json(tradeoff(board, view))) for board in view.boards],
        errors=figure_json(error_by_layer(view.candidates)),
        histograms=[figure_json(histogram(item)) for item in view.histograms],
    )


def render(template: str, **values: Any) -> str:
    """A page of the skeleton `page.html`: its style, plotly and the script that draws are in it.

    Raises MissingExtraError without jinja2 or plotly."""
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise MissingExtraError("convert", "writing the HTML report") from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters.update(words.FILTERS)
    return environment.get_template(template).render(
        **values, style=_template("build.css"), script=_template("build.js"), plotly=plotly_script()
    )


def _visible(value: Any) -> Any:
    """Of what is shown.

    What the page itself is made of, its style and its scripts, is more than a str, and left alone.
    """
    if type(value) is str:
        return "\n".join(visible(line) for line in value.split("\n"))
    if isinstance(value, Mapping):
        return {name: _visible(item) for name, item in value.items()}
    return [_visible(item) for item in value] if isinstance(value, (list, tuple)) else value


def _template(name: str) -> str:
    return importlib.resources.files("edgekit.report").joinpath("templates", name).read_text(encoding="utf-8")


def figure_json(figure: Mapping[str, Any] | None) -> str | None:
    """For a script element: nothing in it may end that element."""
    return None if figure is None else json.dumps(_visible(figure)).replace("<", "\\u003c")


def plotly_script() -> str:
    """The script of plotly, which is found without the import that takes a second."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("convert", "writing the HTML report")
    folder = Path(next(iter(spec.submodule_search_locations)))
    return (folder / "package_data" / "plotly.min.js").read_text(encoding="utf-8").replace("</script", "<\\/script")
