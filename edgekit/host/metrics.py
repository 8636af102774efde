"""What the server counts beside its models, as part of the page for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgekit.host.admission import Admission
from edgekit.host.models import ServedModel
from edgekit_runtime.metrics import family_text

__all__ = ["host_metrics"]

_STATUSES = (200, 400, 401, 404, 429, 500, 503)
"""Those that are there from the start, so that a rate can be taken of the first."""


def host_metrics(responses: Mapping[int, int], served: Sequence[tuple[ServedModel, Admission]]) -> str:
    """responses: HTTP status -> how many.
    served: each model with what decides about its requests."""
    counted = {**dict.fromkeys(_STATUSES, 0), **responses}
    models = [({"model": one.manifest.name, "version": one.manifest.version}, admission) for one, admission in served]
    return "".join(
        (
            family_text(
                "edgekit_host_responses_total", "counter", "HTTP responses, by their status.",
                [({"status": str(status)}, number) for status, number in sorted(counted.items())],
            ),
            family_text(
                "edgekit_host_items", "gauge", "Items of requests that wait or run now.",
                [(labels, admission.ahead) for labels, admission in models],
            ),
            family_text(
                "edgekit_host_expected_seconds", "gauge", "What an inference is expected to take.",
                [(labels, (admission.typical_ms or 0.0) / 1e3) for labels, admission in models],
            ),
            family_text(
                "edgekit_host_margin_seconds", "gauge", "What is added to it, learnt from answers later than expected.",
                [(labels, admission.margin_ms / 1e3) for labels, admission in models],
            ),
        )
    )  # fmt: skip
