// Keeps a page live: rows and figures are replaced by what the server renders, charts are its SVG.
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
  tellMoments();
}

// A part that somebody uses stays until they leave it. Forms get this viewer's token: what is sent is the same for all.
const held = new Map();
function put(fresh) {
  const old = document.getElementById(fresh.id);
  held.delete(fresh.id);
  if (!old || old.querySelector(".reading, .plot:focus")) return;
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
  tellMoments();
}

// Charts are drawn by the server; one that somebody reads stays until they leave it.
async function redraw() {
  const charts = document.getElementById("charts");
  if (!charts) return;
  const answer = await fetch(charts.dataset.source);
  if (answer.ok) replaceWith(await answer.text());
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
  // A page that waits for "back" would keep one of the browser's six connections
  addEventListener("pagehide", () => stream.close(), { once: true });
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
  drawing = setTimeout(redraw, 300);
}

tellTimes();
setInterval(tellTimes, 5000);
listen();
addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
