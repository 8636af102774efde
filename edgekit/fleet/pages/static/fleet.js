// Keeps a page live: rows and figures are replaced by what the server renders, charts are drawn from /device/ID/series.
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
  for (const fresh of [...holder.content.children]) {
    const old = document.getElementById(fresh.id);
    if (old) old.replaceWith(fresh);
  }
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
    xaxis: { type: "date", gridcolor: colour.line, linecolor: colour.line },
    yaxis: { rangemode: "tozero", gridcolor: colour.line, zerolinecolor: colour.line, ticksuffix: unit },
    ...extra,
  };
}

async function draw() {
  const chart = document.getElementById("latency");
  if (!chart || !window.Plotly) return;
  const answer = await fetch(chart.dataset.source);
  if (!answer.ok) return;
  const series = await answer.json();
  if (!series.t.length) return;
  const colour = colours();
  const t = series.t.map((ms) => new Date(ms));
  const mode = t.length < 40 ? "lines+markers" : "lines";
  const line = (name, y, width, dash) => ({
    name, x: t, y, mode, marker: { size: 4 }, connectgaps: false, hovertemplate: "%{y:.2f} ms",
    line: { color: colour.accent, width, dash },
  });
  const lines = [line("p50", series.p50, 2.5), line("p95", series.p95, 1.5), line("p99", series.p99, 1, "dot")];
  if (series.budget_ms !== null) {
    lines.push({
      name: "budget", x: [t[0], t[t.length - 1]], y: [series.budget_ms, series.budget_ms], mode: "lines",
      line: { color: colour.late, width: 1, dash: "dash" }, hovertemplate: "%{y:.0f} ms",
    });
  }
  const options = { displayModeBar: false, responsive: true };
  const legend = { showlegend: true, legend: { orientation: "h", y: 1.12, x: 0 }, margin: { l: 62, r: 12, t: 26, b: 34 } };
  Plotly.react(chart, lines, layout(colour, " ms", legend), options);
  const one = (y, unit) => [{
    x: t, y, mode, marker: { size: 4 }, line: { color: colour.accent, width: 2 }, hovertemplate: `%{y:.1f}${unit}<extra></extra>`,
  }];
  Plotly.react("rate", one(series.rate, " /s"), layout(colour, " /s", {}), options);
  if (series.temp.some((value) => value !== null)) {
    Plotly.react("temp", one(series.temp, " °C"), layout(colour, " °C", {}), options);
  }
}

function listen() {
  const address = document.body.dataset.stream;
  if (!address) { live.remove(); return; }
  const stream = new EventSource(address);
  stream.addEventListener("open", () => show("live", "live"));
  stream.addEventListener("error", () => show("lost", "reconnecting"));
  stream.addEventListener("replace", (event) => { replaceWith(JSON.parse(event.data)); tellTimes(); });
  stream.addEventListener("series", () => draw());
  stream.addEventListener("reload", () => location.reload());
}

tellTimes();
setInterval(tellTimes, 5000);
window.addEventListener("load", () => {
  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
});
listen();
