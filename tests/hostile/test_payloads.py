"""Group 25: payloads of boards that are broken, or somebody else: refused with one word, and never more than text on a
page.
"""

from __future__ import annotations

import json
import time
import urllib.request

import pytest
from fleet.boards import NOW, birth, payload, windows
from listener import Listener
from mosquitto import Mosquitto

from edgekit.fleet.ingest import Ingest, Pace
from edgekit.fleet.serve import FleetServer, Settings
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.messages import parse_window
from edgekit_runtime.system.errors import WindowError
from edgekit_runtime.telemetry.link import Broker

TOPIC = "ek/v1/porch-1/m"
SCRIPT = "<script>alert(1)</script>"


def changed(**fields):
    return json.dumps(json.loads(payload(1)) | fields).encode()


def histogram(*value):
    return changed(lat={"device": list(value)})


HOSTILE = {
    "1 MB": (TOPIC, b" " * 10**6, "size"),
    "1 MB of a window": (TOPIC, changed(prof="x" * 10**6), "size"),
    "a negative count": (TOPIC, changed(err=-1), "shape"),
    "a negative count in a histogram": (TOPIC, histogram(5, 0, [-3, -(2**60)]), "shape"),
    "10^6 buckets": (TOPIC, histogram(5, 0, [-(10**6), 2]), "shape"),
    "600,000 buckets, each there": (TOPIC, histogram(5, 0, [1] * 600_000), "size"),  # the broker drops 2 MB
    "scale 99": (TOPIC, histogram(99, 0, [2]), "shape"),
    "scale -99": (TOPIC, histogram(-99, 0, [2]), "shape"),
    "seq below floor": (TOPIC, changed(seq=3, floor=4), "shape"),
    "seq 2^63": (TOPIC, changed(seq=2**63), "shape"),
    "another device's id": (TOPIC, payload(1, "porch-2"), "device"),
    "HTML in the id": ("ek/v1/<script>/m", payload(1), "device"),
    "a path for an id": ("ek/v1/../m", payload(1), "device"),
    "NaN": (TOPIC, changed(temp=float("nan")), "json"),
    "half a surrogate pair in a name": (TOPIC, changed(model={"id": "\ud800", "ver": "1", "sha": "0"}), "shape"),
    "NUL in a name": (TOPIC, changed(prof="a\0b"), "shape"),
    "an escape sequence in a name": (TOPIC, changed(prof="\x1b[2J"), "shape"),
    "half a surrogate pair in a birth": (
        "ek/v1/porch-1/state",
        b'{"on":1,"epoch":"0123456789abcdef","boot":1,"sw":"\\ud800",'
        b'"model":"m","ver":"1","sha":"0","profile":"p","hw":"h","win":60}',
        "shape",
    ),
    "a time in the future that no clock has": (TOPIC, changed(t0=2**53), "shape"),
    "100,000 deep": (TOPIC, b"[" * 10_000 + b"]" * 6_000, "json"),
}


@pytest.fixture
def fleet(tmp_path):
    with Mosquitto(tmp_path, most_bytes=4_000_000) as broker:
        store = SqliteStore.open(tmp_path / "fleet.db")
        ingest = Ingest(Broker.parse(broker.url), store, Pace(wait_s=0.1, chores_s=0.2))
        ingest.start()
        board = Listener(broker.port, topic="ek/v1/+/ack")
        until = time.monotonic() + 30
        while not ingest.link.subscribed:
            assert time.monotonic() < until
            time.sleep(0.01)
        yield ingest, store, board
        board.close()
        ingest.close()
        store.close()


def test_group_25_every_hostile_payload_is_counted_under_one_word_and_the_next_board_is_stored(fleet):
    ingest, store, board = fleet
    wanted: dict[str, int] = {}
    for topic, data, word in HOSTILE.values():
        board.say(topic, data, qos=1)
        wanted[word] = wanted.get(word, 0) + 1
    board.say("ek/v1/porch-3/m", payload(1, "porch-3"), qos=1)
    board.wait(lambda heard: any("porch-3" in topic for topic, *_ in heard.heard))
    assert dict(ingest.refused) == wanted
    assert ingest.counts["fault"] == ingest.counts["store"] == 0
    assert windows(store, "porch-3")
    assert store.device("porch-1").n == 0


@pytest.mark.parametrize("case", [case for case, (topic, _, _) in HOSTILE.items() if topic == TOPIC])
def test_group_25_the_parser_says_one_word_and_one_line(case):
    _, data, word = HOSTILE[case]
    with pytest.raises(WindowError) as caught:
        parse_window(data, "porch-1")
    assert caught.value.word == word
    assert str(caught.value).isprintable()


def test_group_25_a_device_id_with_a_wildcard_is_no_id():
    """A broker lets nobody publish to such a topic; the id's rule stands on both sides all the same."""
    from edgekit_runtime.telemetry.window import device_id

    for name in ("por#ch", "+", "a/b", "#"):
        with pytest.raises(WindowError):
            device_id(name)


def test_group_25_html_in_a_name_stays_text_on_every_page(tmp_path):
    with Mosquitto(tmp_path) as broker:
        settings = Settings(
            broker.url, store=f"sqlite:///{tmp_path}/fleet.db", listen="127.0.0.1:0", pace=Pace(chores_s=60)
        )
        with FleetServer(settings) as server:
            names = dict.fromkeys(("model", "ver", "profile", "hw", "sw"), SCRIPT)
            server.store.commit([], [birth(received=int(time.time() * 1000), **names)])
            for page in ("/", "/device/porch-1"):
                with urllib.request.urlopen(server.url.rstrip("/") + page, timeout=30) as answer:
                    text = answer.read().decode()
                assert SCRIPT not in text
                assert "alert(1)" in text, "the name is not on the page at all"


def test_group_25_a_window_from_the_future_is_stored_and_spoils_no_figure_of_now(fleet):
    """A board's clock decides about nothing but its own windows' place in time."""
    _, store, board = fleet
    board.say(TOPIC, payload(1, at=NOW + 50 * 365 * 86_400_000), qos=1)
    board.say(TOPIC, payload(2, at=NOW), qos=1)
    board.wait(lambda heard: heard.heard and json.loads(heard.heard[-1][1])["hwm"] == 2)
    (device,) = store.fleet()
    assert device.id == "porch-1"
    assert abs(device.seen_ms - time.time() * 1000) < 600_000
