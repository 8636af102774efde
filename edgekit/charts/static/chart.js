// Reads a chart's values under the pointer, or by arrow keys, and writes moments in the reader's time zone.
"use strict";

function tellMoments() {
  for (const chart of document.querySelectorAll(".plot[data-ends]")) {
    const ticks = [...chart.querySelectorAll("text[data-ms]")];
    const days = ticks.length > 1 && ticks[1].dataset.ms - ticks[0].dataset.ms >= 86400000;
    const form = days ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit", hour12: false };
    for (const tick of ticks) tick.textContent = new Date(Number(tick.dataset.ms)).toLocaleString(undefined, form);
    chart.tabIndex = 0;
  }
}

function read(chart, place) {
  const at = Math.max(0, Math.min(99.9, place));
  chart.dataset.at = at;
  let rule = chart.querySelector(".reading");
  if (!rule) {
    rule = document.createElementNS("http://www.w3.org/2000/svg", "line");
    rule.classList.add("reading");
    rule.setAttribute("y2", "100%");
    chart.append(rule);
  }
  for (const end of ["x1", "x2"]) rule.setAttribute(end, `${at}%`);
  const [low, high] = chart.dataset.ends.split(" ").map(Number);
  const found = JSON.parse(chart.dataset.read).map(([name, unit, steps]) => {
    const step = steps.find(([begin, until]) => begin <= at && at < until);
    return step && `${name} ${step[2]}${unit}`;
  }).filter(Boolean);
  const moment = new Date(low + ((high - low) * at) / 100).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  chart.closest("figure").querySelector("output").textContent = `${moment}: ${found.join(", ") || "nothing"}`;
}

function unread(chart) {
  chart.querySelector(".reading")?.remove();
  chart.closest("figure").querySelector("output").textContent = "";
}

document.addEventListener("pointermove", (event) => {
  const chart = event.target.closest?.(".plot[data-read]");
  for (const other of document.querySelectorAll(".plot:has(.reading):not(:focus)")) if (other !== chart) unread(other);
  if (!chart) return;
  const box = chart.getBoundingClientRect();
  read(chart, (100 * (event.clientX - box.left)) / box.width);
});
document.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || !event.target.matches(".plot[data-read]")) return;
  event.preventDefault();
  read(event.target, Number(event.target.dataset.at ?? (by > 0 ? -1 : 101)) + by);
});
document.addEventListener("focusout", (event) => { if (event.target.matches(".plot[data-read]")) unread(event.target); });
tellMoments();
