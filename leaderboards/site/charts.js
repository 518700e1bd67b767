"use strict";
// Lines and points as SVG, in the colours of the rows. Every text is set as text, never as markup.

const DASHES = ["none", "6 3", "2 3", "8 3 2 3"];
const MARKERS = [
  (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  (r) => `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (r) => `M0 ${-1.3 * r}L${1.2 * r} ${r}H${-1.2 * r}z`,
  (r) => `M0 ${-1.4 * r}L${1.4 * r} 0L0 ${1.4 * r}L${-1.4 * r} 0z`,
  (r) => `M0 ${1.3 * r}L${1.2 * r} ${-r}H${-1.2 * r}z`,
];
const LABEL = 14; // least distance of two labels
const NEAR = 40; // largest distance of a point whose values are shown

// A row has one colour everywhere; rows of one colour in one chart differ in dash and marker.
function looks(rows) {
  const seen = new Map();
  return rows.map((row) => {
    const hue = lookup(DATA.palette.rows, row) ?? null; // null: the untrained encoder
    const cue = seen.get(hue) || 0;
    seen.set(hue, cue + 1);
    const colour = hue === null ? "var(--quiet)" : `var(--hue-${hue})`;
    return { colour, dash: DASHES[cue % DASHES.length], marker: MARKERS[cue % MARKERS.length] };
  });
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  for (const child of children) if (child !== null) node.append(child);
  return node;
}

function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const values = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step)
    values.push(Number(at.toPrecision(12)));
  return values;
}

function scale(values, from, to, log) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  const transform = log ? Math.log10 : (value) => value;
  const position = (value) => from + ((transform(value) - transform(low)) / (transform(high) - transform(low))) * (to - from);
  if (!log)
    return { position, ticks: ticks(low, high, 5), format: (tick) => (Math.abs(tick) < 1e4 ? String(tick) : short(tick)) };
  const powers = [];
  for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power++) powers.push(10 ** power);
  return { position, ticks: powers.length > 1 ? powers : [low, high], format: short };
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(3))} G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))} M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))} k`;
  return String(Number(value.toPrecision(3)));
}

// Wanted heights, moved apart until none is nearer than LABEL to another, between two limits.
function apart(wanted, top, bottom) {
  const order = wanted.map((_, index) => index).sort((a, b) => wanted[a] - wanted[b]);
  const placed = [...wanted];
  let limit = top;
  for (const index of order) limit = (placed[index] = Math.max(placed[index], limit)) + LABEL;
  limit = bottom;
  for (const index of order.reverse()) limit = (placed[index] = Math.min(placed[index], limit)) - LABEL;
  return placed;
}

function clipped(name, most) {
  return name.length <= most ? name : `${name.slice(0, most / 2 - 1)}…${name.slice(-most / 2)}`;
}

// series: [{name, row, points: [{x, y, spread, label}], dots, quiet}]; options: {title, x, y, log, none}
function chart(series, options) {
  const styles = looks(series.map((line) => line.row));
  const lines = series.map((line, index) => ({ ...line, ...styles[index] })).filter((line) => line.points.length);
  if (!lines.length) {
    const note = el("p", { class: "quiet" }, options.none || "The records hold nothing to draw here.");
    return el("figure", {}, el("figcaption", {}, options.title), note);
  }
  const narrow = document.documentElement.clientWidth < 640; // a phone: fewer units of the picture are larger letters
  const labelled = lines.length > 1 ? lines.filter((line) => !line.quiet) : [];
  const names = labelled.map((line) => clipped(line.name, narrow ? 16 : 26));
  const room = names.length ? 26 + 6.4 * Math.max(...names.map((name) => name.length)) : 12;
  const [width, left, top, bottom] = [narrow ? 370 : 580, 52, 12, 40];
  const height = Math.max(280, LABEL * (names.length + 1) + top + bottom);
  const every = lines.flatMap((line) => line.points);
  const x = scale(
    every.map((point) => point.x),
    left,
    width - room,
    options.log,
  );
  const y = scale(
    every.flatMap((point) => [point.y - (point.spread || 0), point.y + (point.spread || 0)]),
    height - bottom,
    top,
  );
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.title, tabindex: 0 });
  drawAxes(picture, x, y, { left, right: width - room, top, bottom: height - bottom, height }, options);
  for (const line of lines) drawLine(picture, line, x, y);
  const ends = labelled.map((line) => line.points[line.points.length - 1]);
  const heights = apart(
    ends.map((end) => y.position(end.y)),
    top,
    height - bottom,
  );
  labelled.forEach(({ colour, marker, dots }, index) => {
    const [from, to] = [width - room + 6, width - room + 20];
    const end = dots ? from : x.position(ends[index].x) + 3;
    const at = dots ? heights[index] : y.position(ends[index].y);
    picture.append(svg("line", { x1: end, y1: at, x2: to, y2: heights[index], style: `stroke: ${colour}` }));
    if (dots) picture.append(svg("path", { d: marker(4), transform: `translate(${to - 6} ${at})`, style: `fill: ${colour}` }));
    picture.append(svg("text", { class: "name", x: to + 3, y: heights[index] + 4 }, names[index]));
  });
  const tip = el("div", { class: "tip", role: "status" });
  const values = lines.flatMap((line) =>
    line.points.map((point) => ({ ...point, name: line.name, left: x.position(point.x), top: y.position(point.y) })),
  );
  showValues(picture, tip, values, width);
  const head = ["row", options.x, options.y || options.title, "spread"];
  const csv = () => [head, ...lines.flatMap(({ name, points }) => points.map((p) => [p.row || name, p.x, p.y, p.spread]))];
  return el(
    "figure",
    {},
    el("figcaption", {}, options.title),
    el("div", { class: "picture" }, picture, tip),
    downloads(options.title, csv, () => chartPicture(picture, options.title)),
  );
}

