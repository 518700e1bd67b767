"use strict";
// The papers' numbers beside ours, and what leaves a client under each method.

const KINDS = ["reproduced", "off", "open"];
const asked = { paper: "", hidden: new Set(), method: "" };

function counts(tables) {
  const found = { reproduced: 0, off: 0, open: 0 };
  for (const { rows } of tables)
    for (const [, cells] of rows) for (const cell of cells) if (cell) found[cell.kind] += 1;
  return found;
}

function papersPage(wanted) {
  const papers = [...new Set(DATA.published.map((one) => one.paper))];
  if (papers.includes(wanted)) asked.paper = wanted;
  const list = el("div", {});
  const chips = Object.fromEntries(KINDS.map((kind) => [kind, el("span", { class: `chip ${kind}` })]));
  const draw = () => {
    const chosen = DATA.published.filter((one) => !asked.paper || one.paper === asked.paper);
    for (const [kind, count] of Object.entries(counts(chosen))) chips[kind].textContent = `${kind} ${count}`;
    const shown = chosen.filter((one) => KINDS.some((kind) => !asked.hidden.has(kind) && counts([one])[kind]));
    list.replaceChildren(...shown.map(published));
    if (!shown.length) list.append(el("p", { class: "quiet" }, "No table holds such a number."));
  };
  const ticks = KINDS.map((kind) =>
    tick(chips[kind], !asked.hidden.has(kind), (checked) => {
      asked.hidden[checked ? "delete" : "add"](kind);
      draw();
    }),
  );
  draw();
  const read =
    "A number is reproduced where ours, at the paper's setting, is within a point or two standard deviations of " +
    "it, off where it is not, open where we have none. A number measured at another setting is never held against a " +
    "paper's. Choose a number to read why.";
  return [
    el("h1", {}, "Published numbers, and ours"),
    el("p", {}, read),
    el(
      "div",
      { class: "controls" },
      choose("paper", asked.paper, [["", "all"], ...papers.map((name) => [name, name])], (name) => {
        asked.paper = name;
        draw();
      }),
      ticks,
    ),
    list,
  ];
}

function published(one) {
  const found = counts([one]);
  const told = el("p", { class: "told", role: "status" });
  const cell = (row) => (held, place) =>
    publishedCell(held, (why) => {
      told.textContent = `${row}, ${one.columns[place]}: ${why}`;
    });
  const lines = one.rows.map(([name, cells]) => [name, ...cells.map(cell(name))]);
  const setting = Object.entries(one.setting)
    .map(([key, value]) => `${key.replaceAll("_", " ")} ${value}`)
    .join("; ");
  const chips = KINDS.filter((kind) => found[kind]).map((kind) =>
    el("span", { class: `chip ${kind}` }, `${found[kind]} ${kind}`),
  );
  return el(
    "details",
    { open: found.reproduced + found.off > 0 },
    el("summary", {}, el("strong", {}, `${one.paper}, ${one.table}`), ` ${one.title} `, chips),
    el("p", { class: "quiet" }, `${one.cite}. ${setting}`),
    table(["", ...one.columns], lines),
    told,
    one.remarks.length
      ? el(
          "ul",
          { class: "quiet" },
          one.remarks.map((remark) => el("li", {}, remark)),
        )
      : null,
  );
}

function publishedCell(cell, tell) {
  if (!cell) return NONE;
  const measured = cell.delta !== undefined;
  const apart = measured
    ? `${cell.kind}: ${number(Math.abs(cell.delta), 2)} apart, ${number(cell.within, 2)} allowed, ${cell.ours[2]} seeds`
    : "";
  const beside = cell.place ? `ours is ${cell.place}` : "";
  const why = [apart, cell.why, beside, `in ${cell.unit}`].filter(Boolean).join("; ");
  const ours = measured
    ? el(
        "small",
        {},
        `${cell.kind}: ours `,
        withSpread(cell.ours, 2),
        ` (${cell.delta >= 0 ? "+" : ""}${number(cell.delta, 2)})`,
      )
    : null;
  const kind = [measured ? cell.kind : "", cell.unit === "words" ? "text long" : ""].join(" ").trim();
  return el(
    "td",
    { class: kind || null },
    el("button", { type: "button", title: why, onclick: () => tell(why) }, cell.value),
    ours,
  );
}

function privacyPage() {
  const sheet = DATA.privacy;
  if (!sheet) return [el("h1", {}, "What leaves a client"), el("p", {}, "No privacy sheet was written yet.")];
  const shown = sheet.methods.filter((method) => !asked.method || method.name === asked.method);
  const lines = shown.flatMap((method) =>
    method.entries.map((entry) => [
      method.name,
      brief(entry.phase),
      brief(entry.entry),
      words(entry.shape),
      bytes(entry.bytes),
      words(entry.when),
      words(entry.combined),
      brief(entry.alone ? "each one" : "the sum"),
      words(entry.protected || "sent as it is"),
    ]),
  );
  const silent = shown
    .filter((method) => !method.entries.length)
    .map((method) => [method.name, el("td", { class: "text", colspan: 8 }, "nothing")]);
  const kept = shown.map((method) => [
    method.name,
    words(method.objective),
    words(method.keeps.join(", ") || "nothing"),
    method.keeps.length ? bytes(method.kept_bytes) : NONE,
  ]);
  const read =
    `Counted at ${sheet.encoder} for a client of ${sheet.images.toLocaleString("en")} images. Of most entries the server ` +
    "needs a mean or a sum over clients, which secure aggregation could give it; each one are those it has to look at client by client.";
  const text = (name) => el("th", { class: "text" }, name);
  return [
    el("h1", {}, "What leaves a client"),
    el("p", {}, read),
    el(
      "div",
      { class: "controls" },
      choose("method", asked.method, [["", "all"], ...sheet.methods.map(({ name }) => [name, name])], (name) => {
        asked.method = name;
        show();
      }),
    ),
    table(
      [
        "method",
        ...["phase", "entry", "what it is"].map(text),
        "bytes",
        ...["when", "combined", "the server needs", "protected"].map(text),
      ],
      [...lines, ...silent],
    ),
    el("h2", {}, "What stays with it between visits"),
    table(["method", text("objective"), text("keeps"), "bytes"], kept),
  ];
}
