"""An agent with a real broker, a real server of files, real bundles and a real root."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
from downloads import Script, serving
from installed import BOARD, QUICK, Maker, current, events, new_key
from mosquitto import Mosquitto
from ports import closed_port

from edgekit.packaging.bundle_options import BundleTerms
from edgekit_runtime.bundle.manifest import Promise
from edgekit_runtime.install import DownloadLimits, FetchOptions, InstallOptions, status
from edgekit_runtime.install import agent as loop
from edgekit_runtime.install.agent import Agent, AgentOptions
from edgekit_runtime.install.orders import MOST_ORDERS, Order, parse_report
from edgekit_runtime.install.shadowing import read_shadow
from edgekit_runtime.telemetry.link import Broker, Link

pytest.importorskip("paho.mqtt")
DEVICE = "porch-1"


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("EDGEKIT_TRUST", raising=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Maker(tmp_path_factory.mktemp("bundles"))


class Desk:
    """The fleet's side: gives orders, hears reports."""

    def __init__(self, url):
        self.reports, self._stop = [], threading.Event()
        self._link = Link(Broker.parse(url), "desk", ("ek/v1/+/rep",), message=self._heard)
        self._out = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._stop.is_set():
            self._link.step(0.02)
            while self._link.connected and self._out:
                self._link.publish(f"ek/v1/{DEVICE}/cmd", self._out.pop(0), retain=True)
        self._link.close()

    def _heard(self, topic, payload, retained):
        self.reports.append(parse_report(payload))

    def order(self, payload):
        self._out.append(payload)

    def until(self, phase, rev, seconds=20):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for report in self.reports:
                if (report.phase, report.rev) == (phase, rev):
                    return report
            time.sleep(0.01)
        raise AssertionError(f"no {phase} of {rev} in {self.reports}")

    def close(self):
        self._stop.set()
        self._thread.join(5)


@pytest.fixture
def key(tmp_path):
    return new_key(tmp_path)


@pytest.fixture
def broker(tmp_path):
    with Mosquitto(tmp_path) as broker:
        yield broker


@pytest.fixture
def desk(broker):
    desk = Desk(broker.url)
    yield desk
    desk.close()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "camera"


