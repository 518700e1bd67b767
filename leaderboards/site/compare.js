"use strict";
// The ticked rows of a board side by side: over training, in the plane, and one against another.

const METRICS = {
  monitor: "kNN on held-out train (%)",
  effective_rank: "effective rank",
  alignment: "alignment",
  uniformity: "uniformity (nats)",
};
const AGAINST = { round: "rounds", bytes: "bytes up and down, all clients", seconds: "seconds of training" };

function sideBySide(scenario, rows, ticked, apart, changed) {
  const some = rows.filter((row) => ticked.has(row.row));
  return [curves(scenario, some), plane(rows, some), paired(some, apart, changed)];
}

// Of each seed that was watched in several rounds: round -> what was seen.
function watched(scenario, row, metric) {
  return row.seeds
    .map((seed) => own(DATA.runs, `${scenario}/${row.row}/seed${seed}`)?.curve || [])
    .map((curve) => new Map(curve.filter((point) => metric in point).map((point) => [point.round, point])))
    .filter((seen) => seen.size > 1);
}

function curves(scenario, rows) {
  const series = rows.map((row) => {
    const seen = watched(scenario, row, view.metric);
    const rounds = seen.length ? [...seen[0].keys()].filter((round) => seen.every((one) => one.has(round))) : [];
    const points = rounds.map((round) => {
      const at = seen.map((one) => one.get(round));
      const values = at.map((point) => point[view.metric]);
      return {
        x: mean(at.map((point) => point[view.against])),
        y: mean(values),
        spread: spread(values),
        label: `${row.row}, round ${round}`,
      };
    });
    const some = seen.length < row.seeds.length ? ` (${seen.length} of ${row.seeds.length} seeds)` : "";
    return { name: row.row + some, points: points.filter((point) => view.against !== "bytes" || point.x > 0) };
  });
  const silent = rows.filter((_, place) => !series[place].points.length).map((row) => row.row);
  const none = "None of the ticked rows was watched over its rounds.";
  const figure = chart(series, {
    title: "Over training",
    x: AGAINST[view.against],
    y: METRICS[view.metric],
    log: view.against === "bytes",
    none,
  });
  if (silent.length && silent.length < rows.length)
    figure.append(el("p", { class: "quiet" }, `No curve: ${silent.join(", ")}.`));
  return figure;
}

function plane(rows, some) {
  const [across, upward] = ["geometry/v1 uniformity", "geometry/v1 alignment"];
  const points = (row) =>
    row.cells[across] && row.cells[upward]
      ? [{ x: row.cells[across][0], y: row.cells[upward][0], label: row.row }]
      : [];
  const others = rows.filter((row) => !some.includes(row)).flatMap(points);
  const series = some.map((row, place) => ({ name: row.row, dots: true, colour: colour(place), points: points(row) }));
  const title = "Uniformity and alignment of features (lower is better, both)";
  return chart([{ name: "other rows", dots: true, colour: "var(--line)", points: others }, ...series], {
    title,
    x: "uniformity (nats)",
    y: "alignment",
  });
}

// apart: the seeds' pooled spread, points; a difference counts from twice that of a mean of as many differences
function paired(rows, apart, changed) {
  const figure = el("figure", {}, el("figcaption", {}, "Linear probe, seed by seed"));
  const base = rows.find((row) => row.row === view.base) || rows[0];
  const others = rows.filter((row) => row !== base);
  if (!others.length) {
    figure.append(el("p", { class: "quiet" }, "Tick two rows to hold one against the other."));
    return figure;
  }
  const names = rows.map((row) => [row.row, row.row]);
  figure.append(
    el(
      "div",
      { class: "controls" },
      choose("base", base.row, names, (name) => {
        view.base = name;
        changed();
        document.querySelector('[data-key="base"]').focus();
      }),
    ),
  );
  const lines = others.map((row) => {
    const seeds = row.seeds.filter((seed) => seed in row.headline && seed in base.headline);
    const points = seeds.map((seed) => row.headline[seed] - base.headline[seed]);
    if (!points.length) return [row.row, el("td", { colspan: 4 }, "no seed in common")];
    const ahead = `${points.filter((one) => one > 0).length} of ${points.length}`;
    return [
      row.row,
      el("td", {}, withSpread([mean(points), spread(points)], 2)),
      apart === null ? NONE : number(2 * apart * Math.sqrt(2 / points.length), 2),
      ahead,
      points.map((one) => number(one, 1)).join(", "),
    ];
  });
  figure.append(table([`less ${base.row}`, "points", "counts from", "ahead in", "by seed"], lines, "wide low"));
  return figure;
}
