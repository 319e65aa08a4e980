// Elements and charts. Text becomes text nodes only, so that no id can become markup.
const SVG = "http://www.w3.org/2000/svg";

// Characters that cannot be seen, and those that turn the text around them, as their codes.
export const shown = (text) => text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : name === "value" ? value : shown(String(value)));
  }
  const there = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  element.append(...there.map((child) => (child instanceof Node ? child : shown(String(child)))));
  return element;
}
export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const whole = new Intl.NumberFormat();
export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));
export const payoff = (y) => (y === null || y === undefined ? "–" : y.toFixed(3));
export const between = (range) => (range ? `${range.low.toFixed(3)} to ${range.high.toFixed(3)}` : "–");
export const percent = (y) => (y === null || y === undefined ? "–" : `${(100 * y).toFixed(1)} %`);
export const millis = (s) => (s === null || s === undefined ? "–" : `${(1000 * s).toFixed(s < 0.01 ? 1 : 0)} ms`);
export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
export const moment = (ms) => new Date(ms).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

const tick = (ms, span) =>
  span > 2 * 86400e3
    ? new Date(ms).toLocaleDateString([], { month: "short", day: "numeric" })
    : new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: span < 600e3 ? "2-digit" : undefined, hour12: false });

function nice(low, high, parts = 4) {
  const raw = Math.max(high - low, 1e-6) / parts;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * unit).find((s) => s >= raw);
  const ticks = [];
  for (let v = Math.floor(low / step) * step; v < high + step * 0.999; v += step) ticks.push(Math.abs(v) < step / 1e6 ? 0 : v);
  return ticks;
}

// series: [{name, key, kind, range}], points: [{start, …}]; passes the values under the cursor to `told`.
export function lines(points, series, label, show, told, axis = (v) => String(+v.toPrecision(3))) {
  const box = el("div", { class: "chart" });
  const render = () => {
    const width = Math.max(260, box.clientWidth || 640), height = width < 500 ? 200 : 260;
    const left = 44, right = width - 8, top = 8, bottom = height - 24;
    const values = points.flatMap((p) => series.flatMap((s) => (p[s.key] === null ? [] : s.range && p[s.range] ? [p[s.key], p[s.range].low, p[s.range].high] : [p[s.key]])));
    const ticks = nice(Math.min(0, ...values), Math.max(0.05, ...values));
    const first = points[0].start, last = points[points.length - 1].start, span = Math.max(last - first, 1);
    const x = (t) => (points.length === 1 ? (left + right) / 2 : left + ((t - first) / span) * (right - left));
    const y = (v) => bottom - ((v - ticks[0]) / (ticks[ticks.length - 1] - ticks[0])) * (bottom - top);
    const said = series.map((s) => `${s.name} ${show(points[points.length - 1][s.key])}`).join(", ");
    const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: 0, "aria-label": `${label}. Latest: ${said}. Left and right arrows read the values.` });
    for (const v of ticks)
      chart.append(
        svg("line", { class: "axis", x1: left, x2: right, y1: y(v), y2: y(v) }),
        svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, axis(v)),
      );
    const marks = Math.min(points.length, width < 500 ? 3 : 6);
    for (let k = 0; k < marks; k++) {
      const t = first + (marks === 1 ? 0 : (k / (marks - 1)) * span);
      const anchor = marks === 1 ? "middle" : k === 0 ? "start" : k === marks - 1 ? "end" : "middle";
      chart.append(svg("text", { x: x(t), y: height - 6, "text-anchor": anchor }, tick(t, span)));
    }
    for (const s of series) for (const band of s.range ? bands(points, s) : []) {
      const edge = (side) => band.map((p) => `${x(p.start).toFixed(1)} ${y(p[s.range][side]).toFixed(1)}`);
      chart.append(svg("path", { class: `band-${s.kind}`, d: `M${[...edge("high"), ...edge("low").reverse()].join("L")}Z` }));
    }
    for (const s of [...series].reverse()) {
      let path = "", pen = false;
      for (const p of points) {
        if (p[s.key] === null) { pen = false; continue; }
        path += `${pen ? "L" : "M"}${x(p.start).toFixed(1)} ${y(p[s.key]).toFixed(1)}`;
        pen = true;
      }
      chart.append(svg("path", { class: s.kind, d: path || "M0 0" }));
      const alone = (k) => (points[k - 1]?.[s.key] ?? null) === null && (points[k + 1]?.[s.key] ?? null) === null;
      points.forEach((p, k) => {
        if (p[s.key] === null || (points.length > 2 && !alone(k))) return;
        const shift = points.length > 1 ? 0 : 14 * (series.indexOf(s) - (series.length - 1) / 2), place = x(p.start) + shift;
        if (s.range && p[s.range]) chart.append(svg("line", { class: `whisker ${s.kind}`, x1: place, x2: place, y1: y(p[s.range].low), y2: y(p[s.range].high) }));
        chart.append(svg("circle", { class: s.kind, cx: place, cy: y(p[s.key]), r: 4 }));
      });
    }
    const cursor = svg("line", { class: "cursor", y1: top, y2: bottom, visibility: "hidden" });
    chart.append(cursor);
    let at = points.length - 1;
    const point = (k) => {
      at = Math.max(0, Math.min(points.length - 1, k));
      const p = points[at];
      fill(cursor, { x1: x(p.start), x2: x(p.start), visibility: "visible" }, []);
      if (told) told(p);
    };
    const away = () => { cursor.setAttribute("visibility", "hidden"); if (told) told(null); };
    chart.addEventListener("pointermove", (event) => {
      const place = event.clientX - chart.getBoundingClientRect().left;
      let best = 0;
      points.forEach((p, k) => { if (Math.abs(x(p.start) - place) < Math.abs(x(points[best].start) - place)) best = k; });
      point(best);
    });
    chart.addEventListener("pointerleave", away);
    chart.addEventListener("blur", away);
    chart.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") point(at - 1);
      else if (event.key === "ArrowRight") point(at + 1);
      else return;
      event.preventDefault();
    });
    box.replaceChildren(chart);
  };
  new ResizeObserver(() => { if (!box.contains(document.activeElement)) render(); }).observe(box);
  render();
  return box;
}

