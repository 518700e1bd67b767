"use strict";
// Routing by address, and the light or dark theme.

const PAGES = new Map([
  ["board", boardPage],
  ["papers", papersPage],
  ["privacy", privacyPage],
  ["run", runPage],
]);
const page = document.getElementById("page");
DATA.palette.light.forEach((light, hue) => {
  document.documentElement.style.setProperty(`--hue-${hue}`, `light-dark(${light}, ${DATA.palette.dark[hue]})`);
});
let first = true; // nothing has been shown yet

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/");
  try {
    return parts.map(decodeURIComponent);
  } catch {
    return parts; // a malformed address
  }
}

function show() {
  const [name, ...rest] = route();
  const focused = document.activeElement?.dataset.key; // a control that leads here keeps the keyboard focus
  const drawn = (PAGES.get(name) || boardPage)(...rest);
  page.replaceChildren(...drawn.filter((node) => node !== null));
  const current = PAGES.has(name) && name !== "run" ? name : "board";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${current}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${page.querySelector("h1").textContent} · Fulcrum`;
  const again = focused && page.querySelector(`[data-key="${focused}"]`);
  if (again) again.focus();
  else if (!first) page.focus({ preventScroll: true }); // a screen reader announces the new page
  if (!again) window.scrollTo(0, 0);
  first = false;
}

function remembered(value) {
  try {
    if (value) localStorage.setItem("theme", value);
    return value || localStorage.getItem("theme");
  } catch {
    return value || null; // a browser may refuse storage for a file
  }
}

function theme(value) {
  if (value) document.documentElement.dataset.theme = value;
}

theme(remembered());
document.getElementById("theme").addEventListener("click", () => {
  const now =
    document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  theme(remembered(now === "dark" ? "light" : "dark"));
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // an address after # names a page here
  page.focus();
});
window.addEventListener("hashchange", show);
show();
