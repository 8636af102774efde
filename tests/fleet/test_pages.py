"""The pages as a reader has them: over HTTP, and in a real browser that runs their script."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
import urllib.error
import urllib.request

import pytest
from fleet.boards import arrival, birth
from mosquitto import Mosquitto
from parts import missing

from edgekit.fleet import FleetError, Pace
from edgekit.fleet.pages import show
from edgekit.fleet.pages.app import series
from edgekit.fleet.serve import FleetServer, Settings
from edgekit.fleet.store import Device

SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    with Mosquitto(folder) as broker:
        settings = Settings(broker.url, store=f"sqlite:///{folder}/fleet.db", listen="127.0.0.1:0",
            pace=Pace(chores_s=60),
                            every_s=0.1)  # fmt: skip
        with FleetServer(settings) as running:
            now = int(time.time() * 1000)
            fill(running.store, now)
            until = time.monotonic() + 30
            while not running.ingest.link.connected:
                assert time.monotonic() < until
                time.sleep(0.01)
            yield running


def fill(store, now):
    """A fast board, one whose model has HTML for a name, and one that is gone."""
    for name, ms, model in (("porch-1", 10.0, "digits"), ("gate-1", 90.0, SCRIPT[:64]), ("barn-1", 10.0, "digits")):
        store.commit([], [birth(name, received=now, model=model, hw=SCRIPT[:64])])
        for seq in range(1, 13):
            at = now - 60_000 * (12 - seq)
            values = [ms * (1 + 0.1 * (seq % 3))] * 50
            store.commit([arrival(seq, name, at=at, received=now, ms=values, cached=50, model=model)], [])
    store.commit([], [birth("barn-1", on=False, received=now)])


def get(server, path, status=200):
    try:
        with urllib.request.urlopen(server.url.rstrip("/") + path, timeout=30) as answer:
            found = answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        found = error.code, dict(error.headers), error.read().decode()
    assert found[0] == status, found
    return found[2], {name.lower(): value for name, value in found[1].items()}


def test_the_list_shows_every_device_with_its_figures(server):
    page, _ = get(server, "/")
    row = page[page.index('id="device-porch-1"') :].split("</tr>")[0]
    text = re.sub(r"<[^>]+>|\s+", " ", row)
    for wanted in ("porch-1", "raspberry-pi-4", "online", "digits", "version 1", "30.0 ms", "50 %", "50 °C"):
        assert wanted in text, text
    assert 'class="late"' not in row
    assert 'class="late"' in page[page.index('id="device-gate-1"') :].split("</tr>")[0]
    assert "offline" in page[page.index('id="device-barn-1"') :].split("</tr>")[0]
    assert "<b>2</b> of <b>3</b> online" in page


def test_html_in_a_name_is_text_on_every_page(server):
    for path in ("/", "/device/gate-1", "/?q=" + urllib.request.quote(SCRIPT)):
        page, _ = get(server, path)
        assert "<script>document" not in page
        assert "<img src=x" not in page


@pytest.mark.parametrize("path", ["/", "/device/porch-1", "/healthz", "/static/fleet.css", "/nowhere"])
def test_every_answer_has_its_security_headers(server, path):
    _, headers = get(server, path, 404 if path == "/nowhere" else 200)
    assert "script-src 'self';" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "server" not in headers


FILTERS = {"?q=porch": {"porch-1"}, "?state=offline": {"barn-1"}, "?state=late": {"gate-1"}, "?q=nobody": set(),
           "?page=999&q=DIGITS": {"porch-1", "barn-1"}, "?page=-1": {"porch-1", "gate-1", "barn-1"}}  # fmt: skip


@pytest.mark.parametrize(("query", "wanted"), FILTERS.items(), ids=FILTERS)
def test_the_list_can_be_filtered(server, query, wanted):
    page, _ = get(server, f"/{query}")
    assert set(re.findall(r'id="device-([a-z0-9-]+)"', page)) == wanted


@pytest.mark.parametrize(
    "path", ["/device/nobody-1", "/device/..%2f..%2fetc%2fpasswd", "/device/%3Cscript%3E", "/static/../app.py", "/x"]
)
def test_what_is_not_there_is_a_page_that_says_so(server, path):
    page, _ = get(server, path, 404)
    assert "<script>alert" not in page
    assert "Traceback" not in page


def test_health_is_for_machines(server):
    found = json.loads(get(server, "/healthz")[0])
    assert (found["ok"], found["connected"], found["devices"], found["online"]) == (True, True, 3, 2)


def test_the_series_of_a_device_ends_with_its_last_windows(server):
    found = json.loads(get(server, "/device/porch-1/series")[0])
    assert len(found["t"]) == len(found["p99"]) == 12
    assert found["budget_ms"] == 30.0
    assert series(Device("porch-1"), [])["t"] == []


def test_changes_arrive_as_server_sent_events(server):
    with urllib.request.urlopen(server.url + "stream", timeout=30) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert read_until(stream, "device-porch-1")
        server.store.commit([arrival(13, "porch-1", ms=[77.0] * 900)], [])
        assert read_until(stream, "device-porch-1")


def read_until(stream, text):
    return any(text in line.decode() for line in stream)


def test_the_plotting_script_comes_from_this_server(server):
    script, headers = get(server, "/static/plotly.min.js")
    assert headers["content-type"].startswith("text/javascript")
    assert "plotly.js" in script[:500]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium without a window, steered by its own driver."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        missing("Chromium with its driver", "sudo apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("chromium")
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1360,900",
                 f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    yield running
    running.quit()


def wait(browser, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 30, poll_frequency=0.05).until(condition)


def text(browser, name):
    """What stands in an element, read in one step: live rows are replaced as a whole."""
    return browser.execute_script("return document.getElementById(arguments[0])?.innerText ?? ''", name)


def complaints(browser):
    """What the browser refused or failed at: the content security policy is checked here."""
    return [entry["message"] for entry in browser.get_log("browser")]


def test_the_list_is_live_in_a_browser_and_runs_nothing_of_a_boards(server, browser):
    browser.get(server.url)
    wait(browser, lambda b: text(b, "live") == "live")
    before = text(browser, "device-porch-1")
    server.store.commit([arrival(20, "porch-1", ms=[250.0] * 5000, at=int(time.time() * 1000))], [])
    wait(browser, lambda b: text(b, "device-porch-1") != before)
    assert browser.title == "Fleet · edgekit"
    assert "<script>document" in text(browser, "device-gate-1")
    assert complaints(browser) == []


def test_a_new_device_appears_by_itself(server, browser):
    browser.get(server.url)
    wait(browser, lambda b: text(b, "live") == "live")
    server.store.commit([arrival(1, "new-1", received=int(time.time() * 1000))], [])
    wait(browser, lambda b: b.find_elements("id", "device-new-1"))


def test_a_device_is_drawn_over_time(server, browser):
    browser.get(server.url + "device/porch-1")
    wait(browser, lambda b: b.find_elements("css selector", "#latency .trace.scatter"))
    assert len(browser.find_elements("css selector", "#latency .trace.scatter")) == 4
    wait(browser, lambda b: b.find_elements("css selector", "#temp .trace.scatter"))
    server.store.commit([], [birth("porch-1", boot=9, received=int(time.time() * 1000))])
    wait(browser, lambda b: "started again" in text(b, "events"))
    assert complaints(browser) == []


@pytest.mark.parametrize("path", ["", "device/porch-1"])
def test_a_phone_needs_no_sideways_scrolling(server, browser, path):
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        browser.get(server.url + path)
        wait(browser, lambda b: text(b, "live") == "live")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_dark_and_light_are_what_the_reader_prefers(server, browser):
    colours = set()
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        browser.get(server.url)
        colours.add(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert len(colours) == 2


@pytest.fixture
def started(monkeypatch):
    """The threads that this test starts, and those that they start: other servers of this process have threads of their
    own.
    """
    mine = [threading.current_thread()]
    start = threading.Thread.start

    def recorded(thread):
        if threading.current_thread() in mine:
            mine.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", recorded)
    return mine


def test_a_port_in_use_is_one_sentence_and_leaves_nothing_running(server, tmp_path, started):
    listen = server.url.removeprefix("http://").rstrip("/")
    with pytest.raises(FleetError, match="--listen"):
        FleetServer(Settings("mqtt://127.0.0.1:1", store=f"sqlite:///{tmp_path}/x.db", listen=listen)).start()
    with pytest.raises(FleetError, match="--broker-port"):
        port = int(listen.rpartition(":")[2])
        FleetServer(Settings(None, port, f"sqlite:///{tmp_path}/x.db", "127.0.0.1:0")).start()
    assert not [thread for thread in started[1:] if thread.is_alive()]


@pytest.mark.parametrize("url", ["postgresql://u:secret@h/db", "fleet.db", "sqlite:///", "sqlite://x"])
def test_a_store_that_makes_no_sense_is_refused(url):
    with pytest.raises(FleetError, match=r"sqlite:///fleet\.db") as caught:
        FleetServer(Settings("mqtt://127.0.0.1:1", store=url, listen="127.0.0.1:0")).start()
    assert "secret" not in str(caught.value)


def test_the_embedded_broker_serves_a_board_that_asks_for_mqtt_5(tmp_path):
    from edgekit_runtime.telemetry import About, Meter, Reporter, TelemetryOptions

    settings = Settings(None, 0, f"sqlite:///{tmp_path}/x.db", "127.0.0.1:0", Pace(chores_s=60))
    with FleetServer(settings) as running:
        meter = Meter()
        meter.record("device", 5.0, True)
        options = TelemetryOptions(running.broker_url, "porch-1", 0.2, tmp_path / "s.db")
        reporter = Reporter(meter, About("porch-1", "digits", "1", "00", "raspberry-pi-4"), options)
        reporter.start()
        until = time.monotonic() + 30
        while (found := running.store.device("porch-1")) is None or not found.n:
            assert time.monotonic() < until
            time.sleep(0.02)
        reporter.close()
        assert found.online


FIGURES = [
    (show.ms, (0.01234,), "0.01 ms"), (show.ms, (4.26,), "4.3 ms"), (show.ms, (412.4,), "412 ms"),
    (show.ms, (61_000,), "61.0 s"), (show.ms, (None,), "–"), (show.share, (0, 0), "–"), (show.share, (0, 9), "0 %"),
    (show.share, (1, 200), "0.5 %"), (show.share, (50, 100), "50 %"), (show.rate, (0.05,), "3.0 /min"),
    (show.rate, (20.0,), "20.0 /s"), (show.rate, (None,), "–"), (show.celsius, (61.4,), "61 °C"),
    (show.count, (12345,), "12,345"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "given", "wanted"), FIGURES)
def test_figures_are_written_short(write, given, wanted):
    assert write(*given) == wanted


def test_a_sparkline_stays_in_its_box():
    line = show.sparkline([[0, 1, value, 1, 1, None] for value in (5.0, 50.0, 0.0, None)], 40.0)
    heights = [float(point.split(",")[1]) for point in line.points.split()]
    assert all(0 <= height <= 28 for height in [*heights, line.limit])
    assert show.sparkline([[0, 1, 5.0, 1, 1, None]]) is None


def test_a_broker_that_refuses_the_server_is_told_on_the_page_and_by_health(tmp_path, caplog):
    with Mosquitto(tmp_path, "allow_anonymous false") as broker:
        url = f"mqtt://user:secret@127.0.0.1:{broker.port}"
        with FleetServer(Settings(url, store=f"sqlite:///{tmp_path}/x.db", listen="127.0.0.1:0")) as running:
            until = time.monotonic() + 30
            while running.ingest.link.trouble != "password":
                assert time.monotonic() < until
                time.sleep(0.02)
            page, _ = get(running, "/")
            assert f"No connection to mqtt://127.0.0.1:{broker.port}: password." in page
            found = json.loads(get(running, "/healthz", 503)[0])
            assert (found["ok"], found["trouble"]) == (False, "password")
            assert "secret" not in page + json.dumps(found) + caplog.text
