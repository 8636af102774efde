"""Serve a model over HTTP: an image in, JSON out.

    python examples/web_service.py demo/bundles/efficientnet_lite0-raspberry-pi-4.ekb --port 8000
    curl --data-binary @demo/coffee.png http://127.0.0.1:8000/

All threads share one model. A request that would exceed the budget gets a 503, so that the client can try another
server. `edgekit host serve` adds TLS, tokens and metrics.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from edgekit_runtime import BudgetExceeded, EdgekitError, Model, QueueFull, open_bundle

_LARGEST = 16 * 2**20


def handler(model: Model, budget_ms: float) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            if not 0 < size <= _LARGEST:
                return self.say(413, {"error": f"send 1 to {_LARGEST} bytes"})
            try:
                answer = model.predict(self.rfile.read(size), budget_ms=budget_ms)
            except (BudgetExceeded, QueueFull) as error:
                return self.say(503, {"error": str(error), "code": error.code})
            except EdgekitError as error:
                return self.say(400, {"error": str(error), "code": error.code})
            top = [{"label": one.label, "score": one.score} for one in answer.top(3)]
            return self.say(200, {"top": top, "source": answer.source, "ms": answer.timings["total"]})

        def say(self, status: int, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("bundle")
    asked.add_argument("--port", type=int, default=8000)
    asked.add_argument("--budget-ms", type=float, default=1000.0)
    options = asked.parse_args()
    with (
        open_bundle(options.bundle) as model,
        ThreadingHTTPServer(("127.0.0.1", options.port), handler(model, options.budget_ms)) as server,
    ):
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print(model.stats())


if __name__ == "__main__":
    main()
