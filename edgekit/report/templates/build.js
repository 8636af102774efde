"use strict";
// Draws every figure of the page; its data stands in the script element inside it.
(function () {
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  const ink = dark ? "#e4eae7" : "#1d2421";
  function draw(place) {
    const figure = JSON.parse(place.querySelector("script").textContent);
    const narrow = place.clientWidth < 500;
    figure.layout.font = { color: ink, family: "system-ui, sans-serif", size: narrow ? 10 : 12 };
    for (const trace of figure.data) { // names stand elsewhere where there is less room
      if (narrow && trace.meta) { trace.textposition = trace.meta.narrow; }
    }
    Plotly.newPlot(place, figure.data, figure.layout, { responsive: true, displayModeBar: false });
  }
  const seen = new IntersectionObserver(function (entries) {
    for (const entry of entries) {
      if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
    }
  }, { rootMargin: "400px" });
  for (const place of document.querySelectorAll(".chart")) { seen.observe(place); }
  window.addEventListener("beforeprint", function () {
    for (const place of document.querySelectorAll(".chart:not(.js-plotly-plot)")) { draw(place); }
  });
})();