@contextmanager
def running(broker, root, key, **changes):
    asked = InstallOptions(
        trust=(key[1],), board=BOARD, proving=QUICK, fetching=FetchOptions(limits=DownloadLimits(tries=1))
    )
    options = AgentOptions(broker.url, DEVICE, root, asked, spread_s=0.0, look_s=0.02, most_wait_s=0.2, **changes)
    agent, stop = Agent(options), threading.Event()
    thread = threading.Thread(target=agent.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield agent
    finally:
        stop.set()
        agent.link.wake()
        thread.join(10)
        assert not thread.is_alive()


def order(rev, path, url, **changes):
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Order(rev, "tiny", str(rev), **{"sha256": digest, "url": url, **changes}).encode()


def test_an_agent_without_its_broker_says_so_once(root, caplog):
    stop = threading.Event()
    with closed_port() as port:
        url = f"mqtt://porch:secret@127.0.0.1:{port}"
        agent = Agent(AgentOptions(url, "porch-1", root, look_s=0.02, most_wait_s=0.1))
        thread = threading.Thread(target=agent.run, args=(stop,), daemon=True)
        thread.start()
        until = time.monotonic() + 20
        while agent.link.troubles["unreachable"] < 3 and time.monotonic() < until:
            time.sleep(0.02)
        stop.set()
        agent.link.wake()
        thread.join(10)
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "unreachable (Check the broker's address, and that it runs)" in line
    assert "secret" not in line


def test_an_order_becomes_the_active_bundle_and_an_undo_needs_no_download(made, key, broker, desk, root):
    one, two = (made(v, key=key[0], terms=BundleTerms(rollout_seq=int(v))) for v in ("1", "2"))
    with running(broker, root, key), ExitStack() as ends:
        urls = [ends.enter_context(serving(Script(path.read_bytes()))) for path in (one, two)]
        desk.order(order(1, one, urls[0]))
        first = desk.until("committed", 1)
        assert (first.version, first.former) == ("1", None)
        desk.order(order(2, two, urls[1]))
        second = desk.until("committed", 2)
        assert second.version == "2"
        ends.close()
        desk.order(Order(3, "tiny", "1", second.former.sha256).encode())
        assert desk.until("committed", 3).version == "1"
        desk.order(order(4, one, "", sha256="d" * 64))
        assert desk.until("failed", 4).code == "no-generation"
    assert status(root).current.version == "1"
    assert list(dict.fromkeys(r.phase for r in desk.reports if r.rev == 2)) == ["fetching", "trial", "committed"]


def test_a_shadow_changes_nothing_and_its_bundle_is_not_fetched_again(made, key, broker, desk, root):
    one, two = (made(v, key=key[0], terms=BundleTerms(rollout_seq=int(v))) for v in ("1", "2"))
    fetched = Script(two.read_bytes())
    with running(broker, root, key), ExitStack() as ends:
        desk.order(order(1, one, ends.enter_context(serving(Script(one.read_bytes())))))
        desk.until("committed", 1)
        url = ends.enter_context(serving(fetched))
        desk.order(order(2, two, url, shadow=0.05))
        assert desk.until("shadowing", 2).version == "1"
        assert read_shadow(root).share == 0.05
        asked = len(fetched.asked)
        desk.order(b"")
        until = time.monotonic() + 20
        while (root / "shadow.json").exists() or (root / "shadow.ekb").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        desk.order(order(3, two, url, shadow=0.05))
        desk.until("shadowing", 3)
        ends.close()
        desk.order(order(4, two, url))
        assert desk.until("committed", 4).version == "2"
    assert len(fetched.asked) == 2 * asked
    assert not {"shadow.json", "shadow.ekb"} & {entry.name for entry in root.iterdir()}


REFUSED = {
    "unsigned": (lambda made, key: made("1"), {}, "refused", "unsigned"),
    "signed by another": (lambda made, key: made("1", key=OTHER[0]), {}, "refused", "unknown-key"),
    "another file than was ordered": (
        lambda made, key: made("1", key=key[0]), {"sha256": "d" * 64}, "refused", "bundle-integrity"),
    "too slow for its promise": (
        lambda made, key: made("1", key=key[0], promise=Promise(p50_ms=1e-6, p99_ms=1e-6, peak_mb=1e6)), {},
        "rolled-back", "trial-failed"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "changes", "phase", "code"), REFUSED.values(), ids=REFUSED)
def test_what_may_not_come_in_is_refused_once(made, key, broker, desk, root, tmp_path, make, changes, phase, code):
    """S26"""
    global OTHER
    OTHER = new_key(tmp_path, "mallory")
    good, bad = made("0", key=key[0]), make(made, key)
    script = Script(bad.read_bytes())
    with running(broker, root, key) as agent, serving(Script(good.read_bytes())) as first, serving(script) as url:
        desk.order(order(1, good, first))
        desk.until("committed", 1)
        desk.order(order(2, bad, url, **changes))
        report = desk.until(phase, 2)
        assert (report.code, report.version) == (code, "0")
        asked = len(script.asked)
        desk.order(order(2, bad, url, **changes))
        agent.link.reconnect()
        time.sleep(0.5)
        assert len(script.asked) == asked
    assert status(root).current.version == "0"


def test_forty_orders_of_what_is_refused_are_one_download_and_a_few_writes(made, key, broker, desk, root, monkeypatch):
    """S26: each is an order of its own, and a board's card wears with every write."""
    written = []
    write_file = loop.write_file
    monkeypatch.setattr(loop, "write_file", lambda path, text: (written.append(path), write_file(path, text)))
    unsigned = made("1")
    script = Script(unsigned.read_bytes())
    with running(broker, root, key) as agent, serving(script) as url:
        for rev in range(1, 41):
            desk.order(order(rev, unsigned, url))
            if rev <= MOST_ORDERS:
                desk.until("refused", rev)
        until = time.monotonic() + 20
        while agent._newer is None or agent._newer.rev != 40:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert agent.note.order.rev == MOST_ORDERS, "the last one waits"
    assert len(script.asked) == 1
    assert len(written) <= 4 * MOST_ORDERS
    assert {report.code for report in desk.reports if report.phase == "refused"} == {"unsigned"}


def test_what_was_refused_is_fetched_again_once_other_keys_are_trusted(made, key, broker, desk, root, tmp_path):
    """S26"""
    mallory = new_key(tmp_path, "mallory")
    bundle = made("1", key=mallory[0])
    with running(broker, root, key), serving(Script(bundle.read_bytes())) as url:
        desk.order(order(1, bundle, url))
        assert desk.until("refused", 1).code == "unknown-key"
        key[1].write_bytes(mallory[1].read_bytes())
        desk.order(order(2, bundle, url))
        desk.until("committed", 2)


def test_orders_only_go_forward_in_number(made, key, broker, desk, root):
    """S26: one that is sent again, also after a restart and after it was withdrawn, does not bring its bundle back."""
    one, two = (made(v, key=key[0]) for v in ("1", "2"))
    with serving(Script(one.read_bytes())) as a, serving(Script(two.read_bytes())) as b:
        with running(broker, root, key):
            desk.order(order(1, one, a))
            desk.until("committed", 1)
            desk.order(order(2, two, b))
            desk.until("committed", 2)
            desk.order(order(1, one, a))
        with running(broker, root, key):
            desk.order(b"")
            desk.order(order(1, one, a))
            desk.order(order(3, two, b))
            desk.until("committed", 3)
    assert status(root).current.version == "2"
    revs = [report.rev for report in desk.reports]
    assert revs == sorted(revs), "the first order was never taken up again"


def test_an_older_number_is_refused(made, key, broker, desk, root):
    """S26"""
    old, new = (made(str(n), key=key[0], terms=BundleTerms(rollout_seq=n)) for n in (5, 6))
    with running(broker, root, key), serving(Script(new.read_bytes())) as a, serving(Script(old.read_bytes())) as b:
        desk.order(order(1, new, a))
        desk.until("committed", 1)
        desk.order(order(2, old, b))
        assert desk.until("refused", 2).code == "downgrade"


def test_another_bundle_under_the_number_of_the_last_order_is_installed(made, key, broker, desk, root):
    one, two = (made(v, key=key[0], terms=BundleTerms(rollout_seq=int(v))) for v in ("1", "2"))
    with running(broker, root, key), serving(Script(one.read_bytes())) as a, serving(Script(two.read_bytes())) as b:
        desk.order(order(7, one, a))
        first = desk.until("committed", 7)
        desk.reports.clear()
        desk.order(order(7, two, b))
        second = desk.until("committed", 7)
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (one, two)]
        assert [first.sha256, second.sha256] == digests
        assert (second.version, second.former.sha256) == ("2", digests[0])


