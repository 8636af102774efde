"""An application asked without a socket: `Client(app).get("/?state=late").text`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlencode


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

    def first_event(self, path: str) -> str:
        """The first of a stream of server-sent events, which is then left."""

        async def left() -> str:
            sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            unread = [{"type": "http.request", "body": b"", "more_body": False}]

            async def receive() -> dict[str, Any]:
                if unread:
                    return unread.pop()
                return await asyncio.Future()

            stream = asyncio.create_task(self._app(self._scope("GET", path, {}), receive, sent.put))
            try:
                while True:
                    message = await asyncio.wait_for(sent.get(), 20)
                    assert message.get("status", 200) == 200, path
                    if text := message.get("body", b"").decode():
                        return text
            finally:
                stream.cancel()
                await asyncio.gather(stream, return_exceptions=True)

        return asyncio.run(left())

    def _ask(self, method: str, address: str, body: bytes, headers: dict[str, str]) -> Answer:
        scope = self._scope(method, address, headers)
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(self._app(scope, receive, send))
        text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
        found = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, text)

    def _scope(self, method: str, address: str, headers: dict[str, str]) -> dict[str, Any]:
        path, _, query = address.partition("?")
        named = {"host": self._host, **headers}
        return {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "client": ("127.0.0.1", 1), "server": (self._host, 80), "state": {},
        }  # fmt: skip
