"use strict";
// Lines and points as SVG, in the colours of the page. Every text is set as text, never as markup.

const COLOURS = 8;

function colour(index) {
  return `var(--series-${index % COLOURS})`;
}

// Colours repeat after the last one, then with dashed lines.
function dashes(index) {
  return ["none", "6 3", "2 3"][Math.floor(index / COLOURS) % 3];
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

// series: [{name, points: [{x, y, spread, label}], dots}]; options: {title, x, y, log}
function chart(series, options) {
  const shown = series.filter((line) => line.points.length);
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  caption.textContent = options.title;
  figure.append(caption);
  if (!shown.length) {
    const note = document.createElement("p");
    note.className = "quiet";
    note.textContent = options.none || "The records hold nothing to draw here.";
    figure.append(note);
    return figure;
  }
  const [width, height, left, right, top, bottom] = [460, 280, 52, 12, 12, 40];
  const every = shown.flatMap((line) => line.points);
  const x = scale(
    every.map((point) => point.x),
    left,
    width - right,
    options.log,
  );
  const y = scale(
    every.flatMap((point) => [point.y - (point.spread || 0), point.y + (point.spread || 0)]),
    height - bottom,
    top,
  );
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.title });
  for (const tick of y.ticks) {
    picture.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: y.position(tick), y2: y.position(tick) }));
    picture.append(svg("text", { x: left - 6, y: y.position(tick) + 4, "text-anchor": "end" }, y.format(tick)));
  }
  for (const tick of x.ticks)
    picture.append(svg("text", { x: x.position(tick), y: height - bottom + 16, "text-anchor": "middle" }, x.format(tick)));
  picture.append(svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, options.x));
  if (options.y)
    picture.append(
      svg(
        "text",
        { x: -(height - bottom + top) / 2, y: 12, transform: "rotate(-90)", "text-anchor": "middle" },
        options.y,
      ),
    );
  const legend = document.createElement("div");
  legend.className = "legend";
  series.forEach((line, index) => {
    if (!line.points.length) return;
    const stroke = line.colour || colour(index);
    const positions = line.points.map((point) => `${x.position(point.x).toFixed(1)},${y.position(point.y).toFixed(1)}`);
    if (!line.dots && line.points.length > 1) {
      if (line.points.some((point) => point.spread)) {
        const edge = (sign) =>
          line.points.map(
            (point) => `${x.position(point.x).toFixed(1)},${y.position(point.y + sign * (point.spread || 0)).toFixed(1)}`,
          );
        picture.append(
          svg("polygon", { points: [...edge(1), ...edge(-1).reverse()].join(" "), style: `fill: ${stroke}; opacity: .1` }),
        );
      }
      picture.append(
        svg("polyline", {
          points: positions.join(" "),
          fill: "none",
          style: `stroke: ${stroke}; stroke-width: 1.8; stroke-dasharray: ${dashes(index)}`,
        }),
      );
    }
    for (const point of line.points) {
      const text = `${point.label || line.name}: ${short(point.x)}, ${short(point.y)}`;
      const dot = svg("circle", {
        cx: x.position(point.x),
        cy: y.position(point.y),
        r: line.dots ? 4.5 : 2.2,
        style: `fill: ${stroke}`,
      });
      dot.append(svg("title", {}, text));
      picture.append(dot);
    }
    const key = document.createElement("span");
    const swatch = document.createElement("i");
    swatch.style.borderTop = `3px ${["solid", "dashed", "dotted"][Math.floor(index / COLOURS) % 3]} ${stroke}`;
    key.append(swatch, line.name);
    legend.append(key);
  });
  figure.append(picture, ...(shown.length > 1 ? [legend] : []));
  return figure;
}
