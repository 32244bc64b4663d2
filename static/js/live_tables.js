// Tables that a subscription keeps current. Cells read as `telemetry.live.opening.text_of` writes.

const UNKNOWN = "—";
const TONES = { ok: "ok", hung: "bad", lost: "bad", stale: "stale" };
const GLYPHS = { ok: "●", bad: "■", stale: "◌" };
const fixed = [0, 1, 2].map(
  (digits) => new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }),
);

export function usdShort(text) {
  const value = Number(text);
  if (value === 0 || value >= 1) return fixed[2].format(value);
  const places = Math.min(9, Math.max(2, 2 - Math.floor(Math.log10(value))));
  return value.toFixed(places);
}

export function ageWords(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  return whole < 3600 ? `${Math.floor(whole / 60)} min` : `${Math.floor(whole / 3600)} h`;
}

const FORMATS = {
  rate: (value) => fixed[2].format(value),
  tok: (value) => fixed[0].format(value),
  ms: (value) => fixed[0].format(value),
  int: (value) => fixed[0].format(value),
  pct: (value) => fixed[1].format(value * 100),
  usd: usdShort,
};

export function textOf(kind, value) {
  if (kind === "age") return value == null ? "now" : `◌ ${ageWords(value)} old`;
  if (value == null || value === "") return UNKNOWN;
  return FORMATS[kind] ? FORMATS[kind](value) : String(value);
}

export function badge(word, tone) {
  const node = document.createElement("span");
  node.className = `badge ${tone}`;
  const glyph = document.createElement("span");
  glyph.setAttribute("aria-hidden", "true");
  glyph.textContent = GLYPHS[tone] ?? "○";
  node.append(glyph, ` ${word}`);
  return node;
}

export class LiveTable {
  constructor(table) {
    this.table = table;
    this.body = table.tBodies[0];
    this.region = table.parentElement;
    this.columns = [...table.tHead.rows[0].cells].map((cell) => ({
      field: cell.dataset.field,
      kind: cell.dataset.kind,
      isNumber: cell.classList.contains("num"),
    }));
    this.fields = [];
    this.rows = []; // values by field, in the server's order
    this.nodes = new Map([...this.body.rows].map((row) => [row.dataset.id, row]));
    this.isOrderPending = false;
    this.oldS = null; // age of the whole state, when it is stale
  }

  apply(frame) {
    if (frame.t === "snap") {
      this.fields = frame.f;
      this.rows = frame.rows.map((values) => this.named(values));
      this.isOrderPending = true;
      this.more = frame.more;
    }
    for (const [position, ...values] of frame.d ?? []) {
      this.rows[position] = this.named([this.rows[position].id, ...values]);
      this.paint(this.rows[position]);
    }
    const ages = new Map(frame.age);
    this.rows.forEach((row, position) => this.setAge(row, ages.get(position)));
    this.settle();
  }

  named(values) {
    return Object.fromEntries(this.fields.map((field, at) => [field, values[at]]));
  }

  setAge(row, age) {
    if (row.age === age) return;
    row.age = age;
    this.paint(row);
  }

  // Every row is as old as the state that they came with; null when that is fresh.
  setOld(seconds) {
    if (seconds === this.oldS) return;
    this.oldS = seconds;
    for (const row of this.rows) this.paint(row);
  }

  // Rows neither move nor vanish under the pointer or the focus: that waits until both are away.
  settle() {
    if (!this.isOrderPending) return;
    if (this.body.matches(":hover") || this.body.contains(document.activeElement)) return;
    this.isOrderPending = false;
    const nodes = new Map();
    for (const row of this.rows) {
      const node = this.nodes.get(row.id) ?? this.create(row);
      nodes.set(row.id, node);
    }
    for (const [id, node] of this.nodes) if (!nodes.has(id)) node.remove();
    this.nodes = nodes;
    let at = this.body.firstElementChild;
    for (const node of nodes.values()) {
      if (node === at) at = at.nextElementSibling;
      else this.body.insertBefore(node, at);
    }
    for (const row of this.rows) this.paint(row);
    this.region.querySelector("[data-empty]").hidden = nodes.size > 0;
    const more = this.region.querySelector("[data-more]");
    more.hidden = !this.more;
    more.textContent = `${this.more} more rows are not shown: those with the least traffic.`;
  }

  create(row) {
    const node = document.createElement("tr");
    node.dataset.id = row.id;
    this.columns.forEach((column, at) => {
      const cell = document.createElement(at ? "td" : "th");
      if (!at) cell.scope = "row";
      cell.className = column.isNumber ? "num" : "wrap";
      cell.dataset.field = column.field;
      node.append(cell);
    });
    return node;
  }

  paint(row) {
    const node = this.nodes.get(row.id);
    if (!node) return;
    const age = this.oldS ?? row.age;
    node.classList.toggle("is-stale", row.age != null);
    this.columns.forEach((column, at) => {
      let value = row[column.field];
      if (column.kind === "age") value = age;
      if (column.kind === "state" && value === "ok" && age != null) value = "stale";
      this.paintCell(node.cells[at], column, value);
    });
  }

  paintCell(cell, { kind }, value) {
    const raw = value == null ? "" : String(value);
    if (cell.dataset.value === raw && cell.firstChild) return;
    cell.dataset.value = raw;
    if (kind === "state") {
      cell.replaceChildren(badge(raw, TONES[raw] ?? "stale"));
      return;
    }
    cell.textContent = textOf(kind, value);
    if (kind === "usd") cell.title = `${raw} USD exactly`;
  }

  // The server-rendered rows of a newer page: used while the socket is away.
  replaceBy(table) {
    this.body.replaceChildren(...table.tBodies[0].rows);
    this.nodes = new Map([...this.body.rows].map((row) => [row.dataset.id, row]));
  }
}
