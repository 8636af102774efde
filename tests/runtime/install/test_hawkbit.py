"""An agent that follows hawkBit: a server of its Direct Device Integration API, real bundles and a real root."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from installed import BOARD, QUICK, Maker, current, new_key

from edgekit.packaging.bundle_options import BundleTerms
from edgekit_runtime.install import DownloadLimits, InstallOptions
from edgekit_runtime.install.agent import Agent, AgentOptions
from edgekit_runtime.install.hawkbit import HawkbitLink
from edgekit_runtime.install.http import get
from edgekit_runtime.system.errors import TelemetryError

BASE = "/DEFAULT/controller/v1/porch-1"


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("EDGEKIT_TRUST", raising=False)
    monkeypatch.setattr("edgekit_runtime.install.hawkbit._LEAST_S", 0.05)
    monkeypatch.setattr("edgekit_runtime.install.hawkbit._AGAIN_S", 0.05)


class Hawkbit:
    """action: number and bundle of the deployment. said: feedback, in order. down: it answers 503.

    trickles: a file comes byte by byte after its first thousand.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.action: tuple[int, str] | None = None
        self.cancel: int | None = None
        self.said: list[tuple[str, str, dict]] = []
        self.down = self.deaf = self.trickles = False
        self.chunks = None
        self.strangers: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.get(self)

            def do_POST(self):
                server.post(self)

            def answer(self, status, data=b""):
                self.send_response(status)
                self.send_header("Content-Type", "application/hal+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if server.trickles and self.path in server.files:
                    self.trickle(data)
                else:
                    self.wfile.write(data)

            def trickle(self, data):
                with contextlib.suppress(OSError):  # the client leaves
                    self.wfile.write(data[:1000])
                    for byte in data[1000:]:
                        self.wfile.write(bytes([byte]))
                        time.sleep(0.02)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def get(self, asked) -> None:
        if asked.headers.get("Authorization") != "TargetToken s3cret":
            self.strangers.append(asked.path)
            asked.answer(401)
        elif self.down:
            asked.answer(503)
        elif asked.path in self.files:
            asked.answer(200, self.files[asked.path])
        else:
            found = self.found(asked.path)
            asked.answer(404 if found is None else 200, json.dumps(found).encode())

    def found(self, path: str):
        links = {"configData": {"href": f"{self.url}{BASE}/configData"}}
        if path == BASE:
            if self.cancel is not None:
                links["cancelAction"] = {"href": f"{self.url}{BASE}/cancelAction/{self.cancel}"}
            elif self.action is not None:
                links["deploymentBase"] = {"href": f"{self.url}{BASE}/deploymentBase/{self.action[0]}?c=-2127183556"}
            return {"config": {"polling": {"sleep": "00:00:00"}}, "_links": links}
        if self.cancel is not None and path == f"{BASE}/cancelAction/{self.cancel}":
            return {"id": str(self.cancel), "cancelAction": {"stopId": str(self.cancel)}}
        if self.action is not None and path.startswith(f"{BASE}/deploymentBase/{self.action[0]}"):
            chunks = self.chunks or [self.chunk(self.action[1])]
            return {
                "id": str(self.action[0]),
                "deployment": {"download": "forced", "update": "forced", "chunks": chunks},
            }
        return None

    def chunk(self, path: str) -> dict:
        data = self.files[path]
        links = {"download-http": {"href": f"{self.url}{path}"}, "md5sum-http": {"href": f"{self.url}{path}.MD5SUM"}}
        hashes = {"sha1": hashlib.sha1(data).hexdigest(), "sha256": hashlib.sha256(data).hexdigest()}
        file = {"filename": path.rpartition("/")[2], "hashes": hashes, "size": len(data), "_links": links}
        return {"part": "bApp", "name": "tiny", "version": "1.0", "artifacts": [file]}

    def post(self, asked) -> None:
        body = json.loads(asked.rfile.read(int(asked.headers["Content-Length"])))
        if self.deaf:
            asked.answer(503)
            return
        kind, action, _ = asked.path.removeprefix(f"{BASE}/").split("/")
        status = body["status"]
        self.said.append((kind, action, {"execution": status["execution"], "finished": status["result"]["finished"],
                                         "details": status["details"]}))  # fmt: skip
        if status["execution"] == "closed":
            self.action = self.action if kind == "cancelAction" else None
            self.cancel = None
        asked.answer(200)

    def until(self, execution: str, finished: str) -> dict:
        until = time.monotonic() + 60
        while True:
            for kind, action, said in list(self.said):
                if (said["execution"], said["finished"]) == (execution, finished):
                    return {"kind": kind, "action": action, **said}
            assert time.monotonic() < until, self.said
            time.sleep(0.02)


@pytest.fixture
def hawkbit():
    made = Hawkbit()
    yield made
    made._server.shutdown()
    made._server.server_close()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Maker(tmp_path_factory.mktemp("bundles"))


@pytest.fixture
def key(tmp_path):
    return new_key(tmp_path)


@contextmanager
def running(hawkbit, root, key):
    asked = InstallOptions(trust=(key[1],), board=BOARD, proving=QUICK)
    options = AgentOptions(
        "", "porch-1", root, asked, spread_s=0.0, look_s=0.02, hawkbit=f"{hawkbit.url}/DEFAULT", token="s3cret"
    )
    agent, stop = Agent(options), threading.Event()
    thread = threading.Thread(target=agent.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield agent
    finally:
        stop.set()
        agent.link.wake()
        thread.join(30)
        assert not thread.is_alive()


def offer(hawkbit, number, path):
    hawkbit.files[f"/files/{number}/net.ekb"] = path.read_bytes()
    hawkbit.action = number, f"/files/{number}/net.ekb"


def test_an_action_is_installed_with_the_targets_token_and_reported(hawkbit, made, key, tmp_path):
    root = tmp_path / "camera"
    with running(hawkbit, root, key):
        offer(hawkbit, 7, made("1", key=key[0], terms=BundleTerms(rollout_seq=1)))
        said = hawkbit.until("closed", "success")
        assert (said["kind"], said["action"]) == ("deploymentBase", "7")
        assert "1" in current(root)
        assert (
            "deploymentBase",
            "7",
            {"execution": "proceeding", "finished": "none", "details": ["fetching"]},
        ) in hawkbit.said
        hawkbit.said.clear()
        offer(hawkbit, 8, made("2", key=key[0], terms=BundleTerms(rollout_seq=2)))
        assert hawkbit.until("closed", "success")["action"] == "8"
        assert "2" in current(root)
    assert hawkbit.strangers == []


def test_a_bundle_that_is_refused_fails_the_action_with_its_reason(hawkbit, made, key, tmp_path):
    root, stranger = tmp_path / "camera", new_key(tmp_path, "mallory")
    with running(hawkbit, root, key):
        offer(hawkbit, 3, made("1", key=stranger[0]))
        said = hawkbit.until("closed", "failure")
    assert said["details"][0].startswith("refused: ")
    assert "[" in said["details"][0]
    assert not (root / "current").exists()


@pytest.mark.parametrize("change", [{"filename": "net.bin"}, {"hashes": {"sha1": "0"}}, {"hashes": {"sha256": "x"}}])
def test_an_action_that_is_not_one_bundle_with_its_digest_fails(hawkbit, made, key, tmp_path, change):
    offer(hawkbit, 3, made("1", key=key[0]))
    chunk = hawkbit.chunk(hawkbit.action[1])
    hawkbit.chunks = [{**chunk, "artifacts": [{**chunk["artifacts"][0], **change}]}]
    with running(hawkbit, tmp_path / "camera", key):
        assert hawkbit.until("closed", "failure")["action"] == "3"


def test_a_server_that_is_away_or_deaf_hears_the_end_later_also_after_a_restart(hawkbit, made, key, tmp_path):
    root = tmp_path / "camera"
    hawkbit.down = True
    with running(hawkbit, root, key) as agent:
        offer(hawkbit, 7, made("1", key=key[0]))
        hawkbit.deaf, hawkbit.down = True, False
        until = time.monotonic() + 60
        while agent.note.phase != "committed":
            assert time.monotonic() < until
            time.sleep(0.02)
    assert hawkbit.said == []
    hawkbit.deaf = False
    with running(hawkbit, root, key):
        assert hawkbit.until("closed", "success")["action"] == "7"


def test_an_action_that_is_cancelled_is_withdrawn(hawkbit, made, key, tmp_path):
    root = tmp_path / "camera"
    offer(hawkbit, 7, made("1", key=key[0]))
    hawkbit.trickles = True  # for minutes
    with running(hawkbit, root, key) as agent:
        hawkbit.until("proceeding", "none")
        hawkbit.cancel = 7
        said = hawkbit.until("closed", "success")
        assert (said["kind"], said["action"]) == ("cancelAction", "7")
        hawkbit.action = None
        until = time.monotonic() + 60
        while agent.note.order is not None:
            assert time.monotonic() < until
            time.sleep(0.02)
    assert not (root / "current").exists()


def test_answers_that_are_not_of_the_api_end_nothing(hawkbit, made, key, tmp_path, caplog):
    offer(hawkbit, 7, made("1", key=key[0]))
    hawkbit.chunks = [{"artifacts": [None]}]
    with running(hawkbit, tmp_path / "camera", key) as agent:
        until = time.monotonic() + 60
        while "not one of its API" not in caplog.text:
            assert time.monotonic() < until
            time.sleep(0.02)
        hawkbit.chunks = None
        offer(hawkbit, 8, made("1", key=key[0]))
        assert hawkbit.until("closed", "success")["action"] == "8"
        assert agent.note.phase == "committed"


def test_the_token_goes_to_the_servers_own_address_alone(hawkbit):
    other = Hawkbit()
    other.files["/x"] = b"x"
    limits = DownloadLimits(authorization=(hawkbit.url, "TargetToken s3cret"), tries=1)
    with pytest.raises(Exception, match="401"):
        get(f"{other.url}/x", limits=limits)
    assert other.strangers == ["/x"]
    assert "s3cret" not in repr(limits)
    other._server.shutdown()
    other._server.server_close()


@pytest.mark.parametrize("url", ["hawkbit.example", "ftp://h/DEFAULT", "https://u:p@h/DEFAULT"])
def test_what_is_no_server_is_refused_without_its_password(url):
    with pytest.raises(TelemetryError) as refused:
        HawkbitLink(url, "porch-1", "t", "ek/v1/porch-1", lambda *_: None, lambda: None)
    assert "u:p" not in str(refused.value)
