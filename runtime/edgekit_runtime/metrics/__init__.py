"""What models have done, for Prometheus: the page as text, and the page over HTTP on loopback."""

from __future__ import annotations

from edgekit_runtime.metrics.server import MetricsServer, serve_metrics
from edgekit_runtime.metrics.text import CONTENT_TYPE, CacheFigures, Measured, metrics_text

__all__ = ["CONTENT_TYPE", "CacheFigures", "Measured", "MetricsServer", "metrics_text", "serve_metrics"]
