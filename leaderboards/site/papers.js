"use strict";
// The papers' numbers and ours, and what leaves a client under each method.

const KINDS = ["reproduced", "off", "open"];
const chosen = { paper: "", hidden: new Set(), method: "" };

function counts(tables) {
  const numbers = { reproduced: 0, off: 0, open: 0 };
  for (const { rows } of tables)
    for (const [, cells] of rows) for (const cell of cells) if (cell) numbers[cell.kind] += 1;
  return numbers;
}

function papersPage(wanted) {
  const papers = [...new Set(DATA.published.map((table) => table.paper))];
  if (papers.includes(wanted)) chosen.paper = wanted;
  const list = el("div", {});
  const chips = Object.fromEntries(KINDS.map((kind) => [kind, el("span", { class: `chip ${kind}` })]));
  const draw = () => {
    const tables = DATA.published.filter((table) => !chosen.paper || table.paper === chosen.paper);
    for (const [kind, count] of Object.entries(counts(tables))) chips[kind].textContent = `${kind} ${count}`;
    const shown = tables.filter((table) => KINDS.some((kind) => !chosen.hidden.has(kind) && counts([table])[kind]));
    const parts = papers.map((name) => [shown.filter((table) => table.paper === name), name]);
    list.replaceChildren(...parts.flatMap(([some, name]) => (some.length ? [trained(name), ...some.map(published)] : [])));
    if (!shown.length) list.append(el("p", { class: "quiet" }, "No table holds such a number."));
  };
  const ticks = KINDS.map((kind) =>
    tick(chips[kind], !chosen.hidden.has(kind), (checked) => {
      chosen.hidden[checked ? "delete" : "add"](kind);
      draw();
    }),
  );
  draw();
  const read =
    "A number is reproduced where ours, at the paper's setting, is within a point or two standard deviations of " +
    "it, off where it is not, open where we have none. A number measured at another setting is never compared with a " +
    "paper's. Choose a number to read why.";
  return [
    el("h1", {}, "Published numbers, and ours"),
    el("p", {}, read),
    el(
      "div",
      { class: "controls" },
      choose("paper", chosen.paper, [["", "all"], ...papers.map((name) => [name, name])], (name) => {
        chosen.paper = name;
        draw();
      }),
      ticks,
    ),
    list,
  ];
}

// How a paper trained, behind all its numbers; empty where no number of it is compared with ours.
function trained(paper) {
  const lines = lookup(DATA.training, paper);
  if (!lines) return "";
  const read =
    "A number is compared with ours only if ours trained like this. Whose: the paper's; its released code's; converted, " +
    "either of them in the units of our loss; open, in neither; differs, known, and ours cannot do it.";
  const text = (name) => el("th", { class: "text" }, name);
  return el(
    "details",
    {},
    el("summary", {}, el("strong", {}, `${paper}, training`), ` ${lines.length} settings`),
    el("p", { class: "quiet" }, read),
    table(
      `${paper} training`,
      ["setting", ...["value", "whose", "scenario and row of ours"].map(text)],
      lines.map(([setting, value, whose, rows]) => [setting, longText(value), shortText(whose), longText(rows)]),
    ),
  );
}

function published(paperTable) {
  const numbers = counts([paperTable]);
  const message = el("p", { class: "status", role: "status" });
  const cell = (row) => (verdict, index) =>
    publishedCell(verdict, (why) => {
      message.textContent = `${row}, ${paperTable.columns[index]}: ${why}`;
    });
  const lines = paperTable.rows.map(([name, cells]) => [name, ...cells.map(cell(name))]);
  const setting = Object.entries(paperTable.setting)
    .map(([key, value]) => `${key.replaceAll("_", " ")} ${value}`)
    .join("; ");
  const chips = KINDS.filter((kind) => numbers[kind]).map((kind) =>
    el("span", { class: `chip ${kind}` }, `${numbers[kind]} ${kind}`),
  );
  return el(
    "details",
    { open: numbers.reproduced + numbers.off > 0 },
    el("summary", {}, el("strong", {}, `${paperTable.paper}, ${paperTable.table}`), ` ${paperTable.title} `, chips),
    el("p", { class: "quiet" }, `${paperTable.cite}. ${setting}`),
    table(`${paperTable.paper} ${paperTable.table}`, ["", ...paperTable.columns], lines),
    message,
    paperTable.remarks.length
      ? el(
          "ul",
          { class: "quiet" },
          paperTable.remarks.map((remark) => el("li", {}, remark)),
        )
      : null,
  );
}

