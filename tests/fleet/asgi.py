"""An application asked without a socket: `Client(app).get("/?state=late").text`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlencode

__all__ = ["Answer", "Client"]


@dataclass(frozen=True)
class Answer:
    status_code: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class Client:
    def __init__(self, app: Any, host: str = "localhost") -> None:
        self._app, self._host = app, host

    def get(self, path: str, **headers: str) -> Answer:
        return self._ask("GET", path, b"", headers)

    def post(self, path: str, form: dict[str, str], **headers: str) -> Answer:
        headers["content-type"] = "application/x-www-form-urlencoded"
        return self._ask("POST", path, urlencode(form).encode(), headers)

    def _ask(self, method: str, address: str, body: bytes, headers: dict[str, str]) -> Answer:
        path, _, query = address.partition("?")
        named = {"host": self._host, **headers}
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "client": ("127.0.0.1", 1), "server": (self._host, 80), "state": {},
        }  # fmt: skip
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(self._app(scope, receive, send))
        text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
        found = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, text)
