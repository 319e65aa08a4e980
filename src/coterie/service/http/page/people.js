// Users and items: lists, whom a user resembles on which item, and how an item splits the users.
import { ask } from "./ask.js";
import { count, el, moment, payoff, range, swarm } from "./draw.js";
import { card, decisionsTable, figure, link, main, note, table } from "./parts.js";

const stops = (box) => [...box.querySelectorAll("a[href], [tabindex]")];

function list(title, lead, path, rows) {
  const results = el("div"), input = el("input", { id: "search", type: "search", class: "search", maxlength: 256, autocomplete: "off" });
  let asked = 0;
  async function refresh() {
    const mine = ++asked, wanted = input.value, found = await ask(`${path}?limit=100&search=${encodeURIComponent(wanted)}`);
    if (mine !== asked) return;
    const place = stops(results).indexOf(document.activeElement);
    results.replaceChildren(...rows(found));
    results.dataset.search = wanted;
    if (place >= 0) (stops(results)[place] || input).focus();  // an answer that comes late leaves the focus where it was
  }
  input.addEventListener("input", () => { refresh().catch((error) => results.replaceChildren(el("p", { class: "error" }, error.message))); });
  main.replaceChildren(el("h1", { tabindex: -1 }, title), el("p", { class: "lead" }, lead), el("label", { for: "search" }, "Find by a part of the id"), input, el("div", { class: "grid" }, el("section", { class: "card", "aria-label": title }, results)));
  return refresh;
}

export const users = () => list("Users", "The latest seen first.", "/v1/users", (found) => [
  note(`${count(found.users.length)} of ${count(found.total)} users`),
  table([["User", "id"], ["Decisions", "number"], ["Payoffs learned", "number"], ["Average payoff", "number"], ["Last seen", "wide"]],
    found.users.map((u) => ({ cells: [link("user", u.id), count(u.decisions), count(u.learned), payoff(u.learned ? u.earned / u.learned : null), moment(u.lastSeen)] })), "No such user.", "Users"),
]);

export const items = () => list("Items", "Their counts in the latest two thousand decisions, the most shown first.", "/v1/items", (found) => [
  note(`${count(found.items.length)} of ${count(found.total)} items`),
  table([["Item", "id"], ["Shown", "number"], ["Rewarded", "number"], ["Average reward", "number"]],
    found.items.map((i) => ({ cells: [link("item", i.id), count(i.shown), count(i.rewarded), payoff(i.rewarded ? i.earned / i.rewarded : null)] })), "No such item.", "Items"),
]);

// One user.

const WORDS = { alike: "alike", differs: "different", unknown: "not known yet" };
const cell = (kind) => el("span", { class: `cell ${kind}`, title: WORDS[kind] }, el("span", { class: "hidden" }, WORDS[kind]));

export function user(id, still) {
  return async () => {
    const found = await ask(`/v1/resemblance?user=${encodeURIComponent(id)}`);
    if (!still()) return;
    const u = found.user, known = found.items.filter((item) => item.known);
    const head = el("tr", {}, el("th", { scope: "col" }, "Item"), el("th", { scope: "col" }, "Neighbours"), found.users.map((name) => el("th", { scope: "col" }, link("user", name))));
    const body = known.map((item) => el("tr", {}, el("th", { scope: "row", title: item.item }, link("item", item.item)), el("td", { class: "n" }, count(item.neighbours)), item.others.map((kind) => el("td", {}, cell(kind)))));
    const low = Math.min(0, ...known.map((i) => i.estimate - i.width)), high = Math.max(0.1, ...known.map((i) => i.estimate + i.width));
    main.replaceChildren(
      el("p", {}, el("a", { href: "#/users" }, "Users")),
      el("h1", { tabindex: -1 }, id),
      el("p", { class: "lead" }, `First seen ${moment(found.firstSeen)}, last ${moment(u.lastSeen)}.`),
      el("dl", { class: "figures" }, figure("Decisions", count(u.decisions)), figure("Payoffs learned", count(u.learned)), figure("Earned", u.earned.toFixed(2)), figure("Average payoff", payoff(u.learned ? u.earned / u.learned : null))),
      el("div", { class: "grid" },
        card("", "Whom they resemble, item by item",
          known.length
            ? [el("ul", { class: "legend" }, Object.keys(WORDS).map((kind) => el("li", { class: "row" }, el("span", { class: `cell ${kind}`, "aria-hidden": "true" }), WORDS[kind]))),
               el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Whom they resemble" }, el("table", { class: "matrix" }, el("thead", {}, head), el("tbody", {}, body))),
               el("p", { class: "note narrow" }, `A wider screen shows ${count(found.users.length)} users; here are the first 6.`),
               note("Compared with the users seen last. Alike: as far as is known, they react to this item in the same way, so they share what is learned. Two users may be alike on one item and different on another.")]
            : el("p", { class: "empty" }, "Nothing was learned from this user yet.")),
        card("half", "What is known of their taste",
          table([["Item", "id"], ["Estimate and how sure", ""], ["", "number"]], known.map((i) => ({ cells: [link("item", i.item), range(i.estimate, i.width, low, high), `${payoff(i.estimate)} ± ${payoff(i.width)}`] })), "Nothing yet.", "Estimates")),
        card("half", "Their latest decisions", decisionsTable(found.latest, false))),
    );
  };
}

// One item.

export function item(id, still) {
  return async () => {
    const found = await ask(`/v1/split?item=${encodeURIComponent(id)}`);
    if (!still()) return;
    const all = found.groups.flatMap((g) => g.users), row = found.latest;
    const low = Math.min(0, ...all.map((u) => u.estimate - u.width)), high = Math.max(0.1, ...all.map((u) => u.estimate + u.width));
    const parts = found.groups.map((group, k) =>
      card("half", `${"ABCDEFGHIJKLMNOPQRSTUVWXYZ"[k % 26]}: ${count(group.users.length)} ${group.users.length === 1 ? "user" : "users"}, payoff about ${payoff(group.estimate)}`,
        table([["User", "id"], ["Estimate and how sure", ""], ["", "number wide"]], group.users.slice(0, 12).map((u) => ({ cells: [link("user", u.user), range(u.estimate, u.width, low, high, `group${k % 6}`), `${payoff(u.estimate)} ± ${payoff(u.width)}`] })), "", `Group ${k + 1}`),
        group.users.length > 12 ? note(`and ${count(group.users.length - 12)} more`) : null),
    );
    main.replaceChildren(
      el("p", {}, el("a", { href: "#/items" }, "Items")),
      el("h1", { tabindex: -1 }, id),
      el("p", { class: "lead" }, "How this item splits the users: within a group, the estimates do not differ yet."),
      el("dl", { class: "figures" }, figure("Groups", count(found.groups.length), `of ${count(found.lookedAt)} users seen last`), figure("Not known yet", count(found.unknown), "users without a payoff here"), figure("Shown of late", count(row.shown)), figure("Average reward", payoff(row.rewarded ? row.earned / row.rewarded : null))),
      parts.length ? el("div", { class: "grid" }, card("", "Where the users stand", swarm(found.groups, low, high, `Estimated payoffs of ${all.length} users in ${found.groups.length} groups`), note("Each dot is a user, at the estimated payoff of this item; the colours are the groups below."))) : "",
      el("div", { class: "grid start" }, parts.length ? parts : el("section", { class: "card" }, el("p", { class: "empty" }, "Nothing was learned on this item yet, so it does not split the users."))),
    );
  };
}
