"""The pages as a reader has them: over HTTP, and in a real browser that runs their script."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from fleet.boards import arrival, birth
from mosquitto import Mosquitto

from edgekit.fleet.alerts.alert_rules import AlertFinding
from edgekit.fleet.alerts.alert_tables import AlertTables
from edgekit.fleet.ingest import Pace
from edgekit.fleet.pages import app, show
from edgekit.fleet.rollout_runner import RollingPace
from edgekit.fleet.serve import FleetServer, Settings, open_store
from edgekit.fleet.store.fleet_errors import FleetError

DRIFT = "Drift of the top scores: PSI"
SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    with Mosquitto(folder) as broker:
        settings = Settings(broker.url, store=f"sqlite:///{folder}/fleet.db", listen="127.0.0.1:0",
            pace=Pace(chores_s=60), rolling=RollingPace(alerts_s=3600.0),  # tests alone open alerts
                            every_s=0.1)  # fmt: skip
        with FleetServer(settings) as running:
            now = int(time.time() * 1000)
            fill(running.store, now)
            gone = AlertFinding("offline:barn-1", "offline", f"barn-1 is offline {SCRIPT}", {})
            AlertTables(running.store).take([gone], [], now)
            until = time.monotonic() + 30
            while not running.ingest.link.subscribed:
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
            said = {"psi": 0.25, "clipped": 3, "values": 100, "errors": 2, "error_codes": {"timeout": 2}}
            store.commit([arrival(seq, name, at=at, received=now, ms=values, cached=50, model=model, **said)], [])
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
    for wanted in ("porch-1", "raspberry-pi-4", "online", "digits", "version 1", "of 30.0 ms", "50 °C"):
        assert wanted in text, text
    assert 'class="late"' not in row
    assert 'class="late"' in page[page.index('id="device-gate-1"') :].split("</tr>")[0]
    assert "offline" in page[page.index('id="device-barn-1"') :].split("</tr>")[0]
    assert "<b>2</b> of <b>3</b> online" in page


def test_html_in_a_name_is_text_on_every_page(server):
    """S28"""
    for path in ("/", "/device/gate-1", "/alerts", "/?q=" + urllib.request.quote(SCRIPT)):
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


def test_the_charts_of_a_device_are_part_of_its_page_and_come_alone(server):
    part, _ = get(server, "/device/porch-1/charts?range=1h")
    page, _ = get(server, "/device/porch-1?range=1h")
    for text in (part, page):
        assert re.search(r'aria-label="Latency: porch-1; p50 [\d.]+ to [\d.]+ ms; p95 .* budget 30 to 30 ms"', text)
    assert "<html" not in part
    assert "Not reported in this period: " in page
    get(server, "/device/nobody-1/charts", 404)


def test_the_front_shows_the_fleet_over_time_and_a_list_of_some_boards_does_not(server):
    page, _ = get(server, "/")
    for name in ("Answers per second", "p99 by version", "Boards reporting"):
        assert f'aria-label="{name}: the fleet' in page
    assert 'id="curves"' not in get(server, "/?q=porch")[0]


def test_changes_arrive_as_server_sent_events(server):
    with urllib.request.urlopen(server.url + "stream", timeout=30) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert read_until(stream, "device-porch-1")
        server.store.commit([arrival(13, "porch-1", ms=[77.0] * 900)], [])
        assert read_until(stream, "device-porch-1")


def test_a_server_ends_at_once_while_somebody_looks(tmp_path, caplog):
    settings = Settings(store=f"sqlite:///{tmp_path / 'fleet.db'}", broker_port=0, listen="127.0.0.1:0", every_s=0.05)
    with FleetServer(settings) as server:
        stream = urllib.request.urlopen(server.url + "stream", timeout=30)
        assert read_until(stream, "event: list")
    with stream:
        stream.read()  # to its end, which came with the server's
    assert "Cancel" not in caplog.text


def read_until(stream, text):
    return any(text in line.decode() for line in stream)


def test_script_and_style_of_the_charts_come_from_this_server(server):
    page, headers = get(server, "/device/porch-1")
    assert "unsafe-inline" not in headers["content-security-policy"]
    for path in ("/static/chart.js", "/static/chart.css"):
        assert path in page
        get(server, path)


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


HEADINGS = """
return [...document.querySelectorAll("section:has(.plot) h2")]
  .filter((part) => part.parentElement.querySelector(".plot").getBoundingClientRect().height > 80)
  .map((part) => part.textContent);
