// Line charts over a fixed span of time, in the page's colours. uPlot is the vendored global.

const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [12, 4], [3, 6], [8, 3, 2, 3, 2, 3]];
const COLOURS = 8;
const POINTS_MAX = 2000;
const LABEL_PX = 11;
const AXIS_MIN_PX = 48;
const AXIS_GAP_PX = 20; // uPlot's tick (10) and gap (5), and room at the edge

function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Series differ by colour and by dash pattern, the second eight by a coarser dash.
export function look(position) {
  const dash = DASHES[position % DASHES.length];
  return {
    stroke: token(`--series-${(position % COLOURS) + 1}`),
    dash: position < COLOURS ? dash : [...dash.map((part) => part * 2), 14, 4],
  };
}

// The nearest that a border can draw of a series' line.
export function line(stroke, dash) {
  if (!dash.length) return `2px solid ${stroke}`;
  return `2px ${dash[0] < 4 ? "dotted" : "dashed"} ${stroke}`;
}

export function utcTime(seconds, withSeconds = false) {
  const text = new Date(seconds * 1000).toISOString();
  return text.slice(11, withSeconds ? 19 : 16);
}

export class LineChart {
  // `gapS`: points further apart are not joined. `spanS`: width in seconds, ending at `nowS()`.
  // `top`: upper bound of the scale; left out, it is a round number above the values, at least
  // `leastTop`, so that an empty chart has labels that differ.
  constructor(element, { spanS, gapS, nowS, format, top, leastTop = 1, legend = null }) {
    Object.assign(this, { element, spanS, gapS, nowS, format, top, leastTop, legend });
    this.names = [];
    this.at = [];
    this.values = [];
    if (legend === null) this.legend = this.makeLegend();
    new ResizeObserver(() => this.resize()).observe(element);
    document.addEventListener("headrace:theme", () => this.rebuild());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.rebuild());
  }

  // Name the series; values of names that stay are kept.
  setNames(names) {
    if (names.length === this.names.length && names.every((name, at) => name === this.names[at])) return;
    const before = new Map(this.names.map((name, at) => [name, this.values[at]]));
    this.names = names;
    this.values = names.map((name) => before.get(name) ?? this.at.map(() => null));
    this.rebuild();
  }

  setData(at, values) {
    this.at = at;
    this.values = values;
  }

  // Add one value a series; an instant that is not newer is dropped.
  push(at, values) {
    const last = this.at.at(-1);
    if (last !== undefined && at <= last) return;
    if (last !== undefined && at - last > this.gapS) this.append(last + 0.001, values.map(() => null));
    this.append(at, values);
    const oldest = this.nowS() - this.spanS - this.gapS;
    let drop = this.at.findIndex((instant) => instant >= oldest);
    drop = Math.max(drop, this.at.length - POINTS_MAX);
    if (drop > 0) for (const list of [this.at, ...this.values]) list.splice(0, drop);
  }

  append(at, values) {
    this.at.push(at);
    values.forEach((value, series) => this.values[series].push(value));
  }

  draw() {
    if (!this.plot) this.rebuild();
    if (!this.plot) return;
    this.plot.setData([this.at, ...this.values], false);
    this.plot.setScale("x", this.range());
    this.writeLegend(null);
  }

  range() {
    const max = this.nowS();
    return { min: max - this.spanS, max };
  }

  rebuild() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width || !height) return;
    this.plot?.destroy();
    this.plot = new uPlot(this.options(width, height), [this.at, ...this.values], this.element);
    this.writeLegend(null);
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width || !height) return;
    if (this.plot) this.plot.setSize({ width, height });
    else this.rebuild();
  }

  options(width, height) {
    const axis = {
      stroke: token("--muted"),
      grid: { stroke: token("--line"), width: 1 },
      ticks: { stroke: token("--line"), width: 1 },
      font: `${LABEL_PX}px ${token("--font") || "sans-serif"}`,
    };
    return {
      width,
      height,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: {
        x: { time: true, range: () => Object.values(this.range()) },
        y: { range: (_plot, _min, max) => [0, this.top ?? topOf(max, this.leastTop)] },
      },
      axes: [
        { ...axis, size: 28, values: (_plot, splits) => splits.map((split) => utcTime(split)) },
        { ...axis, size: axisWidth, values: (_plot, splits) => splits.map((split) => this.format(split, splits)) },
      ],
      series: [{}, ...this.names.map((name, at) => ({ label: name, width: 1.75, points: { show: false }, ...look(at) }))],
      hooks: { setCursor: [(plot) => this.writeLegend(plot.cursor.idx)] },
    };
  }

  makeLegend() {
    const list = document.createElement("ul");
    list.className = "series";
    this.element.after(list);
    return list;
  }

  // The newest values, or those under the pointer.
  writeLegend(position) {
    if (!this.legend) return;
    const at = position ?? this.at.length - 1;
    while (this.legend.children.length > this.names.length) this.legend.lastElementChild.remove();
    this.names.forEach((name, series) => {
      const item = this.legend.children[series] ?? this.legendItem();
      const { stroke, dash } = look(series);
      item.firstElementChild.style.borderTop = line(stroke, dash);
      item.children[1].textContent = name;
      const value = this.values[series]?.[at];
      item.lastElementChild.textContent = value == null ? "—" : this.format(value);
    });
  }

  legendItem() {
    const item = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    item.append(swatch, document.createElement("span"), " ", document.createElement("b"));
    this.legend.append(item);
    return item;
  }
}

// Wide enough for the longest label of the value axis, ticks and gap included.
function axisWidth(plot, labels) {
  if (!labels?.length) return AXIS_MIN_PX;
  const { ctx } = plot;
  const before = ctx.font;
  ctx.font = `${LABEL_PX * devicePixelRatio}px ${token("--font") || "sans-serif"}`;
  const widest = Math.max(...labels.map((label) => ctx.measureText(label ?? "").width)) / devicePixelRatio;
  ctx.font = before;
  return Math.max(AXIS_MIN_PX, Math.ceil(widest) + AXIS_GAP_PX);
}

// A round upper bound, at most a quarter above what is needed.
function topOf(max, leastTop) {
  const wanted = (max ?? 0) * 1.05;
  if (!(wanted > 0)) return leastTop;
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((top) => top >= wanted);
}