def test_a_broken_network_is_tried_again_and_a_newer_order_takes_its_place(made, key, broker, desk, root, monkeypatch):
    monkeypatch.setattr("edgekit_runtime.install.orders.pause_s", lambda tries: 0.05)
    one, two = (made(v, key=key[0]) for v in ("1", "2"))
    script = Script(one.read_bytes(), cuts=[2000, 2000])
    with running(broker, root, key) as agent, serving(script) as url, serving(Script(two.read_bytes())) as other:
        desk.order(order(1, one, url))
        desk.until("committed", 1)
        assert agent.note.tries == 3
        assert [asked["Range"] for asked in script.asked[1:]] == ["bytes=2000-", "bytes=4000-"]
        endless = Script(two.read_bytes()[:5000], endless=True)
        desk.order(order(2, two, "http://127.0.0.1:9/x.ekb"))
        desk.until("fetching", 2)
        desk.order(order(3, two, other))
        desk.until("committed", 3)
        assert not endless.asked


def test_an_order_that_is_withdrawn_as_its_download_fails_is_not_tried_again(made, key, root):
    asked = InstallOptions(trust=(key[1],), board=BOARD, fetching=FetchOptions(limits=DownloadLimits(tries=1)))
    agent = Agent(AgentOptions("mqtt://127.0.0.1:1", DEVICE, root, asked, spread_s=0.0))
    with closed_port() as port:
        wanted = order(1, made("1", key=key[0]), f"http://127.0.0.1:{port}/net.ekb")
        agent._message(f"ek/v1/{DEVICE}/cmd", wanted, False)
        while agent._work is None:
            agent._take_newer()
            agent._advance()
        assert agent._work.over.wait(60)
    agent._message(f"ek/v1/{DEVICE}/cmd", b"", False)
    agent._take_newer()
    assert agent.note.order is None


