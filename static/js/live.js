// The live page: figures of the first response, then the socket; says how old everything is.

import { LineChart, line, look, utcTime } from "./live_charts.js";
import { LiveSocket } from "./live_socket.js";
import { LiveTable, ageWords, badge, textOf } from "./live_tables.js";

const POLL_AFTER_FAILURES = 3;
const POLL_S = 10;
const SENTENCE_S = 10;
const REPORTS_LATE_S = 5; // gateways report every second
const READINGS = ["ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms"];
const NANO = 1e9;
const LEAST_TTFT_TOP_MS = 100; // labels are whole milliseconds

const page = document.getElementById("live-page");
const figures = JSON.parse(document.getElementById("live-figures").textContent);
const tables = new Map();
const newest = new Map(); // source -> instant (s) of its newest state
let state = { kind: "connecting", failures: 0 };
let reportedAt = null;
let pollTimer = 0;
let sentenceAt = 0;

const socket = new LiveSocket(page.dataset.socket, onState);
socket.offsetS = figures.now - Date.now() / 1000;
const nowS = () => socket.nowS();

const chartOptions = { spanS: figures.width_s, nowS };
const ttft = new LineChart(document.getElementById("chart-ttft"), {
  ...chartOptions, gapS: 90, leastTop: LEAST_TTFT_TOP_MS, legend: false, format: (value) => textOf("ms", value),
});
const spend = new LineChart(document.getElementById("chart-spend"), {
  ...chartOptions, gapS: Infinity, format: usdTick,
});
const kvElement = document.getElementById("chart-kv");
const kv = kvElement && new LineChart(kvElement, {
  ...chartOptions, gapS: 16, top: 100, format: (value) => Number(value.toFixed(1)).toString(),
});

function usdTick(value, splits) {
  if (!splits) return textOf("usd", value);
  const step = splits.length > 1 ? splits[1] - splits[0] : value;
  const places = step > 0 ? Math.max(2, Math.min(9, Math.ceil(-Math.log10(step)) + 1)) : 2;
  return value.toFixed(places);
}

function start() {
  ttft.setNames(["p50", "p95", "p99"]);
  const { at, p50_ms, p95_ms, p99_ms } = figures.ttft;
  ttft.setData([...at], [[...p50_ms], [...p95_ms], [...p99_ms]]);
  if (kv) startKv();
  drawSpend(figures.spend.since, figures.spend.tenants);
  paintSwatches();
  document.addEventListener("headrace:theme", paintSwatches);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintSwatches);
  for (const table of document.querySelectorAll("table[data-live]")) {
    const live = new LiveTable(table);
    const name = table.dataset.live;
    tables.set(name, live);
    if (figures.at) newest.set(name, figures.at);
    socket.subscribe(table.dataset.channel, table.dataset.query, (frame) => onTable(name, live, frame));
  }
  socket.subscribe("slices", page.dataset.total, onTotal);
  for (const chart of [ttft, spend, kv]) chart?.draw();
  socket.connect();
  setInterval(everySecond, 1000);
  everySecond();
}

function startKv() {
  const names = Object.keys(figures.kv.replicas).sort().slice(0, figures.replicas_drawn);
  kv.setNames(names);
  kv.setData(
    [...figures.kv.at],
    names.map((name) => figures.kv.replicas[name].map((ratio) => (ratio == null ? null : ratio * 100))),
  );
}

function onTable(name, live, frame) {
  if (frame.t === "error") return;
  live.apply(frame);
  newest.set(name, frame.ts);
  if (name === "replicas") drawKv(frame.ts, live.rows);
  if (name === "tenants") drawSpend(frame.spend_since, live.rows.map(tenantSpend));
  if (frame.reported_at !== undefined) reportedAt = frame.reported_at;
  everySecond();
}

const totals = { fields: [], row: null };

function onTotal(frame) {
  if (frame.t === "snap") {
    totals.fields = frame.f;
    totals.row = frame.rows[0] ?? null;
  } else if (frame.t === "tick" && frame.d[0]) {
    totals.row = [totals.row[0], ...frame.d[0].slice(1)];
  }
  const row = Object.fromEntries(totals.fields.map((field, at) => [field, totals.row?.[at] ?? null]));
  for (const node of document.querySelectorAll("[data-reading]")) {
    const value = row[node.dataset.reading] ?? null;
    node.dataset.value = value ?? "";
    node.textContent = textOf("ms", value);
  }
  ttft.push(frame.ts, READINGS.map((field) => row[field] ?? null));
  ttft.draw();
}

