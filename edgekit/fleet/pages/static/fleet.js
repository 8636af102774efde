// Keeps a page live: rows and figures are replaced by what the server renders, charts are drawn from what it sends as JSON.
// The server escapes everything that a board said; nothing here builds HTML from data.
"use strict";

const live = document.getElementById("live");

function ago(ms) {
  const s = Math.max(0, Math.round((Date.now() - ms) / 1000));
  if (s < 5) return "now";
  if (s < 90) return `${s} s ago`;
  if (s < 5400) return `${Math.round(s / 60)} min ago`;
  if (s < 129600) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86400)} days ago`;
}

function tellTimes() {
  for (const time of document.querySelectorAll("time[data-ms]")) {
    const ms = Number(time.dataset.ms);
    time.textContent = ago(ms);
    time.title = new Date(ms).toLocaleString();
  }
}

function show(state, text) {
  live.dataset.state = state;
  live.textContent = text;
}

function replaceWith(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  for (const fresh of [...holder.content.children]) put(fresh);
}

// A part that somebody uses stays until they leave it. Forms get this viewer's token: what is sent is the same for all.
const held = new Map();
function put(fresh) {
  const old = document.getElementById(fresh.id);
  held.delete(fresh.id);
  if (!old) return;
  if ("live" in fresh.dataset && old.contains(document.activeElement)) { held.set(fresh.id, fresh); return; }
  for (const field of fresh.querySelectorAll('input[name="csrf"]')) field.value = document.body.dataset.csrf;
  old.replaceWith(fresh);
}
document.addEventListener("focusout", () => setTimeout(() => { [...held.values()].forEach(put); tellTimes(); }));

// The rows of a list in its order: those that left go, new ones come in. What is missing here is asked for again.
function relist(list) {
  const body = document.getElementById("rows");
  if (!body) { if (list.count) location.reload(); return; }
  const holder = document.createElement("template");
  holder.innerHTML = list.rows;
  const fresh = new Map([...holder.content.children].map((row) => [row.id, row]));
  const found = list.ids.map((id) => document.getElementById(`device-${id}`) || fresh.get(`device-${id}`));
  if (found.includes(undefined) || !list.ids.length) { refetch(); return; }
  if (found.length !== body.children.length || found.some((row, i) => row !== body.children[i])) {
    const focused = document.activeElement;
    body.replaceChildren(...found);
    if (body.contains(focused)) focused.focus();
  }
  recount(list.count);
}

function recount(count) {
  const text = document.getElementById("count");
  if (!text) return;
  const first = Number(text.dataset.first);
  const shown = document.getElementById("rows").children.length;
  text.textContent = `${first + 1} to ${first + shown} of ${count.toLocaleString("en")}`;
}

function tally(counts) {
  for (const [state, count] of Object.entries(counts)) {
    const text = document.querySelector(`[data-count="${state}"]`);
    if (!text) continue;
    text.textContent = count.toLocaleString("en");
    if (text.parentElement.dataset.state) text.parentElement.dataset.some = count ? "1" : "0";
  }
}

let refetched = 0;
async function refetch() {
  if (Date.now() - refetched < 2000) return;
  refetched = Date.now();
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!answer.ok || answer.redirected) { location.reload(); return; }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.getElementById("main").replaceChildren(...page.getElementById("main").childNodes);
  tellTimes();
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return { ink: of("--ink"), quiet: of("--quiet"), line: of("--line"), accent: of("--accent"), late: of("--late") };
}

function layout(colour, unit, extra) {
  return {
    margin: { l: 52, r: 12, t: 8, b: 34 }, paper_bgcolor: "transparent", plot_bgcolor: "transparent", showlegend: false,
    font: { color: colour.quiet, size: 12 }, hovermode: "x unified",
    hoverlabel: { bgcolor: getComputedStyle(document.documentElement).getPropertyValue("--sheet").trim() },
    xaxis: { type: "date", gridcolor: colour.line, linecolor: colour.line, nticks: innerWidth < 600 ? 4 : 10, tickangle: 0 },
    yaxis: { rangemode: "tozero", gridcolor: colour.line, zerolinecolor: colour.line, ticksuffix: unit },
    ...extra,
  };
}

const OPTIONS = { displayModeBar: false, responsive: true };
const LEGEND = {
  showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, margin: { l: 62, r: 12, t: 26, b: 34 },
};
// Told apart by dash as well as by colour.
const HUES = ["#2f6f5e", "#b07a1e", "#5566b0", "#a04a78", "#6b7a2a", "#7a5a44", "#38829a"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid"];

const dates = (moments) => moments.map((ms) => new Date(ms));
const modeOf = (moments) => (moments.length < 40 ? "lines+markers" : "lines");

function plot(chart, traces, made) {
  chart.classList.add("drawn"); // before Plotly asks how high it is
  Plotly.react(chart, traces, made, OPTIONS);
}

async function seriesOf(chart) {
  const answer = await fetch(chart.dataset.source);
  return answer.ok ? answer.json() : null;
}

// From the first point to now, and never less than ten minutes: a lone point has no axis of its own.
function timeAxis(moments) {
  const now = Date.now();
  const first = Math.min(...moments.map(Number), now - 600000);
  return [new Date(first - (now - first) / 50), new Date(now + (now - first) / 50)];
}

// A line where a version began or something was installed, with its name; names that would overlap stand below each other.
function marksOf(marks, colour, range) {
  const width = innerWidth > 820 ? Math.min(innerWidth, 1200) / 2 - 80 : innerWidth - 120; // of the narrowest chart
  const msPerLetter = (7 * (range[1] - range[0])) / width;
  const ends = [];
  const rows = marks.map((mark) => {
    const free = ends.findIndex((end) => end <= mark.t);
    const row = free < 0 ? ends.length : free;
    ends[row] = mark.t + msPerLetter * (mark.text.length + 1);
    return row;
  });
  const shapes = marks.map((mark) => ({
    type: "line", x0: new Date(mark.t), x1: new Date(mark.t), y0: 0, y1: 1, yref: "paper",
    line: { color: colour.quiet, width: 1, dash: "dot" },
  }));
  const annotations = marks.map((mark, i) => ({
    x: new Date(mark.t), y: 1, yshift: -12 * (rows[i] % 8), yref: "paper", yanchor: "top", xanchor: "left", showarrow: false,
    text: mark.text.replaceAll("<", "‹"), font: { size: 11, color: colour.quiet },
  }));
  return { shapes, annotations };
}

async function drawDevice(chart) {
  const series = await seriesOf(chart);
  if (!series || (!series.t.length && !series.rolled.t.length)) return;
  const colour = colours();
  const t = dates(series.t);
  const mode = modeOf(t);
  const range = timeAxis([...t, ...dates(series.rolled.t)]);
  const marks = marksOf(series.marks, colour, range);
  const options = (unit, extra) => {
    const made = layout(colour, unit, { ...marks, ...extra });
    made.xaxis.range = range;
    return made;
  };
  const half = (unit, extra) => {
    const made = options(unit, extra);
    made.xaxis.nticks = innerWidth < 600 ? 4 : 6;
    return made;
  };
  const line = (name, y, width, dash) => ({
    name, x: t, y, mode, marker: { size: 4 }, connectgaps: false, hovertemplate: "%{y:.2f} ms",
    line: { color: colour.accent, width, dash },
  });
  const lines = [line("p50", series.p50, 2.5), line("p95", series.p95, 1.5), line("p99", series.p99, 1, "dot")];
  if (series.budget_ms !== null && t.length) {
    lines.push({
      name: "budget", x: [t[0], t[t.length - 1]], y: [series.budget_ms, series.budget_ms], mode: "lines",
      line: { color: colour.late, width: 1, dash: "dash" }, hovertemplate: "%{y:.0f} ms",
    });
  }
  plot(chart, lines, options(" ms", LEGEND));
  const stages = Object.entries(series.stages.mean);
  if (stages.length) {
    const drawn = stages.map(([name, y], i) => ({
      name, x: dates(series.stages.t), y, mode: "lines", stackgroup: "one", hovertemplate: "%{y:.2f} ms",
      line: { color: HUES[i % HUES.length], width: 1 }, fillpattern: { shape: ["", "/", "\\", "x", "."][i % 5], solidity: 0.15 },
    }));
    plot(document.getElementById("stages"), drawn, options(" ms", LEGEND));
  }
  const one = (y, unit) => [{
    x: t, y, mode, marker: { size: 4 }, line: { color: colour.accent, width: 2 }, hovertemplate: `%{y:.1f}${unit}<extra></extra>`,
  }];
  const rolled = dates(series.rolled.t);
  const several = (id, named, unit, shapes) => {
    const shown = named.filter(([, y]) => y.some((value) => value !== null));
    if (!shown.length) return;
    const drawn = shown.map(([name, y], i) => ({
      name, x: rolled, y, mode: modeOf(rolled), marker: { size: 4 }, connectgaps: false, hovertemplate: `%{y:.3~g}${unit}`,
      line: { color: HUES[i], width: 2, dash: DASHES[i] },
    }));
    const made = half(unit, shown.length > 1 ? LEGEND : {});
    made.shapes = [...made.shapes, ...(shapes || [])];
    plot(document.getElementById(id), drawn, made);
  };
  const limit = { type: "line", x0: 0, x1: 1, xref: "paper", y0: 0.2, y1: 0.2, line: { color: colour.late, width: 1, dash: "dash" } };
  several("drift", [["PSI", series.rolled.psi]], "", [limit]);
  several("inputs", [["clipped", series.rolled.clipped], ["differs from the host", series.rolled.differed]], " %");
  several("system", [["processor", series.rolled.cpu], ["memory", series.rolled.mem]], " %");
  const codes = Object.entries(series.errors.codes);
  if (codes.length) {
    const bars = codes.map(([name, y], i) => ({
      name: name.replaceAll("<", "‹"), type: "bar", x: dates(series.errors.t), y, hovertemplate: "%{y}",
      marker: { color: HUES[i % HUES.length], pattern: { shape: ["", "/", "\\", "x", "."][i % 5], solidity: 0.15 } },
    }));
    plot(document.getElementById("codes"), bars, half("", { ...LEGEND, barmode: "stack" }));
  }
  if (t.length) plot(document.getElementById("rate"), one(series.rate, " /s"), half(" /s", {}));
  if (series.temp.some((value) => value !== null)) {
    plot(document.getElementById("temp"), one(series.temp, " °C"), half(" °C", {}));
  }
}

async function drawModel(chart) {
  const versions = Object.entries((await seriesOf(chart)) || {});
  if (!versions.length) return;
  const colour = colours();
  const text = (name) => `version ${name}`.replaceAll("<", "‹");
  const lines = versions.map(([name, one], i) => ({
    name: text(name), x: dates(one.t), y: one.p99, mode: modeOf(one.t), marker: { size: 4 }, hovertemplate: "%{y:.2f} ms",
    line: { color: HUES[i % HUES.length], width: 2, dash: DASHES[i % DASHES.length] },
  }));
  const options = (unit) => {
    const made = layout(colour, unit, LEGEND);
    made.xaxis.range = timeAxis(versions.flatMap(([, one]) => dates(one.t)));
    return made;
  };
  plot(chart, lines, options(" ms"));
  const areas = versions.map(([name, one], i) => ({
    name: text(name), x: dates(one.t), y: one.boards, mode: "lines", stackgroup: "one", groupnorm: "percent", hovertemplate: "%{y:.1f} %",
    line: { color: HUES[i % HUES.length], width: 1 }, fillpattern: { shape: ["", "/", "\\", "x", "."][i % 5], solidity: 0.15 },
  }));
  plot(document.getElementById("shares"), areas, options(" %"));
}

async function draw() {
  if (!window.Plotly) return;
  const device = document.getElementById("latency");
  const model = document.getElementById("versions");
  if (device) await drawDevice(device);
  if (model) await drawModel(model);
}

async function loadAgain() {
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (answer.ok) { location.reload(); return; }
  } catch { /* the server is not there */ }
  setTimeout(loadAgain, 5000);
}

function listen() {
  const address = document.body.dataset.stream;
  if (!address) { live.remove(); return; }
  const stream = new EventSource(address);
  stream.addEventListener("open", () => show("live", "live"));
  stream.addEventListener("error", () => {
    show("lost", "reconnecting");
    if (stream.readyState === EventSource.CLOSED) setTimeout(loadAgain, 5000); // refused: the session may have ended
  });
  stream.addEventListener("replace", (event) => { replaceWith(JSON.parse(event.data)); tellTimes(); });
  stream.addEventListener("list", (event) => { relist(JSON.parse(event.data)); tellTimes(); });
  stream.addEventListener("counts", (event) => tally(JSON.parse(event.data)));
  stream.addEventListener("series", () => drawSoon());
  stream.addEventListener("reload", () => location.reload());
}

let drawing = 0;
function drawSoon() {
  clearTimeout(drawing);
  drawing = setTimeout(draw, 300);
}

tellTimes();
setInterval(tellTimes, 5000);
window.addEventListener("load", () => {
  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
});
listen();
