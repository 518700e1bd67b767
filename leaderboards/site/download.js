"use strict";
// Charts and tables as files: CSV of their values, PNG of what is seen. Nothing is sent anywhere.

const LARGEST = 16000; // pixels of a picture's side, below the limits of browsers

function downloads(title, lines, draw) {
  const save = (ending, blob) => {
    const place = document.querySelector("h1")?.textContent || "";
    const name = `${place} ${title}`.replace(/[^\w.]+/g, "-").replace(/^-+|-+$/g, "");
    const link = el("a", { href: URL.createObjectURL(blob), download: `${name.slice(0, 100)}.${ending}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const button = (text, onclick) => el("button", { type: "button", "aria-label": `${text} of ${title}`, onclick }, text);
  return el(
    "p",
    { class: "downloads" },
    button("CSV", () => save("csv", new Blob([csvText(lines())], { type: "text/csv" }))),
    button("PNG", async () => {
      const canvas = await draw();
      canvas.toBlob((blob) => save("png", blob), "image/png");
    }),
  );
}

// RFC 4180; null is an empty field. A text that a spreadsheet would run as a formula begins with an apostrophe.
function csvText(lines) {
  const field = (value) => {
    const plain = String(value ?? "");
    const text = /^[=+@]/.test(plain) ? `'${plain}` : plain;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return lines.map((line) => `${line.map(field).join(",")}\r\n`).join("");
}

// A table's texts; of a column of `mean ± spread, worst` each has its own, and a cell may give another value as data-csv.
function tableLines(grid) {
  const cell = (node) => {
    const text = node.dataset.csv ?? node.innerText.replace(/\s+/g, " ").trim();
    return text === NONE ? "" : text;
  };
  const [head, ...lines] = [...grid.rows].map((row) =>
    [...row.cells].flatMap((node) => [cell(node), ...Array(node.colSpan - 1).fill("")]),
  );
  const number = String.raw`(-?[\d.]+(?:e[-+]\d+)?)`;
  const score = RegExp(`^(?:mean )?(?:${number}|–)(?: ± ${number})?(?: ↓)?(?:, worst ${number})?$`);
  const parts = (text) => text.match(score) || [];
  const has = (part) => head.map((_, index) => lines.some((line) => parts(line[index] || "")[part]));
  const further = [
    ["spread", 2, has(2)],
    ["worst encoder", 3, has(3)],
  ];
  const present = (index) => further.filter(([, , columns]) => columns[index]);
  const value = (text) => (parts(text)[1] ?? text).replace(NONE, "");
  const split = (text, index) => [value(text), ...present(index).map(([, part]) => parts(text)[part] ?? "")];
  return [
    head.flatMap((text, index) => [text, ...present(index).map(([name]) => `${text} ${name}`)]),
    ...lines.map((line) => line.flatMap((text, index) => (present(index).length ? split(text, index) : [text]))),
  ];
}

function sheet(width, height) {
  const zoom = Math.min(2, LARGEST / Math.max(width, height));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.ceil(width * zoom), Math.ceil(height * zoom)];
  const context = canvas.getContext("2d");
  context.scale(zoom, zoom);
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, width, height);
  return [canvas, context];
}

// A canvas with a chart under its title, as the page shows it.
async function chartPicture(picture, title) {
  const copy = picture.cloneNode(true);
  const { width, height } = picture.getBoundingClientRect();
  const inside = [...copy.querySelectorAll("*")];
  [...picture.querySelectorAll("*")].forEach((node, index) => {
    const style = getComputedStyle(node);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family"])
      inside[index].style.setProperty(name, style.getPropertyValue(name)); // of an image the page's style sheet is no part
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  await image.decode();
  const [canvas, context] = sheet(width + 24, height + 48);
  const { color, fontFamily } = getComputedStyle(document.body);
  context.fillStyle = color;
  context.font = `600 14px ${fontFamily}`;
  context.fillText(title, 12, 24, width);
  context.drawImage(image, 12, 36, width, height);
  return canvas;
}

// A canvas with a whole table, also what is scrolled out of sight.
function tablePicture(box) {
  const grid = box.querySelector("table");
  const at = [box.scrollLeft, box.scrollTop];
  box.scrollTo(0, 0); // cells that stay visible are in their own places
  const origin = grid.getBoundingClientRect();
  const [canvas, context] = sheet(origin.width, origin.height);
  context.textBaseline = "middle";
  const draw = (text, range, style) => {
    const rectangles = range.getClientRects();
    if (rectangles.length > 1 && text.length > 1) {
      for (let index = 0; index < text.length; index++) draw(text[index], part(range, index), style); // broken over lines
      return;
    }
    const place = range.getBoundingClientRect();
    context.fillStyle = style.color;
    context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    context.fillText(text, place.left - origin.left, (place.top + place.bottom) / 2 - origin.top);
  };
  for (const cell of grid.querySelectorAll("th, td")) {
    const { left, top, width, height } = cell.getBoundingClientRect();
    const style = getComputedStyle(cell);
    context.fillStyle = style.backgroundColor;
    context.fillRect(left - origin.left, top - origin.top, width, height);
    context.fillStyle = style.borderBottomColor;
    if (style.borderBottomWidth !== "0px") context.fillRect(left - origin.left, top + height - 1 - origin.top, width, 1);
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode())
      for (const word of texts.currentNode.data.matchAll(/\S+/g))
        draw(word[0], wordRange(texts.currentNode, word.index, word[0].length), getComputedStyle(texts.currentNode.parentNode));
  }
  box.scrollTo(...at);
  return canvas;
}

function wordRange(node, start, length) {
  const range = document.createRange();
  range.setStart(node, start);
  range.setEnd(node, start + length);
  return range;
}

function part(range, index) {
  return wordRange(range.startContainer, range.startOffset + index, 1);
}