function drawKv(at, rows) {
  const known = new Set(rows.map((row) => row.id));
  const kept = kv.names.filter((name) => known.has(name));
  const added = rows.map((row) => row.id).filter((name) => !kept.includes(name));
  kv.setNames([...kept, ...added].slice(0, figures.replicas_drawn));
  const byId = new Map(rows.map((row) => [row.id, row]));
  kv.push(at, kv.names.map((name) => occupancy(byId.get(name))));
  kv.draw();
}

// Replicas with old figures are out of the mean, which says over how many it is.
function writeKvSummary(oldS) {
  const rows = tables.get("replicas").rows;
  if (!rows.length) return;
  const fresh = oldS === null ? rows.filter((row) => occupancy(row) !== null) : [];
  const mean = fresh.reduce((sum, row) => sum + occupancy(row), 0) / fresh.length;
  const drawn = rows.length > kv.names.length ? `; the chart shows ${kv.names.length}` : "";
  const start = fresh.length ? `now, mean ${mean.toFixed(1)} % over` : "now, fresh:";
  document.getElementById("kv-summary").textContent = `${start} ${fresh.length} of ${rows.length} replicas${drawn}`;
}

// Percent; null for a replica whose figures are old or that does not answer.
function occupancy(row) {
  const isFresh = row && row.age == null && row.health === "ok" && row.kv_usage_ratio != null;
  return isFresh ? row.kv_usage_ratio * 100 : null;
}

function tenantSpend(row) {
  return { name: row.tenant, nanousd: row.spend_minutes_nanousd };
}

// Cumulative since the window began: the last point of a line is the tenant's figure in the table.
function drawSpend(since, tenants) {
  if (since == null) return;
  const total = (tenant) => tenant.nanousd.reduce((sum, part) => sum + part, 0);
  const ranked = [...tenants].filter((tenant) => total(tenant) > 0).sort((a, b) => total(b) - total(a));
  const room = figures.tenants_drawn;
  const shown = ranked.length > room ? ranked.slice(0, room - 1) : ranked;
  const rest = ranked.slice(shown.length);
  shown.sort((a, b) => (a.name < b.name ? -1 : 1));
  if (rest.length) {
    const sums = rest[0].nanousd.map((_, minute) => rest.reduce((sum, tenant) => sum + tenant.nanousd[minute], 0));
    shown.push({ name: `${rest.length} others`, nanousd: sums });
  }
  const at = [since];
  for (let minute = 1; minute <= figures.spend.minutes; minute += 1) {
    at.push(Math.max(at.at(-1) + 0.001, Math.min(since + 60 * minute, nowS())));
  }
  spend.setNames(shown.map((tenant) => tenant.name));
  spend.setData(at, shown.map((tenant) => cumulative(tenant.nanousd)));
  spend.draw();
  document.getElementById("spend-since").textContent = utcTime(since);
}

function cumulative(parts) {
  let sum = 0;
  return [0, ...parts.map((part) => (sum += part) / NANO)];
}

function paintSwatches() {
  for (const node of document.querySelectorAll(".swatch[data-series]")) {
    const { stroke, dash } = look(Number(node.dataset.series) - 1);
    node.style.borderTop = line(stroke, dash);
  }
}

function newestAt() {
  return newest.size ? Math.max(...newest.values()) : null;
}

function everySecond() {
  const at = newestAt();
  const age = at === null ? null : Math.max(0, nowS() - at);
  const isStale = age === null || age > figures.stale_after_s;
  page.classList.toggle("has-stale", isStale);
  showState(age, isStale);
  showBanner(at, age);
  for (const node of document.querySelectorAll("[data-age-of]")) {
    const own = newest.get(node.dataset.ageOf);
    node.textContent = own === undefined ? "No figures yet." : `Updated ${ageWords(nowS() - own)} ago.`;
  }
  const late = reportedAt !== null && nowS() - reportedAt > REPORTS_LATE_S;
  document.getElementById("live-reported").textContent = late && !isStale
    ? `◌ gateways reported ${ageWords(nowS() - reportedAt)} ago` : "";
  for (const table of tables.values()) {
    table.setOld(isStale && age !== null ? Math.floor(age) : null);
    table.settle();
  }
  if (kv) writeKvSummary(isStale ? age : null);
  if (isStale) for (const chart of [ttft, kv]) chart?.draw(); // time moves on, the line does not
  writeSentences();
}

function showState(age, isStale) {
  let [word, tone] = [`live ${ageWords(age ?? 0)}`, "ok"];
  if (isStale) [word, tone] = [age === null ? "no figures yet" : `stale, ${ageWords(age)} old`, "stale"];
  if (state.kind === "waiting" || state.kind === "ended") [word, tone] = ["disconnected", "bad"];
  if (state.kind !== "open" && pollTimer) [word, tone] = [isStale ? "polling, stale" : "polling", "stale"];
  const holder = document.getElementById("live-state");
  if (holder.dataset.word === word) return;
  holder.dataset.word = word;
  holder.replaceChildren(badge(word, tone));
}