function publishedCell(cell, showReason) {
  if (!cell) return NONE;
  const measured = cell.delta !== undefined;
  const apart = (cell) =>
    `${formatNumber(Math.abs(cell.delta), 2)} apart, ${formatNumber(cell.within, 2)} allowed, ${cell.ours[2]} seeds`;
  const difference = measured ? `${cell.kind}: ${cell.against ?? apart(cell)}` : "";
  const source = cell.place ? `ours is ${cell.place}` : "";
  const why = [difference, cell.why, source, `in ${cell.unit}`].filter(Boolean).join("; ");
  const ours = measured
    ? el(
        "small",
        {},
        `${cell.kind}: ours `,
        cell.against ?? withSpread(cell.ours, 2),
        cell.against ? "" : ` (${cell.delta >= 0 ? "+" : ""}${formatNumber(cell.delta, 2)})`,
      )
    : null;
  const kind = [measured ? cell.kind : "", ["words", "claim"].includes(cell.unit) ? "text long" : ""].join(" ").trim();
  return el(
    "td",
    { class: kind || null },
    el("button", { type: "button", title: why, onclick: () => showReason(why) }, cell.value),
    ours,
  );
}

function privacyPage() {
  const sheet = DATA.privacy;
  if (!sheet) return [el("h1", {}, "What leaves a client"), el("p", {}, "No privacy sheet was written yet.")];
  const called = ({ name }) => DATA.labels[name] || name;
  const shown = sheet.methods.filter((method) => !chosen.method || method.name === chosen.method);
  const lines = shown.flatMap((method) =>
    method.entries.map((entry) => [
      called(method),
      shortText(entry.phase),
      shortText(entry.entry),
      longText(entry.shape),
      bytes(entry.bytes),
      longText(entry.when),
      longText(entry.combined),
      shortText(entry.alone ? "each one" : "the sum"),
      longText(entry.protected || "sent as it is"),
    ]),
  );
  const without = shown
    .filter((method) => !method.entries.length)
    .map((method) => [called(method), el("td", { class: "text", colspan: 8 }, "nothing")]);
  const stays = shown.map((method) => [
    called(method),
    longText(method.objective),
    longText(method.keeps.join(", ") || "nothing"),
    method.keeps.length ? bytes(method.kept_bytes) : NONE,
  ]);
  const read =
    `Counted at ${sheet.encoder} for a client of ${sheet.images.toLocaleString("en")} images. Of most entries the server ` +
    "needs a mean or a sum over clients, which secure aggregation could compute; 'each one' marks those that it must see client by client.";
  const text = (name) => el("th", { class: "text" }, name);
  return [
    el("h1", {}, "What leaves a client"),
    el("p", {}, read),
    el(
      "div",
      { class: "controls" },
      choose("method", chosen.method, [["", "all"], ...sheet.methods.map(({ name }) => [name, name])], (name) => {
        chosen.method = name;
        show();
      }),
    ),
    table(
      "what leaves a client",
      [
        "method",
        ...["phase", "entry", "what it is"].map(text),
        "bytes",
        ...["when", "combined", "the server needs", "protected"].map(text),
      ],
      [...lines, ...without],
    ),
    el("h2", {}, "What stays with the client between visits"),
    table("what stays", ["method", text("objective"), text("keeps"), "bytes"], stays),
  ];
}
