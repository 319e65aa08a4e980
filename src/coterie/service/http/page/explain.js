// Explains a decision that was made, or that would be made now.
import { Refused, ask } from "./ask.js";
import { count, el, moment, payoff, percent, range } from "./draw.js";
import { card, link, main, note, table } from "./parts.js";

const KINDS = { population: "what anything pays on average", user: "how generous this user is", id: "this action", feature: "actions with this feature", "context × id": "this action in this context", "context × feature": "this feature in this context", "user × id": "this action for this user", "user × feature": "this feature for this user", "user × context × id": "this action for this user in this context" };

// For one model of all users: the parts of each estimate, and what mattered most for the choice.
function inParts(why, by) {
  const chance = Object.fromEntries(why.ranking.map((r) => [r.id, r.probability])), reasons = why.reasons || [];
  const low = Math.min(0, ...reasons.map((r) => r.estimate - r.width)), high = Math.max(0.1, ...reasons.map((r) => r.score));
  const order = why.ranking.map((r) => reasons.find((reason) => reason.id === r.id)).filter(Boolean);
  return [
    shownLine(why, by),
    table([["Action", "id"], ["Estimate and how sure", ""], ["Score", "number"], ["Everybody", "number"], ["Action", "number"], ["Context", "number"], ["User", "number"], ["Probability", "number"]],
      order.map((r) => ({ chosen: r.id === why.chosen, cells: [[link("item", r.id), r.id === why.chosen ? [" ", el("span", { class: "tag strong" }, "shown")] : null], range(r.estimate, r.width, low, high), payoff(r.score), ...[r.population, r.action, r.context, r.user].map(payoff), percent(chance[r.id])] })),
      "The reasons were not recorded.", "Why"),
    note("The estimate is the sum of four parts: what anything pays, and what this action adds for everybody, in this context and for this user. The score adds half a standard deviation; the lower its score, the less often an action is shown."),
    el("h3", {}, "What mattered most for the choice"),
    table([["What", ""], ["Features", "id"], ["Adds", "number"]], (why.contributions || []).map((c) => ({ cells: [KINDS[c.kind] || c.kind, c.features.join(" with ") || "–", payoff(c.value)] })), "Nothing had been learned about it.", "What mattered most"),
  ];
}

const shownLine = (why, by) => el("p", {}, "Shown: ", link("item", why.chosen), ` ${by}. `, why.best !== why.chosen ? ["The policy prefers ", link("item", why.best), ". "] : null, "The baseline is ", link("item", why.baseline), ". ", why.capped ? ["A frequency cap leaves out ", ...why.capped.flatMap((id, k) => [k ? ", " : "", link("item", id)]), ". "] : null, why.allCapped ? "That is every action, so the baseline is shown. " : null, why.unaffordable ? ["The budget leaves out ", ...why.unaffordable.flatMap((id, k) => [k ? ", " : "", link("item", id)]), ". "] : null, why.cost === undefined ? null : `It costs ${why.cost}; a cost of 1 counted as a payoff of −${why.price.toPrecision(3)}.`);

function explanation(why) {
  const chance = Object.fromEntries(why.ranking.map((r) => [r.id, r.probability])), reasons = why.reasons || [];
  const low = Math.min(0, ...reasons.map((r) => r.neighboursEstimate - r.neighboursWidth)), high = Math.max(0.1, ...reasons.map((r) => r.score));
  const by = { best: "because it has the highest score", explored: "by chance, so that the log stays honest", baseline: "because it is the baseline" }[why.shown] || "";
  if (why.contributions) return inParts(why, by);
  const order = why.ranking.map((r) => reasons.find((reason) => reason.id === r.id)).filter(Boolean);
  return [
    shownLine(why, by),
    table([["Action", "id"], ["Their neighbours' view", ""], ["Score", "number"], ["Own estimate", "number"], ["Neighbours", "number"], ["Probability", "number"]],
      order.map((r) => ({ chosen: r.id === why.chosen, cells: [[link("item", r.id), r.id === why.chosen ? [" ", el("span", { class: "tag strong" }, "shown")] : null], range(r.neighboursEstimate, r.neighboursWidth, low, high), payoff(r.score), `${payoff(r.estimate)} ± ${payoff(r.width)}`, count(r.neighbours), percent(chance[r.id])] })),
      "The reasons were not recorded.", "Why"),
    note("The score is the neighbours' average estimate plus their average width: what they may be worth at best."),
  ];
}

export function event(id, still) {
  return async () => {
    const why = await ask(`/v1/events/${encodeURIComponent(id)}`);
    if (!still()) return;
    main.replaceChildren(
      el("h1", { tabindex: -1 }, "Why it was decided so"),
      el("p", { class: "lead" }, "Event ", el("bdi", {}, why.eventId), `, ${moment(why.at)}, for `, why.user === null ? "a user who was forgotten" : link("user", why.user), `; ${why.state}, reward ${payoff(why.reward)}.`),
      el("div", { class: "grid" }, card("", "Reasons", ...explanation(why))),
    );
  };
}

export function whatIf() {
  const answer = el("div", { "aria-live": "polite" });
  const who = el("input", { id: "who", required: true, maxlength: 256, autocomplete: "off", value: sessionStorage.getItem("coterie-who") || "" });
  const what = el("textarea", { id: "what", required: true, spellcheck: "false", "aria-describedby": "what-note" });
  const where = el("textarea", { id: "where", class: "low", spellcheck: "false", "aria-describedby": "where-note" });
  where.rows = 2;
  what.value = sessionStorage.getItem("coterie-what") || "";
  const form = el("form", { onsubmit: (sent) => { sent.preventDefault(); imagine().catch((error) => answer.replaceChildren(el("p", { class: "error", role: "alert" }, error.message))); } },
    el("label", { for: "who" }, "User"), who,
    el("label", { for: "what" }, "Actions"), el("p", { class: "note", id: "what-note" }, "One id per line, or one JSON object per line with id and features."), what,
    el("label", { for: "where" }, "Context (may be empty)"), el("p", { class: "note", id: "where-note" }, "A JSON list of feature objects."), where,
    el("button", { type: "submit" }, "Explain"));
  async function imagine() {
    sessionStorage.setItem("coterie-who", who.value);
    sessionStorage.setItem("coterie-what", what.value);
    const actions = what.value.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => (line.startsWith("{") ? parse(line) : { id: line }));
    const body = { user: who.value, actions, context: where.value.trim() ? parse(where.value) : [] };
    const why = await ask("/v1/what-if", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    answer.replaceChildren(el("h2", {}, "It would be decided so"), ...explanation(why));
  }
  main.replaceChildren(
    el("h1", { tabindex: -1 }, "What if"),
    el("p", { class: "lead" }, "What would be decided for a user now, and why. Nothing is recorded."),
    el("div", { class: "grid" }, el("section", { class: "card", "aria-label": "Question" }, form), el("section", { class: "card", "aria-label": "Answer" }, answer)),
  );
  answer.replaceChildren(el("p", { class: "empty" }, "Ask, and the reasons appear here."));
  return async () => {
    if (what.value) return;
    const found = await ask("/v1/items?limit=6"), someone = await ask("/v1/users?limit=1");
    if (!what.value) what.value = found.items.map((i) => (i.id.startsWith("{") ? JSON.stringify({ id: i.id }) : i.id)).join("\n");
    if (!who.value && someone.users.length) who.value = someone.users[0].id;
  };
}

function parse(text) {
  try { return JSON.parse(text); } catch (error) { throw new Refused(`This is not JSON: ${error.message}`); }
}