function showBanner(at, age) {
  const banner = document.getElementById("live-banner");
  const text = bannerText(at, age);
  banner.hidden = !text;
  if (banner.dataset.text === text) return;
  banner.dataset.text = text;
  banner.textContent = text;
  if (state.why === "signed out") {
    const link = document.createElement("a");
    link.href = `/sign-in/?next=${encodeURIComponent(location.pathname + location.search)}`;
    link.textContent = "Sign in";
    banner.append(" ", link);
  }
}

function bannerText(at, age) {
  if (state.kind === "ended") {
    return { "signed out": "Signed out: figures stopped.", "access lost": "Your access changed: figures stopped. Reload the page." }[state.why]
      ?? "This page is older than the console. Reload it.";
  }
  const isAway = state.kind === "waiting" || (state.kind === "connecting" && state.failures > 0);
  if (!isAway) return "";
  const last = at === null ? "No figures came yet." : `Last figures ${utcTime(at, true)} UTC, ${ageWords(age)} ago.`;
  const left = Math.ceil(((state.retryAt ?? 0) - performance.now()) / 1000);
  const next = left > 0 ? `Next try in ${left} s.` : "Trying now.";
  const polling = pollTimer ? " Tables are read every 10 s meanwhile." : "";
  return `Disconnected. ${last} ${next}${polling}`;
}

function writeSentences() {
  if (performance.now() < sentenceAt) return;
  sentenceAt = performance.now() + SENTENCE_S * 1000;
  const say = (chart, start, unit) => {
    const values = chart.names.map((name, series) => {
      const value = chart.values[series].at(-1);
      return `${name} ${value == null ? "unknown" : `${chart.format(value)} ${unit}`}`;
    });
    chart.element.setAttribute("aria-label", `${start} ${values.join(", ") || "no figures"}. The table holds the numbers.`);
  };
  say(ttft, "Time to first token over the last 15 minutes; now", "ms");
  say(spend, "Spend by tenant over the last 15 minutes, cumulative; now", "USD");
  if (kv) say(kv, "KV occupancy by replica over the last 15 minutes; now", "percent");
}

function onState(next) {
  const wasAway = state.kind !== "open";
  state = next;
  if (state.kind === "open" && wasAway) {
    clearInterval(pollTimer);
    pollTimer = 0;
    fillHole();
  }
  if (state.kind === "waiting" && state.failures >= POLL_AFTER_FAILURES && !pollTimer) {
    pollTimer = setInterval(poll, POLL_S * 1000);
    poll();
  }
  if (state.kind === "ended") {
    clearInterval(pollTimer);
    pollTimer = 0;
  }
  everySecond();
}

// Minutes that passed while the socket was away; what is missing stays a gap.
async function fillHole() {
  const at = ttft.at.at(-1);
  if (at === undefined || nowS() - at < 2 * 60) return;
  const tenant = new URLSearchParams(page.dataset.total).get("tenant");
  const query = new URLSearchParams({
    since: new Date(at * 1000).toISOString(),
    until: new Date(nowS() * 1000).toISOString(),
    ...(tenant ? { tenant } : {}),
  });
  const answer = await fetch(`/api/v1/series/?${query}`).catch(() => null);
  if (!answer?.ok) return;
  const { points, step_s } = await answer.json();
  const inMs = (seconds) => (seconds == null ? null : seconds * 1000);
  for (const point of points) {
    const end = Date.parse(point.at) / 1000 + step_s;
    if (end <= nowS()) ttft.push(end, [point.ttft_p50_s, point.ttft_p95_s, point.ttft_p99_s].map(inMs));
  }
  ttft.draw();
}

async function poll() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } }).catch(() => null);
  if (!answer?.ok) return;
  if (answer.redirected) {
    onState({ kind: "ended", failures: 0, why: "signed out" });
    return;
  }
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const [name, live] of tables) {
    const table = fresh.querySelector(`table[data-live="${name}"]`);
    if (table) live.replaceBy(table);
  }
  for (const node of document.querySelectorAll("[data-reading]")) {
    const found = fresh.querySelector(`[data-reading="${node.dataset.reading}"]`);
    if (found) node.replaceWith(found);
  }
  const block = fresh.getElementById("live-figures");
  const at = block && JSON.parse(block.textContent).at;
  if (at) for (const name of tables.keys()) newest.set(name, at);
  everySecond();
}

start();
