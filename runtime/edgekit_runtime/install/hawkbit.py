"""Orders of a hawkBit server, by its Direct Device Integration API, in place of a broker.

    link = HawkbitLink("https://hawkbit.example/DEFAULT", "porch-1", "TOKEN", "ek/v1/porch-1", message, up)
    while not done:
        link.step(timeout_s=1.0)            # message(topic + "/cmd", order): as a fleet's, with the action as number

Rules:
- it polls as often as the server asks, between 5 seconds and a day; a server that fails is asked again after a minute;
- an action is one bundle: one .ekb file with its SHA-256, or it is answered with a failure;
- the token goes to the server's own address alone, not to another that a download names;
- a report that the server did not take is made again after the next poll;
- a cancelled action is withdrawn, unless its self-test or trial has begun.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from edgekit_runtime.install.http import DownloadLimits, FinalError, get
from edgekit_runtime.install.orders import FINAL, Order, parse_order
from edgekit_runtime.system.errors import DownloadError, TelemetryError, WindowError
from edgekit_runtime.system.strict_json import compact_json, load_json

_LOG = logging.getLogger("edgekit_runtime.install.agent")
_MOST_BYTES = 256 * 1024
_AGAIN_S, _LEAST_S, _MOST_S = 60.0, 5.0, 86400.0
_SLEEP = re.compile(r"(\d\d):(\d\d):(\d\d)\Z")


class HawkbitLink:
    """As a `Link`. token: the target's, or "GatewayToken ..." whole. Raises TelemetryError."""

    connected = True

    def __init__(
        self, url: str, device: str, token: str, topic: str, message: Callable[[str, bytes, bool], None],
        up: Callable[[], None],
    ) -> None:  # fmt: skip
        parts = urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or "@" in parts.netloc
            or not token.isprintable()
        ):
            do = "Write it as https://hawkbit.example/DEFAULT, with the tenant, and the token into --hawkbit-token"
            raise TelemetryError("not the URL of a hawkBit server, or not a token", where=url.rsplit("@")[-1], do=do)
        self.broker = url.rstrip("/")
        self._base = f"{self.broker}/controller/v1/{quote(device)}"
        place = f"{parts.scheme}://{parts.netloc}"
        self.limits = DownloadLimits(authorization=(place, token if " " in token else f"TargetToken {token}"))
        self._topic, self._message, self._up = topic, message, up
        self._woken, self._at = threading.Event(), 0.0
        self._action = self._phase = ""
        self._unsaid = False

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """Nothing is open between two polls."""

    def step(self, timeout_s: float) -> None:
        self._woken.wait(timeout_s)
        self._woken.clear()
        if time.monotonic() < self._at:
            return
        self._at = time.monotonic() + _AGAIN_S
        try:
            found = self._ask(self._base)
            links = found.get("_links", {})
            if "cancelAction" in links:
                self._cancel(self._ask(links["cancelAction"]["href"])["cancelAction"]["stopId"])
            elif "deploymentBase" in links:
                self._deploy(self._ask(links["deploymentBase"]["href"]))
            hours, minutes, seconds = map(int, _SLEEP.match(found["config"]["polling"]["sleep"]).groups())  # type: ignore[union-attr]
            self._at = time.monotonic() + min(_MOST_S, max(_LEAST_S, 3600 * hours + 60 * minutes + seconds))
            if self._unsaid:
                self._unsaid = False
                self._up()
        except DownloadError as error:
            _LOG.warning("hawkBit: %s", error.what)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            _LOG.warning("hawkBit's answer is not one of its API (%s)", type(error).__name__)

    def _deploy(self, found: dict[str, Any]) -> None:
        action, deployment = str(int(found["id"])), found["deployment"]
        if action == self._action or "skip" in (deployment.get("update"), deployment.get("download")):
            return
        self._action = action
        files = [(chunk, file) for chunk in deployment["chunks"] for file in chunk["artifacts"]]
        bundles = [(chunk, file) for chunk, file in files if str(file["filename"]).endswith(".ekb")]
        if len(bundles) != 1 or "sha256" not in bundles[0][1]["hashes"]:
            self._say("deploymentBase", action, "closed", "failure", "an action must have one .ekb, with its SHA-256")
            return
        ((chunk, file),) = bundles
        links, named = file["_links"], (str(chunk["name"]), str(chunk["version"]))
        url = (links.get("download") or links["download-http"])["href"]
        order = Order(int(action), *named, file["hashes"]["sha256"], url).encode()
        try:
            parse_order(order)
        except WindowError as error:
            self._say("deploymentBase", action, "closed", "failure", f"refused: {error.what}")
            return
        self._message(f"{self._topic}/cmd", order, False)

    def _cancel(self, action: str) -> None:
        if action == self._action and (self._phase == "trial" or self._phase in FINAL):
            self._say("cancelAction", action, "rejected", "none", f"it is {self._phase}")
            return
        self._message(f"{self._topic}/cmd", b"", False)
        self._say("cancelAction", action, "closed", "success", "withdrawn")

    def publish(self, topic: str, payload: bytes, qos: int = 1, retain: bool = False, **_: Any) -> bool:
        """Tell the server what a report of the agent says; False if it is to be made again."""
        said = load_json(payload)
        self._phase = said["phase"]
        action, closed = str(said["rev"]), self._phase in FINAL
        if action != self._action:  # of a broker, or of a process before
            return True
        result = "none" if not closed else "success" if self._phase == "committed" else "failure"
        text = f"{self._phase}: {said['error']} [{said['code']}]" if said["error"] else str(self._phase)
        try:
            self._say("deploymentBase", action, "closed" if closed else "proceeding", result, text)
        except DownloadError as error:
            _LOG.warning("hawkBit: %s", error.what)
            self._unsaid = True
            return False
        return True

    def _say(self, kind: str, action: str, execution: str, finished: str, text: str) -> None:
        status = {"execution": execution, "result": {"finished": finished}, "details": [text]}
        try:
            self._ask(f"{self._base}/{kind}/{quote(action)}/feedback", compact_json({"id": action, "status": status}))
        except FinalError as error:  # the action is closed already
            _LOG.warning("hawkBit took no feedback: %s", error.what)

    def _ask(self, url: str, body: bytes | None = None) -> dict[str, Any]:
        data = b""
        with contextlib.closing(get(url, limits=self.limits, body=body)) as stream:
            while piece := stream.read():
                data += piece
                if len(data) > _MOST_BYTES:
                    raise ValueError("too long")
        found = load_json(data) if data else {}
        return found if isinstance(found, dict) else {}