// The stretches in which a series and its range are known.
function bands(points, s) {
  const found = [[]];
  for (const p of points) {
    if (p[s.key] !== null && p[s.range] !== null) found[found.length - 1].push(p);
    else found.push([]);
  }
  return found.filter((band) => band.length > 1);
}

export function key(kind) {
  return svg("svg", { viewBox: "0 0 28 10", "aria-hidden": "true" }, svg("path", { class: kind, d: "M0 5H28" }));
}

export function bars(rows, label) {
  const width = 340, line = 26, left = 68, most = Math.max(1, ...rows.map((row) => row.value));
  const chart = svg("svg", { viewBox: `0 0 ${width} ${rows.length * line}`, role: "img", "aria-label": `${label}: ${rows.map((r) => `${r.name}: ${r.text}`).join("; ")}` });
  rows.forEach((row, k) => {
    const size = (row.value / most) * (width - left - 64);
    chart.append(
      svg("text", { x: left - 8, y: k * line + 17, "text-anchor": "end" }, row.name),
      svg("rect", { class: "bar", x: left, y: k * line + 5, width: Math.max(size, row.value ? 2 : 0), height: line - 10, rx: 3 }),
      svg("text", { class: "bar-label", x: left + size + 6, y: k * line + 17 }, row.text),
    );
  });
  return chart;
}

// An estimate with its bounds on a common scale.
export function range(estimate, width, low, high, kind = "") {
  const w = 190, x = (v) => 6 + ((Math.max(low, Math.min(high, v)) - low) / (high - low || 1)) * (w - 12);
  return svg(
    "svg",
    { class: "range", viewBox: `0 0 ${w} 26`, role: "img", "aria-label": `${estimate.toFixed(3)} plus or minus ${width.toFixed(3)}` },
    svg("line", { class: "axis", x1: 6, x2: w - 6, y1: 13, y2: 13 }),
    svg("line", { class: "axis", x1: x(0), x2: x(0), y1: 5, y2: 21 }),
    svg("line", { class: `span ${kind}`, x1: x(estimate - width), x2: x(estimate + width), y1: 13, y2: 13 }),
    svg("circle", { class: `dot ${kind}`, cx: x(estimate), cy: 13, r: 5 }),
  );
}

// A share of the whole width, as a bar; the number is beside it.
export function meter(share) {
  return svg("svg", { class: "range", viewBox: "0 0 190 26", "aria-hidden": "true" }, svg("rect", { class: "bar", x: 0, y: 6, width: Math.max(2, 190 * share), height: 14, rx: 3 }));
}

// Users along a scale, one dot each, stacked where they agree; groups by colour.
export function swarm(groups, low, high, label) {
  const box = el("div", { class: "chart" });
  const render = () => {
    const width = Math.max(260, box.clientWidth || 640), left = 12, right = width - 12, r = 5;
    const columns = Math.floor((right - left) / (2 * r + 1)), heights = new Map();
    const x = (v) => left + ((v - low) / (high - low || 1)) * (right - left), dots = [];
    groups.forEach((group, k) => {
      for (const user of group.users) {
        const column = Math.round(((x(user.estimate) - left) / (right - left)) * columns), level = heights.get(column) || 0;
        heights.set(column, level + 1);
        dots.push([left + (column / columns) * (right - left), level, k, user.user]);
      }
    });
    const most = Math.max(1, ...heights.values()), step = Math.min(2 * r + 1, 160 / most), bottom = most * step + 12, height = bottom + 26;
    const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
    chart.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    for (const v of nice(low, high, 8).filter((v) => v >= low && v <= high))
      chart.append(svg("line", { class: "axis", x1: x(v), x2: x(v), y1: bottom, y2: bottom + 5 }), svg("text", { x: x(v), y: height - 4, "text-anchor": "middle" }, String(+v.toPrecision(3))));
    for (const [cx, level, k, name] of dots) chart.append(svg("circle", { class: `dot group${k % 6}`, cx, cy: bottom - 8 - level * step, r }, svg("title", {}, name)));
    box.replaceChildren(chart);
  };
  new ResizeObserver(render).observe(box);
  render();
  return box;
}