def test_a_trial_by_the_application_is_waited_for_and_an_undo_ends_it(made, key, broker, desk, root, tmp_path):
    one, two = (made(v, key=key[0]) for v in ("1", "2"))
    ran = tmp_path / "ran"
    then = (sys.executable, "-c", f"open({str(ran)!r}, 'a').write('x')")
    with running(broker, root, key) as agent, serving(Script(one.read_bytes())) as a:
        desk.order(order(1, one, a))
        desk.until("committed", 1)
    asked = InstallOptions(trust=(key[1],), board=BOARD, proving=QUICK, trial="app")
    options = AgentOptions(broker.url, DEVICE, root, asked, then, 0.0, 0.02, 0.2)
    agent, stop = Agent(options), threading.Event()
    thread = threading.Thread(target=agent.run, args=(stop,), daemon=True)
    thread.start()
    with serving(Script(two.read_bytes())) as b:
        desk.order(order(2, two, b))
        former = desk.until("trial", 2).former
        until = time.monotonic() + 20
        while not (ran.exists() and ran.read_text()):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert (current(root), ran.read_text()) == ("generations/2", "x")
        desk.order(Order(3, "tiny", "1", former.sha256).encode())
        assert desk.until("committed", 3).version == "1"
    stop.set()
    thread.join(10)
    assert (current(root), ran.read_text()) == ("generations/1", "xx")


AGENT = """
import sys, threading
from pathlib import Path
from installed import BOARD, QUICK
from edgekit_runtime.install.agent import Agent, AgentOptions
from edgekit_runtime.install import InstallOptions
url, root, key = sys.argv[1:]
asked = InstallOptions(trust=(key,), board=BOARD, proving=QUICK)
agent = Agent(AgentOptions(url, "porch-1", Path(root), asked, spread_s=0.0, look_s=0.02, most_wait_s=0.2))
print("up", flush=True)
agent.run(threading.Event())
"""


def test_a_kill_at_any_time_costs_a_repetition_at_most(made, key, broker, desk, root):
    """It is killed early in each life, until it has come to an end all the same. Each lives longer than the one before
    it by more than half: however slow the machine is, no self-test is cut three times.
    """
    one, two = (made(v, key=key[0], terms=BundleTerms(rollout_seq=int(v))) for v in ("1", "2"))
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n" + AGENT, broker.url, root, key[1]]
    with serving(Script(one.read_bytes())) as a, serving(Script(two.read_bytes())) as b:
        with running(broker, root, key):
            desk.order(order(1, one, a))
            desk.until("committed", 1)
        desk.order(order(2, two, b))
        lives = 0
        while not any((r.rev, r.phase) == (2, "committed") for r in desk.reports):
            child = subprocess.Popen(command, stdout=subprocess.PIPE)
            child.stdout.read(1)  # imported, and about to connect
            time.sleep(0.1 * 1.6**lives if lives else 0.0)
            child.kill()
            child.communicate()
            lives += 1
            assert current(root) in ("generations/1", "generations/2")
            assert lives < 15
    assert lives > 1  # one at least was killed on its way
    assert status(root).current.version == "2"
    assert json.loads((root / "agent.json").read_text())["phase"] == "committed"
    # An event is written after the fact: a kill in between loses the line, and never doubles it.
    committed = [one["generation"] for one in events(root) if one["event"] == "committed"]
    assert committed in ([1], [1, 2])
