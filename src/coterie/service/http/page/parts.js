// Parts that all views share.
import { clock, count, el, payoff } from "./draw.js";

export const main = document.getElementById("main"), live = document.getElementById("live");

export const link = (page, id, text = id) => el("a", { href: `#/${page}/${encodeURIComponent(id)}`, dir: "auto" }, text);
export const figure = (name, value, more) => el("div", { class: "figure" }, el("dt", {}, name), el("dd", {}, value), more ? el("dd", { class: "more" }, more) : null);
export const card = (kind, title, ...children) => el("section", { class: `card ${kind}` }, el("h2", {}, title), ...children);
export const note = (...children) => el("p", { class: "note" }, ...children);

// Replaces what a container shows, unless the focus is in it.
export const redraw = (container, ...children) => { if (!container.contains(document.activeElement)) container.replaceChildren(...children); };

export function table(columns, rows, empty, caption) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  const head = el("tr", { role: "row" }, columns.map(([name, kind]) => el("th", { scope: "col", role: "columnheader", class: kind }, name)));
  const body = rows.map((row) =>
    el("tr", { class: row.chosen && "chosen", role: "row" }, row.cells.map((cell, k) => el(k ? "td" : "th", { scope: k ? null : "row", role: k ? "cell" : "rowheader", class: columns[k][1], "data-label": columns[k][0] || null }, el("span", { class: "value" }, cell)))),
  );
  // The roles are for phones, where rows become blocks and would lose their role.
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, el("table", { role: "table" }, el("caption", { class: "hidden" }, caption), el("thead", { role: "rowgroup" }, head), el("tbody", { role: "rowgroup" }, body)));
}

const readable = (id) => !/[\/\\?#%\u0000-\u001f\u007f]/.test(id);

export function decisionsTable(rows, withUser) {
  const rested = rows.some((row) => row.neighbours !== null);  // not with a policy that has no neighbours
  const columns = [["When"], ...(withUser ? [["User", "id"]] : []), ["Chosen", "id"], ["By", "wide"], ...(rested ? [["Rested on", "number"]] : []), ["Reward", "number"]];
  return table(
    columns,
    rows.map((row) => ({
      cells: [
        readable(row.eventId) ? link("event", row.eventId, clock(row.at)) : clock(row.at),
        ...(withUser ? [link("user", row.user)] : []),
        link("item", row.chosen),
        el("span", { class: "tag" }, { best: "policy", explored: "chance", baseline: "baseline" }[row.shown] || row.shown),
        ...(rested ? [row.neighbours === null ? "–" : `${count(row.neighbours)} ${row.neighbours === 1 ? "user" : "users"}`] : []),
        row.reward === null ? "–" : payoff(row.reward),
      ],
    })),
    "Nothing has been decided yet. Send a request to POST /v1/rank, or start with coterie serve --demo.",
    "The latest decisions",
  );
}