"""
READ = "return document.querySelector('.plot ~ output, figure output').textContent"


def test_a_device_is_drawn_over_time_and_again_when_it_reports(server, browser):
    browser.get(server.url + "device/porch-1")
    assert set(browser.execute_script(HEADINGS)) >= {"Latency", "Rate", "Errors by code", "Temperature", DRIFT}
    before = text(browser, "figures")
    browser.execute_script("document.querySelector('#charts .plot').dataset.old = 'yes'")
    wait(browser, lambda b: text(b, "live") == "live")
    server.store.commit([arrival(30, "porch-1", ms=[33.0] * 900, at=int(time.time() * 1000))], [])
    wait(browser, lambda b: text(b, "figures") != before)
    wait(browser, lambda b: not b.find_elements("css selector", "#charts [data-old]"))
    server.store.commit([], [birth("porch-1", boot=9, received=int(time.time() * 1000))])
    wait(browser, lambda b: "restarted" in text(b, "events"))
    assert complaints(browser) == []


def test_a_keyboard_reads_a_charts_values_and_what_is_read_stays(server, browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.get(server.url + "device/porch-1")
    # among the windows, however long ago they came: the axis goes on to now
    browser.execute_script("const plot = document.querySelector('.plot'); plot.focus(); plot.dataset.at = 33")
    ActionChains(browser).send_keys(Keys.ARROW_LEFT * 3).perform()
    assert re.search(r": p50 [\d.]+ ms, p95 [\d.]+ ms, p99 [\d.]+ ms, budget 30 ms$", browser.execute_script(READ))
    browser.execute_script("redraw()")
    assert browser.execute_script("return !!document.querySelector('.plot:focus .reading')")
    browser.execute_script("document.activeElement.blur()")
    assert browser.execute_script(READ) == ""
    assert complaints(browser) == []


def test_versions_are_drawn_over_time(server, browser):
    browser.get(server.url + "model?name=digits")
    assert browser.execute_script(HEADINGS) == ["p99 by version", "Share of reporting boards by version"]
    assert complaints(browser) == []


def test_a_phone_has_the_sparkline_and_the_filters_in_two_rows(server, browser):
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(server.url)
        assert browser.execute_script("return document.querySelector('#device-porch-1 .spark').clientWidth") > 90
        tops = browser.execute_script(
            "return [...document.querySelectorAll('.filter > *')].map((part) => part.offsetTop)"
        )
        assert len(set(tops)) == 2, tops
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


TILES = """
return [...document.querySelectorAll(".tiles a")].filter((tile) => tile.offsetWidth)
  .map((tile) => tile.querySelector("span").textContent);
"""


def test_a_tile_is_there_for_what_is_wrong_and_comes_with_it(server, browser):
    browser.get(server.url + "?q=barn-1")
    wait(browser, lambda b: text(b, "live") == "live")
    assert browser.execute_script(TILES) == ["All", "Online", "Offline", "Drifting"]
    browser.execute_script("tally({late: 3, drifting: 0})")
    assert browser.execute_script(TILES) == ["All", "Online", "Offline", "Over budget"]


PATHS = ["", "?by=model", "?q=nobody", "models", "model?name=digits", "events", "health", "device/porch-1", "alerts",
         "rollouts"]  # fmt: skip
OUTSIDE = """
const right = document.getElementById("main").getBoundingClientRect().right;
return [...document.querySelectorAll("table, section, .tiles a, .figures > div, button, svg.spark, svg.plot, td > *")]
  .filter((part) => part.getBoundingClientRect().right > right + 1 && !part.closest(".scroll"))
  .map((part) => part.outerHTML.slice(0, 60));
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_no_column_leaves_the_page(server, browser, width):
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for path in PATHS:
            browser.get(server.url + path)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width, path
            assert browser.execute_script(OUTSIDE) == [], path
        assert complaints(browser) == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_pages_that_were_left_hold_no_connection_and_are_live_again_when_one_goes_back(server, browser):
    """A browser has six connections to a server, and keeps pages that were left."""
    for path in ["", "device/porch-1"] * 5:
        browser.get(server.url + path)
        wait(browser, lambda b: text(b, "live") == "live")
    browser.back()
    wait(browser, lambda b: not b.current_url.endswith("device/porch-1"))
    wait(browser, lambda b: text(b, "live") == "live")