function drawAxes(picture, x, y, { left, right, top, bottom, height }, options) {
  const text = (attributes, content) => picture.append(svg("text", { "text-anchor": "middle", ...attributes }, content));
  for (const tick of y.ticks) {
    const at = y.position(tick);
    picture.append(svg("line", { class: "axis", x1: left, x2: right, y1: at, y2: at }));
    text({ x: left - 6, y: at + 4, "text-anchor": "end" }, y.format(tick));
  }
  for (const tick of x.ticks) text({ x: x.position(tick), y: bottom + 16 }, x.format(tick));
  text({ x: (left + right) / 2, y: height - 6 }, options.x);
  if (options.y) text({ x: -(bottom + top) / 2, y: 12, transform: "rotate(-90)" }, options.y);
}

function drawLine(picture, line, x, y) {
  const at = (point, sign) =>
    `${x.position(point.x).toFixed(1)},${y.position(point.y + sign * (point.spread || 0)).toFixed(1)}`;
  const { points, colour, dash, marker } = line;
  if (!line.dots && points.length > 1) {
    if (points.some((point) => point.spread)) {
      const edge = (sign) => points.map((point) => at(point, sign));
      const band = [...edge(1), ...edge(-1).reverse()].join(" ");
      picture.append(svg("polygon", { points: band, style: `fill: ${colour}; opacity: .1` }));
    }
    const style = `stroke: ${colour}; stroke-width: 1.8; stroke-dasharray: ${dash}`;
    picture.append(svg("polyline", { points: points.map((point) => at(point, 0)).join(" "), fill: "none", style }));
  }
  for (const point of points) {
    const place = `translate(${x.position(point.x).toFixed(1)} ${y.position(point.y).toFixed(1)})`;
    const style = `fill: ${line.quiet ? "var(--line)" : colour}`;
    picture.append(svg("path", { class: "point", d: marker(line.dots ? 4.5 : 2.2), transform: place, style }));
  }
}

// The values of the point nearest to the pointer, or of the next one by the arrow keys.
function showValues(picture, tip, values, width) {
  let current = -1;
  const showPoint = (index) => {
    current = index;
    tip.textContent = "";
    if (index < 0) return;
    const { x, y, spread, label, name, left, top } = values[index];
    const deviation = spread ? ` ± ${short(spread)}` : "";
    tip.textContent = `${label || name}: ${short(x)}, ${short(y)}${deviation}`;
    const zoom = picture.getBoundingClientRect().width / width;
    const [side, other] = left > width / 2 ? ["right", "left"] : ["left", "right"];
    tip.style[side] = `${(side === "left" ? left : width - left) * zoom + 8}px`;
    tip.style[other] = "auto";
    tip.style.top = `${top * zoom + 8}px`;
  };
  const nearest = (event) => {
    const box = picture.getBoundingClientRect();
    const zoom = width / box.width;
    const [left, top] = [(event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom];
    const distances = values.map((value) => Math.hypot(value.left - left, value.top - top));
    const least = Math.min(...distances);
    showPoint(least < NEAR ? distances.indexOf(least) : -1);
  };
  picture.addEventListener("pointermove", nearest);
  picture.addEventListener("pointerdown", nearest);
  picture.addEventListener("pointerleave", () => showPoint(-1));
  picture.addEventListener("blur", () => showPoint(-1));
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    showPoint((current + step + values.length) % values.length);
  });
}
