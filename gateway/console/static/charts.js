// Draws <figure class="chart" data-chart="ID">: its figures are JSON in <script type="application/json" id="ID">:
// {"x": [Unix seconds], "series": [{"name", "values", "unit"?, "stack"?}], "kind": "lines"|"bars"}
// The table beside it says the same to those who cannot see it.
(() => {
  "use strict";
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const format = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
  const day = (seconds) => (seconds == null ? "–" : format.format(new Date(seconds * 1e3)));
  const days = [1, 2, 3, 7, 14, 28].map((n) => n * 86400);
  const short = (value) => value.toLocaleString(undefined, { maximumSignificantDigits: 3 });
  const draw = (place) => {
    const data = JSON.parse(document.getElementById(place.dataset.chart).textContent);
    place.replaceChildren();
    const probe = document.createElement("span");
    probe.className = "faint";
    place.append(probe);
    const ink = getComputedStyle(probe).color;
    probe.remove();
    const series = [{ label: "Day", value: (_, at) => day(at) }];
    const columns = [data.x];
    const stacked = data.kind === "bars";
    let below = data.x.map(() => 0);
    const shapes = data.series.map((one, n) => {
      const values = stacked ? one.values.map((v, i) => (v ?? 0) + below[i]) : one.values;
      if (stacked) below = values;
      return { one, values, colour: style(`--c${Math.min(n, 5) + 1}`) };
    });
    if (stacked) shapes.reverse();
    for (const { one, values, colour } of shapes) {
      columns.push(values);
      series.push({
        label: one.name, stroke: colour, width: stacked ? 0 : 2, fill: stacked ? colour : undefined,
        points: { show: data.x.length < 3 && !stacked }, paths: stacked ? uPlot.paths.bars({ size: [0.7, 60] }) : undefined,
        value: (_, v, s, i) => (i == null ? "–" : `${(one.values[i] ?? 0).toLocaleString()} ${one.unit ?? ""}`),
      });
    }
    const half = data.x.length > 1 ? (data.x[1] - data.x[0]) / 2 : 43200;  // a bar is as wide as its day
    const axis = { stroke: ink, grid: { stroke: style("--c6") + "33", width: 1 }, ticks: { show: false } };
    new uPlot({ width: Math.max(place.clientWidth, 240), height: 220, series,
      axes: [{ ...axis, incrs: days, values: (_, at) => at.map(day) }, { ...axis, size: 64, values: (_, at) => at.map(short) }],
      scales: { x: { range: (_, min, max) => [min - half, max + half] }, y: { range: (_, min, max) => [Math.min(0, min), max > 0 ? max * 1.05 : 1] } },
      tzDate: (ts) => uPlot.tzDate(new Date(ts * 1e3), "Etc/UTC"), legend: { live: true } }, columns, place);
  };
  const all = () => document.querySelectorAll("[data-chart]").forEach(draw);
  let wait;
  addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(all, 150); });
  document.addEventListener("htmx:afterSettle", all);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", all); else all();
})();