LABELS = """
return [...document.querySelectorAll("#device-label-1 .name small span")].map((part) => part.innerText);
"""
TWO_LINES = """
return [...document.querySelectorAll("#device-label-1 .name small span")]
  .filter((part) => part.offsetHeight > 1.9 * parseFloat(getComputedStyle(part).fontSize))
  .map((part) => part.innerText);
"""
NARROW = """
const list = document.getElementById("events");
return [...list.children].filter((line) => line.offsetWidth < list.clientWidth).map((line) => line.innerText);
"""


def test_a_label_breaks_in_front_of_itself_and_an_event_takes_its_line(server, browser):
    first = birth("label-1", site="site-10", group="north-hall", boot=1, received=int(time.time() * 1000))
    other = birth("label-1", site="site-10", group="north-hall", boot=2, ver="2", received=int(time.time() * 1000))
    server.store.commit([], [first, other])
    size = {"width": 1280, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(server.url + "?q=label-1")
        assert browser.execute_script(LABELS) == ["raspberry-pi-4", "site-10", "north-hall"]
        assert browser.execute_script(TWO_LINES) == []
        browser.get(server.url + "device/label-1")
        assert "runs digits 2 instead of digits 1" in text(browser, "events")
        assert browser.execute_script(NARROW) == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_list_gains_and_loses_boards_as_they_change(server, browser):
    browser.get(server.url + "?state=offline")
    wait(browser, lambda b: text(b, "live") == "live")
    assert text(browser, "device-barn-1")
    now = int(time.time() * 1000)
    server.store.commit([], [birth("gone-1", received=now), birth("gone-1", on=False, received=now)])
    wait(browser, lambda b: text(b, "device-gone-1"))
    server.store.commit([], [birth("gone-1", boot=2, received=now)])
    wait(browser, lambda b: not b.find_elements("id", "device-gone-1"))
    assert text(browser, "device-barn-1")
    assert server.store.forget("gone-1")


def test_a_new_alert_appears_on_every_page_that_shows_alerts_and_can_be_acknowledged(server, browser):
    tables, now = AlertTables(server.store), int(time.time() * 1000)
    gone = AlertFinding("offline:barn-1", "offline", "barn-1 is offline", {})
    for n, path in enumerate(("", "?by=model", "alerts")):
        browser.get(server.url + path)
        wait(browser, lambda b: text(b, "live") == "live")
        browser.execute_script("window.here = true")
        findings = [AlertFinding(f"lag:board:late-{i}", "lag", f"late-{i} is late", {}) for i in range(n + 1)]
        tables.take([gone, *findings], [], now + n)
        wait(browser, lambda b, n=n: f"late-{n} is late" in text(b, "main"))
        assert browser.execute_script("return window.here"), "it was not loaded again"
    (newest,) = (one.id for one in tables.list() if one.key == "lag:board:late-2")
    button = f'form[action="/alerts/{newest}/acknowledge"] button'
    browser.execute_script("document.querySelector(arguments[0]).click()", button)
    wait(browser, lambda b: "acknowledged by an operator" in text(b, "main"))
    tables.take([gone], [], now + 9)
    wait(browser, lambda b: "late-2 is late" not in text(b, "all-alerts").partition("Cleared")[0])
    assert complaints(browser) == []


def test_a_part_that_somebody_uses_waits_for_them(server, browser):
    tables, now = AlertTables(server.store), int(time.time() * 1000)
    browser.get(server.url + "alerts")
    wait(browser, lambda b: text(b, "live") == "live")
    browser.execute_script("document.querySelector('#all-alerts select').focus()")
    gone = AlertFinding("offline:barn-1", "offline", "barn-1 is offline", {})
    tables.take([gone, AlertFinding("lag:board:x", "lag", "x is late", {})], [], now)
    wait(browser, lambda b: b.execute_script("return held.size") == 1)
    assert "x is late" not in text(browser, "all-alerts")
    browser.execute_script("document.activeElement.blur()")
    wait(browser, lambda b: "x is late" in text(b, "all-alerts"))
    tables.take([gone], [], now + 1)


def test_a_keyboard_reaches_the_filters_and_the_first_board(server, browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.get(server.url)
    wait(browser, lambda b: text(b, "live") == "live")
    seen = []
    for _ in range(45):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        seen.append(
            browser.execute_script("return document.activeElement.getAttribute('href') || document.activeElement.name")
        )
    assert seen[0] == "#main"
    for wanted in ("?state=late", "q", "state", "sort", "?sort=-p99", "/device/barn-1"):
        assert wanted in seen, seen


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
    with pytest.raises(FleetError, match=f"port {listen.partition(':')[2]} is in use. Pass another one: --listen 127"):
        FleetServer(Settings("mqtt://127.0.0.1:1", store=f"sqlite:///{tmp_path}/x.db", listen=listen)).start()
    with pytest.raises(FleetError, match="--broker-port"):
        port = int(listen.rpartition(":")[2])
        FleetServer(Settings(None, port, f"sqlite:///{tmp_path}/x.db", "127.0.0.1:0")).start()
    assert not [thread for thread in started[1:] if thread.is_alive()]


def test_a_second_server_on_one_sqlite_file_is_refused_until_the_first_has_ended(tmp_path, started):
    settings = Settings("mqtt://127.0.0.1:1", store=f"sqlite:///{tmp_path}/x.db", listen="127.0.0.1:0")
    with FleetServer(settings):
        with pytest.raises(FleetError, match=r"x\.db: another `edgekit fleet serve` uses this store. Stop that one"):
            FleetServer(settings).start()
        open_store(settings.store).close()  # the other commands, `fleet ingest` too, share it
    with FleetServer(settings):
        pass
    assert not [thread for thread in started[1:] if thread.is_alive()]


@pytest.mark.parametrize("url", ["mysql://u:secret@h/db", "postgresql://", "fleet.db", "sqlite:///", "sqlite://x"])
def test_a_store_that_makes_no_sense_is_refused(url):
    with pytest.raises(FleetError, match=r"sqlite:///fleet\.db") as caught:
        FleetServer(Settings("mqtt://127.0.0.1:1", store=url, listen="127.0.0.1:0")).start()
    assert "secret" not in str(caught.value)


def test_the_embedded_broker_serves_a_board_that_asks_for_mqtt_5(tmp_path):
    from edgekit_runtime.telemetry.meter import Meter
    from edgekit_runtime.telemetry.reporter import Reporter, TelemetryOptions
    from edgekit_runtime.telemetry.window import About

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


PAIRS = [("quiet", "ground"), ("quiet", "sheet"), ("quiet", "off-soft"), ("accent", "soft"), ("accent", "sheet"),
         ("late", "late-soft"), ("late", "sheet"), ("slight", "slight-soft"), ("slight", "sheet"),
         ("sheet", "accent"), ("ink", "ground")]  # fmt: skip


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(theme):
    """WCAG 2: 4.5 to 1."""
    css = (Path(app.__file__).parent / "static" / "fleet.css").read_text()
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", re.findall(r":root \{(.*?)\}", css, re.DOTALL)[theme]))
    for text_colour, ground in PAIRS:
        lighter, darker = sorted((luminance(colours[text_colour]), luminance(colours[ground])), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (text_colour, ground)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


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
