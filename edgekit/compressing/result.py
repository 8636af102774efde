"""What `edgekit compress` writes next to the model: NAME-compress.json and its HTML page.

    report, failed = write_report(report, request, key)        # out/net-compress.json, out/net-compress.html
    known_rows(request, key)                                   # rows of the same command's earlier run, with its times

Rule: only these files hold times of this machine, so that one seed makes the same model file on any day.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgekit.compressing.compress_request import CompressReport, CompressRequest, MeasuredArtifact
from edgekit.packaging.output_errors import OutputError
from edgekit.packaging.writer import write_whole
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_runtime.system.errors import BundleError, MissingExtraError
from edgekit_runtime.system.strict_json import from_json, load_json


def rows_of(stored: Any) -> tuple[MeasuredArtifact, ...]:
    """The rows of a record. Raises BundleError."""
    return from_json(tuple[MeasuredArtifact, ...], stored, "rows", nulls=True)


def report_file(folder: Path, model: Path) -> Path:
    return folder / f"{model.stem}-compress.json"


def known_rows(request: CompressRequest, key: str) -> tuple[MeasuredArtifact, ...]:
    """Rows of an earlier run with this key; empty if its file is missing, unreadable or older."""
    try:
        stored = load_json(report_file(request.output, request.model).read_bytes())
        return rows_of(stored["rows"]) if stored["key"] == key else ()
    except (OSError, ValueError, KeyError, TypeError, BundleError):
        return ()


def read_beside(request: CompressRequest) -> list[dict[str, Any]]:
    """The records in `request.beside`. Raises CompressError if one does not exist or fit."""
    found = []
    for folder in request.beside:
        file = report_file(folder, request.model)
        try:
            stored = load_json(file.read_bytes())
            rows_of(stored["rows"])
            other, seed = stored["profile"], stored["seed"]
            if type(seed) is not int:
                raise TypeError
        except (OSError, ValueError, KeyError, TypeError, BundleError) as error:
            raise CompressError(
                f"there is no result of edgekit compress that can be read: {type(error).__name__}",
                where=str(file),
                do="Give --beside a folder that edgekit compress wrote for a model of this name",
            ) from error
        if other != request.profile:
            raise CompressError(
                f"it is for {other or 'no board'}, and this run for {request.profile or 'none'}",
                where=str(file),
                do="Compare results of one board",
            )
        found.append(stored)
    return found


def write_report(report: CompressReport, request: CompressRequest, key: str) -> tuple[CompressReport, str]:
    """(the report, why it has no page). Raises OutputError if the JSON cannot be written."""
    from edgekit.report.compress_page import page

    file = report_file(request.output, request.model)
    with_page = replace(report, page=file.with_suffix(".html"))
    record = with_page.as_json() | {
        "key": key, "name": request.model.stem, "profile": request.profile, "seed": request.seed,
        "limits": {"max_drop": request.max_drop, "budget_ms": request.budget_ms},
    }  # fmt: skip
    write_whole(file, (json.dumps(record, indent=1) + "\n").encode(), "the report")
    try:
        write_whole(file.with_suffix(".html"), page([record, *read_beside(request)]).encode(), "the page")
    except (MissingExtraError, OutputError) as error:
        return report, str(error)
    return with_page, ""
