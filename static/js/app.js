// Small behaviour that every page shares. Nothing here is needed to read or to act.

import { makeCards } from "./cards.js";

const ASKED = new Set(["click", "submit"]); // what a person does, not a page's own refresh
const THEMES = ["auto", "light", "dark"];
const YEAR_S = 31536000;

// Same words as console.web.units.age.
function ageWords(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (whole >= size) return `${Math.floor(whole / size)} ${name}`;
  }
  return `${whole} s`;
}

function refreshAges() {
  const now = Date.now();
  for (const node of document.querySelectorAll("time[data-age]")) {
    const passed = (now - Date.parse(node.dateTime)) / 1000;
    const text = passed < 0 ? `in ${ageWords(-passed)}` : `${ageWords(passed)} ago`;
    if (node.textContent !== text) node.textContent = text;
  }
}

// Widths are set on the style object: the policy forbids style attributes, not this.
function sizeBars(root) {
  for (const node of root.querySelectorAll("[data-pct]")) node.style.width = `${node.dataset.pct}%`;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `headrace_theme=${theme}; path=/; max-age=${YEAR_S}; samesite=lax${secure}`;
  document.dispatchEvent(new CustomEvent("headrace:theme", { detail: { theme } }));
}

function onThemeChange(event) {
  if (event.target.name === "theme" && THEMES.includes(event.target.value)) setTheme(event.target.value);
}

async function onCopy(button) {
  const source = document.getElementById(button.dataset.copy);
  const status = document.getElementById("status");
  try {
    await navigator.clipboard.writeText(source.textContent.trim());
    button.textContent = "Copied";
    status.textContent = "Copied to the clipboard.";
  } catch {
    const range = document.createRange();
    range.selectNodeContents(source);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    status.textContent = "Could not copy: the text is selected, copy it by keyboard.";
  }
}

function moveRow(table, step) {
  const rows = [...table.querySelectorAll("tbody tr")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("is-at"));
  const next = Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + step));
  if (at >= 0) rows[at].classList.remove("is-at");
  rows[next].classList.add("is-at");
  const target = rows[next].querySelector("a, button") || table;
  target.focus({ preventScroll: true });
  rows[next].scrollIntoView({ block: "nearest" });
}

// j, k, Enter and / act only while focus is inside a table region, never while typing.
function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.target;
  if (!(target instanceof Element) || target.closest("input, select, textarea")) return;
  const region = target.closest("[data-keys]");
  if (!region) return;
  if (event.key === "j" || event.key === "k") {
    moveRow(region, event.key === "j" ? 1 : -1);
    event.preventDefault();
  } else if (event.key === "Enter" && target === region) {
    region.querySelector("tr.is-at a")?.click();
  } else if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (search) {
      search.focus();
      event.preventDefault();
    }
  }
}

function onClick(event) {
  const button = event.target instanceof Element ? event.target.closest("[data-copy]") : null;
  if (button) onCopy(button);
}

// A low window may cut the column of pages, a narrow one a row of tabs: show what is open.
for (const node of document.querySelectorAll(".side [aria-current], .tabs [aria-current]")) {
  node.scrollIntoView({ block: "nearest", inline: "nearest" });
}

for (const node of document.querySelectorAll("[data-needs-script]")) node.hidden = false;
for (const node of document.querySelectorAll("[data-without-script]")) node.hidden = true;
// A page that answers a form and must not be sent again: reloading it asks for the page before.
// A form that was refused opens where it has to be mended.
document.querySelector("main [aria-invalid='true']")?.focus();
const once = document.querySelector("[data-once]");
if (once) history.replaceState(null, "", once.dataset.once || location.pathname);
document.addEventListener("change", onThemeChange);
document.addEventListener("click", onClick);
document.addEventListener("keydown", onKey);

// A page that refreshes itself keeps its last figures while a server is away, and says so.
let freshAt = new Date();

function markStale(why) {
  const banner = document.getElementById("away");
  const at = freshAt.toISOString().slice(11, 19);
  const text = `${why}. The figures below are those of ${at} UTC; this page goes on trying.`;
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = false;
  document.getElementById("content")?.classList.add("is-stale");
}

function markFresh() {
  freshAt = new Date();
  document.getElementById("away").hidden = true;
  document.getElementById("content")?.classList.remove("is-stale");
}

document.addEventListener("htmx:before:response", (event) => {
  const { response, request } = event.detail.ctx;
  if (response.status < 500 || request.method !== "GET") return;
  event.preventDefault();
  markStale(response.headers.get("X-Headrace-Away") || "This page could not be read again");
});
document.addEventListener("htmx:error", (event) => {
  if (event.detail.ctx?.request?.method === "GET") markStale("The console does not answer");
});
// A swap that a person asked for takes away what was focused (the pager's link): go on in what came,
// and say how much that is. A page's own refresh says nothing.
function onAsked(context) {
  if (!ASKED.has(context?.sourceEvent?.type)) return; // the element that asked may be gone by now
  const part = document.getElementById(context.target?.id);
  if (!part) return;
  if (document.activeElement === document.body) (part.querySelector(".scroll[tabindex]") || part).focus();
  const found = part.querySelector(".pager > span, .empty strong");
  document.getElementById("status").textContent = found ? found.textContent : "Shown.";
}

document.addEventListener("htmx:after:swap", (event) => {
  markFresh();
  onAsked(event.detail.ctx);
  sizeBars(document);
  makeCards(document);
  refreshAges();
});
sizeBars(document);
makeCards(document);
refreshAges();
setInterval(() => {
  if (!document.hidden) refreshAges();
}, 1000);
