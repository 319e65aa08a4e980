// Navigation: the part of the address after # names the view, so that ids never reach a server's log.
import { Refused, locked, onKey } from "./ask.js";
import { el, shown } from "./draw.js";
import { evaluation, evaluations } from "./evaluations.js";
import { event, whatIf } from "./explain.js";
import { isPaused, overview } from "./overview.js";
import { live, main } from "./parts.js";
import { item, items, user, users } from "./people.js";

let timer = 0, turn = 0;

const PAGES = new Map(Object.entries({ "": overview, users, items, "what-if": whatIf, evaluations }));
const LIVE = new Set([overview, evaluations, evaluation]);  // asked for again every three seconds
const ONES = new Map(Object.entries({ user, item, event, evaluation }));  // of one, whose id follows

// A mistyped address.
function nothing() {
  return async () => {
    main.replaceChildren(
      el("h1", { tabindex: -1 }, "There is no such page"),
      el("p", { class: "lead" }, `Nothing is at ${location.hash}. `, el("a", { href: "#/" }, "Go to the overview"), "."),
    );
  };
}

function failed(error) {
  live.textContent = error instanceof Refused ? error.message : "The service cannot be reached.";
  live.className = "bad";
}

async function go(focus) {
  clearInterval(timer);
  const mine = ++turn, [, name = "", rest = ""] = /^#\/([^/]*)\/?(.*)$/.exec(location.hash || "#/") || [null, location.hash];
  let id = rest;
  try { id = decodeURIComponent(rest); } catch { /* as it stands */ }
  const page = (id ? ONES : PAGES).get(name) || nothing, section = { user: "users", item: "items", event: "", evaluation: "evaluations" }[name] ?? name;
  for (const anchor of document.querySelectorAll("nav a"))
    if (anchor.getAttribute("href") === `#/${section}`) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  document.title = id ? `${shown(id)} · coterie` : "coterie";
  live.className = "";
  live.textContent = "";
  const refresh = page(id, () => mine === turn);
  const again = async () => {
    try { await refresh(); live.className = ""; } catch (error) {
      if (mine !== turn) return;
      failed(error);
      if (!main.querySelector("h1")) main.replaceChildren(el("h1", { tabindex: -1 }, "This cannot be shown"), el("p", { class: "error" }, live.textContent));
    }
  };
  if (id) main.replaceChildren();
  await again();
  if (mine !== turn) return;
  if (focus === true) { main.querySelector("h1")?.focus(); scrollTo(0, 0); }
  main.dataset.ready = String(mine);
  if (LIVE.has(page)) timer = setInterval(() => { if (!(page === overview && isPaused()) && !document.hidden && !locked()) again(); }, 3000);
}

document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => go(true));
onKey(() => go());
go();
