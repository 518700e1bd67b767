"use strict";
// The ticked rows of a board compared: over training, in the uniformity-alignment plane, and seed by seed.

const METRICS = {
  monitor: "kNN on held-out train (%)",
  effective_rank: "effective rank",
  alignment: "alignment",
  uniformity: "uniformity (nats)",
};
const AGAINST = { round: "rounds", bytes: "bytes up and down, all clients", seconds: "seconds of training" };

function comparison(scenario, rows, ticked, compared, changed) {
  const chosen = rows.filter((row) => ticked.has(row.row));
  return [curves(scenario, chosen), plane(rows, chosen), paired(chosen, compared, changed)];
}

// For each seed that the monitor evaluated in several rounds: round -> its point.
function measuredCurves(scenario, row, metric) {
  return row.seeds
    .map((seed) => lookup(DATA.runs, `${scenario}/${row.row}/seed${seed}`)?.curve || [])
    .map((curve) => new Map(curve.filter((point) => metric in point).map((point) => [point.round, point])))
    .filter((points) => points.size > 1);
}

function curves(scenario, rows) {
  const fewer = [];
  const series = rows.map((row) => {
    const curves = measuredCurves(scenario, row, view.metric);
    const rounds = curves.length ? [...curves[0].keys()].filter((round) => curves.every((seed) => seed.has(round))) : [];
    const points = rounds.map((round) => {
      const points = curves.map((curve) => curve.get(round));
      const values = points.map((point) => point[view.metric]);
      return {
        x: mean(points.map((point) => point[view.against])),
        y: mean(values),
        spread: spread(values),
        label: `${row.shown}, round ${round}`,
      };
    });
    const drawn = points.filter((point) => view.against !== "bytes" || point.x > 0);
    if (drawn.length && curves.length < row.seeds.length)
      fewer.push(`${row.shown} (${curves.length} of ${row.seeds.length} seeds)`);
    return { name: row.shown, row: row.row, points: drawn };
  });
  const without = rows.filter((_, index) => !series[index].points.length).map((row) => row.row);
  const none = "None of the ticked rows has a curve over rounds.";
  const figure = chart(series, {
    title: "Over training",
    x: AGAINST[view.against],
    y: METRICS[view.metric],
    log: view.against === "bytes",
    none,
  });
  if (without.length && without.length < rows.length)
    figure.append(el("p", { class: "quiet" }, `No curve: ${without.join(", ")}.`));
  if (fewer.length) figure.append(el("p", { class: "quiet" }, `Not all seeds: ${fewer.join(", ")}.`));
  return figure;
}

function plane(rows, chosen) {
  const [across, upward] = ["geometry/v1 uniformity", "geometry/v1 alignment"];
  const points = (row) =>
    row.cells[across] && row.cells[upward]
      ? [{ x: row.cells[across][0], y: row.cells[upward][0], label: row.shown, row: row.row }]
      : [];
  const others = rows.filter((row) => !chosen.includes(row)).flatMap(points);
  const series = chosen.map((row) => ({ name: row.shown, row: row.row, dots: true, points: points(row) }));
  const title = "Uniformity and alignment of features (of each lower is better; one costs the other); grey: other rows";
  return chart([{ name: "other rows", row: "", dots: true, quiet: true, points: others }, ...series], {
    title,
    x: "uniformity (nats)",
    y: "alignment",
  });
}

// [points, the difference from which they count], as the board's ranks have them; null where a row is not ranked.
function judged(compared, row, base) {
  const [at, other] = [row, base].map(({ row: name }) => (compared ? compared.rows.indexOf(name) : -1));
  if (at < 0 || other < 0) return null;
  return [compared.effects[at] - compared.effects[other], compared.margins[at][other]];
}

function paired(rows, compared, changed) {
  const title = "Linear probe, seed by seed";
  const figure = el("figure", { class: "across" }, el("figcaption", {}, title));
  const base = rows.find((row) => row.row === view.base) || rows[0];
  const others = rows.filter((row) => row !== base);
  if (!others.length) {
    figure.append(el("p", { class: "quiet" }, "Tick two rows to compare them."));
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
    if (!points.length) return [row.row, el("td", { colspan: 5 }, "no seed in common")];
    const ahead = `${points.filter((value) => value > 0).length} of ${points.length}`;
    const [average, margin] = judged(compared, row, base) || [mean(points), null];
    const verdict = base.better.includes(row.row) ? "better" : base.worse.includes(row.row) ? "worse" : "not told apart";
    return [
      row.shown,
      el("td", {}, withSpread([average, spread(points)], 2)),
      formatNumber(margin, 2),
      row.rank && base.rank ? verdict : NONE,
      ahead,
      points.map((value) => formatNumber(value, 1)).join(", "),
    ];
  });
  const heads = [`minus ${base.row}`, "points", "counts from", "verdict", "ahead in", "by seed"];
  figure.append(table(title, heads, lines, "wide low"));
  return figure;
}
