// Tables in a narrow window: each row is a card whose cells say what they are (app.css).
// Roles are stated because a table that is laid out otherwise loses them; live tables stay as they are.

const FITTING_COLUMNS = 4; // so few fit a phone as they are, unless `data-cards` says otherwise
const LONG_CHARS = 36; // more takes a line of its own
const SHOWN = ".scroll > table:not([data-live])";

function labelRow(row, names) {
  row.setAttribute("role", "row");
  let at = 0;
  for (const cell of row.cells) {
    cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
    if (names[at]) cell.dataset.label = names[at];
    if (!cell.childElementCount && !cell.textContent.trim()) cell.dataset.blank = "";
    if (cell.textContent.trim().length > LONG_CHARS) cell.dataset.long = "";
    if (cell.colSpan > 1) cell.dataset.wide = "";
    at += cell.colSpan;
  }
}

export function makeCards(root) {
  for (const table of root.querySelectorAll(SHOWN)) {
    const head = table.tHead?.rows[0];
    if (!head || (head.cells.length <= FITTING_COLUMNS && !("cards" in table.dataset))) continue;
    table.setAttribute("role", "table");
    table.classList.add("cards");
    table.tHead.setAttribute("role", "rowgroup");
    head.setAttribute("role", "row");
    for (const cell of head.cells) cell.setAttribute("role", "columnheader");
    const names = [...head.cells].map((cell) => cell.textContent.trim().replace(/\s+/g, " "));
    for (const body of [...table.tBodies, table.tFoot].filter(Boolean)) {
      body.setAttribute("role", "rowgroup");
      for (const row of body.rows) labelRow(row, names);
    }
  }
}
